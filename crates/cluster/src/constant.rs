//! The constants of a software stack by name, as its TOML has them: `host.kernel_seconds`,
//! `operators.update.adamw.traffic`.

use shardloom_document::in_words;
use toml::{Table, Value};

use crate::{ClusterError, Stack};

/// What is not a constant but says how well constants predict.
const RESIDUALS: &str = "residuals";

impl Stack {
    /// All constants that are numbers with a fraction, with their values, in order of their names.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Write`] for values TOML cannot hold.
    pub fn constants(&self) -> Result<Vec<(String, f64)>, ClusterError> {
        let mut found = vec![];
        collect(&Table::try_from(self)?, "", &mut found);
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// The stack with another value for each of these constants.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Text`] if a value is out of the constant's range, [`ClusterError::Constant`] if there is
    /// no such constant.
    pub fn with_constants<'n>(
        &self,
        values: impl IntoIterator<Item = (&'n str, f64)>,
    ) -> Result<Stack, ClusterError> {
        let mut table = Table::try_from(self)?;
        for (name, value) in values {
            let Some(place) = place(&mut table, name) else {
                let known = self.constants()?;
                let known = known.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
                return Err(ClusterError::Constant {
                    name: name.to_owned(),
                    known: known.join(", "),
                });
            };
            *place = Value::Float(value);
        }
        let place = format!("software stack {}", self.name);
        table.try_into().map_err(|error: toml::de::Error| {
            let message = in_words(error.message());
            ClusterError::Text { place, message }
        })
    }

    /// Writes what [`Stack::from_toml`] reads.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Write`] for values TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, ClusterError> {
        Ok(toml::to_string_pretty(self)?)
    }
}

fn collect(table: &Table, before: &str, found: &mut Vec<(String, f64)>) {
    for (key, value) in table {
        let name = if before.is_empty() { key.clone() } else { format!("{before}.{key}") };
        match value {
            Value::Float(number) => found.push((name, *number)),
            Value::Table(inner) if name != RESIDUALS => collect(inner, &name, found),
            _ => {}
        }
    }
}

/// Where the constant of that name stands. Keys may have points themselves.
fn place<'t>(table: &'t mut Table, name: &str) -> Option<&'t mut Value> {
    let mut found = None;
    for (key, value) in table {
        let Some(rest) = name.strip_prefix(key.as_str()) else { continue };
        match (value, rest.strip_prefix('.')) {
            (value @ Value::Float(_), None) if rest.is_empty() => found = Some(value),
            (Value::Table(inner), Some(rest)) => found = place(inner, rest).or(found),
            _ => {}
        }
    }
    found
}
