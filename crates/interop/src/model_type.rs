//! Which of Hugging Face's kinds of models a model of ours can be.

use shardloom_graph::families::LlamaConfig;
use shardloom_graph::{ModelSpec, Network};

use crate::InteropError;

/// A kind of models of Hugging Face's library, by the `model_type` of its configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelType {
    /// `gemma`, the first one
    Gemma,
    /// `gpt2`
    Gpt2,
    /// `llama`
    Llama,
    /// `mistral`, which computes what a Llama does, of any width.
    Mistral,
    /// `phi3`, which computes what a Llama does, with fewer matrices.
    Phi3,
    /// `qwen2`
    Qwen2,
    /// `qwen3`
    Qwen3,
}

impl ModelType {
    /// All of them, each before those that are chosen in its place only when asked for.
    pub const ALL: [ModelType; 7] = [
        ModelType::Gemma,
        ModelType::Gpt2,
        ModelType::Llama,
        ModelType::Mistral,
        ModelType::Phi3,
        ModelType::Qwen2,
        ModelType::Qwen3,
    ];

    /// The `model_type` of its configurations.
    pub fn name(self) -> &'static str {
        match self {
            ModelType::Gemma => "gemma",
            ModelType::Gpt2 => "gpt2",
            ModelType::Llama => "llama",
            ModelType::Mistral => "mistral",
            ModelType::Phi3 => "phi3",
            ModelType::Qwen2 => "qwen2",
            ModelType::Qwen3 => "qwen3",
        }
    }

    /// The name of its class with a head in that library.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            ModelType::Gemma => "GemmaForCausalLM",
            ModelType::Gpt2 => "GPT2LMHeadModel",
            ModelType::Llama => "LlamaForCausalLM",
            ModelType::Mistral => "MistralForCausalLM",
            ModelType::Phi3 => "Phi3ForCausalLM",
            ModelType::Qwen2 => "Qwen2ForCausalLM",
            ModelType::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether a model of this kind computes what `spec` does.
    pub(crate) fn computes(self, spec: &ModelSpec) -> bool {
        let llama = match spec.network() {
            Network::Gpt(_) => return self == ModelType::Gpt2,
            Network::Llama(llama) => llama,
            _ => return false,
        };
        let plain = |changed: LlamaConfig| changed.is_plain();
        match self {
            ModelType::Gpt2 => false,
            // Its class asks that heads divide the width.
            ModelType::Llama => llama.is_plain() && llama.hidden.is_multiple_of(llama.heads),
            ModelType::Mistral => llama.is_plain(),
            // Its rotary scaling is another.
            ModelType::Phi3 => llama.is_plain() && llama.rope_scaling.is_none(),
            ModelType::Qwen2 => {
                llama.qkv_bias && plain(LlamaConfig { qkv_bias: false, ..llama.clone() })
            }
            ModelType::Qwen3 => {
                llama.qk_norm && plain(LlamaConfig { qk_norm: false, ..llama.clone() })
            }
            ModelType::Gemma => {
                let [geglu, scaled_embedding, zero_centered_gain] = [false; 3];
                llama.geglu
                    && llama.scaled_embedding
                    && llama.zero_centered_gain
                    && plain(LlamaConfig {
                        geglu,
                        scaled_embedding,
                        zero_centered_gain,
                        ..llama.clone()
                    })
            }
        }
    }

    /// The kind as which `spec` is written: `wanted`, or the usual one.
    ///
    /// # Errors
    /// If no model of that kind, or none at all, computes what it does.
    pub fn of(spec: &ModelSpec, wanted: Option<ModelType>) -> Result<ModelType, InteropError> {
        let possible = || ModelType::ALL.into_iter().filter(|it| it.computes(spec));
        let Some(usual) = possible().next() else {
            return Err(InteropError::NoConfig {
                model: spec.name().into(),
                reason: match spec.network() {
                    Network::Llama(_) => {
                        "no model there has these of qkv_bias, qk_norm, geglu, scaled_embedding and zero_centered_gain together"
                    }
                    _ => "only a gpt or a llama is a model there",
                },
            });
        };
        match wanted {
            Some(wanted) if !wanted.computes(spec) => Err(InteropError::NotOfType {
                model: spec.name().into(),
                wanted: wanted.name(),
                possible: possible().map(ModelType::name).collect::<Vec<_>>().join(", "),
            }),
            wanted => Ok(wanted.unwrap_or(usual)),
        }
    }
}
