//! The TOML form of a plan.

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
            PlanError::Text { place, message: error.message().trim_end().to_owned() }
        })
    }

    /// Writes the plan.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan has only tables, arrays, strings and numbers")
    }
}
