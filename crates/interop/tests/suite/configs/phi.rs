//! Configurations of Phi, the first ones and Phi-3.

use super::*;

/// The configuration of microsoft/Phi-3-mini-4k-instruct.
pub(super) const PHI_3: &str = r#"{
  "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0,
  "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32064
}"#;

/// The configuration of microsoft/phi-2.
pub(super) const PHI_2: &str = r#"{
  "_name_or_path": "microsoft/phi-2", "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "hidden_act": "gelu_new",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 10240,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": null,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float16",
  "use_cache": true, "vocab_size": 51200
}"#;

/// What a Phi has and a GPT has not.
pub(super) const GPT_WORDS: &str =
    "gpt:layers=2,hidden=12,heads=3,seq=8,vocab=64,rotary=2,parallel=true,head_bias=true";

/// As many parameters as the published weights have.
#[test]
fn phi_2_is_a_gpt_with_these_words() {
    let spec = read(PHI_2);
    assert_eq!(spec.network(), ModelSpec::preset("phi-2").unwrap().network());
    let line = "gpt:layers=32,hidden=2560,heads=32,seq=2048,vocab=51200,dropout=0.1,attention_dropout=0,\
                embedding_dropout=0,rotary=32,parallel=true,head_bias=true";
    assert_eq!(spec.network(), ModelSpec::parse(line).unwrap().network());
    assert_eq!(spec.graph().unwrap().parameter_count(), 2_779_683_840);
    // As its configuration class has them.
    let left_out = [
        "\"attention_dropout\": 0.0,",
        "\"embd_pdrop\": 0.0,",
        "\"hidden_act\": \"gelu_new\",",
        "\"num_key_value_heads\": 32,",
        "\"rope_theta\": 10000.0,",
        "\"tie_word_embeddings\": false,",
    ];
    let short = left_out.iter().fold(PHI_2.to_owned(), |text, from| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, "", 1)
    });
    assert_eq!(read(&short), spec);
    let half = PHI_2.replace("\"partial_rotary_factor\": 0.4,", "");
    assert!(matches!(read(&half).network(), Network::Gpt(gpt) if gpt.rotary == Some(40)));
    let newer = PHI_2
        .replace("\"partial_rotary_factor\": 0.4,", "")
        .replace("\"rope_theta\": 10000.0,", "")
        .replace(
            "\"rope_scaling\": null",
            "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, \
             \"partial_rotary_factor\": 0.4}",
        );
    assert_eq!(read(&newer), spec);
}

#[test]
fn what_a_phi_may_have_besides_is_refused_by_key() {
    for (from, to, part) in [
        ("\"gelu_new\"", "\"gelu\"", "hidden_act = gelu "),
        ("\"qk_layernorm\": false", "\"qk_layernorm\": true", "qk_layernorm = true"),
        ("\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8", "num_key_value_heads = 8"),
        ("\"use_cache\": true", "\"head_dim\": 64", "head_dim = 64"),
        ("0.4", "1.5", "partial_rotary_factor = 1.5"),
        ("0.4", "0.02", "rotary = 1"),
        (
            "\"rope_scaling\": null",
            "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}",
            "rope_scaling.rope_type = linear",
        ),
        (
            "\"rope_scaling\": null",
            "\"rope_scaling\": {}, \"rope_parameters\": {}",
            "rope_scaling = an object",
        ),
    ] {
        refused(PHI_2, from, to, &[part]);
    }
}

#[test]
fn phi_3_is_a_llama_within_its_window() {
    let preset = ModelSpec::preset("phi-3-mini").unwrap();
    let windowed = ModelSpec::parse("phi-3-mini:windows=2047").unwrap();
    assert_eq!(read(PHI_3).network(), windowed.network());
    let spec = read_config(PHI_3, "config.json", Some(2047)).unwrap();
    assert_eq!(spec.network(), preset.with_seq(2047).unwrap().network());
    let open = PHI_3.replace("\"sliding_window\": 2047,", "");
    assert_eq!(read(&open).network(), preset.network());
    let short =
        open.replace("\"num_key_value_heads\": 32,", "").replace("\"rms_norm_eps\": 1e-05,", "");
    let Network::Llama(llama) = read(&short).network().clone() else { panic!("{short}") };
    assert_eq!((llama.kv_heads(), llama.norm_epsilon), (32, 1e-5));
}

#[test]
fn what_a_phi_3_may_have_besides_is_refused_by_key() {
    let open = PHI_3.replace("\"sliding_window\": 2047,", "");
    for (from, to, part) in [
        ("\"resid_pdrop\": 0.0", "\"resid_pdrop\": 0.1", "resid_pdrop = 0.1"),
        ("\"embd_pdrop\": 0.0", "\"embd_pdrop\": 0.1", "embd_pdrop = 0.1"),
        ("\"use_cache\": true", "\"partial_rotary_factor\": 0.75", "partial_rotary_factor = 0.75"),
    ] {
        refused(&open, from, to, &[part]);
    }
    for kind in ["longrope", "su", "yarn"] {
        let scaling = format!(
            "\"rope_scaling\": {{\"type\": \"{kind}\", \"short_factor\": [1.0], \"long_factor\": [1.0]}}"
        );
        let part = format!("rope_scaling.type = {kind}");
        refused(&open, "\"rope_scaling\": null", &scaling, &[&part]);
    }
    let llama = "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \
                 \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}";
    refused(&open, "\"rope_scaling\": null", llama, &["rope_type = llama3", "longrope"]);
}
