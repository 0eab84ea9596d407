//! Hugging Face configurations: what is read, and what is refused.

mod gemma;
mod keys;
mod phi;

use proptest::prelude::*;
use shardloom_graph::{ModelSpec, Network};
use shardloom_interop::ModelType;
use shardloom_interop::huggingface::{read_config, write_config};

use gemma::{GEMMA, GEMMA_2, GEMMA_2_WORDS, GEMMA_3, GEMMA_WORDS};
use phi::{GPT_WORDS, PHI_2, PHI_3};

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

/// It is this kind of model that needs the key.
#[test]
fn a_missing_key_is_missed_on_the_line_of_the_kind_of_model() {
    let text = "{\n  \"n_embd\": 8,\n  \"model_type\": \"gpt2\",\n  \"n_head\": 2\n}";
    let message = read_config(text, "config.json", None).unwrap_err().to_string();
    assert!(message.starts_with("config.json:3: the key "), "{message}");
    assert!(message.contains(" is missing; "), "{message}");
}

#[test]
fn a_model_that_cannot_be_names_the_line_of_the_key_that_says_so() {
    let line = GPT_2.lines().position(|line| line.contains("\"n_head\"")).unwrap() + 1;
    let text = GPT_2.replacen("\"n_head\": 12", "\"n_head\": 5", 1);
    let message = read_config(&text, "config.json", None).unwrap_err().to_string();
    assert!(message.starts_with(&format!("config.json:{line}: ")), "{message}");
    assert!(
        message.contains("n_head = 5 is not possible: heads must divide n_embd = 768"),
        "{message}"
    );
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
    let windows = |text: &str, seq| {
        let spec = read_config(text, "config.json", Some(seq)).unwrap();
        let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
        llama.windows.clone()
    };
    assert_eq!(windows(MISTRAL, 4097), [4096]);
    let spec = read_config(MISTRAL, "config.json", Some(4096)).unwrap();
    let open = read(&MISTRAL.replace("\"sliding_window\": 4096", "\"sliding_window\": null"));
    assert_eq!(open.with_seq(4096).unwrap(), spec);
    assert_eq!(spec.graph().unwrap().parameter_count(), 7_241_732_096);
    let absent = MISTRAL.replace("\"sliding_window\": 4096,", "");
    assert_eq!(windows(&absent, 4097), [4096]);
}

#[test]
fn dropout_probabilities_of_a_gpt_may_differ() {
    // What is absent is as transformers has it, whatever the others say.
    for (key, value, expected) in [
        ("attn_pdrop", "0.0", [0.1, 0.0, 0.1]),
        ("embd_pdrop", "0.25", [0.1, 0.1, 0.25]),
        ("resid_pdrop", "0.0", [0.0, 0.1, 0.1]),
    ] {
        let given = format!("\"{key}\": 0.1");
        assert!(GPT_2.contains(&given), "{key}");
        let spec = read(&GPT_2.replacen(&given, &format!("\"{key}\": {value}"), 1));
        let Network::Gpt(gpt) = spec.network() else { panic!("{spec}") };
        let found = [gpt.dropout, gpt.attention_dropout(), gpt.embedding_dropout()];
        assert_eq!(found, expected, "{key}");
        let config = write_config(&spec, ModelType::Gpt2, "float32").unwrap();
        assert_eq!(read(&config).network(), spec.network(), "{config}");
        assert_eq!(read(&GPT_2.replacen(&format!("{given},"), "", 1)), read(GPT_2), "{key}");
    }
}

#[test]
fn what_would_compute_something_else_is_refused_by_key() {
    refused(GPT_2, "gelu_new", "gelu", &["activation_function = gelu ", "gelu_new"]);
    refused(GPT_2, "\"n_ctx\": 1024", "\"scale_attn_weights\": false", &["scale_attn_weights"]);
    let key = "scale_attn_by_inverse_layer_idx";
    refused(GPT_2, "\"n_ctx\": 1024", &format!("\"{key}\": true"), &[key]);
    refused(GPT_2, "\"n_ctx\": 1024", "\"quantization_config\": {}", &["quantization_config"]);
    refused(GPT_2, "\"n_layer\": 12", "\"n_layer\": 0", &["n_layer = 0 "]);
    refused(GPT_2, "\"n_layer\": 12,", "", &["the key n_layer or num_hidden_layers is missing"]);
    // More than a single-precision number can be.
    let epsilon = "\"layer_norm_epsilon\": 1e-05";
    for wrong in ["1e39", "-1e300", "\"small\""] {
        let text = format!("\"layer_norm_epsilon\": {wrong}");
        refused(GPT_2, epsilon, &text, &["layer_norm_epsilon = ", "a number is needed"]);
    }
    refused(GPT_2, "\"n_head\": 12", "\"n_head\": 7", &["n_head = 7", "n_embd = 768"]);
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
    refused(LLAMA_3_1, "\"factor\": 8.0,", "", &["the key rope_scaling.factor is missing"]);
    refused(
        LLAMA_3_1,
        "\"mlp_bias\": false",
        "\"partial_rotary_factor\": 0.5",
        &["partial_rotary_factor = 0.5"],
    );
    // Newer files say it with the other rotary parameters, and older ones with the scaling.
    let newer =
        LLAMA_3_1.replace("\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 5e5,");
    for (text, object) in [(newer.as_str(), "rope_parameters"), (LLAMA_3_1, "rope_scaling")] {
        let (from, key) = ("\"factor\": 8.0,", format!("{object}.partial_rotary_factor = 0.25"));
        refused(text, from, &format!("{from} \"partial_rotary_factor\": 0.25,"), &[&key]);
        let all = text.replace(from, &format!("{from} \"partial_rotary_factor\": 1.0,"));
        assert_eq!(read(&all), read(text));
    }
    refused(
        LLAMA_3_1,
        "\"rope_scaling\": {",
        "\"rope_scaling\": 4, \"x\": {",
        &["rope_scaling = 4"],
    );
}

#[test]
fn another_type_of_model_is_refused_with_the_supported_ones() {
    refused(
        GPT_2,
        "\"gpt2\"",
        "\"bert\"",
        &[
            "\"bert\"",
            "gemma, gemma2, gemma3_text, gpt2, llama, mistral, phi, phi3, qwen2 and qwen3",
        ],
    );
    refused(GPT_2, "\"model_type\": \"gpt2\",", "", &["the key model_type is missing; there are"]);
    let own = ["the key model_type is missing; layers, hidden", "this program's own words"];
    refused(GPT_2, "\"model_type\": \"gpt2\",", "\"layers\": 2, \"hidden\": 8,", &own);
    // Relatives of supported ones, by what they have.
    for (name, what) in [
        ("gemma3", "text_config"),
        ("phimoe", "has experts"),
        ("mixtral", "has experts"),
        ("qwen2_moe", "has experts"),
        ("qwen3_moe", "has experts"),
    ] {
        let needles = [&format!("{name:?}"), what, "gemma, gemma2"];
        refused(GPT_2, "\"gpt2\"", &format!("{name:?}"), &needles.map(|it: &str| it));
    }
    let message = |text| read_config(text, "config.json", None).unwrap_err().to_string();
    assert!(message("[1]").contains("JSON object"));
    assert!(message("{\"a\": }").starts_with("config.json:1: it is no JSON"));
}

proptest! {
    #[test]
    fn no_changed_configuration_makes_the_reader_panic(
        which in 0..9_usize,
        at in any::<proptest::sample::Index>(),
        with in "[0-9a-z\"{}\\[\\],:. -]{0,3}",
        length in 0..6_usize,
        seq in proptest::option::of(any::<usize>()),
    ) {
        let text =
            [GPT_2, LLAMA_3_1, MISTRAL, PHI_3, GEMMA, GEMMA_2, GEMMA_3, QWEN_2_5, PHI_2][which];
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

/// The configuration of Qwen/Qwen2.5-0.5B.
const QWEN_2_5: &str = r#"{
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936
}"#;

/// The configuration of Qwen/Qwen3-0.6B.
const QWEN_3: &str = r#"{
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936
}"#;

/// As many parameters as the published weights have.
#[test]
fn qwens_have_the_parameters_of_their_published_weights() {
    for (text, parameters, biases, norms) in
        [(QWEN_2_5, 494_032_768, true, false), (QWEN_3, 596_049_920, false, true)]
    {
        let spec = read(text);
        let Network::Llama(llama) = spec.network() else { panic!("{:?}", spec.network()) };
        assert_eq!((llama.qkv_bias, llama.qk_norm), (biases, norms));
        assert_eq!(spec.graph().unwrap().parameter_count(), parameters);
    }
}

#[test]
fn what_a_qwen_leaves_out_is_as_its_authors_code_has_it() {
    let without = |text: &str, key: &str| {
        let rest: Vec<&str> = text.split(", ").filter(|it| !it.contains(key)).collect();
        read(&rest.join(", "))
    };
    assert_eq!(without(QWEN_3, "\"head_dim\"").network(), read(QWEN_3).network());
    assert_eq!(without(QWEN_2_5, "use_sliding_window").network(), read(QWEN_2_5).network());
    let short = QWEN_2_5
        .replace("\"sliding_window\": 32768", "\"sliding_window\": 4096")
        .replace("\"max_window_layers\": 24", "\"max_window_layers\": 12");
    assert_eq!(read(&short).network(), read(QWEN_2_5).network());
    let key = "\"use_sliding_window\": ";
    let windows = |text: &str| {
        let text = text.replace(&format!("{key}false"), &format!("{key}true"));
        let Network::Llama(llama) = read(&text).network().clone() else { panic!("{text}") };
        llama.windows
    };
    assert_eq!(windows(&short), [[0; 12], [4096; 12]].concat());
    // Where it does not say how large its windows are, they have 4096 positions (`Qwen2Config`).
    let absent = short.replace("\"sliding_window\": 4096,", "");
    assert_eq!(windows(&absent), windows(&short));
    assert!(windows(&short.replace("4096", "null")).is_empty());
    // No layer has one, or all that have one see all positions.
    assert!(windows(QWEN_2_5).is_empty());
    assert!(windows(&short.replace("4096", "32768")).is_empty());
    // A list of layers says otherwise.
    let kinds = [["\"full_attention\""; 2], ["\"sliding_attention\""; 2]].concat();
    let list = format!("\"layer_types\": [{}]", kinds.repeat(6).join(", "));
    let listed = short.replace("\"use_cache\": true", &list);
    assert_eq!(windows(&listed), [0, 0, 4096, 4096]);
    refused(&listed, "\"full_", "\"chunked_", &["layer_types = \"chunked_attention\""]);
    refused(&listed, "\"full_attention\", ", "", &["layer_types = [", "24 layers"]);
    refused(&listed, "4096", "null", &["sliding_window = none"]);
}

/// The classes differ in what an absent number of key and value heads means; a null one is as many as there are heads
/// in all of them (`__post_init__` of transformers' configurations).
#[test]
fn an_absent_and_a_null_number_of_key_and_value_heads_are_as_in_the_authors_code() {
    let given = "\"num_key_value_heads\": ";
    let mistral = MISTRAL.replace("\"sliding_window\": 4096", "\"sliding_window\": null");
    let qwen_2_5 = QWEN_2_5.replace("\"num_attention_heads\": 14", "\"num_attention_heads\": 64");
    let qwen_3 = QWEN_3.replace("\"num_attention_heads\": 16", "\"num_attention_heads\": 64");
    for (text, heads, absent) in
        [(LLAMA_3_1, 32, 32), (&mistral, 32, 8), (&qwen_2_5, 64, 32), (&qwen_3, 64, 32)]
    {
        let start = text.find(given).expect("it is given");
        let end = start + text[start..].find(',').expect("another key follows") + 1;
        let with = |value: &str| format!("{}{value}{}", &text[..start], &text[end..]);
        let kv_heads = |text: &str| match read(text).network() {
            Network::Llama(llama) => (llama.heads, llama.kv_heads()),
            other => panic!("{other:?}"),
        };
        assert_eq!(kv_heads(&with(&format!("{given}null,"))), (heads, heads), "{text}");
        assert_eq!(kv_heads(&with("")), (heads, absent), "{text}");
        assert_eq!(kv_heads(&with(&format!("{given}4,"))), (heads, 4), "{text}");
    }
}

#[test]
fn what_is_written_is_read_as_the_same_network() {
    let llama = "llama:layers=2,heads=3,kv_heads=3,ffn=32,seq=8,vocab=64";
    for (text, kind) in [
        ("gpt:layers=2,hidden=12,heads=3,seq=8,vocab=64,tied=true".to_owned(), "gpt2"),
        (format!("{GPT_WORDS},dropout=0.1,embedding_dropout=0,rope_theta=5000"), "phi"),
        // Rounded down from what a part of a head is there.
        (
            GPT_WORDS
                .replace("hidden=12,heads=3", "hidden=98,heads=1")
                .replace("rotary=2", "rotary=58"),
            "phi",
        ),
        (format!("{llama},hidden=12"), "llama"),
        // Heads of which no whole number is as wide as the model: Llama's class asks for that.
        (format!("{llama},hidden=20,head_dim=8"), "mistral"),
        (format!("{llama},hidden=12,qkv_bias=true"), "qwen2"),
        (format!("{llama},hidden=12,qk_norm=true"), "qwen3"),
        (format!("{llama},hidden=12,{GEMMA_WORDS}"), "gemma"),
        (format!("{llama},hidden=12,tied=true,{GEMMA_WORDS}"), "gemma"),
        (format!("{llama},hidden=12,rope_scaling=[8]"), "llama"),
        (format!("{llama},hidden=12,windows=4"), "mistral"),
        (format!("{llama},hidden=12,windows=0-4,qkv_bias=true"), "qwen2"),
        (format!("{llama},hidden=12,windows=4-0,qk_norm=true"), "qwen3"),
        (format!("{llama},hidden=12,windows=4,qk_norm=true"), "qwen3"),
        (
            format!("{llama},hidden=12,windows=4-0,attention_cap=50,logit_cap=30,{GEMMA_2_WORDS}"),
            "gemma2",
        ),
        (format!("{llama},hidden=12,attention_scalar=7,{GEMMA_2_WORDS}"), "gemma2"),
        (
            format!(
                "{llama},hidden=12,windows=4-0,window_rope_theta=1e4,rope_theta=1e6,rope_scaling=[8],\
                 qk_norm=true,{GEMMA_2_WORDS}"
            ),
            "gemma3_text",
        ),
        (format!("{llama},hidden=12,logit_cap=3,qk_norm=true,{GEMMA_2_WORDS}"), "gemma3_text"),
    ] {
        let spec = ModelSpec::parse(&text).unwrap();
        let config = write_config(&spec, ModelType::of(&spec, None).unwrap(), "float32").unwrap();
        assert!(config.contains(&format!("\"model_type\": \"{kind}\"")), "{config}");
        assert_eq!(read(&config).network(), spec.network(), "{config}");
    }
    for (text, part) in [
        (GPT_WORDS.replace(",parallel=true", ""), "all of rotary, parallel and head_bias"),
        (format!("{llama},hidden=12,qkv_bias=true,qk_norm=true"), "together"),
        (format!("{llama},hidden=12,geglu=true"), "together"),
        (format!("{llama},hidden=12,windows=4-5,qk_norm=true"), "together"),
        (format!("{llama},hidden=12,windows=4-0"), "together"),
        // What is scaled in layers with a window, too.
        (
            format!("{llama},hidden=12,windows=4,rope_scaling=[8],qk_norm=true,{GEMMA_2_WORDS}"),
            "together",
        ),
        (format!("{llama},hidden=12,qk_norm=true,{GEMMA_WORDS}"), "together"),
        ("mlp:inputs=8,hidden=12,layers=2,classes=4".to_owned(), "only a gpt or a llama"),
    ] {
        let error = ModelType::of(&ModelSpec::parse(&text).unwrap(), None).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_model_is_written_as_any_type_that_computes_it_and_no_other() {
    let llama = "llama:layers=2,heads=3,kv_heads=3,ffn=32,seq=8,vocab=64";
    for (words, expected) in [
        ("hidden=12", "llama, mistral, phi3"),
        ("hidden=20,head_dim=8", "mistral, phi3"),
        ("hidden=12,rope_scaling=[8,1,4,8192]", "llama, mistral"),
        ("hidden=12,windows=4", "mistral, phi3"),
        ("hidden=12,qkv_bias=true", "qwen2"),
        ("hidden=12,qk_norm=true", "qwen3"),
        (&format!("hidden=12,{GEMMA_WORDS}"), "gemma"),
    ] {
        let line = format!("{llama},{words}");
        let spec = ModelSpec::parse(&line).unwrap();
        let mut possible = vec![];
        for model_type in ModelType::ALL {
            match ModelType::of(&spec, Some(model_type)) {
                Ok(it) => {
                    assert_eq!(it, model_type);
                    let config = write_config(&spec, it, "float32").unwrap();
                    assert_eq!(read(&config).network(), spec.network(), "{config}");
                    possible.push(it.name());
                }
                Err(error) => {
                    let error = error.to_string();
                    let needle = format!("as {}, which", model_type.name());
                    assert!(error.contains(&needle) && error.contains(expected), "{error}");
                }
            }
        }
        assert_eq!(possible.join(", "), expected, "{line}");
    }
}
