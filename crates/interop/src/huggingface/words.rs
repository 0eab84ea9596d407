//! What cannot be of a model, in the words of the `config.json` that asks for it.

use shardloom_document::json_line_of;
use shardloom_graph::GraphError;

use super::at_key;
use crate::InteropError;

/// What a `config.json` calls what models here have, by the kind of model.
const ITS_WORDS: [(&str, &[&str]); 18] = [
    ("layers", &["num_hidden_layers", "n_layer"]),
    ("hidden", &["hidden_size", "n_embd"]),
    ("heads", &["num_attention_heads", "n_head"]),
    ("kv_heads", &["num_key_value_heads"]),
    ("head_dim", &["head_dim"]),
    ("ffn", &["intermediate_size", "n_inner"]),
    ("seq", &["max_position_embeddings", "n_positions"]),
    ("vocab", &["vocab_size"]),
    ("dropout", &["resid_pdrop"]),
    ("attention_dropout", &["attn_pdrop"]),
    ("embedding_dropout", &["embd_pdrop"]),
    ("init_std", &["initializer_range"]),
    ("norm_epsilon", &["rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"]),
    ("rope_theta", &["rope_parameters.rope_theta", "rope_theta"]),
    ("window_rope_theta", &["rope_local_base_freq"]),
    ("attention_scalar", &["query_pre_attn_scalar"]),
    ("attention_cap", &["attn_logit_softcapping"]),
    ("logit_cap", &["final_logit_softcapping"]),
];

/// From what of a `config.json` other things of models follow, which are other values.
const ITS_SOURCES: [(&str, &[&str]); 3] = [
    ("rope_scaling", &["rope_parameters.factor", "rope_scaling"]),
    ("rotary", &["rope_parameters.partial_rotary_factor", "partial_rotary_factor"]),
    ("windows", &["sliding_window", "layer_types"]),
];

/// What a configuration says in place of a key of models, if it does; by one of these lists.
fn its_word(text: &str, list: &[(&str, &[&'static str])], key: &str) -> Option<&'static str> {
    let (_, words) = list.iter().find(|(ours, _)| *ours == key)?;
    words.iter().copied().find(|word| json_line_of(text, word).is_some())
}

/// The error of a model that the configuration `text` in the file `place` describes: with the key that says what cannot
/// be, and the line there; in the words of models where what it says is another value, or none says it.
pub(super) fn in_its_words(text: &str, error: GraphError, place: &str) -> InteropError {
    let mut source = None;
    if let GraphError::Parameter { key, value, rule, .. } = &error {
        if let Some(word) = its_word(text, &ITS_WORDS, key) {
            let place = at_key(text, word, place.into());
            let (key, value, rule) = (word.into(), value.clone(), with_its_words(text, rule));
            return InteropError::Key { place, key, value, rule };
        }
        source = its_word(text, &ITS_SOURCES, key);
    }
    let place = at_key(text, source.unwrap_or("model_type"), place.into());
    InteropError::Model { place, source: Box::new(error) }
}

/// A rule about sizes (`it must divide hidden = 64`) with the keys that say them.
fn with_its_words(text: &str, rule: &str) -> String {
    let words: Vec<&str> = rule.split(' ').collect();
    let word = |(index, &word): (usize, &&str)| match words.get(index + 1) {
        Some(&"=") => its_word(text, &ITS_WORDS, word).unwrap_or(word).to_owned(),
        _ => word.to_owned(),
    };
    words.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
}
