//! Published models, one data file each.

use super::{ModelSpec, did_you_mean};
use crate::GraphError;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../presets/", $name, ".toml")))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "gpt-2",
    "gpt-2-medium",
    "gpt-2-large",
    "gpt-2-xl",
    "gpt-3-175b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3-405b",
    "phi-1.5",
    "phi-2",
    "phi-3-mini",
    "gemma-2b",
    "gemma-7b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-2-27b",
    "gemma-3-1b",
    "gemma-3-4b",
    "gemma-3-12b",
    "gemma-3-27b",
    "ptb-lstm-medium",
    "ptb-lstm-large",
    "lm1b-lstm-2048-512",
    "dlrm-criteo-kaggle",
    "dlrm-criteo-terabyte",
];

/// The names of all presets.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|&(name, _)| name)
}

/// The preset of this name.
pub(super) fn preset(name: &str) -> Result<ModelSpec, GraphError> {
    match FILES.iter().find(|&&(each, _)| each == name) {
        Some((_, text)) => ModelSpec::from_toml(text, &format!("presets/{name}.toml")),
        None => Err(GraphError::Name {
            what: "model",
            name: name.into(),
            rule: format!(
                "there is no such preset{}; there are {}",
                did_you_mean(name, names()),
                names().collect::<Vec<_>>().join(", ")
            ),
        }),
    }
}
