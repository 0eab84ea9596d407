//! `config.json` of a model of ours.

use serde_json::{Value, json};
use shardloom_graph::families::{GptConfig, LlamaConfig};
use shardloom_graph::{ModelSpec, Network};

use crate::InteropError;

/// The `config.json` with which Hugging Face's library builds the same model, for weights that are stored in
/// `dtype` (`float32`, `bfloat16` or `float16`, PyTorch's names). Reading it with
/// [`read_config`](super::read_config) gives `spec` back, but for its name and where the loss is cut off.
///
/// # Errors
/// If that library has no such model: another family than GPT and Llama, or a Llama with both biases and
/// norms of its queries.
pub fn write_config(spec: &ModelSpec, dtype: &str) -> Result<String, InteropError> {
    let nothing = |reason| InteropError::NoConfig { model: spec.name().into(), reason };
    let mut config = match spec.network() {
        Network::Gpt(gpt) => gpt2(gpt),
        Network::Llama(llama) => {
            let divides = llama.hidden.is_multiple_of(llama.heads);
            let kind = match (llama.qkv_bias, llama.qk_norm) {
                (false, false) if divides => ("llama", "LlamaForCausalLM"),
                // The same model, of which that library does not ask for it.
                (false, false) => ("mistral", "MistralForCausalLM"),
                (true, false) => ("qwen2", "Qwen2ForCausalLM"),
                (false, true) => ("qwen3", "Qwen3ForCausalLM"),
                (true, true) => {
                    return Err(nothing("no model there has both qkv_bias and qk_norm"));
                }
            };
            llama_like(llama, kind)
        }
        _ => return Err(nothing("only a gpt or a llama is a model there")),
    };
    config["dtype"] = json!(dtype);
    // The key's name before version 5.
    config["torch_dtype"] = json!(dtype);
    Ok(format!("{config:#}\n"))
}

fn gpt2(gpt: &GptConfig) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": gpt.layers,
        "n_embd": gpt.hidden,
        "n_head": gpt.heads,
        "n_inner": gpt.ffn(),
        "n_positions": gpt.seq,
        "vocab_size": gpt.vocab,
        "resid_pdrop": exact(gpt.dropout),
        "embd_pdrop": exact(gpt.dropout),
        "attn_pdrop": exact(gpt.dropout),
        "layer_norm_epsilon": exact(gpt.norm_epsilon),
        "initializer_range": exact(gpt.init_std),
        "tie_word_embeddings": gpt.tied,
        // Those of the defaults lie beyond most vocabularies.
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

fn llama_like(llama: &LlamaConfig, (model_type, architecture): (&str, &str)) -> Value {
    let mut config = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "num_hidden_layers": llama.layers,
        "hidden_size": llama.hidden,
        "num_attention_heads": llama.heads,
        "num_key_value_heads": llama.kv_heads(),
        "head_dim": llama.head_dim(),
        "intermediate_size": llama.ffn,
        "max_position_embeddings": llama.seq,
        "vocab_size": llama.vocab,
        "rope_theta": exact(llama.rope_theta),
        "rms_norm_eps": exact(llama.norm_epsilon),
        "initializer_range": exact(llama.init_std),
        "tie_word_embeddings": llama.tied,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "eos_token_id": null,
    });
    if let Some((factor, low, high, original)) = llama.rope_scaling {
        config["rope_scaling"] = json!({
            "rope_type": "llama3",
            "factor": exact(factor),
            "low_freq_factor": exact(low),
            "high_freq_factor": exact(high),
            "original_max_position_embeddings": original,
        });
    }
    match model_type {
        "llama" => {
            config["attention_bias"] = json!(false);
            config["mlp_bias"] = json!(false);
        }
        "mistral" => config["sliding_window"] = json!(null),
        "qwen3" => config["attention_bias"] = json!(false),
        _ => {}
    }
    config
}

/// The shortest decimal number that is nearest to it: `1e-5` and not `9.999999747378752e-6`.
fn exact(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
