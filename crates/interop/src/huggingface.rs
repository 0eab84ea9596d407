//! Hugging Face `config.json`, read and written.
//!
//! Of what is read, every key that changes what a supported model computes is either followed exactly or refused. Keys
//! that do not (special tokens, caches, storage types, summaries) are passed over.

mod write;

use std::fmt::Display;

use serde_json::{Map, Value};
use shardloom_graph::families::{GptConfig, LlamaConfig};
use shardloom_graph::{ModelSpec, Network};

use crate::InteropError;

pub use write::write_config;

const SUPPORTED: &str = "gemma, gpt2, llama, mistral, phi3, qwen2 and qwen3";

/// Kinds of models that are near to supported ones, and what they have that is not here.
const OTHERS: &[(&str, &str)] = &[
    (
        "gemma2",
        "norms behind attention and feed-forward too, caps on logits and attention (final_logit_softcapping, \
         attn_logit_softcapping), windows in every other layer and a scale of attention of its own \
         (query_pre_attn_scalar)",
    ),
    ("gemma3", GEMMA_3),
    ("gemma3_text", GEMMA_3),
    (
        "phi",
        "attention and feed-forward side by side behind one norm, biases in all of them and in the head, and heads \
         that are rotated in part",
    ),
    ("phimoe", EXPERTS),
    ("mixtral", EXPERTS),
    ("qwen2_moe", EXPERTS),
    ("qwen3_moe", EXPERTS),
];

const GEMMA_3: &str = "norms behind attention and feed-forward too, windows in most layers, which have rotary \
                       frequencies of another base, and a scale of attention of its own \
                       (query_pre_attn_scalar)";

const EXPERTS: &str = "experts";

/// Reads the model that a `config.json` describes, at sequence length `seq`, or at the longest that
/// the configuration names. `place` is the file's name, for messages.
///
/// # Errors
/// If the text is not a JSON object, `model_type` is not supported, a key is missing, or a key asks for
/// something that this program's models do not compute exactly: another activation, other biases, dropout probabilities that differ, a sliding window shorter than the sequence, another rotary
/// scaling than Llama 3's, quantised weights.
pub fn read_config(text: &str, place: &str, seq: Option<usize>) -> Result<ModelSpec, InteropError> {
    let json = |message: String| InteropError::Json { place: place.into(), message };
    let value: Value = serde_json::from_str(text).map_err(|error| json(error.to_string()))?;
    let Value::Object(map) = value else {
        return Err(json("a configuration is a JSON object".into()));
    };
    let config = Config { place, prefix: "", map: &map };
    config.absent("quantization_config", "quantised weights are not supported")?;
    config.flag_is("is_causal", true, "attention here sees earlier positions only")?;
    let model_type = config.text("model_type", "none")?;
    let network = match model_type {
        "gemma" => gemma(&config, seq)?,
        "gpt2" => gpt2(&config, seq)?,
        "llama" => llama(&config, seq)?,
        "mistral" => mistral(&config, seq)?,
        "phi3" => phi3(&config, seq)?,
        "qwen2" => qwen2(&config, seq)?,
        "qwen3" => qwen3(&config, seq)?,
        other => {
            let (place, found, supported) = (place.into(), other.into(), SUPPORTED);
            return Err(match OTHERS.iter().find(|(name, _)| *name == other) {
                Some(&(_, what)) => InteropError::OtherModel { place, found, what, supported },
                None => InteropError::ModelType { place, found, supported },
            });
        }
    };
    // The origin may be a path on somebody's disk, which is no name.
    let origin = config.text("_name_or_path", "")?.rsplit('/').next().unwrap_or_default();
    ModelSpec::new(origin, network.clone())
        .or_else(|_| ModelSpec::new(model_type, network))
        .map_err(|error| InteropError::Model { place: place.into(), source: error.into() })
}

fn gpt2(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let activation = config.text("activation_function", "gelu_new")?;
    if !matches!(activation, "gelu_new" | "gelu_pytorch_tanh") {
        let rule = "gelu_new or gelu_pytorch_tanh is needed: the GELU here is the one by tanh";
        return Err(config.error("activation_function", activation, rule));
    }
    config.flag_is("scale_attn_weights", true, "attention is scaled by the width of a head")?;
    config.flag_is(
        "scale_attn_by_inverse_layer_idx",
        false,
        "attention is scaled alike in all layers",
    )?;
    config.flag_is("add_cross_attention", false, "there is no encoder to attend to")?;
    let dropout = config.real("resid_pdrop", Some(0.1))?;
    for key in ["embd_pdrop", "attn_pdrop"] {
        let other = config.real(key, Some(0.1))?;
        if other != dropout {
            let rule = format!("it must be resid_pdrop = {dropout}: a GPT has one dropout");
            return Err(config.error(key, other, rule));
        }
    }
    Ok(Network::Gpt(GptConfig {
        layers: config.size_of(&["n_layer", "num_hidden_layers"])?,
        hidden: config.size_of(&["n_embd", "hidden_size"])?,
        heads: config.size_of(&["n_head", "num_attention_heads"])?,
        seq: match seq {
            Some(seq) => seq,
            None => config.size_of(&["n_positions", "max_position_embeddings"])?,
        },
        vocab: config.size_of(&["vocab_size"])?,
        ffn: config.optional_size("n_inner")?,
        dropout,
        tied: config.flag("tie_word_embeddings", true)?,
        separate_loss: false,
        norm_epsilon: config.real("layer_norm_epsilon", Some(1e-5))?,
        init_std: config.real("initializer_range", Some(0.02))?,
    }))
}

fn mistral(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let seq = match seq {
        Some(seq) => seq,
        None => config.size_of(&["max_position_embeddings"])?,
    };
    // An absent window is the published model's, a null one is none.
    let window = match config.map.get("sliding_window") {
        None => Some(4096),
        Some(_) => config.optional_size("sliding_window")?,
    };
    require_window(config, window, seq)?;
    let network = llama_config(config, Some(seq))?;
    Ok(Network::Llama(with_kv_heads(network, config, 8)))
}

/// Phi-3 and 4: a Llama whose weights have fewer matrices, see [`crate::weights`].
fn phi3(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let network = llama_config(config, seq)?;
    require_window(config, config.optional_size("sliding_window")?, network.seq)?;
    for key in ["resid_pdrop", "embd_pdrop"] {
        let dropout = config.real(key, Some(0.0))?;
        if dropout != 0.0 {
            return Err(config.error(key, dropout, "a Phi-3 has no dropout here"));
        }
    }
    if network.rope_scaling.is_some() {
        let rule = "a Phi-3 has longrope or none, of which none is needed";
        return Err(config.error("rope_type", "llama3", rule));
    }
    let norm_epsilon = config.real("rms_norm_eps", Some(1e-5))?;
    Ok(Network::Llama(LlamaConfig { norm_epsilon, ..network }))
}

/// Gemma, not 2 or 3: its GELU is the one by tanh, also where files of the first release say `gelu`.
fn gemma(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let by_tanh = ["gelu_pytorch_tanh", "gelu_new"];
    let activation = config.text("hidden_act", by_tanh[0])?;
    if activation != "gelu" && !by_tanh.contains(&activation) {
        return Err(config.error("hidden_act", activation, "gelu_pytorch_tanh is needed"));
    }
    // The name of the key in between, which is left out or null elsewhere.
    let activation = config.text("hidden_activation", by_tanh[0])?;
    if !by_tanh.contains(&activation) {
        return Err(config.error("hidden_activation", activation, "gelu_pytorch_tanh is needed"));
    }
    let rule = "attention here sees earlier positions only";
    config.flag_is("use_bidirectional_attention", false, rule)?;
    let network = with_kv_heads(llama_sizes(config, seq)?, config, 16);
    Ok(Network::Llama(LlamaConfig {
        head_dim: network.head_dim.or(Some(256)),
        tied: config.flag("tie_word_embeddings", true)?,
        geglu: true,
        scaled_embedding: true,
        zero_centered_gain: true,
        ..network
    }))
}

/// With so many key and value heads where the key is absent; a null one means as many as there are heads.
fn with_kv_heads(network: LlamaConfig, config: &Config, usual: usize) -> LlamaConfig {
    match config.map.contains_key("num_key_value_heads") {
        true => network,
        false => LlamaConfig { kv_heads: Some(usual), ..network },
    }
}

/// Refuses a window of attention that is shorter than the sequence.
fn require_window(config: &Config, window: Option<usize>, seq: usize) -> Result<(), InteropError> {
    let Some(window) = window.filter(|&window| window < seq) else { return Ok(()) };
    let rule = format!(
        "attention here sees all earlier positions, so a sequence of {seq} needs a window of at \
         least that; a sequence length up to {window} would do"
    );
    Err(config.error("sliding_window", window, rule))
}

/// Qwen2 and 2.5: biases of queries, keys and values, which no key says.
fn qwen2(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let network = qwen(config, seq)?;
    Ok(Network::Llama(LlamaConfig { qkv_bias: true, ..network }))
}

/// Qwen3: norms of queries and keys, and heads of 128 unless it says otherwise.
fn qwen3(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let network = qwen(config, seq)?;
    let head_dim = config.optional_size("head_dim")?.or(Some(128));
    Ok(Network::Llama(LlamaConfig { qk_norm: true, head_dim, ..network }))
}

/// What both have in common: some layers may have a window, if the configuration says so.
fn qwen(config: &Config, seq: Option<usize>) -> Result<LlamaConfig, InteropError> {
    let network = llama_config(config, seq)?;
    if config.flag("use_sliding_window", false)? {
        require_window(
            config,
            config.optional_size("sliding_window")?.or(Some(4096)),
            network.seq,
        )?;
    }
    Ok(with_kv_heads(network, config, 32))
}

fn llama(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    Ok(Network::Llama(llama_config(config, seq)?))
}

/// All of a Llama.
fn llama_config(config: &Config, seq: Option<usize>) -> Result<LlamaConfig, InteropError> {
    let activation = config.text("hidden_act", "silu")?;
    if activation != "silu" {
        return Err(config.error("hidden_act", activation, "silu is needed"));
    }
    llama_sizes(config, seq)
}

/// All of a Llama but its activation.
fn llama_sizes(config: &Config, seq: Option<usize>) -> Result<LlamaConfig, InteropError> {
    for key in ["attention_bias", "mlp_bias"] {
        config.flag_is(key, false, "such projections have no biases here")?;
    }
    let dropout = config.real("attention_dropout", Some(0.0))?;
    if dropout != 0.0 {
        return Err(config.error("attention_dropout", dropout, "a Llama has no dropout here"));
    }
    let rotary = rotary(config)?;
    Ok(LlamaConfig {
        layers: config.size_of(&["num_hidden_layers"])?,
        hidden: config.size_of(&["hidden_size"])?,
        heads: config.size_of(&["num_attention_heads"])?,
        kv_heads: config.optional_size("num_key_value_heads")?,
        head_dim: config.optional_size("head_dim")?,
        ffn: config.size_of(&["intermediate_size"])?,
        seq: match seq {
            Some(seq) => seq,
            None => config.size_of(&["max_position_embeddings"])?,
        },
        vocab: config.size_of(&["vocab_size"])?,
        rope_theta: rotary.theta,
        rope_scaling: rotary.scaling,
        norm_epsilon: config.real("rms_norm_eps", Some(1e-6))?,
        tied: config.flag("tie_word_embeddings", false)?,
        separate_loss: false,
        qkv_bias: false,
        qk_norm: false,
        geglu: false,
        scaled_embedding: false,
        zero_centered_gain: false,
        init_std: config.real("initializer_range", Some(0.02))?,
    })
}

/// The rotary frequencies of a model, as [`LlamaConfig`] has them.
struct Rotary {
    theta: f32,
    scaling: Option<(f32, f32, f32, u32)>,
}

/// Base and scaling of the rotary frequencies: `rope_theta` and `rope_scaling`, or both in
/// `rope_parameters`, as newer files have it.
fn rotary(config: &Config) -> Result<Rotary, InteropError> {
    let newer = config.object("rope_parameters")?;
    let older = config.object("rope_scaling")?;
    let within = match (newer, older) {
        (Some(_), Some(_)) => {
            let rule = "rope_parameters says the same already, so only one of the two is needed";
            return Err(config.error("rope_scaling", "an object", rule));
        }
        (Some(map), None) => Some(Config { prefix: "rope_parameters.", map, ..*config }),
        (None, Some(map)) => Some(Config { prefix: "rope_scaling.", map, ..*config }),
        (None, None) => None,
    };
    for part in [Some(*config), within].into_iter().flatten() {
        let rotated = part.real("partial_rotary_factor", Some(1.0))?;
        if rotated != 1.0 {
            let rule = "all of a head is rotated here, so 1 is needed";
            return Err(part.error("partial_rotary_factor", rotated, rule));
        }
    }
    let outer_theta = config.real("rope_theta", Some(10_000.0))?;
    let Some(scaling) = within else { return Ok(Rotary { theta: outer_theta, scaling: None }) };
    let theta = scaling.real("rope_theta", Some(outer_theta))?;
    let key = if scaling.map.contains_key("rope_type") { "rope_type" } else { "type" };
    match scaling.text(key, "default")? {
        "default" => Ok(Rotary { theta, scaling: None }),
        "llama3" => {
            let original = scaling.size_of(&["original_max_position_embeddings"])?;
            let original = u32::try_from(original).map_err(|_| {
                scaling.error("original_max_position_embeddings", original, "at most 2^32 - 1")
            })?;
            let factor = scaling.real("factor", None)?;
            let low = scaling.real("low_freq_factor", None)?;
            let high = scaling.real("high_freq_factor", None)?;
            Ok(Rotary { theta, scaling: Some((factor, low, high, original)) })
        }
        other => Err(scaling.error(key, other, "default or llama3 is needed")),
    }
}

/// The keys of a configuration, or of an object within it.
#[derive(Clone, Copy)]
struct Config<'a> {
    place: &'a str,
    prefix: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    fn error(&self, key: &str, value: impl Display, rule: impl Into<String>) -> InteropError {
        InteropError::Key {
            place: self.place.into(),
            key: format!("{}{key}", self.prefix),
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// A value that is there and not null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn absent(&self, key: &str, rule: &str) -> Result<(), InteropError> {
        match self.get(key) {
            None => Ok(()),
            Some(value) => Err(self.error(key, value, rule)),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, InteropError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size.filter(|&size| size > 0) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(key, value, "a whole number from 1 up is needed")),
        }
    }

    /// A size that must be there, under one of these keys.
    fn size_of(&self, keys: &[&str]) -> Result<usize, InteropError> {
        for key in keys {
            if let Some(size) = self.optional_size(key)? {
                return Ok(size);
            }
        }
        Err(self.error(&keys.join(" or "), "nothing", "a whole number from 1 up is needed"))
    }

    fn real(&self, key: &str, default: Option<f32>) -> Result<f32, InteropError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.error(key, "nothing", "a number is needed")),
            (Some(value), _) => {
                let number = value.as_f64().map(|number| number as f32);
                let finite = number.filter(|number| number.is_finite());
                finite.ok_or_else(|| self.error(key, value, "a number is needed"))
            }
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, InteropError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.error(key, value, "true or false is needed")),
        }
    }

    fn flag_is(&self, key: &str, needed: bool, reason: &str) -> Result<(), InteropError> {
        match self.flag(key, needed)? {
            flag if flag == needed => Ok(()),
            flag => Err(self.error(key, flag, format!("{needed} is needed: {reason}"))),
        }
    }

    fn text(&self, key: &str, default: &'a str) -> Result<&'a str, InteropError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::String(text)) => Ok(text),
            Some(value) => Err(self.error(key, value, "a string is needed")),
        }
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, InteropError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(self.error(key, value, "an object or null is needed")),
        }
    }
}
