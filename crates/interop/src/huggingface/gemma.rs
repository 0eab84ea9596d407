//! Gemma, Gemma 2 and the text model of Gemma 3.

use serde_json::{Map, Value, json};
use shardloom_graph::Network;
use shardloom_graph::families::LlamaConfig;

use super::keys::Config;
use super::rotary::{Rotary, frequencies, whole_heads};
use super::windows::in_layers;
use super::{llama_sizes, with_kv_heads};
use crate::InteropError;

/// Names of the GELU by tanh.
const BY_TANH: [&str; 2] = ["gelu_pytorch_tanh", "gelu_new"];

/// The first Gemma: its GELU is the one by tanh, also where files of the first release say `gelu`.
pub(super) fn gemma(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let activation = config.text("hidden_act", BY_TANH[0])?;
    if activation != "gelu" && !BY_TANH.contains(&activation) {
        return Err(config.error("hidden_act", activation, "gelu_pytorch_tanh is needed"));
    }
    // The name of the key in between, which is left out or null elsewhere.
    require_what_all_have(config)?;
    let network = with_kv_heads(llama_sizes(config, seq)?, config, 16);
    let head_dim = network.head_dim.or(Some(256));
    let tied = config.flag("tie_word_embeddings", true)?;
    Ok(Network::Llama(LlamaConfig { head_dim, tied, ..changed(network) }))
}

/// Gemma 2: norms behind attention and feed-forward too, bounded scores and logits, a window in every other layer.
pub(super) fn gemma2(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    require_what_all_have(config)?;
    let usual = with_usual(config.map, &[("final_logit_softcapping", json!(30.0))]);
    let config = Config { map: &usual, ..*config };
    let network = second(&config, seq, 2)?;
    // An absent bound is the class's, a null one is none.
    let attention_cap = match config.map.contains_key("attn_logit_softcapping") {
        true => config.optional_real("attn_logit_softcapping")?,
        false => Some(50.0),
    };
    Ok(Network::Llama(LlamaConfig { attention_cap, ..network }))
}

/// The text model of Gemma 3: norms behind attention and feed-forward and of queries and keys too, and a window in
/// five of six layers, which have rotary frequencies of their own.
pub(super) fn gemma3(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    require_what_all_have(config)?;
    let rule = "the attention of this kind of models bounds no scores in transformers";
    config.absent("attn_logit_softcapping", rule)?;
    let usual = with_usual(config.map, &[("vocab_size", json!(262_208))]);
    // Its rotary parameters are by kind of layer.
    let without = |key: &&String| !matches!(key.as_str(), "rope_parameters" | "rope_scaling");
    let rest: Map<String, Value> =
        usual.iter().filter(|(key, _)| without(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let sizes = Config { map: &rest, ..*config };
    let pattern = sizes.optional_size("sliding_window_pattern")?.unwrap_or(6);
    let network = second(&sizes, seq, pattern)?;
    let (full, local) = by_kind_of_layer(config)?;
    let windowed = network.windows.iter().any(|&window| window > 0);
    Ok(Network::Llama(LlamaConfig {
        qk_norm: true,
        rope_theta: full.theta,
        rope_scaling: full.scaling,
        window_rope_theta: windowed.then_some(local),
        ..network
    }))
}

/// What both have in common, the last of every so many layers seeing all earlier positions.
fn second(config: &Config, seq: Option<usize>, every: usize) -> Result<LlamaConfig, InteropError> {
    let usual = with_usual(
        config.map,
        &[
            ("vocab_size", json!(256_000)),
            ("hidden_size", json!(2304)),
            ("intermediate_size", json!(9216)),
            ("num_hidden_layers", json!(26)),
            ("num_attention_heads", json!(8)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(256)),
            ("query_pre_attn_scalar", json!(256)),
            ("sliding_window", json!(4096)),
            ("tie_word_embeddings", json!(true)),
        ],
    );
    let config = Config { map: &usual, ..*config };
    let network = llama_sizes(&config, seq)?;
    let window = config.optional_size("sliding_window")?;
    let windows = in_layers(&config, network.layers, window, |layer| (layer + 1) % every != 0)?;
    Ok(LlamaConfig {
        windows,
        attention_scalar: Some(config.size_of(&["query_pre_attn_scalar"])?),
        logit_cap: config.optional_real("final_logit_softcapping")?,
        post_norms: true,
        ..changed(network)
    })
}

/// The frequencies of Gemma 3's layers without a window, and the base of those with one.
fn by_kind_of_layer(config: &Config) -> Result<(Rotary, f32), InteropError> {
    let theta = config.real("rope_theta", Some(1_000_000.0))?;
    let local = config.real("rope_local_base_freq", Some(10_000.0))?;
    let parameters = config.object("rope_parameters")?;
    let older = config.object("rope_scaling")?;
    if let (Some(_), Some(_)) = (parameters, older) {
        let rule = "rope_parameters says the same already, so only one of the two is needed";
        return Err(config.error("rope_scaling", "an object", rule));
    }
    let none = Map::new();
    let parameters =
        Config { prefix: "rope_parameters.", map: parameters.unwrap_or(&none), ..*config };
    let of = |kind: &'static str, prefix| -> Result<Config, InteropError> {
        let map = parameters.object(kind)?.unwrap_or(&none);
        Ok(Config { prefix, map, ..*config })
    };
    let known = ["full_attention", "sliding_attention"];
    if let Some(key) = parameters.map.keys().find(|key| !known.contains(&key.as_str())) {
        let rule = "full_attention and sliding_attention have the parameters of their layers";
        return Err(parameters.error(key, &parameters.map[key], rule));
    }
    let full = match older {
        Some(map) => Config { prefix: "rope_scaling.", map, ..*config },
        None => of(known[0], "rope_parameters.full_attention.")?,
    };
    let sliding = of(known[1], "rope_parameters.sliding_attention.")?;
    [config, &full, &sliding].into_iter().try_for_each(whole_heads)?;
    let (full, sliding_found) = (frequencies(&full, theta)?, frequencies(&sliding, local)?);
    if sliding_found.scaling.is_some() {
        let found = sliding.text("rope_type", "a scaling")?;
        let rule = "frequencies of layers with a window are not scaled here";
        return Err(sliding.error("rope_type", found, rule));
    }
    Ok((full, sliding_found.theta))
}

/// What is Gemma's in all three.
fn changed(network: LlamaConfig) -> LlamaConfig {
    LlamaConfig { geglu: true, scaled_embedding: true, zero_centered_gain: true, ..network }
}

/// Refuses what none of the three has here.
fn require_what_all_have(config: &Config) -> Result<(), InteropError> {
    let activation = config.text("hidden_activation", BY_TANH[0])?;
    if !BY_TANH.contains(&activation) {
        return Err(config.error("hidden_activation", activation, "gelu_pytorch_tanh is needed"));
    }
    let rule = "attention here sees earlier positions only";
    config.flag_is("use_bidirectional_attention", false, rule)
}

/// The keys with what a class has for those that are left out.
fn with_usual(map: &Map<String, Value>, usual: &[(&str, Value)]) -> Map<String, Value> {
    let mut map = map.clone();
    for (key, value) in usual {
        map.entry(*key).or_insert_with(|| value.clone());
    }
    map
}
