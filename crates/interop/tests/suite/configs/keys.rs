//! Each key with values of every kind, and what configurations have where they leave keys out.

use serde_json::{Map, Value, json};

use super::phi::{GPT_WORDS, PHI_2, PHI_3};
use super::*;

fn map(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).expect("an object")
}

/// The configuration with another value of a key.
fn with(text: &str, key: &str, value: Value) -> String {
    let mut map = map(text);
    map.insert(key.into(), value);
    serde_json::to_string(&map).expect("JSON")
}

fn without(text: &str, key: &str) -> String {
    let mut map = map(text);
    map.remove(key);
    serde_json::to_string(&map).expect("JSON")
}

/// Refused for this key, with the value and what is needed.
#[track_caller]
fn refuses(text: &str, key: &str, value: Value, rule: &str) {
    let shown = match &value {
        Value::String(text) => text.clone(),
        // As numbers here are written: 1 and not 1.0.
        Value::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    };
    let error = read_config(&with(text, key, value.clone()), "config.json", None);
    let Err(error) = error else { panic!("{key} = {value} is read") };
    let message = error.to_string();
    // Texts are shown in quotes where they are of the wrong kind.
    let is_said = [format!("{key} = {shown}"), format!("{key} = {value}")];
    assert!(is_said.iter().any(|it| message.contains(it)), "{key} = {value}: {message}");
    assert!(message.contains(rule), "{key} = {value}: {message}");
}

const SIZES: [(&str, &[&str]); 6] = [
    (GPT_2, &["n_layer", "n_embd", "n_head", "n_positions", "n_inner", "vocab_size"]),
    (
        LLAMA_3_1,
        &[
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "max_position_embeddings",
            "vocab_size",
        ],
    ),
    (MISTRAL, &["sliding_window"]),
    (PHI_3, &["sliding_window"]),
    (GEMMA_3, &["sliding_window", "sliding_window_pattern", "query_pre_attn_scalar"]),
    (PHI_2, &["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"]),
];

#[test]
fn sizes_are_whole_numbers_from_one_up() {
    let rule = "a whole number from 1 up is needed";
    for (text, keys) in SIZES {
        for key in keys {
            for wrong in [json!(0), json!(-1), json!(1.5), json!("8"), json!(true), json!([8])] {
                refuses(text, key, wrong, rule);
            }
        }
    }
    // From 0 up.
    let windowed = with(QWEN_2_5, "use_sliding_window", json!(true));
    for wrong in [json!(-1), json!(1.5), json!("8"), json!(true)] {
        refuses(&windowed, "max_window_layers", wrong, "a whole number is needed");
    }
    read(&with(&windowed, "max_window_layers", json!(0)));
}

#[test]
fn numbers_are_numbers_and_flags_flags() {
    for (text, keys) in [
        (
            GPT_2,
            &["resid_pdrop", "attn_pdrop", "embd_pdrop", "layer_norm_epsilon", "initializer_range"]
                [..],
        ),
        (LLAMA_3_1, &["rms_norm_eps", "initializer_range", "rope_theta", "attention_dropout"]),
        (GEMMA_2, &["attn_logit_softcapping", "final_logit_softcapping"]),
        (GEMMA_3, &["rope_local_base_freq", "rope_theta"]),
        (PHI_2, &["partial_rotary_factor", "resid_pdrop", "layer_norm_eps", "rope_theta"]),
    ] {
        for key in keys {
            for wrong in [json!("0.5"), json!(true), json!([0.5])] {
                refuses(text, key, wrong, "a number is needed");
            }
        }
    }
    for (text, keys) in [
        (GPT_2, &["tie_word_embeddings", "scale_attn_weights", "is_causal"][..]),
        (LLAMA_3_1, &["tie_word_embeddings", "attention_bias", "mlp_bias"]),
        (QWEN_2_5, &["use_sliding_window"]),
        (PHI_2, &["qk_layernorm", "tie_word_embeddings"]),
    ] {
        for key in keys {
            for wrong in [json!("true"), json!(1), json!([])] {
                refuses(text, key, wrong, "true or false is needed");
            }
        }
    }
    for (text, key) in
        [(GPT_2, "activation_function"), (LLAMA_3_1, "hidden_act"), (GPT_2, "model_type")]
    {
        for wrong in [json!(7), json!(true), json!(["silu"])] {
            refuses(text, key, wrong, "a string is needed");
        }
    }
    for key in ["rope_scaling", "rope_parameters"] {
        for wrong in [json!(7), json!("linear"), json!([])] {
            refuses(&without(LLAMA_3_1, "rope_scaling"), key, wrong, "an object or null is needed");
        }
        // Null is as if it were not there.
        let plain = without(LLAMA_3_1, "rope_scaling");
        assert_eq!(read(&with(&plain, key, json!(null))), read(&plain));
    }
}

#[test]
fn every_other_activation_is_refused() {
    let tanh = &["gelu_new", "gelu_pytorch_tanh"][..];
    for (text, key, taken) in [
        (GPT_2, "activation_function", tanh),
        (LLAMA_3_1, "hidden_act", &["silu"]),
        (MISTRAL, "hidden_act", &["silu"]),
        (PHI_3, "hidden_act", &["silu"]),
        (QWEN_2_5, "hidden_act", &["silu"]),
        (QWEN_3, "hidden_act", &["silu"]),
        (PHI_2, "hidden_act", tanh),
        // Files of the first release say so.
        (GEMMA, "hidden_act", &["gelu", "gelu_new", "gelu_pytorch_tanh"]),
        (GEMMA, "hidden_activation", tanh),
        (GEMMA_2, "hidden_activation", tanh),
        (GEMMA_3, "hidden_activation", tanh),
    ] {
        for activation in [
            "silu",
            "gelu",
            "gelu_new",
            "gelu_pytorch_tanh",
            "gelu_fast",
            "swish",
            "relu",
            "tanh",
            "",
        ] {
            match taken.contains(&activation) {
                true => assert_eq!(read(&with(text, key, json!(activation))), read(text)),
                false => refuses(text, key, json!(activation), "is needed"),
            }
        }
    }
}

#[test]
fn flags_that_ask_for_something_else_are_refused_and_those_that_do_not_are_passed_over() {
    for (text, key, needed) in [
        (GPT_2, "is_causal", true),
        (GPT_2, "scale_attn_weights", true),
        (GPT_2, "scale_attn_by_inverse_layer_idx", false),
        (GPT_2, "add_cross_attention", false),
        (LLAMA_3_1, "is_causal", true),
        (LLAMA_3_1, "attention_bias", false),
        (LLAMA_3_1, "mlp_bias", false),
        (QWEN_3, "attention_bias", false),
        (GEMMA_2, "attention_bias", false),
        (GEMMA_3, "use_bidirectional_attention", false),
        (PHI_2, "is_causal", true),
        (PHI_2, "qk_layernorm", false),
    ] {
        refuses(text, key, json!(!needed), &format!("{needed} is needed: "));
        for same in
            [with(text, key, json!(needed)), with(text, key, json!(null)), without(text, key)]
        {
            assert_eq!(read(&same), read(text), "{key}");
        }
    }
    for text in [GPT_2, LLAMA_3_1, PHI_2, GEMMA] {
        refuses(text, "quantization_config", json!({}), "quantised weights are not supported");
        assert_eq!(read(&with(text, "quantization_config", json!(null))), read(text));
    }
    for text in [LLAMA_3_1, MISTRAL, PHI_3, QWEN_2_5, QWEN_3, GEMMA, GEMMA_2, GEMMA_3] {
        for dropout in [json!(0.1), json!(0.875), json!(-0.1)] {
            refuses(text, "attention_dropout", dropout, "no dropout here");
        }
    }
    for key in ["resid_pdrop", "embd_pdrop"] {
        for dropout in [json!(0.1), json!(0.875), json!(-0.1)] {
            refuses(PHI_3, key, dropout, "a Phi-3 has no dropout here");
        }
    }
}

/// One of this program's own words may stand in anybody's configuration.
#[test]
fn a_file_without_a_kind_of_model_is_told_so_on_its_first_line() {
    let message = |text: &str| read_config(text, "config.json", None).unwrap_err().to_string();
    let begin = "config.json:1: the key model_type is missing; ";
    for text in ["{}", "{\n\"layers\": 2}"] {
        let said = message(text);
        assert!(said.starts_with(&format!("{begin}there are gemma, ")), "{said}");
    }
    for one in ["layers", "hidden", "heads", "vocab", "ffn"] {
        for other in ["layers", "hidden", "heads", "vocab", "ffn"] {
            let both = format!("\"{one}\": 1,\n\"{other}\": 2");
            let (pairs, own) = match one == other {
                true => (format!("\"{one}\": 1"), "there are gemma"),
                false => (both, "layers, hidden, heads and their"),
            };
            let said = message(&format!("{{\n{pairs}}}"));
            assert!(said.starts_with(&format!("{begin}{own}")), "{one}, {other}: {said}");
        }
    }
}

/// transformers, `Gemma2Config`, `Gemma3TextConfig`.
#[test]
fn a_gemma_that_says_nothing_is_as_its_authors_code_has_it() {
    let sizes = "layers=26,hidden=2304,heads=8,kv_heads=4,head_dim=256,ffn=9216,seq=8192";
    let rest = format!("tied=true,norm_epsilon=1e-6,attention_scalar=256,{GEMMA_2_WORDS}");
    for (kind, words) in [
        ("gemma2", "vocab=256000,windows=4096-0,attention_cap=50,logit_cap=30"),
        (
            "gemma3_text",
            "vocab=262208,windows=4096-4096-4096-4096-4096-0,qk_norm=true,rope_theta=1e6,window_rope_theta=1e4",
        ),
    ] {
        let text = format!("{{\"model_type\": \"{kind}\", \"max_position_embeddings\": 8192}}");
        let right = ModelSpec::parse(&format!("llama:{sizes},{words},{rest}")).unwrap();
        assert_eq!(read(&text).network(), right.network(), "{kind}");
    }
    // Each key counts for itself.
    for (key, value, word) in [
        ("num_hidden_layers", 4, "layers=4"),
        ("hidden_size", 64, "hidden=64"),
        ("num_attention_heads", 16, "heads=16"),
        ("num_key_value_heads", 2, "kv_heads=2"),
        ("head_dim", 32, "head_dim=32"),
        ("intermediate_size", 96, "ffn=96"),
        ("vocab_size", 512, "vocab=512"),
        ("query_pre_attn_scalar", 99, "attention_scalar=99"),
        ("sliding_window", 7, "windows=7-0"),
        ("final_logit_softcapping", 5, "logit_cap=5"),
        ("attn_logit_softcapping", 6, "attention_cap=6"),
    ] {
        let text = format!(
            "{{\"model_type\": \"gemma2\", \"max_position_embeddings\": 8192, \"{key}\": {value}}}"
        );
        let (name, _) = word.split_once('=').unwrap();
        let all =
            format!("{sizes},vocab=256000,windows=4096-0,attention_cap=50,logit_cap=30,{rest}");
        let kept = all.split(',').filter(|pair| !pair.starts_with(&format!("{name}=")));
        let line = kept.chain([word]).collect::<Vec<_>>().join(",");
        let right = ModelSpec::parse(&format!("llama:{line}")).unwrap();
        assert_eq!(read(&text).network(), right.network(), "{key}");
    }
}

/// Heads of 80 elements, of which 0.4 are 32.
#[test]
fn the_part_of_a_head_that_a_phi_rotates_is_rounded_down_and_at_most_all_of_it() {
    let width = |text: &str| match read(text).network() {
        Network::Gpt(gpt) => gpt.rotary,
        other => panic!("{other:?}"),
    };
    for (factor, elements) in [(0.4, 32), (0.5, 40), (1.0, 80), (0.436, 34), (0.025, 2)] {
        let text = with(PHI_2, "partial_rotary_factor", json!(factor));
        assert_eq!(width(&text), Some(elements), "{factor}");
        // In newer files it stands with the other parameters, which go before what stands outside.
        let parameters = json!({"rope_type": "default", "partial_rotary_factor": factor});
        for text in [PHI_2.to_owned(), without(PHI_2, "partial_rotary_factor")] {
            let newer = with(&text, "rope_parameters", parameters.clone());
            assert_eq!(width(&newer), Some(elements), "{factor}");
        }
        let beside = with(&text, "rope_parameters", json!({"rope_type": "default"}));
        assert_eq!(width(&beside), Some(elements), "{factor}");
    }
    for factor in [0.0, -0.5, 1.0001, 2.0] {
        let rule = "a part of a head is above 0 and at most 1";
        refuses(PHI_2, "partial_rotary_factor", json!(factor), rule);
    }
}

#[test]
fn what_is_written_names_its_class_and_the_format_of_its_weights() {
    let llama = "llama:layers=2,hidden=12,heads=3,kv_heads=3,ffn=32,seq=8,vocab=64";
    for (line, model_type, name, class) in [
        (
            "gpt:layers=1,hidden=12,heads=3,seq=8,vocab=64".to_owned(),
            ModelType::Gpt2,
            "gpt2",
            "GPT2LMHeadModel",
        ),
        (GPT_WORDS.to_owned(), ModelType::Phi, "phi", "PhiForCausalLM"),
        (llama.to_owned(), ModelType::Llama, "llama", "LlamaForCausalLM"),
        (llama.to_owned(), ModelType::Mistral, "mistral", "MistralForCausalLM"),
        (llama.to_owned(), ModelType::Phi3, "phi3", "Phi3ForCausalLM"),
        (format!("{llama},qkv_bias=true"), ModelType::Qwen2, "qwen2", "Qwen2ForCausalLM"),
        (format!("{llama},qk_norm=true"), ModelType::Qwen3, "qwen3", "Qwen3ForCausalLM"),
        (format!("{llama},{GEMMA_WORDS}"), ModelType::Gemma, "gemma", "GemmaForCausalLM"),
        (format!("{llama},{GEMMA_2_WORDS}"), ModelType::Gemma2, "gemma2", "Gemma2ForCausalLM"),
        (
            format!("{llama},qk_norm=true,{GEMMA_2_WORDS}"),
            ModelType::Gemma3Text,
            "gemma3_text",
            "Gemma3ForCausalLM",
        ),
    ] {
        for dtype in ["float32", "bfloat16"] {
            let spec = ModelSpec::parse(&line).unwrap();
            let written = map(&write_config(&spec, model_type, dtype).unwrap());
            assert_eq!(written["model_type"], name);
            assert_eq!(written["architectures"], json!([class]));
            // Under both names that the key has had.
            assert_eq!(
                (&written["dtype"], &written["torch_dtype"]),
                (&json!(dtype), &json!(dtype))
            );
        }
    }
}

/// Versions without a list of layers go by how many at the front have no window.
#[test]
fn windows_of_the_last_layers_of_a_qwen_are_written_for_older_versions_too() {
    let llama = "llama:layers=4,hidden=12,heads=3,kv_heads=3,ffn=32,seq=8,vocab=64";
    for words in ["qkv_bias=true", "qk_norm=true"] {
        for (windows, first) in [("0-0-0-5", 3), ("0-5-5-5", 1), ("5", 0)] {
            let spec = ModelSpec::parse(&format!("{llama},{words},windows={windows}")).unwrap();
            let model_type = ModelType::of(&spec, None).unwrap();
            let config = write_config(&spec, model_type, "float32").unwrap();
            assert_eq!(map(&config)["max_window_layers"], json!(first), "{config}");
            assert_eq!(read(&config).network(), spec.network());
            assert_eq!(read(&without(&config, "layer_types")).network(), spec.network());
        }
    }
}

/// The factor times the width of a head is rounded down there, and some quotients are a little too small.
#[test]
fn every_part_of_a_head_is_written_so_that_it_is_read_again() {
    for head_dim in [4, 44, 47, 49, 55] {
        for width in (2..=head_dim).step_by(2) {
            let words =
                GPT_WORDS.replace("hidden=12,heads=3", &format!("hidden={head_dim},heads=1"));
            let line = words.replace("rotary=2", &format!("rotary={width}"));
            let spec = ModelSpec::parse(&line).unwrap();
            let config = write_config(&spec, ModelType::Phi, "float32").unwrap();
            assert_eq!(read(&config).network(), spec.network(), "{config}");
            let factor = map(&config)["partial_rotary_factor"].as_f64().unwrap();
            assert_eq!((head_dim as f64 * factor) as usize, width, "{factor} of {head_dim}");
        }
    }
}

/// Keys that only the library there reads.
#[test]
fn what_is_written_for_others_says_what_the_model_has() {
    let llama = "llama:layers=2,hidden=12,heads=3,kv_heads=3,ffn=32,seq=8,vocab=64,rope_theta=5000";
    let written = |words: &str, model_type| {
        let spec = ModelSpec::parse(&format!("{llama}{words}")).unwrap();
        map(&write_config(&spec, model_type, "float32").unwrap())
    };
    let phi = written("", ModelType::Phi3);
    assert_eq!(phi["original_max_position_embeddings"], json!(8));
    assert_eq!((&phi["pad_token_id"], &phi["sliding_window"]), (&json!(null), &json!(null)));
    assert_eq!(written(",windows=4", ModelType::Phi3)["sliding_window"], json!(4));
    // Without a window its number of positions is asked for all the same, and hides nothing.
    let words = format!(",{GEMMA_2_WORDS}");
    assert_eq!(written(&words, ModelType::Gemma2)["sliding_window"], json!(8));
    let words = format!("{words},qk_norm=true");
    let gemma = written(&words, ModelType::Gemma3Text);
    assert_eq!(
        (&gemma["sliding_window"], &gemma["rope_local_base_freq"]),
        (&json!(8), &json!(5000.0))
    );
    let words = format!("{words},windows=4-0,window_rope_theta=70");
    let gemma = written(&words, ModelType::Gemma3Text);
    assert_eq!(
        (&gemma["sliding_window"], &gemma["rope_local_base_freq"]),
        (&json!(4), &json!(70.0))
    );
}
