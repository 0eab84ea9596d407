//! What sizes and numbers models may have, on both sides of each limit.

use shardloom_graph::{GraphBuilder, Init, ModelSpec};

/// The smallest model of each family, with a value for every key that must be given.
const SMALL: [&str; 6] = [
    "gpt:layers=1,hidden=4,heads=2,seq=2,vocab=8,ffn=2",
    "u-transformer:layers=3,hidden=4,heads=2,seq=2,vocab=8,ffn=2",
    "llama:layers=1,hidden=4,heads=2,kv_heads=1,head_dim=2,ffn=2,seq=2,vocab=8",
    "mlp:inputs=2,hidden=2,layers=1,classes=2",
    "lstm:layers=1,hidden=2,embed=2,vocab=8,seq=2",
    "dlrm:dense=2,rows=3-4,embed=2,bottom=2,top=2",
];

/// The line with another value of a key, or with one more key.
fn with(line: &str, key: &str, value: &str) -> String {
    let (family, pairs) = line.split_once(':').expect("a line");
    let kept = pairs.split(',').filter(|pair| !pair.starts_with(&format!("{key}=")));
    let pairs: Vec<String> = kept.map(str::to_owned).chain([format!("{key}={value}")]).collect();
    format!("{family}:{}", pairs.join(","))
}

#[track_caller]
fn taken(line: &str) {
    if let Err(error) = ModelSpec::parse(line) {
        panic!("{line}: {error}");
    }
}

/// Refused for the value of this key.
#[track_caller]
fn refused(line: &str, key: &str) {
    let Err(error) = ModelSpec::parse(line) else { panic!("{line} is taken") };
    let message = error.to_string();
    assert!(message.contains(&format!("{key} = ")), "{line}: {message}");
}

#[test]
fn small_models_are_models() {
    SMALL.iter().for_each(|line| taken(line));
}

#[test]
fn no_size_is_zero() {
    for line in SMALL {
        let (_, pairs) = line.split_once(':').expect("a line");
        for pair in pairs.split(',') {
            let (key, _) = pair.split_once('=').expect("a pair");
            refused(&with(line, key, "0"), key);
        }
    }
    for (line, key) in [
        (SMALL[0], "padded_vocab"),
        (SMALL[2], "padded_vocab"),
        (SMALL[2], "attention_scalar"),
        (SMALL[4], "projection"),
        (SMALL[4], "samples"),
    ] {
        // Of how many classes are drawn the dimension is told.
        let given = if key == "samples" { "sampled_softmax" } else { key };
        refused(&with(line, given, "0"), key);
    }
    taken(&with(SMALL[2], "attention_scalar", "1"));
    for key in ["rows", "bottom", "top"] {
        refused(&with(SMALL[5], key, "3-0"), key);
    }
}

#[test]
fn a_size_is_2_to_the_40_at_most() {
    let (most, more) = (1_u64 << 40, (1_u64 << 40) + 1);
    for (line, key) in [
        ("mlp:inputs=1,hidden=1,layers=1,classes=1", "inputs"),
        ("mlp:inputs=1,hidden=1,layers=1,classes=1", "classes"),
        ("gpt:layers=1,hidden=1,heads=1,seq=1,vocab=1,ffn=1", "ffn"),
        ("gpt:layers=1,hidden=1,heads=1,seq=1,vocab=1,ffn=1", "vocab"),
        ("gpt:layers=1,hidden=1,heads=1,seq=1,vocab=1,ffn=1", "padded_vocab"),
        ("llama:layers=1,hidden=2,heads=1,seq=1,vocab=1,ffn=1", "ffn"),
        ("llama:layers=1,hidden=2,heads=1,seq=1,vocab=1,ffn=1", "attention_scalar"),
        ("lstm:layers=1,hidden=1,embed=1,vocab=1,seq=1", "embed"),
        ("dlrm:dense=1,rows=1,embed=1,bottom=,top=", "rows"),
        ("dlrm:dense=1,rows=1,embed=1,bottom=,top=", "dense"),
    ] {
        taken(&with(line, key, &most.to_string()));
        refused(&with(line, key, &more.to_string()), key);
    }
}

#[test]
fn layers_are_10000_at_most_and_three_at_least_where_there_are_encoders_and_decoders() {
    taken(&with(SMALL[3], "layers", "10000"));
    for line in SMALL {
        if line.contains("layers") {
            refused(&with(line, "layers", "10001"), "layers");
        }
    }
    refused(&with(SMALL[1], "layers", "2"), "layers");
}

#[test]
fn perceptrons_have_fewer_than_1000_layers_besides_the_last_and_tables_are_10000_at_most() {
    for key in ["bottom", "top"] {
        taken(&with(SMALL[5], key, "999x2"));
        refused(&with(SMALL[5], key, "1000x2"), key);
        taken(&with(SMALL[5], key, ""));
    }
    refused(&with(SMALL[5], "rows", "10001x2"), "rows");
    refused(&with(SMALL[5], "rows", ""), "rows");
    taken(&with(SMALL[5], "rows", "100x2"));
    taken(&with(SMALL[5], "rows", "2"));
}

#[test]
fn probabilities_are_from_zero_to_below_one() {
    for (line, keys) in [
        (SMALL[0], &["dropout", "attention_dropout", "embedding_dropout"][..]),
        (SMALL[1], &["dropout", "attention_dropout", "embedding_dropout"]),
        (SMALL[4], &["dropout"]),
    ] {
        for key in keys {
            for value in ["0", "0.5", "0.9999999"] {
                taken(&with(line, key, value));
            }
            for value in ["1", "-0.0000001", "2"] {
                refused(&with(line, key, value), key);
            }
        }
    }
}

#[test]
fn bases_bounds_epsilons_and_deviations_are_above_zero() {
    let rotary = with(SMALL[0], "rotary", "2");
    let windowed = with(SMALL[2], "windows", "1");
    for (line, keys) in [
        (&*rotary, &["rope_theta", "norm_epsilon", "init_std"][..]),
        (SMALL[1], &["norm_epsilon", "init_std"]),
        (
            &*windowed,
            &[
                "rope_theta",
                "window_rope_theta",
                "attention_cap",
                "logit_cap",
                "norm_epsilon",
                "init_std",
            ],
        ),
        (SMALL[4], &["init_std"]),
    ] {
        for key in keys {
            for value in ["1e-30", "1", "1e30"] {
                taken(&with(line, key, value));
            }
            for value in ["0", "-1e-30", "-1"] {
                refused(&with(line, key, value), key);
            }
        }
    }
    // Any number but one that is none.
    for value in ["0", "-3", "1e30"] {
        taken(&with(SMALL[4], "forget_bias", value));
    }
}

#[test]
fn heads_divide_widths_and_queries_and_parts_of_heads_are_pairs() {
    for (line, key, good, bad) in [
        (SMALL[0], "heads", &["1", "2", "4"][..], &["3", "8"][..]),
        (SMALL[1], "heads", &["1", "2", "4"], &["3", "8"]),
        ("llama:layers=1,hidden=8,heads=4,ffn=2,seq=2,vocab=8", "heads", &["1", "2", "4"], &["3"]),
        (
            "llama:layers=1,hidden=24,heads=6,ffn=2,seq=2,vocab=8",
            "kv_heads",
            &["1", "2", "3", "6"],
            &["4", "5", "12"],
        ),
        (SMALL[2], "head_dim", &["2", "4", "10"], &["1", "3"]),
        (
            "gpt:layers=1,hidden=12,heads=2,seq=2,vocab=8",
            "rotary",
            &["2", "4", "6"],
            &["0", "1", "3", "8"],
        ),
        (SMALL[0], "padded_vocab", &["8", "9"], &["7"]),
        (SMALL[2], "padded_vocab", &["8", "9"], &["7"]),
    ] {
        good.iter().for_each(|value| taken(&with(line, key, value)));
        bad.iter().for_each(|value| refused(&with(line, key, value), key));
    }
    // Half of 8 classes.
    taken(&with(SMALL[4], "sampled_softmax", "4"));
    refused(&with(SMALL[4], "sampled_softmax", "5"), "samples");
    taken(&with(SMALL[4], "tied", "true"));
    refused(&with(&with(SMALL[4], "tied", "true"), "embed", "3"), "tied");
    taken(&with(&with(SMALL[4], "projection", "1"), "embed", "1"));
}

#[test]
fn a_base_is_of_positions_that_are_rotated_and_one_of_windows_of_layers_with_a_window() {
    refused(&with(SMALL[0], "rope_theta", "10"), "rope_theta");
    refused(&with(SMALL[2], "window_rope_theta", "10"), "window_rope_theta");
    let two = with(SMALL[2], "layers", "2");
    for (windows, is_one) in
        [("0", false), ("0-0", false), ("1", true), ("0-1", true), ("0-0-1", false)]
    {
        let line = with(&with(&two, "windows", windows), "window_rope_theta", "10");
        if is_one { taken(&line) } else { refused(&line, "window_rope_theta") }
    }
}

/// As an own network of as many operators would have.
#[test]
fn a_network_of_ones_own_has_2_to_the_18_operators_at_most() {
    let message = |repeat: usize| {
        let op = "[[block.op]]\nkind = \"relu\"\ninputs = [\"input\"]\n";
        let text = format!(
            "[model]\nname = \"own\"\n[[block]]\nname = \"b{{i}}\"\nrepeat = {repeat}\n{op}name = \"a\"\n{op}name = \"b\"\n"
        );
        ModelSpec::from_toml(&text, "own.toml").expect_err("too many").to_string()
    };
    // One that is repeated so often is refused for that.
    assert!(message(1 << 17).contains("repeat: 131072"), "{}", message(1 << 17));
    let more = message((1 << 17) + 1);
    assert!(more.contains("operators = 262146"), "{more}");
    assert!(message(10_001).contains("repeat: 10001 is not possible"), "{}", message(10_001));
    assert!(message(0).contains("repeat: 0 is not possible"), "{}", message(0));
}

#[test]
fn dimensions_and_values_of_a_sample_have_2_to_the_48_elements_at_most() {
    let most = 1_usize << 48;
    let mut net = GraphBuilder::new("net");
    let all = net.dim("all", most).expect("a dimension");
    let message = net.dim("more", most + 1).expect_err("too many").to_string();
    assert!(message.contains(&format!("more = {}", most + 1)), "{message}");
    let [root, more] = [("root", 1 << 24), ("root and one", (1 << 24) + 1)]
        .map(|(name, size)| net.dim(name, size).expect("a dimension"));
    let other = net.dim("other", 1 << 24).expect("a dimension");
    net.features("all", &[all]).expect("as many as can be");
    net.features("square", &[root, other]).expect("as many as can be");
    let message = net.features("larger", &[more, root]).expect_err("too many").to_string();
    assert!(message.contains("are more than 281474976710656 elements"), "{message}");
    // All parameters together have as many, and not one more.
    net.block("block");
    let zeros = Init::Constant(0.0);
    net.parameter("whole", &[all], 0, zeros).expect("as many as can be");
    let one = net.dim("one", 1).expect("a dimension");
    let message = net.parameter("one", &[one], 0, zeros).expect_err("too many").to_string();
    assert!(message.contains("a model has at most"), "{message}");
}

#[test]
fn scalings_of_rotary_frequencies_have_factors_above_zero_in_order_and_an_original_position() {
    for good in ["[1]", "[0.5]", "[8,1,4,8192]", "[1,0.5,0.6,1]"] {
        taken(&with(SMALL[2], "rope_scaling", good));
    }
    for bad in [
        "[0]",
        "[-1]",
        "[0,1,4,8192]",
        "[-8,1,4,8192]",
        "[8,0,4,8192]",
        "[8,-1,4,8192]",
        "[8,4,4,8192]",
        "[8,5,4,8192]",
        "[8,1,4,0]",
    ] {
        refused(&with(SMALL[2], "rope_scaling", bad), "rope_scaling");
    }
}

#[test]
fn an_even_number_of_elements_of_a_head_is_rotated() {
    for (width, is_possible) in [
        (0, false),
        (1, false),
        (2, true),
        (3, false),
        (5, false),
        (6, true),
        (7, false),
        (8, false),
    ] {
        let mut net = GraphBuilder::new("net");
        let [seq, heads, head_dim] = [("seq", 4), ("heads", 2), ("head_dim", 6)]
            .map(|(name, size)| net.dim(name, size).expect("a dimension"));
        let x = net.features("x", &[seq, heads, head_dim]).expect("a value");
        let found = net.rotary("rotary", x, 10.0, None, Some(width));
        assert_eq!(found.is_ok(), is_possible, "{width}");
        if let Err(error) = found {
            assert!(error.to_string().contains(&format!("rotary width = {width}")), "{error}");
        }
        // Without heads there is nothing to rotate.
        let flat = net.features("flat", &[seq, head_dim]).expect("a value");
        assert!(net.rotary("flat rotary", flat, 10.0, None, Some(2)).is_err());
    }
}

#[test]
fn lists_in_one_line_have_100000_numbers_at_most_and_spaces_do_not_count() {
    let line = |rows: &str| with(SMALL[5], "rows", rows);
    let message = |rows: &str| ModelSpec::parse(&line(rows)).expect_err(rows).to_string();
    // More than there may be tables, but no more than a list may have.
    assert!(message("100000x2").contains("there are 1 to 10000 tables"));
    for wrong in ["100001x2", "99999x2-2x2", "0x2", "x2", "2x", "2x-3"] {
        assert!(message(wrong).contains("whole numbers are needed"), "{wrong}");
    }
    assert_eq!(ModelSpec::parse(&line(" 2 x 3 - 4 ")), ModelSpec::parse(&line("3-3-4")));
}
