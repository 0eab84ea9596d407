//! How the parameters of the transformer families begin, and how they are seen as matrices.

use shardloom_graph::{Extents, Graph, Init, ModelSpec, Network, OpKind};

const GPT: &str = "gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16,init_std=0.5";
const LLAMA: &str = "llama:layers=2,hidden=8,heads=4,kv_heads=2,ffn=12,seq=4,vocab=16,init_std=0.5";

fn graph(line: &str) -> Graph {
    ModelSpec::parse(line).and_then(|spec| spec.graph()).expect("a model")
}

/// Residual projections begin with 1 / sqrt(2 layers) of the others' deviation: a half with two layers.
#[test]
fn norms_begin_as_nothing_biases_at_zero_and_residual_projections_smaller_than_other_weights() {
    let u_transformer = "u-transformer:layers=8,hidden=8,heads=2,seq=4,vocab=16,init_std=0.5";
    for (line, smaller) in [(GPT, 0.25), (LLAMA, 0.25), (u_transformer, 0.125)] {
        for (_, value) in graph(line).parameters() {
            let name = value.name.as_str();
            let expected = match name.rsplit('.').next() {
                Some("gain") => Init::Constant(1.0),
                Some("bias") => Init::Constant(0.0),
                _ if name.ends_with("output.weight") || name.ends_with("down.weight") => {
                    Init::Normal { std: smaller }
                }
                _ => Init::Normal { std: 0.5 },
            };
            assert_eq!(value.parameter().map(|it| it.init), Some(expected), "{name}");
        }
    }
}

/// Each alone, as a plan's model is named by them.
#[test]
fn words_that_make_another_model_of_a_gpt_or_a_llama_are_named() {
    let changes = |line: &str| match ModelSpec::parse(line).expect("a model").network() {
        Network::Gpt(gpt) => gpt.changes(),
        Network::Llama(llama) => llama.changes(),
        other => panic!("{other:?}"),
    };
    let same = ["padded_vocab=17", "tied=true", "separate_loss=true", "norm_epsilon=0.5"];
    let of_gpt = [
        ("attention_dropout=0.5", "attention_dropout"),
        ("embedding_dropout=0.5", "embedding_dropout"),
        ("rotary=2", "rotary"),
        ("parallel=true", "parallel"),
        ("head_bias=true", "head_bias"),
    ];
    let of_llama = [
        ("rope_scaling=[2]", "rope_scaling=[factor]"),
        ("windows=2", "windows"),
        ("attention_scalar=3", "attention_scalar"),
        ("attention_cap=2", "attention_cap"),
        ("logit_cap=2", "logit_cap"),
        ("qkv_bias=true", "qkv_bias"),
        ("qk_norm=true", "qk_norm"),
        ("post_norms=true", "post_norms"),
        ("geglu=true", "geglu"),
        ("scaled_embedding=true", "scaled_embedding"),
        ("zero_centered_gain=true", "zero_centered_gain"),
    ];
    for (line, words) in [(GPT, &of_gpt[..]), (LLAMA, &of_llama[..])] {
        assert_eq!(changes(line), [""; 0]);
        for word in same {
            assert_eq!(changes(&format!("{line},{word}")), [""; 0], "{word}");
        }
        for &(word, name) in words {
            assert_eq!(changes(&format!("{line},{word}")), [name], "{word}");
        }
    }
    assert_eq!(changes(&format!("{GPT},ffn=9,dropout=0.5")), [""; 0]);
    for word in ["rope_theta=7", "rope_scaling=[8,1,4,8192]", "kv_heads=1", "head_dim=6"] {
        let line =
            LLAMA.replace("kv_heads=2,", if word == "kv_heads=1" { "" } else { "kv_heads=2," });
        assert_eq!(changes(&format!("{line},{word}")), [""; 0], "{word}");
    }
    let both = format!("{LLAMA},windows=2,window_rope_theta=7");
    assert_eq!(changes(&both), ["windows", "window_rope_theta"]);
}

/// What a matrix reads are its rows, and tables have a row for each entry. All else is a vector, which does
/// not decay.
#[test]
fn weights_are_matrices_that_decay_and_gains_and_biases_vectors_that_do_not() {
    let gpt = [
        ("embedding.token", [16, 8]),
        ("embedding.position", [4, 8]),
        ("attention.query.weight", [8, 8]),
        ("attention.key.weight", [8, 8]),
        ("attention.value.weight", [8, 8]),
        ("attention.output.weight", [8, 8]),
        ("ffn.up.weight", [8, 32]),
        ("ffn.down.weight", [32, 8]),
        ("head.weight", [16, 8]),
    ];
    // Two key-value heads of width two, each for two queries.
    let llama = [
        ("embedding.token", [16, 8]),
        ("attention.query.weight", [8, 8]),
        ("attention.key.weight", [8, 4]),
        ("attention.value.weight", [8, 4]),
        ("attention.output.weight", [8, 8]),
        ("ffn.gate.weight", [8, 12]),
        ("ffn.up.weight", [8, 12]),
        ("ffn.down.weight", [12, 8]),
        ("head.weight", [16, 8]),
    ];
    for (line, matrices) in [(GPT, &gpt[..]), (LLAMA, &llama[..])] {
        let graph = graph(line);
        let extents = Extents::global(&graph, 1);
        for (_, value) in graph.parameters() {
            let parameter = value.parameter().expect("a parameter");
            let (rows, columns) = value.axes.split_at(parameter.row_axes);
            let shape = [rows, columns].map(|axes| extents.elements(axes));
            let known = matrices.iter().find(|(name, _)| value.name.ends_with(name));
            match known {
                Some(&(_, expected)) => assert_eq!(shape, expected, "{}", value.name),
                None => assert_eq!(shape[0], 1, "{}", value.name),
            }
            assert_eq!(parameter.decays, known.is_some(), "{}", value.name);
        }
    }
}

/// Heads of 16 and of 4 numbers: 1 / sqrt(16) and 1 / sqrt(4).
#[test]
fn scores_of_attention_are_divided_by_the_root_of_a_head_s_width() {
    for (hidden, expected) in [(64, 0.25), (16, 0.5)] {
        let rest = format!("layers=1,hidden={hidden},heads=4,seq=4,vocab=16");
        for line in [format!("gpt:{rest}"), format!("llama:{rest},ffn=12")] {
            let graph = graph(&line);
            let scales = graph.ops().filter_map(|(_, op)| match op.kind {
                OpKind::AttentionProbs { scale, .. } => Some(scale),
                _ => None,
            });
            assert_eq!(scales.collect::<Vec<f32>>(), [expected], "{line}");
        }
    }
}

/// Those of attention and of the embedding are their own where they are given.
#[test]
fn every_dropout_has_the_probability_that_is_said() {
    let said = format!("{GPT},dropout=0.125,attention_dropout=0.25,embedding_dropout=0.5");
    let usual = format!("{GPT},dropout=0.125");
    for (line, of_attention, of_embedding) in [(said, 0.25, 0.5), (usual, 0.125, 0.125)] {
        for graph in [graph(&line), graph(&line).with_fused_attention()] {
            let dropped = graph.ops().filter_map(|(_, op)| Some((&op.name, op.kind.dropout()?)));
            let found: Vec<(&String, f32)> = dropped.collect();
            let of = |part: &str| {
                let parts = found.iter().filter(|(name, _)| name.contains(part));
                parts.map(|(_, probability)| *probability).collect::<Vec<_>>()
            };
            assert_eq!(of("embedding"), [of_embedding]);
            let attention = of("attention");
            assert!(attention.contains(&of_attention), "{found:?}");
            assert_eq!(of("ffn"), [0.125; 2]);
        }
    }
}

/// Heads that queries share are few: people know models by the number of queries.
#[test]
fn heads_are_said_with_the_queries_that_share_them() {
    for (line, heads) in [
        (LLAMA, "heads = 2 (of keys and values; 4 of queries)"),
        ("llama:layers=1,hidden=8,heads=4,ffn=12,seq=4,vocab=16", "heads = 4"),
        (GPT, "heads = 2"),
    ] {
        let graph = graph(line);
        let in_words = |name| graph.dim_in_words(graph.dim_named(name).unwrap());
        assert_eq!(in_words("heads"), heads);
        assert_eq!(in_words("vocab"), "vocab = 16");
    }
}

/// Files of weights, plans and groups of parameters go by them.
#[test]
fn parameters_of_a_llama_with_everything_have_these_names() {
    let line = "llama:layers=1,hidden=8,heads=4,kv_heads=2,ffn=12,seq=4,vocab=16,qkv_bias=true,qk_norm=true,\
                post_norms=true";
    let names = |line: &str| -> Vec<String> {
        graph(line).parameters().map(|(_, value)| value.name.clone()).collect()
    };
    let block = [
        "attention_norm.gain",
        "attention.query.weight",
        "attention.query.bias",
        "attention.key.weight",
        "attention.key.bias",
        "attention.value.weight",
        "attention.value.bias",
        "attention.query_norm.gain",
        "attention.key_norm.gain",
        "attention.output.weight",
        "attention.post_norm.gain",
        "ffn_norm.gain",
        "ffn.gate.weight",
        "ffn.up.weight",
        "ffn.down.weight",
        "ffn.post_norm.gain",
    ];
    let of_block = block.map(|name| format!("block.0.{name}"));
    let begin = ["embedding.token".to_owned()];
    let end = ["final_norm.gain", "head.weight"].map(str::to_owned);
    assert_eq!(names(line), [&begin[..], &of_block, &end].concat());
    let gpt = [
        "embedding.token",
        "embedding.position",
        "block.0.attention_norm.gain",
        "block.0.attention_norm.bias",
        "block.0.attention.query.weight",
        "block.0.attention.query.bias",
        "block.0.attention.key.weight",
        "block.0.attention.key.bias",
        "block.0.attention.value.weight",
        "block.0.attention.value.bias",
        "block.0.attention.output.weight",
        "block.0.attention.output.bias",
        "block.0.ffn_norm.gain",
        "block.0.ffn_norm.bias",
        "block.0.ffn.up.weight",
        "block.0.ffn.up.bias",
        "block.0.ffn.down.weight",
        "block.0.ffn.down.bias",
        "final_norm.gain",
        "final_norm.bias",
        "head.weight",
    ];
    assert_eq!(names("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16"), gpt);
}
