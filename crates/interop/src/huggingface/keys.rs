//! Keys of a `config.json`, with errors that name them.

use std::fmt::Display;

use serde_json::{Map, Value};

use crate::InteropError;

/// The keys of a configuration, or of an object within it.
#[derive(Clone, Copy)]
pub(super) struct Config<'a> {
    pub place: &'a str,
    pub prefix: &'a str,
    pub map: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    pub fn error(&self, key: &str, value: impl Display, rule: impl Into<String>) -> InteropError {
        InteropError::Key {
            place: self.place.into(),
            key: format!("{}{key}", self.prefix),
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    pub fn missing(&self, key: &str, rule: &str) -> InteropError {
        let (place, key) = (self.place.into(), format!("{}{key}", self.prefix));
        InteropError::MissingKey { place, key, rule: rule.into() }
    }

    /// A value that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn absent(&self, key: &str, rule: &str) -> Result<(), InteropError> {
        match self.get(key) {
            None => Ok(()),
            Some(value) => Err(self.error(key, value, rule)),
        }
    }

    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, InteropError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size.filter(|&size| size > 0) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(key, value, "a whole number from 1 up is needed")),
        }
    }

    /// A size that must be there, under one of these keys.
    pub fn size_of(&self, keys: &[&str]) -> Result<usize, InteropError> {
        for key in keys {
            if let Some(size) = self.optional_size(key)? {
                return Ok(size);
            }
        }
        Err(self.missing(&keys.join(" or "), "a whole number from 1 up is needed"))
    }

    /// A whole number from 0 up.
    pub fn count(&self, key: &str, default: usize) -> Result<usize, InteropError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| self.error(key, value, "a whole number is needed"))
    }

    /// A number that may be left out or null.
    pub fn optional_real(&self, key: &str) -> Result<Option<f32>, InteropError> {
        self.get(key).map(|_| self.real(key, None)).transpose()
    }

    pub fn real(&self, key: &str, default: Option<f32>) -> Result<f32, InteropError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.missing(key, "a number is needed")),
            (Some(value), _) => {
                let number = value.as_f64().map(|number| number as f32);
                let finite = number.filter(|number| number.is_finite());
                finite.ok_or_else(|| self.error(key, value, "a number is needed"))
            }
        }
    }

    /// A number of which more than single precision is needed.
    pub fn double(&self, key: &str, default: f64) -> Result<f64, InteropError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().ok_or_else(|| self.error(key, value, "a number is needed"))
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, InteropError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.error(key, value, "true or false is needed")),
        }
    }

    pub fn flag_is(&self, key: &str, needed: bool, reason: &str) -> Result<(), InteropError> {
        match self.flag(key, needed)? {
            flag if flag == needed => Ok(()),
            flag => Err(self.error(key, flag, format!("{needed} is needed: {reason}"))),
        }
    }

    pub fn text(&self, key: &str, default: &'a str) -> Result<&'a str, InteropError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::String(text)) => Ok(text),
            Some(value) => Err(self.error(key, value, "a string is needed")),
        }
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, InteropError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(self.error(key, value, "an object or null is needed")),
        }
    }
}
