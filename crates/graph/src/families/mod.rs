//! Model families: each a configuration and the graph it describes.

mod custom;
mod dlrm;
mod gpt;
mod llama;
mod lstm;
mod mlp;
mod rope_scaling;
mod u_transformer;

pub use custom::{
    BlockConfig, CustomConfig, InitConfig, InputConfig, InputKind, OpConfig, ParameterConfig,
};
pub use dlrm::DlrmConfig;
pub use gpt::GptConfig;
pub use llama::LlamaConfig;
pub use lstm::LstmConfig;
pub use mlp::MlpConfig;
pub use rope_scaling::RopeScaling;
pub use u_transformer::UTransformerConfig;

use crate::GraphError;

/// Checks one rule of a configuration.
fn require(
    holds: bool,
    model: &str,
    key: &str,
    value: impl ToString,
    rule: &str,
) -> Result<(), GraphError> {
    if holds {
        return Ok(());
    }
    Err(GraphError::Parameter {
        model: model.into(),
        key: key.into(),
        value: value.to_string(),
        rule: rule.into(),
    })
}

/// Checks a number of layers: a bound keeps a mistyped one from filling the memory.
fn require_layers(model: &str, layers: usize) -> Result<(), GraphError> {
    require((1..=10_000).contains(&layers), model, "layers", layers, "there are 1 to 10000 layers")
}

/// Checks sizes by the names of their keys.
fn require_sizes(model: &str, sizes: &[(&str, usize)]) -> Result<(), GraphError> {
    sizes.iter().try_for_each(|&(key, size)| {
        require((1..=1 << 40).contains(&size), model, key, size, "a size is 1 to 2^40")
    })
}

/// Checks how many rows tables for a vocabulary have, if they are padded.
fn require_padded(model: &str, vocab: usize, padded: Option<usize>) -> Result<(), GraphError> {
    padded.map_or(Ok(()), |padded| {
        let rule = format!("at least vocab = {vocab} is needed");
        require(padded >= vocab, model, "padded_vocab", padded, &rule)?;
        require_sizes(model, &[("padded_vocab", padded)])
    })
}

/// Checks a probability with which elements are left out, by its key.
fn require_dropout(model: &str, key: &str, probability: f32) -> Result<(), GraphError> {
    let rule = "a dropout probability is at least 0 and below 1";
    require((0.0..1.0).contains(&probability), model, key, probability, rule)
}

/// Checks a real number that must be above zero.
fn require_real(model: &str, key: &str, value: f32) -> Result<(), GraphError> {
    require(
        value.is_finite() && value > 0.0,
        model,
        key,
        value,
        "a finite number above 0 is needed",
    )
}

fn default_epsilon() -> f32 {
    1e-5
}

fn default_init_std() -> f32 {
    0.02
}
