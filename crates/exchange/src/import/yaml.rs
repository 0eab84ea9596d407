//! YAML as the values that JSON has.
//!
//! Events are put together here, and not by the parser's own loader, which calls itself for every level and
//! copies what aliases name: a small file could take all memory.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use shardloom_document::Fault;
use yaml_rust2::parser::Parser;
use yaml_rust2::scanner::TScalarStyle;
use yaml_rust2::{Event, Yaml};

/// Levels that no configuration has.
const DEEPEST: usize = 64;

/// A list or table that is not complete.
enum Open {
    List(Vec<Value>),
    /// With the word whose value comes next.
    Table(Map<String, Value>, Option<String>),
}

/// The first document of a text, and on which lines the words of its tables stand, by their paths (`a.b`).
pub(super) fn read(text: &str) -> Result<(Value, BTreeMap<String, usize>), Fault> {
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<Open> = vec![];
    let mut lines = BTreeMap::new();
    loop {
        let (event, at) = parser.next_token().map_err(|error| Fault {
            line: Some(error.marker().line()),
            message: format!("it is no YAML: {}", error.info()),
        })?;
        let wrong = |message: String| Fault { line: Some(at.line()), message };
        let complete = match event {
            Event::Scalar(text, style, _, _) => scalar(text, style),
            Event::SequenceStart(..) => {
                open.push(Open::List(vec![]));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Table(Map::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|it| match it {
                Open::List(values) => Value::Array(values),
                Open::Table(map, _) => Value::Object(map),
            }),
            Event::Alias(_) => {
                return Err(wrong("write out what the alias stands for".into()));
            }
            Event::DocumentEnd | Event::StreamEnd => return Err(wrong("is empty".into())),
            Event::Nothing | Event::StreamStart | Event::DocumentStart => None,
        };
        if open.len() > DEEPEST {
            return Err(wrong(format!("nested deeper than {DEEPEST} levels")));
        }
        let Some(value) = complete else { continue };
        let within = path_of(&open);
        match open.last_mut() {
            None => return Ok((value, lines)),
            Some(Open::List(values)) => values.push(value),
            Some(Open::Table(map, word)) => match (word.take(), value) {
                (Some(word), value) => {
                    map.insert(word, value);
                }
                (None, Value::String(text)) => {
                    lines.insert(format!("{within}{text}"), at.line());
                    *word = Some(text);
                }
                (None, other) => {
                    return Err(wrong(format!("a word is a string, and {other} is none")));
                }
            },
        }
    }
}

/// What the paths of words begin with in the innermost of tables that are not complete.
fn path_of(open: &[Open]) -> String {
    let words = open.iter().filter_map(|it| match it {
        Open::List(_) => None,
        Open::Table(_, word) => word.as_deref(),
    });
    words.map(|word| format!("{word}.")).collect()
}

/// The value of a scalar: text if it is quoted, else what it looks like.
fn scalar(text: String, style: TScalarStyle) -> Option<Value> {
    if style != TScalarStyle::Plain {
        return Some(Value::String(text));
    }
    Some(match Yaml::from_str(&text) {
        Yaml::Null => Value::Null,
        Yaml::Boolean(flag) => Value::Bool(flag),
        Yaml::Integer(number) => Value::from(number),
        // Numbers that JSON does not have stay text.
        real @ Yaml::Real(_) => match real.as_f64().filter(|number| number.is_finite()) {
            Some(number) => Value::from(number),
            None => Value::String(text),
        },
        _ => Value::String(text),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read;

    #[test]
    fn scalars_lists_and_tables_are_what_they_look_like() {
        let text = "a: 1\nb:\n  c: [x, 1.0e-05, null]\n  d: '1'\ne: true\nf: 1f1b\n";
        let wanted =
            json!({ "a": 1, "b": { "c": ["x", 1e-5, null], "d": "1" }, "e": true, "f": "1f1b" });
        assert_eq!(read(text).map(|(value, _)| value), Ok(wanted));
    }

    #[test]
    fn words_have_lines() {
        let (_, lines) = read("a: 1\nb:\n  c:\n    - d: 2\n  e: 3\n").expect("YAML");
        let line = |path: &str| lines.get(path).copied();
        assert_eq!(
            ["a", "b", "b.c", "b.e", "e"].map(line),
            [1, 2, 3, 5, 0].map(|it| (it > 0).then_some(it))
        );
    }

    #[test]
    fn words_have_lines_however_deep_they_are() {
        let (_, lines) =
            read("a:\n  b:\n    c:\n      d:\n        e: 1\n    f: 2\nb: 3\n").expect("YAML");
        let expected = [("a", 1), ("a.b", 2), ("a.b.c", 3), ("a.b.c.d", 4), ("a.b.c.d.e", 5)];
        let expected = expected.into_iter().chain([("a.b.f", 6), ("b", 7)]);
        let expected: Vec<_> = expected.map(|(path, line)| (path.to_owned(), line)).collect();
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_would_take_all_memory_is_refused() {
        let nested = |levels: usize| read(&("[".repeat(levels) + &"]".repeat(levels)));
        nested(64).expect("deep enough");
        let deep = nested(65).expect_err("too deep");
        assert_eq!(deep.to_string(), "line 1: nested deeper than 64 levels");
        nested(100_000).expect_err("too deep");
        let alias = read("a: &a [1]\nb: [*a, *a]\n").expect_err("an alias");
        assert_eq!(alias.to_string(), "line 2: write out what the alias stands for");
        for wrong in ["", "a: [", "1: 2"] {
            read(wrong).expect_err(wrong);
        }
    }
}
