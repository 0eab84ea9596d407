//! Hugging Face configurations: what is read, and what is refused.

use proptest::prelude::*;
use shardloom_graph::{ModelSpec, Network};
use shardloom_interop::huggingface::read_config;

/// The configuration of openai-community/gpt2.
const GPT_2: &str = r#"{
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"max_length": 50}},
  "vocab_size": 50257
}"#;

/// The configuration of meta-llama/Llama-3.1-8B.
const LLAMA_3_1: &str = r#"{
  "_name_or_path": "meta-llama/Llama-3.1-8B",
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256
}"#;

/// The configuration of mistralai/Mistral-7B-v0.1.
const MISTRAL: &str = r#"{
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000
}"#;

fn read(text: &str) -> ModelSpec {
    read_config(text, "config.json", None).unwrap()
}

#[track_caller]
fn refused(text: &str, from: &str, to: &str, needles: &[&str]) {
    assert!(text.contains(from), "{from}");
    let error = read_config(&text.replacen(from, to, 1), "config.json", None).unwrap_err();
    let message = error.to_string();
    for needle in needles.iter().chain(&["config.json"]) {
        assert!(message.contains(needle), "{needle:?} is not in {message:?}");
    }
}

#[test]
fn gpt_2_is_the_preset() {
    let spec = read(GPT_2);
    assert_eq!(spec.network(), ModelSpec::preset("gpt-2").unwrap().network());
    assert_eq!(spec.name(), "gpt2");
}

#[test]
fn llama_3_1_is_the_preset_with_long_context() {
    let spec = read(LLAMA_3_1);
    let line = "llama-3-8b:seq=131072,rope_scaling=[8,1,4,8192]";
    assert_eq!(spec.network(), ModelSpec::parse(line).unwrap().network());
    assert_eq!(spec.name(), "Llama-3.1-8B");
    let short = read_config(LLAMA_3_1, "config.json", Some(512)).unwrap();
    assert_eq!(short, spec.with_seq(512).unwrap());
}

#[test]
fn rotary_parameters_of_newer_files_mean_the_same() {
    let newer = LLAMA_3_1
        .replace("\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0,")
        .replace("\"rope_theta\": 500000.0, \"tie", "\"tie");
    assert_eq!(read(&newer), read(LLAMA_3_1));
    let unscaled = LLAMA_3_1.replace("\"rope_type\": \"llama3\"", "\"rope_type\": \"default\"");
    assert!(
        matches!(read(&unscaled).network(), Network::Llama(llama) if llama.rope_scaling.is_none())
    );
}

#[test]
fn sizes_and_flags_of_a_llama_are_followed() {
    let text = LLAMA_3_1
        .replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")
        .replace("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06, \"head_dim\": 64")
        .replace("\"initializer_range\": 0.02", "\"initializer_range\": 0.01");
    let spec = read(&text);
    let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
    assert!(llama.tied);
    assert_eq!((llama.norm_epsilon, llama.head_dim, llama.init_std), (1e-6, Some(64), 0.01));
}

#[test]
fn a_wider_inner_layer_of_a_gpt_is_followed() {
    let text = GPT_2
        .replace("\"n_head\": 12", "\"n_head\": 12, \"n_inner\": 1000")
        .replace("\"vocab_size\"", "\"tie_word_embeddings\": false, \"vocab_size\"");
    let spec = read(&text);
    let Network::Gpt(gpt) = spec.network() else { panic!("{spec}") };
    assert_eq!((gpt.ffn, gpt.tied), (Some(1000), false));
}

#[test]
fn mistral_is_a_llama_within_its_window() {
    refused(MISTRAL, "32768", "4097", &["sliding_window = 4096", "4097"]);
    let spec = read_config(MISTRAL, "config.json", Some(4096)).unwrap();
    let open = read(&MISTRAL.replace("\"sliding_window\": 4096", "\"sliding_window\": null"));
    assert_eq!(open.with_seq(4096).unwrap(), spec);
    assert_eq!(spec.graph().unwrap().parameter_count(), 7_241_732_096);
    let absent = MISTRAL.replace("\"sliding_window\": 4096,", "");
    assert!(read_config(&absent, "config.json", Some(4097)).is_err());
}

#[test]
fn what_would_compute_something_else_is_refused_by_key() {
    refused(GPT_2, "gelu_new", "gelu", &["activation_function = gelu ", "gelu_new"]);
    refused(GPT_2, "\"attn_pdrop\": 0.1", "\"attn_pdrop\": 0.0", &["attn_pdrop = 0 ", "0.1"]);
    refused(GPT_2, "\"n_ctx\": 1024", "\"scale_attn_weights\": false", &["scale_attn_weights"]);
    let key = "scale_attn_by_inverse_layer_idx";
    refused(GPT_2, "\"n_ctx\": 1024", &format!("\"{key}\": true"), &[key]);
    refused(GPT_2, "\"n_ctx\": 1024", "\"quantization_config\": {}", &["quantization_config"]);
    refused(GPT_2, "\"n_layer\": 12", "\"n_layer\": 0", &["n_layer = 0 "]);
    refused(GPT_2, "\"n_layer\": 12,", "", &["n_layer or num_hidden_layers = nothing"]);
    // More than a single-precision number can be.
    let epsilon = "\"layer_norm_epsilon\": 1e-05";
    for wrong in ["1e39", "-1e300", "\"small\""] {
        let text = format!("\"layer_norm_epsilon\": {wrong}");
        refused(GPT_2, epsilon, &text, &["layer_norm_epsilon = ", "a number is needed"]);
    }
    refused(GPT_2, "\"n_head\": 12", "\"n_head\": 7", &["heads = 7", "hidden = 768"]);
    refused(LLAMA_3_1, "\"silu\"", "\"relu\"", &["hidden_act = relu"]);
    refused(
        LLAMA_3_1,
        "\"attention_bias\": false",
        "\"attention_bias\": true",
        &["attention_bias"],
    );
    refused(LLAMA_3_1, "\"mlp_bias\": false", "\"mlp_bias\": 1", &["mlp_bias = 1 "]);
    refused(LLAMA_3_1, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", &["dropout"]);
    refused(LLAMA_3_1, "\"llama3\"", "\"yarn\"", &["rope_scaling.rope_type = yarn", "llama3"]);
    refused(LLAMA_3_1, "\"factor\": 8.0,", "", &["rope_scaling.factor = nothing"]);
    refused(
        LLAMA_3_1,
        "\"mlp_bias\": false",
        "\"partial_rotary_factor\": 0.5",
        &["partial_rotary_factor = 0.5"],
    );
    refused(
        LLAMA_3_1,
        "\"rope_scaling\": {",
        "\"rope_scaling\": 4, \"x\": {",
        &["rope_scaling = 4"],
    );
}

#[test]
fn another_type_of_model_is_refused_with_the_supported_ones() {
    refused(GPT_2, "\"gpt2\"", "\"bert\"", &["\"bert\"", "gpt2, llama, mistral, qwen2 and qwen3"]);
    refused(GPT_2, "\"model_type\": \"gpt2\",", "", &["\"none\""]);
    let message = |text| read_config(text, "config.json", None).unwrap_err().to_string();
    assert!(message("[1]").contains("JSON object"));
    assert!(message("{\"a\": }").contains("line 1 column 7"));
}

proptest! {
    #[test]
    fn no_changed_configuration_makes_the_reader_panic(
        which in 0..3_usize,
        at in any::<proptest::sample::Index>(),
        with in "[0-9a-z\"{}\\[\\],:. -]{0,3}",
        length in 0..6_usize,
        seq in proptest::option::of(any::<usize>()),
    ) {
        let text = [GPT_2, LLAMA_3_1, MISTRAL][which];
        let start = at.index(text.len());
        let changed =
            format!("{}{with}{}", &text[..start], &text[(start + length).min(text.len())..]);
        if let Ok(spec) = read_config(&changed, "config.json", seq) {
            prop_assert!(spec.graph().is_ok());
        }
    }
}

#[test]
fn what_a_llama_leaves_out_is_as_its_authors_code_has_it() {
    // transformers, models/llama/configuration_llama.py.
    let left_out = [
        ("\"rms_norm_eps\": 1e-05,", ""),
        ("\"initializer_range\": 0.02,", ""),
        ("\"rope_theta\": 500000.0,", ""),
        ("\"tie_word_embeddings\": false,", ""),
        ("\"num_key_value_heads\": 8,", ""),
    ];
    let text = left_out.iter().fold(LLAMA_3_1.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    let spec = read(&text);
    let Network::Llama(llama) = spec.network() else { panic!("{spec:?}") };
    assert_eq!((llama.norm_epsilon, llama.init_std, llama.rope_theta), (1e-6, 0.02, 10_000.0));
    assert_eq!((llama.tied, llama.kv_heads), (false, None));
}
