//! Which of Hugging Face's kinds of models a model of ours can be.

use shardloom_graph::families::LlamaConfig;
use shardloom_graph::{ModelSpec, Network};

use crate::InteropError;

/// A kind of models of Hugging Face's library, by the `model_type` of its configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelType {
    /// `gemma`, the first one
    Gemma,
    /// `gemma2`
    Gemma2,
    /// `gemma3_text`, the text model of a Gemma 3.
    Gemma3Text,
    /// `gpt2`
    Gpt2,
    /// `llama`
    Llama,
    /// `mistral`, which computes what a Llama does, of any width.
    Mistral,
    /// `phi`, those before Phi-3.
    Phi,
    /// `phi3`, which computes what a Llama does, with fewer matrices.
    Phi3,
    /// `qwen2`
    Qwen2,
    /// `qwen3`
    Qwen3,
}

impl ModelType {
    /// All of them, each before those that are chosen in its place only when asked for.
    pub const ALL: [ModelType; 10] = [
        ModelType::Gemma,
        ModelType::Gemma2,
        ModelType::Gemma3Text,
        ModelType::Gpt2,
        ModelType::Llama,
        ModelType::Mistral,
        ModelType::Phi,
        ModelType::Phi3,
        ModelType::Qwen2,
        ModelType::Qwen3,
    ];

    /// The `model_type` of its configurations.
    pub fn name(self) -> &'static str {
        match self {
            ModelType::Gemma => "gemma",
            ModelType::Gemma2 => "gemma2",
            ModelType::Gemma3Text => "gemma3_text",
            ModelType::Gpt2 => "gpt2",
            ModelType::Llama => "llama",
            ModelType::Mistral => "mistral",
            ModelType::Phi => "phi",
            ModelType::Phi3 => "phi3",
            ModelType::Qwen2 => "qwen2",
            ModelType::Qwen3 => "qwen3",
        }
    }

    /// The name of its class with a head in that library.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            ModelType::Gemma => "GemmaForCausalLM",
            ModelType::Gemma2 => "Gemma2ForCausalLM",
            ModelType::Gemma3Text => "Gemma3ForCausalLM",
            ModelType::Gpt2 => "GPT2LMHeadModel",
            ModelType::Llama => "LlamaForCausalLM",
            ModelType::Mistral => "MistralForCausalLM",
            ModelType::Phi => "PhiForCausalLM",
            ModelType::Phi3 => "Phi3ForCausalLM",
            ModelType::Qwen2 => "Qwen2ForCausalLM",
            ModelType::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether a model of this kind computes what `spec` does.
    pub(crate) fn computes(self, spec: &ModelSpec) -> bool {
        let llama = match spec.network() {
            Network::Gpt(gpt) => {
                let changes = [gpt.rotary.is_some(), gpt.parallel, gpt.head_bias];
                return match self {
                    ModelType::Gpt2 => changes == [false; 3],
                    ModelType::Phi => changes == [true; 3],
                    _ => false,
                };
            }
            Network::Llama(llama) => llama,
            _ => return false,
        };
        let Some((needed, possible)) = self.changes_of_a_llama() else { return false };
        let changes = llama.changes();
        needed.iter().all(|word| changes.contains(word))
            && changes.iter().all(|word| needed.contains(word) || possible.contains(word))
            && self.has_such_sizes(llama)
    }

    /// The [words](LlamaConfig::changes) that a Llama must have to be of this kind, and those that it may have;
    /// none if no Llama is.
    fn changes_of_a_llama(self) -> Option<(&'static [&'static str], &'static [&'static str])> {
        const LINEAR: &str = "rope_scaling=[factor]";
        let changes: (&[&str], &[&str]) = match self {
            ModelType::Gpt2 | ModelType::Phi => return None,
            ModelType::Llama => (&[], &[LINEAR]),
            ModelType::Mistral => (&[], &["windows", LINEAR]),
            ModelType::Phi3 => (&[], &["windows"]),
            ModelType::Qwen2 => (&["qkv_bias"], &["windows", LINEAR]),
            ModelType::Qwen3 => (&["qk_norm"], &["windows", LINEAR]),
            ModelType::Gemma => (&["geglu", "scaled_embedding", "zero_centered_gain"], &[LINEAR]),
            ModelType::Gemma2 => (
                &["post_norms", "geglu", "scaled_embedding", "zero_centered_gain"],
                &["windows", "attention_scalar", "attention_cap", "logit_cap", LINEAR],
            ),
            ModelType::Gemma3Text => (
                &["qk_norm", "post_norms", "geglu", "scaled_embedding", "zero_centered_gain"],
                &["windows", "window_rope_theta", "attention_scalar", "logit_cap", LINEAR],
            ),
        };
        Some(changes)
    }

    /// Whether the sizes of a Llama with the right words are possible too.
    fn has_such_sizes(self, llama: &LlamaConfig) -> bool {
        let mut windows = (0..llama.layers).map(|layer| llama.window(layer));
        let some = windows.clone().flatten().next();
        let one_window = windows.clone().flatten().all(|window| Some(window) == some);
        let heads_divide = llama.hidden.is_multiple_of(llama.heads);
        one_window
            && match self {
                // Their classes ask that heads divide the width.
                ModelType::Llama | ModelType::Gemma2 => heads_divide,
                // Scaling is of layers without a window only.
                ModelType::Gemma3Text => {
                    let apart = llama.window_rope_theta.is_some() || llama.rope_scaling.is_none();
                    heads_divide && (some.is_none() || apart)
                }
                ModelType::Mistral => windows.all(|window| window == some),
                // Its rotary scaling is another.
                ModelType::Phi3 => {
                    windows.all(|window| window == some) && llama.rope_scaling.is_none()
                }
                ModelType::Gemma
                | ModelType::Gpt2
                | ModelType::Phi
                | ModelType::Qwen2
                | ModelType::Qwen3 => true,
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
                        "no model there has all of its words together that are not of a plain Llama"
                    }
                    Network::Gpt(_) => {
                        "a gpt there has all of rotary, parallel and head_bias, or none of them"
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
