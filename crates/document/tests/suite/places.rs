//! Lines of keys, against texts in which every number is that of its line.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use shardloom_document::{
    Fault, at_line, json_fault, json_line_of, json_line_of_path, line_at, toml_fault, toml_line_of,
};

/// Keys of all kinds, and texts that look as if they were more of them.
const JSON: &str = r#"{
"first": 2, "beside": 2,
"text": "} ] , \" \\", "behind": 3,
"like a key": "\"first\": {", "text2": "first",
"inner": {
"first": 6,
"inner": {"first": 7, "last": {
"deep": 8}}
, "list": [9, 9, {"first": "of a list"}],
"after": 10},
"é": 11, "a.b": 11,
  "empty": {}, "none": [],
"last": 13}
"#;

/// Every number that stands in no list, with the keys that lead to it.
fn numbers(value: &Value, path: &[String], found: &mut Vec<(Vec<String>, usize)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                numbers(value, &[path, std::slice::from_ref(key)].concat(), found);
            }
        }
        Value::Number(number) => {
            found.push((path.to_vec(), number.as_u64().expect("a line") as usize));
        }
        _ => {}
    }
}

#[test]
fn every_key_of_a_json_text_is_found_on_its_line() {
    let value: Value = serde_json::from_str(JSON).expect("JSON");
    let mut all = vec![];
    numbers(&value, &[], &mut all);
    assert_eq!(all.len(), 10);
    for (path, line) in &all {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        assert_eq!(json_line_of_path(JSON, &path), Some(*line), "{path:?}");
        if path.iter().all(|key| !key.contains('.')) {
            assert_eq!(json_line_of(JSON, &path.join(".")), Some(*line), "{path:?}");
        }
        // What is asked for within a number is not there, and the number is.
        let longer = [&path[..], &["more"]].concat();
        assert_eq!(json_line_of_path(JSON, &longer), Some(*line), "{longer:?}");
    }
    for (path, line) in [
        (&["inner"][..], Some(5)),
        (&["inner", "more"], Some(5)),
        (&["inner", "inner"], Some(7)),
        (&["inner", "inner", "last", "more"], Some(7)),
        (&["inner", "list"], Some(9)),
        // Keys in lists have no path.
        (&["inner", "list", "first"], Some(9)),
        (&["like a key"], Some(4)),
        (&["empty", "first"], Some(12)),
        (&["deep"], None),
        (&["more"], None),
        (&[], None),
    ] {
        assert_eq!(json_line_of_path(JSON, path), line, "{path:?}");
    }
}

const TOML: &str = r#"a = 1
[b]
c = 3
list = [
  5, 5,
  6,
]
text = "b.c = 9"
[b.inner]
"d" = 10
lists = [[11, 11], [
12]]
[[stage]]
blocks = 14
inline = { x = 15, y = { z = 15 } }
[[stage]]
blocks = 17
[stage.mesh]
dp = 19
"#;

/// Every number, with the key that leads to it.
fn toml_numbers(value: &toml::Value, key: &str, found: &mut Vec<(String, usize)>) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let dot = if key.is_empty() { "" } else { "." };
                toml_numbers(value, &format!("{key}{dot}{name}"), found);
            }
        }
        toml::Value::Array(all) => {
            for (index, value) in all.iter().enumerate() {
                toml_numbers(value, &format!("{key}[{index}]"), found);
            }
        }
        toml::Value::Integer(line) => found.push((key.to_owned(), *line as usize)),
        _ => {}
    }
}

#[test]
fn every_key_of_a_toml_text_is_found_on_its_line() {
    let value: toml::Value = toml::from_str(TOML).expect("TOML");
    let mut all = vec![];
    toml_numbers(&value, "", &mut all);
    assert_eq!(all.len(), 14);
    for (key, line) in &all {
        assert_eq!(toml_line_of(TOML, key), Some(*line), "{key}");
        assert_eq!(toml_line_of(TOML, &format!("{key}.more")), Some(*line), "{key}.more");
    }
    for (key, line) in [
        ("b", Some(2)),
        ("b.list", Some(4)),
        ("b.list[3]", Some(4)),
        ("b.list[x]", Some(4)),
        ("b.inner", Some(9)),
        ("b.inner.lists[1]", Some(11)),
        ("b.inner.lists[1][1]", Some(11)),
        ("stage[0]", Some(13)),
        ("stage[1].more", Some(16)),
        ("stage[1].mesh", Some(18)),
        ("stage[0].inline.y.more", Some(15)),
        ("c", None),
        ("", None),
    ] {
        assert_eq!(toml_line_of(TOML, key), line, "{key}");
    }
    assert_eq!(toml_line_of("a = \n", "a"), None, "it is no TOML");
}

/// Its rate has a rule of its own.
#[derive(Debug, Deserialize)]
#[allow(dead_code)] // Only how it is refused matters.
struct Settings {
    #[serde(deserialize_with = "above_zero")]
    rate: f64,
    #[serde(default)]
    rule: Option<Rule>,
    #[serde(default)]
    inner: Vec<Settings>,
}

fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = f64::deserialize(deserializer)?;
    match rate {
        0.0 => Err(serde::de::Error::custom("rate is above 0")),
        rate if rate < 0.0 => Err(serde::de::Error::custom("a number above 0 is needed as a rate")),
        rate => Ok(rate),
    }
}

/// Its form depends on a word in it, so that the library forgets where its values stood.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(dead_code)] // Only how it is refused matters.
enum Rule {
    Steps { decay: f64, name: String, on: bool, many: Vec<u8> },
}

fn of_toml(text: &str) -> String {
    let error = toml::from_str::<Settings>(text).expect_err(text);
    toml_fault(text, &error).to_string()
}

#[test]
fn a_key_stands_before_what_is_wrong_unless_that_begins_with_it() {
    for (text, said) in [
        ("rate = \"rate\"", "line 1: rate: a number is needed, not the text \"rate\""),
        ("\nrate = 0", "line 2: rate is above 0"),
        ("\nrate = -1", "line 2: rate: a number above 0 is needed as a rate"),
        ("rate = 1\n[[inner]]\nrate = 2\n[[inner]]\nrate = 0", "line 5: rate is above 0"),
        (
            "rate = 1\n[[inner]]\nrate = 2\n[[inner]]\nrate = []",
            "line 5: inner[1].rate: a number is needed, not a list",
        ),
        (
            "rate = 1\ninner = [\n{ rate = 2 },\n{ rate = true }]",
            "line 4: inner[1].rate: a number is needed, not true",
        ),
        ("inner = []", "line 1: the key `rate` is missing"),
        // What is of several lines is where it begins.
        ("\nrate = [\n1,\n2,\n]\n", "line 2: rate: a number is needed, not a list"),
        ("\nrate = \"\"\"\na\n\"\"\"\n", "line 2: rate: a number is needed, not the text \"a\\n\""),
    ] {
        assert_eq!(of_toml(text), said, "{text}");
    }
}

#[test]
fn values_of_all_kinds_are_found_again_in_a_table_of_a_kind() {
    let sound = [("decay", "0.5"), ("name", "\"x\""), ("on", "true"), ("many", "[1]")];
    for (key, value, said) in [
        ("decay", "\"fast\"", "a number is needed, not the text \"fast\""),
        ("decay", "false", "a number is needed, not false"),
        ("decay", "[]", "a number is needed, not a list"),
        ("decay", "{ x = 1 }", "a number is needed, not a table"),
        ("name", "1_000", "text in quotes is needed, not 1000"),
        ("name", "1_000.5", "text in quotes is needed, not 1000.5"),
        ("name", "-7", "text in quotes is needed, not -7"),
        ("on", "\"a \\\"word\\\"\"", "true or false is needed, not the text \"a \\\"word\\\"\""),
        ("on", "3", "true or false is needed, not 3"),
        ("many", "7", "a list is needed, not 7"),
    ] {
        let mut text = "rate = 1\n[rule]\nkind = \"steps\"\n".to_owned();
        let mut at = 0;
        for (line, (name, usual)) in (4..).zip(sound) {
            let is_wrong = name == key;
            at = if is_wrong { line } else { at };
            text += &format!("{name} = {}\n", if is_wrong { value } else { usual });
        }
        let said = format!("line {at}: rule.{key}: {said}");
        assert_eq!(of_toml(&text), said, "{text}");
    }
    // A number that is there twice is not known to be the one, and the first is named.
    let lacking = "rate = 1\n[rule]\nkind = \"steps\"\ndecay = 1\n";
    assert_eq!(of_toml(lacking), "line 2: the key `name` is missing");
}

#[test]
fn a_document_is_named_with_the_line_where_one_is_known() {
    let of = |line| Fault { line, message: "it is wrong".into() };
    assert_eq!(of(Some(4)).place("plan.toml"), "plan.toml:4");
    assert_eq!(of(None).place("plan.toml"), "plan.toml");
    assert_eq!(of(Some(4)).to_string(), "line 4: it is wrong");
    assert_eq!(of(None).to_string(), "it is wrong");
    assert_eq!((at_line("a", Some(1)), at_line("a", None)), ("a:1".into(), "a".into()));
}

#[test]
fn the_line_of_a_byte_is_one_more_than_the_ends_of_lines_before_it() {
    let text = "\nab\n\nc";
    let lines: Vec<usize> = (0..8).map(|at| line_at(text, at)).collect();
    assert_eq!(lines, [1, 2, 2, 2, 3, 4, 4, 4]);
    assert_eq!(line_at("", 5), 1);
    assert_eq!(line_at("a\n", 5), 2);
}

/// Of shorter lines it is seen at once.
#[test]
fn columns_are_told_from_the_eightieth_on() {
    for (column, is_told) in [(2, false), (78, false), (79, false), (80, true), (81, true)] {
        let text = format!("[{}x]", " ".repeat(column - 2));
        let error = serde_json::from_str::<Value>(&text).expect_err("a letter");
        assert_eq!(error.column(), column);
        let told = if is_told { format!(", at column {column}") } else { String::new() };
        let said = format!("it is no JSON: a value is needed here{told}");
        assert_eq!(json_fault(&error), Fault { line: Some(1), message: said });
    }
}

#[test]
fn every_way_in_which_json_breaks_off_is_said() {
    for (text, said) in [
        ("[1", "the text ends within a list, which needs its `]`"),
        ("{\"a\": 1", "the text ends within an object, which needs its `}`"),
        ("\"a", "the text ends within a string, which needs its quote"),
        ("[", "the text ends within a list, which needs its `]`"),
        ("{\"a\":", "the text ends where a value is needed"),
        ("{\"a\": ,}", "a value is needed here"),
        ("1 2", "something stands behind the end of the value"),
        ("[1,]", "a comma stands behind the last value"),
        ("{1: 2}", "a key in quotes is needed here"),
    ] {
        let error = serde_json::from_str::<Value>(text).expect_err(text);
        assert_eq!(json_fault(&error).message, format!("it is no JSON: {said}"), "{text}");
    }
}
