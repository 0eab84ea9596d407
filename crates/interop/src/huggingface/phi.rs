//! Phi before Phi-3: a GPT with rotary positions of part of a head, attention and feed-forward side by side, and
//! a head with a bias.

use shardloom_graph::Network;
use shardloom_graph::families::GptConfig;

use super::keys::Config;
use super::rotary::frequencies;
use crate::InteropError;

pub(super) fn phi(config: &Config, seq: Option<usize>) -> Result<Network, InteropError> {
    let activation = config.text("hidden_act", "gelu_new")?;
    if !matches!(activation, "gelu_new" | "gelu_pytorch_tanh") {
        let rule = "gelu_new or gelu_pytorch_tanh is needed: the GELU here is the one by tanh";
        return Err(config.error("hidden_act", activation, rule));
    }
    config.flag_is("qk_layernorm", false, "queries and keys are not normalised here")?;
    let (hidden, heads) =
        (config.size_of(&["hidden_size"])?, config.size_of(&["num_attention_heads"])?);
    for (key, needed) in [("num_key_value_heads", heads), ("head_dim", hidden / heads)] {
        let found = config.optional_size(key)?.unwrap_or(needed);
        if found != needed {
            let rule = format!("with {heads} heads of {hidden} elements it is {needed} here");
            return Err(config.error(key, found, rule));
        }
    }
    let (width, theta) = rotary(config, hidden / heads)?;
    Ok(Network::Gpt(GptConfig {
        layers: config.size_of(&["num_hidden_layers"])?,
        hidden,
        heads,
        seq: match seq {
            Some(seq) => seq,
            None => config.size_of(&["max_position_embeddings"])?,
        },
        vocab: config.size_of(&["vocab_size"])?,
        padded_vocab: None,
        ffn: Some(config.size_of(&["intermediate_size"])?),
        dropout: config.real("resid_pdrop", Some(0.0))?,
        attention_dropout: Some(config.real("attention_dropout", Some(0.0))?),
        embedding_dropout: Some(config.real("embd_pdrop", Some(0.0))?),
        rotary: Some(width),
        rope_theta: Some(theta),
        parallel: true,
        head_bias: true,
        tied: config.flag("tie_word_embeddings", false)?,
        separate_loss: false,
        norm_epsilon: config.real("layer_norm_eps", Some(1e-5))?,
        init_std: config.real("initializer_range", Some(0.02))?,
    }))
}

/// How many elements of a head of so many are rotated, and the base of their frequencies.
fn rotary(config: &Config, head_dim: usize) -> Result<(usize, f32), InteropError> {
    let objects = ["rope_parameters", "rope_scaling"];
    let mut within = vec![];
    for (key, prefix) in objects.into_iter().zip(["rope_parameters.", "rope_scaling."]) {
        within.extend(config.object(key)?.map(|map| Config { prefix, map, ..*config }));
    }
    if let [_, second] = within[..] {
        let rule = "rope_parameters says the same already, so only one of the two is needed";
        return Err(config.error(second.prefix.trim_end_matches('.'), "an object", rule));
    }
    let mut theta = config.real("rope_theta", Some(10_000.0))?;
    let mut factor = config.double("partial_rotary_factor", 0.5)?;
    if let [part] = within[..] {
        factor = part.double("partial_rotary_factor", factor)?;
        let found = frequencies(&part, theta)?;
        if found.scaling.is_some() {
            let rule = "frequencies are not scaled here, so default is needed";
            return Err(part.error("rope_type", part.text("rope_type", "a scaling")?, rule));
        }
        theta = found.theta;
    }
    if !(factor > 0.0 && factor <= 1.0) {
        let rule = "a part of a head is above 0 and at most 1";
        return Err(config.error("partial_rotary_factor", factor, rule));
    }
    // Rounded down, as there.
    Ok(((head_dim as f64 * factor) as usize, theta))
}
