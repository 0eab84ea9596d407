//! A JSON object in each line.

use std::path::{Path, PathBuf};

use serde_json::Value;
use shardloom_document::json_value;

use super::LONGEST;
use crate::blocks::Blocks;
use crate::{DataError, Result};

/// The texts of a file of JSON objects, one in each line.
pub(crate) struct JsonLines<'a> {
    path: PathBuf,
    blocks: Blocks,
    /// Which field of an object is the text.
    field: &'a str,
    /// What has been read of lines to come, where the next begins, and what has been looked through for its end.
    read: String,
    start: usize,
    searched: usize,
    line: u64,
    ended: bool,
}

impl<'a> JsonLines<'a> {
    /// Opens a file.
    pub fn open(path: &Path, field: &'a str) -> Result<JsonLines<'a>> {
        Ok(JsonLines {
            path: path.to_path_buf(),
            blocks: Blocks::open(path)?,
            field,
            read: String::new(),
            start: 0,
            searched: 0,
            line: 0,
            ended: false,
        })
    }

    /// The next text; none behind the last. Blank lines are passed over.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is no object with such a text.
    pub fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(found) = self.read[self.searched..].find('\n') {
                let end = self.searched + found;
                let line = self.start..end;
                (self.start, self.searched) = (end + 1, end + 1);
                self.line += 1;
                if let Some(text) = self.text(line)? {
                    return Ok(Some(text));
                }
                continue;
            }
            self.searched = self.read.len();
            if self.ended {
                let line = self.start..self.read.len();
                self.start = self.read.len();
                self.line += 1;
                return self.text(line);
            }
            self.read.drain(..self.start);
            (self.start, self.searched) = (0, self.read.len());
            if self.read.len() > LONGEST {
                return Err(DataError::NoCut { path: self.path.clone(), bytes: self.read.len() });
            }
            match self.blocks.next()? {
                Some(block) => match block.text {
                    Ok(text) => self.read.push_str(text),
                    Err(offset) => {
                        return Err(DataError::NotText { path: self.path.clone(), offset });
                    }
                },
                None => self.ended = true,
            }
        }
    }

    fn text(&self, line: std::ops::Range<usize>) -> Result<Option<String>> {
        let line = self.read[line].trim();
        if line.is_empty() {
            return Ok(None);
        }
        let wrong = |reason: String| {
            let (path, line) = (self.path.clone(), self.line);
            DataError::Document { path, line, reason }
        };
        let value = json_value(line).map_err(|fault| wrong(fault.message))?;
        let Value::Object(mut object) = value else {
            return Err(wrong("it is no JSON object".into()));
        };
        match object.remove(self.field) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(format!("its field {:?} is no text", self.field))),
            None => {
                let fields: Vec<&str> = object.keys().map(String::as_str).collect();
                let fields = fields.join(", ");
                Err(wrong(format!(
                    "it has no field {:?}, but {fields}: say which with --text-field",
                    self.field
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn texts(content: &[u8], field: &str) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("documents.jsonl");
        fs::write(&path, content).expect("a temporary file");
        let mut documents = JsonLines::open(&path, field)?;
        std::iter::from_fn(|| documents.next().transpose()).collect()
    }

    #[test]
    fn each_line_is_a_text_and_blank_lines_are_none() {
        let content = "{\"text\": \"one\\ntwo\", \"id\": 3}\n\n \r\n{\"id\": {\"text\": 1}, \"text\": \"\"}\r\n{\"text\": \"é\"}";
        assert_eq!(texts(content.as_bytes(), "text").expect("texts"), ["one\ntwo", "", "é"]);
        assert_eq!(texts(b"{\"body\": \"b\"}\n", "body").expect("texts"), ["b"]);
        assert_eq!(texts(b"", "text").expect("none"), [""; 0]);
    }

    #[test]
    fn lines_across_blocks_are_whole() {
        let long = "x₤".repeat(200_000);
        let lines: Vec<String> = (0..5).map(|at| format!("{at}{long}")).collect();
        let content: String = lines.iter().map(|it| format!("{{\"text\":{it:?}}}\n")).collect();
        assert_eq!(texts(content.as_bytes(), "text").expect("texts"), lines);
    }

    #[test]
    fn what_is_no_document_is_named_by_its_line() {
        for (content, part) in [
            (&b"{\"text\": \"a\"}\n{\"text\": \n"[..], "documents.jsonl:2: it is no JSON"),
            (b"\n[1]\n", "documents.jsonl:2: it is no JSON object"),
            (b"{\"text\": 7}\n", "documents.jsonl:1: its field \"text\" is no text"),
            (
                b"{\"body\": \"b\", \"id\": 1}",
                "no field \"text\", but body, id: say which with --text-field",
            ),
            // Behind the last line's text there need not be an end of the line.
            (b"{\"text\": \"a\"}\n\n[1]", "documents.jsonl:3: it is no JSON object"),
            (b"[1]", "documents.jsonl:1: it is no JSON object"),
            (b"{\"text\": \"\xff\"}\n", "not UTF-8 text at byte 10"),
        ] {
            let message = texts(content, "text").expect_err("no document").to_string();
            assert!(message.contains("documents.jsonl") && message.contains(part), "{message}");
        }
    }
}
