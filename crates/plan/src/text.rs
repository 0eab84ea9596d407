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
        let plan: Result<Plan, toml::de::Error> = toml::from_str(text);
        plan.map(Plan::arranged).map_err(|error| {
            let place = match error.span() {
                Some(span) => format!("{place}:{}", line_at(text, span.start)),
                None => place.to_owned(),
            };
            let message = error.message().trim_end();
            let key = error.span().and_then(|span| key_at(text, span.start));
            let message = match key {
                Some(key) if !names_key(message, &key) => format!("{key}: {message}"),
                _ => message.to_owned(),
            };
            PlanError::Text { place, message }
        })
    }

    /// This plan with the axes of meshes in the plan's order: in the text they are in any.
    fn arranged(mut self) -> Plan {
        for stage in self.pipeline.iter_mut().flat_map(|pipeline| &mut pipeline.stage) {
            stage.mesh = stage.mesh.arranged(&self.axes);
        }
        self
    }

    /// Says where in a plan's text the field stands that `error` is about; `place` names the text.
    pub fn place_error(text: &str, place: &str, error: PlanError) -> PlanError {
        let PlanError::Field { key, value, rule } = &error else { return error };
        let Some(at) = place_of(text, key) else { return error };
        let place = format!("{place}:{}", line_at(text, at));
        PlanError::Text { place, message: format!("{key} = {value}: {rule}") }
    }

    /// Writes the plan.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan has only tables, arrays, strings and numbers")
    }
}

/// Whether a message says already which key it is about.
fn names_key(message: &str, key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    let begins = |start: &str| message.starts_with(start);
    begins("unknown field") || begins("missing field") || begins(name)
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

/// Where the value of a key stands in a text, or of the longest part of the key that is there.
fn place_of(text: &str, key: &str) -> Option<usize> {
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
    Some(value.span().start)
}

/// The key of the value at a place in a text, if it is the text of tables: `sync.zero`,
/// `pipeline[0].stage[1].blocks`.
fn key_at(text: &str, at: usize) -> Option<String> {
    key_within(DeTable::parse(text).ok()?.get_ref(), "", at)
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
