//! Model families: each a configuration and the graph it describes.

mod gpt;
mod llama;
mod mlp;

pub use gpt::GptConfig;
pub use llama::LlamaConfig;
pub use mlp::MlpConfig;

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
