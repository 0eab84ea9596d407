//! A configuration of nested words, in JSON, TOML or YAML.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::Value;

use super::yaml;
use crate::ExchangeError;

/// Words of a configuration by their paths, `training.seq_len`; those that were read are remembered.
pub(super) struct Words {
    pub place: String,
    root: Value,
    read: RefCell<BTreeSet<String>>,
}

impl Words {
    pub fn of_json(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let root = serde_json::from_str(text).map_err(|error| wrong(place, &error))?;
        Words::of(root, place)
    }

    pub fn of_toml(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let root = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            wrong(&format!("{place}:{line}"), &error.message())
        })?;
        Words::of(root, place)
    }

    pub fn of_yaml(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let root = yaml::read(text).map_err(|message| wrong(place, &message))?;
        Words::of(root, place)
    }

    fn of(root: Value, place: &str) -> Result<Words, ExchangeError> {
        if !root.is_object() {
            return Err(wrong(place, &"is not a table of words and values"));
        }
        Ok(Words { place: place.into(), root, read: RefCell::default() })
    }

    /// Whether a word of the outermost level is there.
    pub fn has(&self, word: &str) -> bool {
        self.root.get(word).is_some()
    }

    /// The value at a path. Null is none, and so is "auto", which leaves a value to somebody else.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(path.into());
        let value = path.split('.').try_fold(&self.root, |value, word| value.get(word))?;
        (!value.is_null() && value != "auto").then_some(value)
    }

    /// `path` has a value that cannot be.
    pub fn error<T>(
        &self,
        path: &str,
        value: impl Display,
        rule: impl Into<String>,
    ) -> Result<T, ExchangeError> {
        Err(ExchangeError::Word {
            place: self.place.clone(),
            key: path.into(),
            value: value.to_string(),
            rule: rule.into(),
        })
    }

    /// A number from 1 up.
    pub fn size(&self, path: &str) -> Result<Option<usize>, ExchangeError> {
        let Some(value) = self.get(path) else { return Ok(None) };
        let float = value.as_f64().filter(|real| real.fract() == 0.0 && (1.0..1e15).contains(real));
        let size = value.as_u64().or(float.map(|real| real as u64));
        match size.and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0) {
            Some(size) => Ok(Some(size)),
            None => self.error(path, value, "a whole number from 1 up is needed"),
        }
    }

    /// A number from 1 up that must be there.
    pub fn needed(&self, path: &str) -> Result<usize, ExchangeError> {
        match self.size(path)? {
            Some(size) => Ok(size),
            None => self.error(path, "nothing", "a whole number from 1 up is needed"),
        }
    }

    pub fn real(&self, path: &str) -> Result<Option<f64>, ExchangeError> {
        let Some(value) = self.get(path) else { return Ok(None) };
        // Some write numbers with an exponent as text.
        let text = value.as_str().and_then(|text| text.parse().ok());
        match value.as_f64().or(text) {
            Some(real) => Ok(Some(real)),
            None => self.error(path, value, "a number is needed"),
        }
    }

    pub fn flag(&self, path: &str) -> Result<bool, ExchangeError> {
        match self.get(path) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(other) => self.error(path, other, "true or false is needed"),
        }
    }

    pub fn text(&self, path: &str) -> Result<Option<&str>, ExchangeError> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.error(path, other, "a string is needed"),
        }
    }

    /// Refuses a word that has a value other than these, nothing or false.
    pub fn only(&self, path: &str, values: &[&str], rule: &str) -> Result<(), ExchangeError> {
        match self.get(path) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::String(text)) if values.contains(&text.as_str()) => Ok(()),
            Some(other) if values.contains(&other.to_string().as_str()) => Ok(()),
            Some(other) => self.error(path, other, rule),
        }
    }

    /// The paths that hold a value and were not read, `_comment` aside.
    ///
    /// # Errors
    /// If a value is where further words were looked for.
    pub fn unread(&self) -> Result<Vec<String>, ExchangeError> {
        let mut unread = vec![];
        self.collect(&self.root, "", &mut unread)?;
        unread.retain(|path| path != "_comment");
        Ok(unread)
    }

    fn collect(
        &self,
        value: &Value,
        prefix: &str,
        unread: &mut Vec<String>,
    ) -> Result<(), ExchangeError> {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return Ok(()),
            other => return self.error(prefix, other, "a table of further words is needed"),
        };
        for (word, value) in map {
            let path = if prefix.is_empty() { word.clone() } else { format!("{prefix}.{word}") };
            let read = self.read.borrow();
            let within = format!("{path}.");
            match read.contains(&path) {
                true => {}
                // Something of it was read.
                false if read.iter().any(|it| it.starts_with(&within)) => {
                    drop(read);
                    self.collect(value, &path, unread)?;
                }
                false => unread.push(path),
            }
        }
        Ok(())
    }
}

fn wrong(place: &str, message: &dyn Display) -> ExchangeError {
    ExchangeError::Text { place: place.into(), message: message.to_string() }
}
