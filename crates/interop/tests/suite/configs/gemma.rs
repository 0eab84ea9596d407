//! Configurations of Gemma, of all three generations.

use super::*;

/// The configuration of google/gemma-2b.
pub(super) const GEMMA: &str = r#"{
  "architectures": ["GemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
  "hidden_activation": null, "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
  "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
  "use_cache": true, "vocab_size": 256000
}"#;

/// What a Gemma has and a Llama has not.
pub(super) const GEMMA_WORDS: &str = "geglu=true,scaled_embedding=true,zero_centered_gain=true";

#[test]
fn gemma_is_the_preset_whatever_its_gelu_is_called() {
    let preset = ModelSpec::preset("gemma-2b").unwrap();
    assert_eq!(read(GEMMA).network(), preset.network());
    for (from, to) in [
        ("\"gelu\"", "\"gelu_pytorch_tanh\""),
        ("\"hidden_act\": \"gelu\",", ""),
        ("\"hidden_activation\": null", "\"hidden_activation\": \"gelu_pytorch_tanh\""),
        ("\"hidden_activation\": null,", ""),
        // As its configuration class has them.
        ("\"head_dim\": 256,", ""),
    ] {
        assert!(GEMMA.contains(from), "{from}");
        assert_eq!(read(&GEMMA.replacen(from, to, 1)).network(), preset.network(), "{from}");
    }
    let absent = read(
        &GEMMA
            .replace("\"num_attention_heads\": 8", "\"num_attention_heads\": 32")
            .replace("\"num_key_value_heads\": 1,", ""),
    );
    let Network::Llama(llama) = absent.network() else { panic!("{absent}") };
    assert_eq!(llama.kv_heads(), 16);
    let untied = read(&GEMMA.replace("\"use_cache\": true", "\"tie_word_embeddings\": false"));
    assert!(matches!(untied.network(), Network::Llama(llama) if !llama.tied));
}

/// As its configuration class has it, and not the width over the number of heads.
#[test]
fn heads_of_a_gemma_are_256_wide_where_nothing_else_is_said() {
    let wide = GEMMA
        .replace("\"head_dim\": 256,", "")
        .replace("\"hidden_size\": 2048", "\"hidden_size\": 3072")
        .replace("\"num_attention_heads\": 8", "\"num_attention_heads\": 16");
    let spec = read(&wide);
    let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
    assert_eq!((llama.hidden, llama.heads, llama.head_dim), (3072, 16, Some(256)));
}

#[test]
fn what_a_gemma_may_have_besides_is_refused_by_key() {
    refused(GEMMA, "\"gelu\"", "\"silu\"", &["hidden_act = silu"]);
    // The exact one.
    let exact = "\"hidden_activation\": \"gelu\"";
    refused(GEMMA, "\"hidden_activation\": null", exact, &["hidden_activation = gelu "]);
    let key = "use_bidirectional_attention";
    refused(GEMMA, "\"use_cache\": true", &format!("\"{key}\": true"), &[key, "earlier"]);
}

/// The configuration of google/gemma-2-27b.
pub(super) const GEMMA_2: &str = r#"{
  "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
  "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 128,
  "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608,
  "initializer_range": 0.02, "intermediate_size": 36864, "max_position_embeddings": 8192,
  "model_type": "gemma2", "num_attention_heads": 32, "num_hidden_layers": 46,
  "num_key_value_heads": 16, "pad_token_id": 0, "query_pre_attn_scalar": 144,
  "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
  "sliding_window_size": 4096, "torch_dtype": "float32", "use_cache": true, "vocab_size": 256000
}"#;

/// The text model of google/gemma-3-12b-pt, as its library writes what the configuration leaves out.
pub(super) const GEMMA_3: &str = r#"{
  "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 3840, "initializer_range": 0.02, "intermediate_size": 15360,
  "max_position_embeddings": 131072, "model_type": "gemma3_text", "num_attention_heads": 16,
  "num_hidden_layers": 48, "num_key_value_heads": 8, "query_pre_attn_scalar": 256,
  "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000.0,
  "sliding_window": 1024, "sliding_window_pattern": 6, "use_cache": true, "vocab_size": 262208
}"#;

/// What a Gemma 2 has and a Llama has not, but for windows and bounds.
pub(super) const GEMMA_2_WORDS: &str =
    "post_norms=true,geglu=true,scaled_embedding=true,zero_centered_gain=true";

/// As many parameters as the published weights have, of Gemma 3 without its encoder of images.
#[test]
fn gemma_2_and_3_are_llamas_with_these_words() {
    let spec = read(GEMMA_2);
    assert_eq!(spec.network(), ModelSpec::preset("gemma-2-27b").unwrap().network());
    let line = format!(
        "llama:layers=46,hidden=4608,heads=32,kv_heads=16,head_dim=128,ffn=36864,seq=8192,vocab=256000,\
         norm_epsilon=1e-6,tied=true,windows=4096-0,attention_scalar=144,attention_cap=50,logit_cap=30,\
         {GEMMA_2_WORDS}"
    );
    assert_eq!(spec.network(), ModelSpec::parse(&line).unwrap().network());
    assert_eq!(spec.graph().unwrap().parameter_count(), 27_227_128_320);
    let spec = read(GEMMA_3);
    assert_eq!(spec.network(), ModelSpec::preset("gemma-3-12b").unwrap().network());
    let line = format!(
        "llama:layers=48,hidden=3840,heads=16,kv_heads=8,head_dim=256,ffn=15360,seq=131072,vocab=262208,\
         rope_theta=1e6,rope_scaling=[8],norm_epsilon=1e-6,tied=true,windows=5x1024-0,window_rope_theta=1e4,\
         qk_norm=true,{GEMMA_2_WORDS}"
    );
    assert_eq!(spec.network(), ModelSpec::parse(&line).unwrap().network());
    assert_eq!(spec.graph().unwrap().parameter_count(), 11_766_034_176);
}

#[test]
fn what_a_gemma_2_or_3_leaves_out_is_as_its_authors_code_has_it() {
    let without = |text: &str, keys: &[&str]| {
        let mut map: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).unwrap();
        keys.iter().for_each(|&key| assert!(map.remove(key).is_some(), "{key}"));
        read(&serde_json::to_string(&map).unwrap())
    };
    let keys =
        ["sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "vocab_size"];
    assert_eq!(without(GEMMA_2, &keys), read(GEMMA_2));
    let keys = [
        "head_dim",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "rope_theta",
        "sliding_window_pattern",
        "vocab_size",
    ];
    assert_eq!(without(GEMMA_3, &keys), read(GEMMA_3));
    // Null is another thing than absent.
    let unbounded = GEMMA_2.replace("50.0", "null").replace("30.0", "null");
    let Network::Llama(llama) = read(&unbounded).network().clone() else { panic!("{unbounded}") };
    assert_eq!((llama.attention_cap, llama.logit_cap), (None, None));
    // As newer files have it.
    let newer = GEMMA_3
        .replace(
            "\"rope_local_base_freq\": 10000.0",
            "\"rope_parameters\": {\"full_attention\": {\"factor\": 8.0, \"rope_type\": \"linear\", \
             \"rope_theta\": 1e6}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}",
        )
        .replace("\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"},", "");
    assert_eq!(read(&newer), read(GEMMA_3));
    for (from, to, part) in [
        ("\"full_attention\"", "\"attention\"", "rope_parameters.attention"),
        ("\"default\"", "\"linear\", \"factor\": 2", "sliding_attention.rope_type = linear"),
        ("\"linear\"", "\"yarn\"", "full_attention.rope_type = yarn"),
        ("\"vocab_size\"", "\"rope_scaling\": {}, \"vocab_size\"", "rope_scaling = "),
    ] {
        refused(&newer, from, to, &[part]);
    }
}

#[test]
fn what_a_gemma_2_or_3_may_have_besides_is_refused_by_key() {
    for text in [GEMMA_2, GEMMA_3] {
        refused(
            text,
            "\"hidden_activation\": \"gelu_pytorch_tanh\"",
            "\"hidden_activation\": \"silu\"",
            &["hidden_activation = silu"],
        );
        refused(text, "\"attention_bias\": false", "\"attention_bias\": true", &["attention_bias"]);
        let key = "\"use_bidirectional_attention\": true";
        refused(text, "\"use_cache\": true", key, &["use_bidirectional_attention", "earlier"]);
    }
    // It is set, and not used, by the library's attention.
    let bounded = "\"attn_logit_softcapping\": 50.0";
    refused(
        GEMMA_3,
        "\"attn_logit_softcapping\": null",
        bounded,
        &["attn_logit_softcapping = 50.0"],
    );
    refused(
        GEMMA_2,
        "\"sliding_window\": 4096",
        "\"sliding_window\": null",
        &["sliding_window = none"],
    );
    refused(GEMMA_2, "144", "0", &["query_pre_attn_scalar = 0"]);
}
