//! The index of weights in several files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use shardloom_document::{Fault, json_line_of, json_line_of_path, json_value};

/// By the name of a file which tensors it has, as an index says that Hugging Face's library writes beside weights in
/// several files (`model.safetensors.index.json`).
///
/// # Errors
/// What is wrong with it: it must have a `weight_map` of names of tensors and of files of its own folder.
pub fn files_of_index(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>, Fault> {
    let index = json_value(text)?;
    let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| Fault {
        line: json_line_of(text, "weight_map").or(Some(1)),
        message: "weight_map must be an object of names and files".into(),
    })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, value) in map {
        let file = value.as_str().filter(|file| is_plain(file)).ok_or_else(|| Fault {
            line: line_in_index(text, name),
            message: format!(
                "weight_map: {name} is in {value}, but files are names without folders"
            ),
        })?;
        files.entry(file.to_owned()).or_default().insert(name.clone());
    }
    Ok(files)
}

/// The line of an index that says which file a tensor is in.
pub fn line_in_index(text: &str, tensor: &str) -> Option<usize> {
    json_line_of_path(text, &["weight_map", tensor])
}

/// Whether a text names a file of the same folder.
fn is_plain(file: &str) -> bool {
    Path::new(file).file_name().is_some_and(|name| name == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_tensors_that_name_it() {
        let text = r#"{"metadata": {}, "weight_map": {"a": "1.st", "b": "2.st", "c": "1.st"}}"#;
        let files = files_of_index(text).expect("an index");
        let of = |file: &str| files[file].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!((files.len(), of("1.st"), of("2.st")), (2, vec!["a", "c"], vec!["b"]));
    }

    #[test]
    fn files_of_other_folders_are_refused() {
        for file in ["../1.st", "/etc/passwd", "a/1.st", "..", ""] {
            let text = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
            let error = files_of_index(&text).expect_err(file);
            let rule = format!(
                "line 1: weight_map: a is in {file:?}, but files are names without folders"
            );
            assert_eq!(error.to_string(), rule);
        }
        let lines = "{\"weight_map\": {\n\"a.b\": \"1.st\",\n\"a.c\": 7}}";
        let error = files_of_index(lines).expect_err("a number");
        assert_eq!(
            error.to_string(),
            "line 3: weight_map: a.c is in 7, but files are names without folders"
        );
        let error = files_of_index("{}").expect_err("no map");
        assert_eq!(error.to_string(), "line 1: weight_map must be an object of names and files");
        let error = files_of_index(r#"{"weight_map": []}"#).expect_err("a list");
        assert_eq!(error.to_string(), "line 1: weight_map must be an object of names and files");
    }
}
