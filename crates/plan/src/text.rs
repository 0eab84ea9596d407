//! The TOML form of a plan.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{FORMAT, Plan, PlanError};

impl Plan {
    /// Reads a plan; `place` names the text in errors (a path).
    ///
    /// # Errors
    /// If the text is no TOML, has unknown, missing or ill-typed keys (named with their line), or is of
    /// another format version.
    pub fn from_toml(text: &str, place: &str) -> Result<Plan, PlanError> {
        // The version is looked at first, so that a plan of a later version is not refused for a key.
        if let Ok(table) = text.parse::<toml::Table>() {
            match table.get("format") {
                Some(format) if format.as_integer() == Some(i64::from(FORMAT)) => {}
                Some(format) => {
                    let message = format!("format = {format}, but this version reads {FORMAT}");
                    return Err(PlanError::Text { place: place.into(), message });
                }
                None => {
                    let message = format!("no key `format`; a plan starts with format = {FORMAT}");
                    return Err(PlanError::Text { place: place.into(), message });
                }
            }
        }
        toml::from_str(text).map_err(|error| {
            let place = match error.span() {
                Some(span) => {
                    let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
                    format!("{place}:{line}")
                }
                None => place.to_owned(),
            };
            let message = error.message().trim_end();
            let key = error.span().and_then(|span| key_at(text, span.start));
            let message = match key {
                Some(key) if !message.contains('`') => format!("{key}: {message}"),
                _ => message.to_owned(),
            };
            PlanError::Text { place, message }
        })
    }

    /// Writes the plan.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan has only tables, arrays, strings and numbers")
    }
}

/// The key of the value at a place in a text, if it is the text of tables: `sync.zero`,
/// `pipeline[0].stage[1].blocks`.
fn key_at(text: &str, at: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    let mut path = String::new();
    let mut inner = entry_at(table.get_ref(), at, &mut path)?;
    loop {
        inner = match inner {
            DeValue::Table(table) => match entry_at(table, at, &mut path) {
                Some(value) => value,
                None => return Some(path),
            },
            DeValue::Array(array) => {
                let holds = |it: &Spanned<DeValue<'_>>| it.span().contains(&at);
                let Some(index) = array.iter().position(holds) else { return Some(path) };
                path += &format!("[{index}]");
                array[index].get_ref()
            }
            _ => return Some(path),
        };
    }
}

/// The entry of `table` whose value is at a place in the text; its key is added to `path`.
fn entry_at<'a, 'i>(
    table: &'a DeTable<'i>,
    at: usize,
    path: &mut String,
) -> Option<&'a DeValue<'i>> {
    let (key, value) = table.iter().find(|(_, value)| value.span().contains(&at))?;
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key.get_ref());
    Some(value.get_ref())
}
