//! `config.json` of a model of ours.

use serde_json::{Value, json};
use shardloom_graph::families::{GptConfig, LlamaConfig, RopeScaling};
use shardloom_graph::{ModelSpec, Network};

use crate::{InteropError, ModelType};

/// The `config.json` with which Hugging Face's library builds the same model as one of type `model_type`, for
/// weights that are stored in `dtype` (`float32`, `bfloat16` or `float16`, PyTorch's names). Reading it with
/// [`read_config`](super::read_config) gives `spec` back, but for its name and where the loss is cut off.
///
/// # Errors
/// If a model of that type computes something else.
pub fn write_config(
    spec: &ModelSpec,
    model_type: ModelType,
    dtype: &str,
) -> Result<String, InteropError> {
    let model_type = ModelType::of(spec, Some(model_type))?;
    let mut config = match spec.network() {
        Network::Gpt(gpt) if model_type == ModelType::Phi => phi(gpt),
        Network::Gpt(gpt) => gpt2(gpt),
        Network::Llama(llama) => llama_like(llama, model_type),
        other => unreachable!("{other:?} is no model of type {}", model_type.name()),
    };
    config["model_type"] = json!(model_type.name());
    config["architectures"] = json!([model_type.architecture()]);
    config["dtype"] = json!(dtype);
    // The key's name before version 5.
    config["torch_dtype"] = json!(dtype);
    Ok(format!("{config:#}\n"))
}

fn gpt2(gpt: &GptConfig) -> Value {
    json!({
        "activation_function": "gelu_new",
        "n_layer": gpt.layers,
        "n_embd": gpt.hidden,
        "n_head": gpt.heads,
        "n_inner": gpt.ffn(),
        "n_positions": gpt.seq,
        "vocab_size": gpt.vocab,
        "resid_pdrop": exact(gpt.dropout),
        "embd_pdrop": exact(gpt.embedding_dropout()),
        "attn_pdrop": exact(gpt.attention_dropout()),
        "layer_norm_epsilon": exact(gpt.norm_epsilon),
        "initializer_range": exact(gpt.init_std),
        "tie_word_embeddings": gpt.tied,
        // Those of the defaults lie beyond most vocabularies.
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

fn phi(gpt: &GptConfig) -> Value {
    let head_dim = gpt.hidden / gpt.heads;
    let width = gpt.rotary.unwrap_or(head_dim);
    // Read as this part of a head, rounded down.
    let factor = width as f64 / head_dim as f64;
    let exact_part = (head_dim as f64 * factor) as usize == width;
    let factor = if exact_part { factor } else { factor.next_up() };
    json!({
        "hidden_act": "gelu_new",
        "num_hidden_layers": gpt.layers,
        "hidden_size": gpt.hidden,
        "num_attention_heads": gpt.heads,
        "intermediate_size": gpt.ffn(),
        "max_position_embeddings": gpt.seq,
        "vocab_size": gpt.vocab,
        "partial_rotary_factor": factor,
        "rope_theta": exact(gpt.rope_theta()),
        "qk_layernorm": false,
        "resid_pdrop": exact(gpt.dropout),
        "embd_pdrop": exact(gpt.embedding_dropout()),
        "attention_dropout": exact(gpt.attention_dropout()),
        "layer_norm_eps": exact(gpt.norm_epsilon),
        "initializer_range": exact(gpt.init_std),
        "tie_word_embeddings": gpt.tied,
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

fn llama_like(llama: &LlamaConfig, model_type: ModelType) -> Value {
    let mut config = json!({
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
    match llama.rope_scaling {
        Some(RopeScaling::ByWavelength(factor, low, high, original)) => {
            config["rope_scaling"] = json!({
                "rope_type": "llama3",
                "factor": exact(factor),
                "low_freq_factor": exact(low),
                "high_freq_factor": exact(high),
                "original_max_position_embeddings": original,
            });
        }
        Some(RopeScaling::Linear([factor])) => {
            config["rope_scaling"] = json!({ "rope_type": "linear", "factor": exact(factor) });
        }
        None => {}
    }
    let windows: Vec<Option<usize>> = (0..llama.layers).map(|it| llama.window(it)).collect();
    let window = windows.iter().flatten().next().copied();
    match model_type {
        ModelType::Llama => {
            config["attention_bias"] = json!(false);
            config["mlp_bias"] = json!(false);
        }
        ModelType::Mistral => config["sliding_window"] = json!(window),
        ModelType::Phi3 => {
            config["sliding_window"] = json!(window);
            config["original_max_position_embeddings"] = json!(llama.seq);
            config["resid_pdrop"] = json!(0.0);
            config["embd_pdrop"] = json!(0.0);
            // That of the class is a number, which a small vocabulary has not.
            config["pad_token_id"] = json!(null);
        }
        ModelType::Gemma | ModelType::Gemma2 | ModelType::Gemma3Text => {
            config["hidden_act"] = json!("gelu_pytorch_tanh");
            config["hidden_activation"] = json!("gelu_pytorch_tanh");
            config["attention_bias"] = json!(false);
            config["pad_token_id"] = json!(null);
        }
        ModelType::Qwen3 => config["attention_bias"] = json!(false),
        ModelType::Gpt2 | ModelType::Phi | ModelType::Qwen2 => {}
    }
    match model_type {
        ModelType::Gemma2 | ModelType::Gemma3Text => {
            let scalar = llama.attention_scalar.unwrap_or(llama.head_dim());
            config["query_pre_attn_scalar"] = json!(scalar);
            config["final_logit_softcapping"] = json!(llama.logit_cap.map(exact));
            // Its number is asked for even if no layer has one.
            config["sliding_window"] = json!(window.unwrap_or(llama.seq));
            config["layer_types"] = layer_types(&windows);
        }
        ModelType::Qwen2 | ModelType::Qwen3 if window.is_some() => {
            config["use_sliding_window"] = json!(true);
            config["sliding_window"] = json!(window);
            // Of versions that have no list; it says the same where the last layers have a window.
            config["max_window_layers"] =
                json!(windows.iter().take_while(|it| it.is_none()).count());
            config["layer_types"] = layer_types(&windows);
        }
        _ => {}
    }
    match model_type {
        ModelType::Gemma2 => {
            config["attn_logit_softcapping"] = json!(llama.attention_cap.map(exact))
        }
        ModelType::Gemma3Text => {
            let local = llama.window_rope_theta.unwrap_or(llama.rope_theta);
            config["rope_local_base_freq"] = json!(exact(local));
        }
        _ => {}
    }
    config
}

fn layer_types(windows: &[Option<usize>]) -> Value {
    let name = |window: &Option<usize>| match window {
        Some(_) => "sliding_attention",
        None => "full_attention",
    };
    windows.iter().map(name).collect()
}

/// The shortest decimal number that is nearest to it: `1e-5` and not `9.999999747378752e-6`.
fn exact(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
