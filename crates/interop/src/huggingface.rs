//! Hugging Face `config.json`, read and written.
//!
//! Of what is read, every key that changes what a supported model computes is either followed exactly or refused. Keys
//! that do not (special tokens, caches, storage types, summaries) are passed over.

mod gemma;
mod keys;
mod phi;
mod rotary;
mod windows;
mod words;
mod write;

use serde_json::{Map, Value};
use shardloom_document::{at_line, json_line_of, json_value};
use shardloom_graph::families::{GptConfig, LlamaConfig, RopeScaling};
use shardloom_graph::{ModelSpec, Network};

use crate::InteropError;
use gemma::{gemma, gemma2, gemma3};
use keys::Config;
use phi::phi;
use windows::{in_layers, unless_all_hide_nothing};
use words::in_its_words;

pub use write::write_config;

const SUPPORTED: &str =
    "gemma, gemma2, gemma3_text, gpt2, llama, mistral, phi, phi3, qwen2 and qwen3";

/// Kinds of models that are near to supported ones, and what they have that is not here.
const OTHERS: &[(&str, &str)] = &[
    ("gemma3", "an encoder of images; its text_config alone is of the type gemma3_text"),
    ("phimoe", EXPERTS),
    ("mixtral", EXPERTS),
    ("qwen2_moe", EXPERTS),
    ("qwen3_moe", EXPERTS),
];

const EXPERTS: &str = "experts";

/// Reads the model that a `config.json` describes, at sequence length `seq`, or at the longest that
/// the configuration names. `place` is the file's name, for messages.
///
/// # Errors
/// If the text is not a JSON object, `model_type` is not supported, a key is missing, or a key asks for
/// something that this program's models do not compute exactly: another activation, other biases, another rotary
/// scaling than a linear one or Llama 3's, quantised weights.
pub fn read_config(text: &str, place: &str, seq: Option<usize>) -> Result<ModelSpec, InteropError> {
    let value = json_value(text).map_err(|fault| InteropError::Json {
        place: fault.place(place),
        message: fault.message,
    })?;
    let Value::Object(map) = value else {
        let message = "a configuration is a JSON object".into();
        return Err(InteropError::Json { place: at_line(place, Some(1)), message });
    };
    model_of(&map, place, seq).map_err(|error| match error {
        InteropError::Key { place, key, value, rule } => {
            let place = at_key(text, &key, place);
            InteropError::Key { place, key, value, rule }
        }
        InteropError::MissingKey { place, key, rule } => {
            let place = at_key(text, &key, place);
            InteropError::MissingKey { place, key, rule }
        }
        InteropError::ModelType { place, found, supported } => {
            InteropError::ModelType { place: at_key(text, "model_type", place), found, supported }
        }
        InteropError::OtherModel { place, found, what, supported } => {
            let place = at_key(text, "model_type", place);
            InteropError::OtherModel { place, found, what, supported }
        }
        InteropError::Model { place, source } => in_its_words(text, *source, &place),
        other => other,
    })
}

/// The line of a key in the text of a file, or that of the kind of model, which asks for the key, where it is missing.
fn at_key(text: &str, key: &str, file: String) -> String {
    let line = json_line_of(text, key).or_else(|| json_line_of(text, "model_type"));
    at_line(&file, line.or(Some(1)))
}

fn model_of(
    map: &Map<String, Value>,
    place: &str,
    seq: Option<usize>,
) -> Result<ModelSpec, InteropError> {
    let config = Config { place, prefix: "", map };
    config.absent("quantization_config", "quantised weights are not supported")?;
    config.flag_is("is_causal", true, "attention here sees earlier positions only")?;
    refuse_other_heads(&config)?;
    let model_type = config.text("model_type", "")?;
    if model_type.is_empty() {
        let own =
            ["layers", "hidden", "heads", "vocab", "ffn"].map(|key| config.get(key).is_some());
        if own.iter().filter(|&&is_there| is_there).count() > 1 {
            let rule = "layers, hidden, heads and their like are this program's own words, which stand in a command, as in \
                        gpt:layers=12,..., or in a file that ends in .toml";
            return Err(config.missing("model_type", rule));
        }
        return Err(config.missing("model_type", &format!("there are {SUPPORTED}")));
    }
    let network = match model_type {
        "gemma" => gemma(&config, seq)?,
        "gemma2" => gemma2(&config, seq)?,
        "gemma3_text" => gemma3(&config, seq)?,
        "gpt2" => gpt2(&config, seq)?,
        "llama" => llama(&config, seq)?,
        "mistral" => mistral(&config, seq)?,
        "phi" => phi(&config, seq)?,
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

/// Heads of models that tell something else than the next token.
const OTHER_HEADS: [&str; 4] = [
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
];

/// Refuses a model whose class has another head than a language model's.
fn refuse_other_heads(config: &Config) -> Result<(), InteropError> {
    let Some(classes) = config.get("architectures").and_then(Value::as_array) else {
        return Ok(());
    };
    let classes = || classes.iter().filter_map(Value::as_str);
    match classes().find(|class| OTHER_HEADS.iter().any(|head| class.ends_with(head))) {
        Some(class) => {
            let rule = "a language model is needed, whose head tells the next token";
            Err(config.error("architectures", class, rule))
        }
        None => Ok(()),
    }
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
    Ok(Network::Gpt(GptConfig {
        layers: config.size_of(&["n_layer", "num_hidden_layers"])?,
        hidden: config.size_of(&["n_embd", "hidden_size"])?,
        heads: config.size_of(&["n_head", "num_attention_heads"])?,
        seq: match seq {
            Some(seq) => seq,
            None => config.size_of(&["n_positions", "max_position_embeddings"])?,
        },
        vocab: config.size_of(&["vocab_size"])?,
        padded_vocab: None,
        ffn: config.optional_size("n_inner")?,
        dropout,
        attention_dropout: Some(config.real("attn_pdrop", Some(0.1))?),
        embedding_dropout: Some(config.real("embd_pdrop", Some(0.1))?),
        rotary: None,
        rope_theta: None,
        parallel: false,
        head_bias: false,
        tied: config.flag("tie_word_embeddings", true)?,
        separate_loss: false,
        norm_epsilon: config.real("layer_norm_epsilon", Some(1e-5))?,
        init_std: config.real("initializer_range", Some(0.02))?,
    }))
}

fn mistral(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    // An absent window is the published model's, a null one is none.
    let window = match config.map.get("sliding_window") {
        None => Some(4096),
        Some(_) => config.optional_size("sliding_window")?,
    };
    let network = LlamaConfig { windows: Vec::from_iter(window), ..llama_config(config, seq)? };
    Ok(Network::Llama(unless_all_hide_nothing(with_kv_heads(network, config, 8))))
}

/// Phi-3 and 4: a Llama whose weights have fewer matrices, see [`crate::weights`].
fn phi3(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let network = llama_config(config, seq)?;
    let windows = Vec::from_iter(config.optional_size("sliding_window")?);
    for key in ["resid_pdrop", "embd_pdrop"] {
        let dropout = config.real(key, Some(0.0))?;
        if dropout != 0.0 {
            return Err(config.error(key, dropout, "a Phi-3 has no dropout here"));
        }
    }
    if let Some(scaling) = network.rope_scaling {
        let found = match scaling {
            RopeScaling::Linear(_) => "linear",
            RopeScaling::ByWavelength(..) => "llama3",
        };
        let rule = "a Phi-3 has longrope or none, of which none is needed";
        return Err(config.error("rope_type", found, rule));
    }
    let norm_epsilon = config.real("rms_norm_eps", Some(1e-5))?;
    Ok(Network::Llama(unless_all_hide_nothing(LlamaConfig { windows, norm_epsilon, ..network })))
}

/// With so many key and value heads where the key is absent; a null one means as many as there are heads.
fn with_kv_heads(network: LlamaConfig, config: &Config, usual: usize) -> LlamaConfig {
    match config.map.contains_key("num_key_value_heads") {
        true => network,
        false => LlamaConfig { kv_heads: Some(usual), ..network },
    }
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

/// What both have in common: the last layers may have a window, if the configuration says so.
fn qwen(config: &Config, seq: Option<usize>) -> Result<LlamaConfig, InteropError> {
    let network = llama_config(config, seq)?;
    let window = match (config.flag("use_sliding_window", false)?, config.map.get("sliding_window"))
    {
        (false, _) => None,
        (true, None) => Some(4096),
        (true, Some(_)) => config.optional_size("sliding_window")?,
    };
    let first = config.count("max_window_layers", 28)?;
    let usual = |layer| window.is_some() && layer >= first;
    let windows = in_layers(config, network.layers, window, usual)?;
    let network = LlamaConfig { windows, ..network };
    Ok(unless_all_hide_nothing(with_kv_heads(network, config, 32)))
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
    let rotary = rotary::rotary(config)?;
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
        padded_vocab: None,
        rope_theta: rotary.theta,
        rope_scaling: rotary.scaling,
        windows: vec![],
        window_rope_theta: None,
        attention_scalar: None,
        attention_cap: None,
        logit_cap: None,
        norm_epsilon: config.real("rms_norm_eps", Some(1e-6))?,
        tied: config.flag("tie_word_embeddings", false)?,
        separate_loss: false,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
        geglu: false,
        scaled_embedding: false,
        zero_centered_gain: false,
        init_std: config.real("initializer_range", Some(0.02))?,
    })
}
