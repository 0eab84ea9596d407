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
    let key = error.span().and_then(|span| key_within(table.get_ref(), "", span.start));
    let message = match key {
        Some(key) if !names_key(&message, &key) => format!("{key}: {message}"),
        _ => message,
    };
    Fault { line, message }
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

/// The key of the innermost value of `table` at a place in the text. A table's own text is only its
/// header, so all are looked into.
fn key_within(table: &DeTable<'_>, prefix: &str, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let dot = if prefix.is_empty() { "" } else { "." };
        key_of(value, format!("{prefix}{dot}{}", key.get_ref()), at)
    })
}

fn key_of(value: &Spanned<DeValue<'_>>, key: String, at: usize) -> Option<String> {
    let inner = match value.get_ref() {
        DeValue::Table(table) => key_within(table, &key, at),
        DeValue::Array(array) => {
            let mut items = array.iter().enumerate();
            items.find_map(|(index, item)| key_of(item, format!("{key}[{index}]"), at))
        }
        _ => None,
    };
    inner.or_else(|| value.span().contains(&at).then_some(key))
}
