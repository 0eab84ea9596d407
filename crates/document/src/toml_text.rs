//! Faults of TOML.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{Fault, in_words, line_at};

/// What an error of reading `text` says.
pub fn toml_fault(text: &str, error: &toml::de::Error) -> Fault {
    let line = error.span().map(|span| line_at(text, span.start));
    let Ok(table) = DeTable::parse(text) else {
        return Fault { line, message: format!("it is no TOML: {}", error.message().trim_end()) };
    };
    let message = in_words(error.message());
    let found = error.span().and_then(|span| key_within(table.get_ref(), "", span.start));
    let Some((key, value)) = found else { return Fault { line, message } };
    // Of some tables only the beginning is known.
    let within = match value.get_ref() {
        DeValue::Table(table) => within(table, error.message()),
        _ => None,
    };
    let (key, line) = match within {
        Some((name, at)) => (format!("{key}.{name}"), Some(line_at(text, at))),
        None => (key, line),
    };
    match names_key(&message, &key) {
        true => Fault { line, message },
        false => Fault { line, message: format!("{key}: {message}") },
    }
}

/// The line where the value of a key stands in a text (`pipeline[0].stage[1].blocks`), or that of the longest part
/// of the key that is there.
pub fn toml_line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut names = key.split(['.', '[']).map(|name| name.trim_end_matches(']'));
    let mut value = table.get_ref().get(names.next()?)?;
    for name in names {
        let inner = match value.get_ref() {
            DeValue::Table(table) => table.get(name),
            DeValue::Array(array) => name.parse().ok().and_then(|index: usize| array.get(index)),
            _ => None,
        };
        match inner {
            Some(inner) => value = inner,
            None => break,
        }
    }
    Some(line_at(text, value.span().start))
}

/// Whether a message says already which key it is about.
fn names_key(message: &str, key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    message.starts_with("unknown key")
        || message.starts_with("the key")
        || message.starts_with(name)
}

/// The key of a table that an error is about, as far as its message says, and the byte where it stands.
fn within<'t>(table: &'t DeTable<'_>, message: &str) -> Option<(&'t str, usize)> {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let wrong = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| message.strip_prefix(kind))
        .and_then(|rest| rest.rsplit_once(", expected "));
    let is_meant = |key: &str, value: &DeValue<'_>| match (unknown, wrong) {
        (Some(unknown), _) => key == unknown,
        (None, Some((found, _))) => is_called(value, found),
        (None, None) => false,
    };
    let (key, _) = table.iter().find(|(key, value)| is_meant(key.get_ref(), value.get_ref()))?;
    Some((key.get_ref(), key.span().start))
}

/// Whether Serde calls a value so.
fn is_called(value: &DeValue<'_>, found: &str) -> bool {
    let number = |kind: &str, text: &str| {
        let quoted = found.strip_prefix(kind).and_then(|rest| rest.split('`').nth(1));
        quoted.is_some_and(|it| it.parse::<f64>().ok() == text.replace('_', "").parse().ok())
    };
    match value {
        DeValue::String(text) => found == format!("string {text:?}"),
        DeValue::Integer(integer) => number("integer ", integer.as_str()),
        DeValue::Float(float) => number("floating point ", float.as_str()),
        DeValue::Boolean(flag) => found == format!("boolean `{flag}`"),
        DeValue::Array(_) => found == "sequence",
        DeValue::Table(_) => found == "map",
        DeValue::Datetime(_) => false,
    }
}

/// The key of the innermost value of `table` at a place in the text, and the value. A table's own text is only its
/// header, so all are looked into.
fn key_within<'t, 'i>(
    table: &'t DeTable<'i>,
    prefix: &str,
    at: usize,
) -> Option<(String, &'t Spanned<DeValue<'i>>)> {
    table.iter().find_map(|(key, value)| {
        let dot = if prefix.is_empty() { "" } else { "." };
        key_of(value, format!("{prefix}{dot}{}", key.get_ref()), at)
    })
}

fn key_of<'t, 'i>(
    value: &'t Spanned<DeValue<'i>>,
    key: String,
    at: usize,
) -> Option<(String, &'t Spanned<DeValue<'i>>)> {
    let inner = match value.get_ref() {
        DeValue::Table(table) => key_within(table, &key, at),
        DeValue::Array(array) => {
            let mut items = array.iter().enumerate();
            items.find_map(|(index, item)| key_of(item, format!("{key}[{index}]"), at))
        }
        _ => None,
    };
    inner.or_else(|| value.span().contains(&at).then_some((key, value)))
}
