//! A configuration of nested words, in JSON, TOML or YAML.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde_json::Value;
use shardloom_document::{
    Fault, at_line, json_line_of, json_value, nearest, toml_fault, toml_line_of,
};

use super::{ON_DEVICES, asks_for_offload, is_misspelt, is_off, python, yaml};
use crate::{ExchangeError, Project};

/// Words of a configuration by their paths, `training.seq_len`; those that were read are remembered.
pub(super) struct Words {
    pub place: String,
    root: Value,
    lines: Lines,
    read: RefCell<BTreeSet<String>>,
}

/// What says on which line a word stands.
enum Lines {
    Json(String),
    Toml(String),
    Yaml(BTreeMap<String, usize>),
    Python(BTreeMap<String, usize>),
}

/// A path and those of the tables that it leads through, the innermost first.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(outer, _)| outer))
}

impl Words {
    pub fn of_json(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let root = json_value(text).map_err(|fault| wrong(place, fault))?;
        Words::of(root, Lines::Json(text.into()), place)
    }

    pub fn of_toml(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let root = toml::from_str(text).map_err(|error| wrong(place, toml_fault(text, &error)))?;
        Words::of(root, Lines::Toml(text.into()), place)
    }

    pub fn of_yaml(text: &str, place: &str) -> Result<Words, ExchangeError> {
        let (root, lines) = yaml::read(text).map_err(|fault| wrong(place, fault))?;
        Words::of(root, Lines::Yaml(lines), place)
    }

    /// What a function of a Python file returns, a call of `returns`.
    pub fn of_python(text: &str, place: &str, returns: &str) -> Result<Words, ExchangeError> {
        let (root, lines) = python::read(text, returns).map_err(|fault| wrong(place, fault))?;
        Words::of(root, Lines::Python(lines), place)
    }

    fn of(root: Value, lines: Lines, place: &str) -> Result<Words, ExchangeError> {
        if !root.is_object() {
            let message = "is not a table of words and values".into();
            return Err(wrong(place, Fault { line: Some(1), message }));
        }
        Ok(Words { place: place.into(), root, lines, read: RefCell::default() })
    }

    /// Where a word stands: the file and the line, of the longest part of its path that is there.
    pub fn at(&self, path: &str) -> String {
        let line = match &self.lines {
            Lines::Json(text) => json_line_of(text, path),
            Lines::Toml(text) => toml_line_of(text, path),
            Lines::Yaml(lines) => parts(path).find_map(|part| lines.get(part).copied()),
            Lines::Python(lines) => parts(path).find_map(|part| lines.get(part).copied()),
        };
        at_line(&self.place, line)
    }

    /// Whether a word of the outermost level is there.
    pub fn has(&self, word: &str) -> bool {
        self.root.get(word).is_some()
    }

    /// The value at a path. Null is none, and so is "auto", which leaves a value to somebody else.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(path.into());
        let value = self.raw(path)?;
        (!value.is_null() && value != "auto").then_some(value)
    }

    /// Whether a word leaves its value to somebody else, by "auto".
    pub fn is_auto(&self, path: &str) -> bool {
        self.raw(path).is_some_and(|value| value == "auto")
    }

    fn raw(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.root, |value, word| value.get(word))
    }

    /// One line about words that were looked for and leave their value to the training script, if there are any.
    pub fn auto_note(&self) -> Option<String> {
        let read = self.read.borrow();
        let autos: Vec<&str> =
            read.iter().map(String::as_str).filter(|it| self.is_auto(it)).collect();
        (!autos.is_empty()).then(|| {
            format!(
                "left to the training script (\"auto\"), so what is usual or given by options is assumed: {}",
                autos.join(", ")
            )
        })
    }

    /// `path` is missing.
    pub fn missing<T>(&self, path: &str, rule: &str) -> Result<T, ExchangeError> {
        if self.is_auto(path) {
            return self.error(path, "auto", rule);
        }
        if let Some((found, meant)) = self.instead(path) {
            return Err(self.misspelt_error(&found, &meant));
        }
        let message = format!("the key {path} is missing; {rule}");
        let place = Some(self.at(path)).filter(|at| *at != self.place);
        // Nothing of it is there, so it is the document as a whole that is without it.
        let place = place.unwrap_or_else(|| format!("{}:1", self.place));
        Err(ExchangeError::Text { place, message })
    }

    /// `path` has a value that cannot be.
    pub fn error<T>(
        &self,
        path: &str,
        value: impl Display,
        rule: impl Into<String>,
    ) -> Result<T, ExchangeError> {
        Err(ExchangeError::Word {
            place: self.at(path),
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
            None => self.error(path, shown(value), "a whole number from 1 up is needed"),
        }
    }

    /// A number from 1 up that must be there.
    pub fn needed(&self, path: &str) -> Result<usize, ExchangeError> {
        match self.size(path)? {
            Some(size) => Ok(size),
            None => self.missing(path, "a whole number from 1 up is needed"),
        }
    }

    pub fn real(&self, path: &str) -> Result<Option<f64>, ExchangeError> {
        let Some(value) = self.get(path) else { return Ok(None) };
        // Some write numbers with an exponent as text.
        let text = value.as_str().and_then(|text| text.parse().ok());
        match value.as_f64().or(text) {
            Some(real) => Ok(Some(real)),
            None => self.error(path, shown(value), "a number is needed"),
        }
    }

    pub fn flag(&self, path: &str) -> Result<bool, ExchangeError> {
        match self.get(path) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(other) => self.error(path, shown(other), "true or false is needed"),
        }
    }

    pub fn text(&self, path: &str) -> Result<Option<&str>, ExchangeError> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.error(path, shown(other), "a string is needed"),
        }
    }

    /// Refuses a word that has a value other than these, nothing or false.
    pub fn only(&self, path: &str, values: &[&str], rule: &str) -> Result<(), ExchangeError> {
        match self.get(path) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::String(text)) if values.contains(&text.as_str()) => Ok(()),
            Some(other) if values.contains(&other.to_string().as_str()) => Ok(()),
            Some(other) => self.error(path, shown(other), rule),
        }
    }

    /// Refuses a document that has nothing of what was looked for.
    pub fn require_known(&self, project: Project) -> Result<(), ExchangeError> {
        let read = self.read.borrow();
        if read.iter().any(|path| self.raw(path).is_some_and(|value| !value.is_null())) {
            return Ok(());
        }
        let other = match self.has("model_type") {
            true => "; it is the configuration of a model, which --model takes",
            false => "",
        };
        let message = format!("nothing in it says how {project} trains{other}");
        Err(ExchangeError::Text { place: format!("{}:1", self.place), message })
    }

    /// The paths that hold a value and were not read, `_comment` aside.
    ///
    /// # Errors
    /// If a value is where further words were looked for, or a word is so near to one that was looked for and is
    /// not there that it must be that one, misspelt.
    pub fn unread(&self) -> Result<Vec<String>, ExchangeError> {
        let mut unread = vec![];
        self.collect(&self.root, "", &mut unread)?;
        unread.retain(|path| path != "_comment");
        for path in &unread {
            if let Some(meant) = self.misspelt(path) {
                return Err(self.misspelt_error(path, &meant));
            }
            self.require_on_devices(path)?;
        }
        Ok(unread)
    }

    /// Refuses a word that was not read and asks for tensors elsewhere than on devices, and such words within it.
    fn require_on_devices(&self, path: &str) -> Result<(), ExchangeError> {
        let value = self.raw(path);
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(()) };
        let word = path.rsplit('.').next().unwrap_or(path);
        // A table of such a word says by `device` where its tensors are.
        let said = value.get("device").unwrap_or(value);
        let said = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
        if asks_for_offload(word) && !is_off(&said) {
            return self.error(path, shown(value), ON_DEVICES);
        }
        for inner in value.as_object().into_iter().flat_map(|map| map.keys()) {
            self.require_on_devices(&format!("{path}.{inner}"))?;
        }
        Ok(())
    }

    fn misspelt_error(&self, found: &str, meant: &str) -> ExchangeError {
        let message = format!("there is no {found}, did you mean {meant}?");
        ExchangeError::Text { place: self.at(found), message }
    }

    /// A word that was not read and stands where one of the words of `path` is missing, if the two differ by a letter
    /// or two; and what it should be.
    fn instead(&self, path: &str) -> Option<(String, String)> {
        let read = self.read.borrow();
        let (mut table, mut within) = (&self.root, String::new());
        for word in path.split('.') {
            if let Some(inner) = table.get(word) {
                table = inner;
                within = format!("{within}{word}.");
                continue;
            }
            let is_read = |other: &str| {
                let path = format!("{within}{other}");
                read.iter().any(|it| {
                    it.strip_prefix(&path)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                })
            };
            let found = table
                .as_object()?
                .keys()
                .find(|other| is_misspelt(other, word) && !is_read(other))?;
            return Some((format!("{within}{found}"), format!("{within}{word}")));
        }
        None
    }

    /// What was looked for beside a word that was not read and is not there, if the two differ by a letter or two.
    fn misspelt(&self, path: &str) -> Option<String> {
        let (within, word) =
            path.rsplit_once('.').map_or(("", path), |(within, word)| (within, word));
        let mut table = within.split('.').filter(|it| !it.is_empty());
        let table = table.try_fold(&self.root, |value, word| value.get(word))?;
        let read = self.read.borrow();
        let beside = read.iter().filter_map(|it| match within {
            "" => it.split('.').next(),
            _ => it.strip_prefix(within)?.strip_prefix('.')?.split('.').next(),
        });
        let meant = nearest(word, beside.filter(|it| table.get(it).is_none()))?;
        let dot = if within.is_empty() { "" } else { "." };
        is_misspelt(word, meant).then(|| format!("{within}{dot}{meant}"))
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
        let is_python = matches!(self.lines, Lines::Python(_));
        for (word, value) in map {
            // What is called is not said by a word.
            if is_python && [python::CALLEE, python::FIRST].contains(&word.as_str()) {
                continue;
            }
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

/// A value as it stands in the file.
fn shown(value: &Value) -> String {
    match value.get(python::TEXT) {
        Some(Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

fn wrong(place: &str, fault: Fault) -> ExchangeError {
    ExchangeError::Text { place: fault.place(place), message: fault.message }
}
