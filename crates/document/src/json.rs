//! Faults of JSON.

use serde_json::error::Category;

use crate::{Fault, in_words, line_at};

/// From this column on a fault's column is told.
const WIDE: usize = 80;

/// What an error of reading JSON says.
pub fn json_fault(error: &serde_json::Error) -> Fault {
    let text = error.to_string();
    let line = (error.line() > 0).then(|| error.line());
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = text.strip_suffix(&position).unwrap_or(&text);
    let message = match error.classify() {
        Category::Syntax | Category::Eof => {
            // In a long line it is not seen at once.
            let column = match error.column() {
                WIDE.. => format!(", at column {}", error.column()),
                _ => String::new(),
            };
            format!("it is no JSON: {}{column}", syntax(message))
        }
        Category::Data | Category::Io => in_words(message),
    };
    Fault { line, message }
}

/// What breaks the syntax.
fn syntax(message: &str) -> &str {
    match message {
        "EOF while parsing a list" => "the text ends within a list, which needs its `]`",
        "EOF while parsing an object" => "the text ends within an object, which needs its `}`",
        "EOF while parsing a string" => "the text ends within a string, which needs its quote",
        "EOF while parsing a value" => "the text ends where a value is needed",
        "expected value" => "a value is needed here",
        "trailing characters" => "something stands behind the end of the value",
        "trailing comma" => "a comma stands behind the last value",
        "key must be a string" => "a key in quotes is needed here",
        other => other,
    }
}

/// Likewise, with the key that the error is within and the line where that stands: a value that is read as a whole
/// is only found wrong at its end.
pub fn json_fault_in(text: &str, error: &serde_json::Error) -> Fault {
    let fault = json_fault(error);
    if !matches!(error.classify(), Category::Data | Category::Io) {
        return fault;
    }
    match key_at(text, error.line(), error.column()) {
        Some((key, line)) => {
            Fault { line: Some(line), message: format!("{key}: {}", fault.message) }
        }
        None => fault,
    }
}

/// The keys of the objects that are open before a place in a text, joined by dots, and the line of the innermost.
fn key_at(text: &str, line: usize, column: usize) -> Option<(String, usize)> {
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let place = start + column.saturating_sub(1);
    let bytes = text.as_bytes();
    let mut path = Path::default();
    path.follow(text, place, |_| ());
    let Path(mut path) = path;
    // At its end an object is wrong as a whole.
    if matches!(bytes.get(place), Some(b'}' | b']'))
        && let Some(last) = path.last_mut()
    {
        *last = None;
    }
    let keys: Vec<(&str, usize)> = path.into_iter().flatten().collect();
    let &(_, innermost) = keys.last()?;
    let names: Vec<&str> = keys.iter().map(|&(name, _)| name).collect();
    Some((names.join("."), line_at(text, innermost)))
}

/// The line where the value of a key stands in a JSON object (`a.b` is `b` in the object `a`), or that of the longest
/// part of the key that is there.
pub fn json_line_of(text: &str, key: &str) -> Option<usize> {
    json_line_of_path(text, &key.split('.').collect::<Vec<_>>())
}

/// Likewise, of the last of these keys, each in the object of the one before; they may have dots.
pub fn json_line_of_path(text: &str, wanted: &[&str]) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    Path::default().follow(text, text.len(), |path| {
        let names = path.iter().map(|key| key.map(|(name, _)| name));
        let is_part =
            path.len() <= wanted.len() && names.zip(wanted).all(|(name, part)| name == Some(part));
        let at = path.last().copied().flatten().map(|(_, at)| at);
        if is_part && best.is_none_or(|(depth, _)| path.len() > depth) {
            best = at.map(|at| (path.len(), at));
        }
    });
    best.map(|(_, at)| line_at(text, at))
}

/// The key whose value is read in each object around a place in a text, with the byte where it begins; a list has none.
#[derive(Default)]
struct Path<'t>(Vec<Option<(&'t str, usize)>>);

impl<'t> Path<'t> {
    /// Goes on from the begin of a text to so many bytes of it, and tells of each key.
    fn follow(
        &mut self,
        text: &'t str,
        end: usize,
        mut tell: impl FnMut(&[Option<(&'t str, usize)>]),
    ) {
        let bytes = text.as_bytes();
        let path = &mut self.0;
        let mut at = 0;
        while at < bytes.len().min(end) {
            match bytes[at] {
                b'{' | b'[' => path.push(None),
                b'}' | b']' | b',' => {
                    if bytes[at] != b',' {
                        path.pop();
                    }
                    // Its value has ended.
                    if let Some(last) = path.last_mut() {
                        *last = None;
                    }
                }
                b'"' => {
                    let end = end_of_string(bytes, at + 1);
                    let mut behind = bytes[end..].iter().skip(1);
                    let behind = behind.find(|byte| !byte.is_ascii_whitespace());
                    if behind == Some(&b':')
                        && let Some(last) = path.last_mut()
                    {
                        *last = text.get(at + 1..end).map(|key| (key, at));
                        tell(path);
                    }
                    at = end;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Where the string ends that begins at a byte: its closing quote, or the end of the text.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}
