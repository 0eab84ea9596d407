//! The texts of a model: what they accept, and how they refuse.

use proptest::prelude::*;
use shardloom_graph::families::{
    GptConfig, LlamaConfig, MlpConfig, RopeScaling, UTransformerConfig,
};
use shardloom_graph::{ModelSpec, Network};

#[track_caller]
fn refused(line: &str, needles: &[&str]) {
    let message = ModelSpec::parse(line).unwrap_err().to_string();
    for needle in needles {
        assert!(message.contains(needle), "{needle:?} is not in {message:?}");
    }
}

const GPT: &str = "gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200";

#[test]
fn a_family_with_parameters_is_read() {
    let spec = ModelSpec::parse(GPT).unwrap();
    let expected = GptConfig {
        layers: 24,
        hidden: 2048,
        heads: 16,
        seq: 2048,
        vocab: 51200,
        padded_vocab: None,
        ffn: None,
        dropout: 0.0,
        attention_dropout: None,
        embedding_dropout: None,
        rotary: None,
        rope_theta: None,
        parallel: false,
        head_bias: false,
        tied: false,
        separate_loss: false,
        norm_epsilon: 1e-5,
        init_std: 0.02,
    };
    assert_eq!(spec.network(), &Network::Gpt(expected));
    assert_eq!((spec.name(), spec.seq()), ("gpt", 2048));
    assert_eq!(spec.to_string(), GPT);
}

#[test]
fn a_line_may_have_spaces_and_a_name() {
    let spec = ModelSpec::parse(
        " llama: layers = 1, hidden=8, heads=2, ffn=16, seq=4, vocab=10, name=mine, \
         rope_scaling=[8, 1, 4, 8192] ",
    )
    .unwrap();
    assert_eq!(spec.name(), "mine");
    let text = "llama:name=mine,layers=1,hidden=8,heads=2,ffn=16,seq=4,vocab=10,\
                rope_scaling=[8,1,4,8192]";
    assert_eq!(spec.to_string(), text);
}

#[test]
fn options_that_say_what_holds_anyway_are_dropped() {
    let spec = ModelSpec::parse(&format!("{GPT},ffn=8192,dropout=0,tied=false")).unwrap();
    assert_eq!(spec.to_string(), GPT);
    let llama = "llama:layers=1,hidden=8,heads=2,ffn=16,seq=4,vocab=10";
    let spec = ModelSpec::parse(&format!("{llama},kv_heads=2,head_dim=4")).unwrap();
    assert_eq!(spec.to_string(), llama);
}

#[test]
fn a_preset_takes_changes_and_keeps_its_name_only_where_it_is_still_that_model() {
    let longer = ModelSpec::parse("llama-3-405b:seq=131072").unwrap();
    assert_eq!(longer, ModelSpec::preset("llama-3-405b").unwrap().with_seq(131_072).unwrap());
    assert_eq!(longer.name(), "llama-3-405b");
    for change in ["layers=4", "vocab=128512", "rope_theta=10000"] {
        let other = ModelSpec::parse(&format!("llama-3-405b:{change}")).unwrap();
        assert_eq!(other.name(), "llama-3-405b-variant", "{change}");
    }
    assert_eq!(ModelSpec::parse("gpt-2:layers=4,name=short").unwrap().name(), "short");
}

#[test]
fn another_sequence_length_changes_the_learned_positions_of_a_gpt() {
    let gpt = ModelSpec::preset("gpt-2").unwrap();
    let shorter = gpt.with_seq(1000).unwrap();
    let count = |spec: &ModelSpec| spec.graph().unwrap().parameter_count();
    assert_eq!(count(&gpt) - count(&shorter), 24 * 768);
    let mlp = ModelSpec::parse("mlp:inputs=2,hidden=3,layers=1,classes=2").unwrap();
    assert!(mlp.with_seq(5).unwrap_err().to_string().contains("no sequence"));
    assert_eq!(mlp.seq(), 1);
}

#[test]
fn unknown_names_are_refused_with_the_near_and_the_valid_ones() {
    refused(
        "gtp:layers=1",
        &[
            "gtp",
            "did you mean \"gpt\"?",
            "llama, mlp, u-transformer, lstm and dlrm",
            "llama-3-405b",
        ],
    );
    refused("llama-3-450b", &["did you mean \"llama-3-405b\"?"]);
    refused(&format!("{GPT},droput=0.1"), &["droput", "did you mean \"dropout\"?", "ffn"]);
    refused("gpt:layers=1", &["missing key", "hidden", "vocab"]);
    refused("", &["no such family"]);
}

#[test]
fn a_long_text_that_is_no_model_is_repeated_up_to_a_hundred_letters() {
    let message = ModelSpec::parse(&"x".repeat(150)).unwrap_err().to_string();
    assert!(message.contains(&"x".repeat(100)), "{message}");
    assert!(!message.contains(&"x".repeat(101)), "{message}");
}

#[test]
fn heads_of_a_llama_need_not_divide_its_width_where_their_own_width_is_given() {
    let llama = "llama:layers=1,hidden=8,heads=3,ffn=16,seq=4,vocab=10";
    refused(llama, &["heads = 3", "divide hidden = 8 unless head_dim is given"]);
    let graph = ModelSpec::parse(&format!("{llama},head_dim=4")).unwrap().graph().unwrap();
    let (_, query) = graph.parameters().find(|(_, it)| it.name.contains("query")).unwrap();
    // A product of 8 numbers to 3 heads of 4.
    assert_eq!(shardloom_graph::Extents::global(&graph, 1).shape(&query.axes), [8, 3, 4]);
}

/// A width of heads that is the model's over their number, rounded down, is still one that has to be said.
#[test]
fn what_a_llama_says_stays_in_its_text_where_nothing_else_implies_it() {
    let text = "llama:layers=1,hidden=7,heads=3,head_dim=2,ffn=16,seq=4,vocab=10";
    let spec = ModelSpec::parse(text).unwrap();
    assert!(spec.to_string().contains("head_dim=2"), "{spec}");
    assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
    let implied = ModelSpec::parse(&text.replace("hidden=7", "hidden=6")).unwrap();
    assert!(!implied.to_string().contains("head_dim"), "{implied}");
}

#[test]
fn real_numbers_of_a_llama_are_finite_and_above_zero() {
    let llama = "llama:layers=1,hidden=8,heads=2,ffn=16,seq=4,vocab=10";
    for key in ["rope_theta", "norm_epsilon", "init_std"] {
        for (value, rule) in [
            ("0", "a finite number above 0"),
            ("-1", "a finite number above 0"),
            ("inf", "a finite number is needed, of at most 3.4e38"),
            ("NaN", "a finite number is needed, of at most 3.4e38"),
            // Finite, but not in 32 bits.
            ("1e300", "a finite number is needed, of at most 3.4e38"),
        ] {
            refused(&format!("{llama},{key}={value}"), &[&format!("{key} = {value}"), rule]);
        }
    }
}

#[test]
fn values_that_no_model_can_have_are_refused_by_key() {
    let with = |key: &str, value: &str| {
        let pairs: Vec<String> = GPT[4..]
            .split(',')
            .filter(|pair| !pair.starts_with(&format!("{key}=")))
            .map(str::to_owned)
            .chain([format!("{key}={value}")])
            .collect();
        format!("gpt:{}", pairs.join(","))
    };
    for key in ["layers", "hidden", "heads", "seq", "vocab", "ffn"] {
        for value in ["0", "-1", "1.5", "many", "", "9223372036854775807", "99999999999999999999"] {
            refused(&with(key, value), &[&format!("{key} = {value} is not possible")]);
        }
    }
    for value in ["1", "-0.1", "NaN", "inf", "much"] {
        refused(&with("dropout", value), &["dropout = "]);
    }
    refused(&with("heads", "7"), &["heads = 7", "divide hidden = 2048"]);
    refused(&with("tied", "maybe"), &["tied = maybe", "true or false"]);
    refused(&with("layers", "10001"), &["layers = 10001"]);
    refused(&with("seq", "1099511627776"), &["seq", "elements"]);
    refused(&with("name", "a b"), &["\"a b\"", "letters"]);
    refused(&format!("{GPT},seq=1"), &["gpt:seq=1", "twice"]);
    refused(&format!("{GPT},seq"), &["gpt:seq", "key=value"]);
    refused("llama-3-8b:rope_scaling=[8,4,1,8192]", &["rope_scaling = [8, 4, 1, 8192]"]);
    refused("llama-3-8b:rope_scaling=[8,4,4,8192]", &["rope_scaling = [8, 4, 4, 8192]"]);
    refused("llama-3-8b:rope_scaling=[8,4,1]", &["rope_scaling = [8,4,1]", "factor"]);
    refused("llama-3-8b:head_dim=3", &["head_dim = 3", "even"]);
}

#[test]
fn toml_errors_name_the_line_and_the_key() {
    let text = "[model]\nname = \"m\"\n\n[mlp]\ninputs = 2\nhidden = 0\nlayers = 1\nclasses = 2\n";
    let message = |text: &str| ModelSpec::from_toml(text, "m.toml").unwrap_err().to_string();
    let zero = message(text);
    assert!(zero.starts_with("m.toml:6: ") && zero.contains("hidden = 0"), "{zero}");
    let unknown = message(&text.replace("hidden = 0", "hiden = 3"));
    assert!(
        unknown.starts_with("m.toml:6: unknown key `hiden`, did you mean `hidden`?"),
        "{unknown}"
    );
    let kind = message(&text.replace("hidden = 0", "hidden = true"));
    assert_eq!(kind, "m.toml:6: mlp.hidden: a whole number is needed, not true");
    let missing = message(&text.replace("hidden = 0\n", ""));
    assert!(missing.starts_with("m.toml:4: the key `hidden` is missing"), "{missing}");
    // What no single key is to blame for is at the network's table.
    let large = message(
        &text.replace("hidden = 0", "hidden = 16777217").replace("inputs = 2", "inputs = 16777216"),
    );
    let place = "m.toml:4: ";
    assert!(large.starts_with(place) && large.contains("the most that a tensor has"), "{large}");
    let none = message("[model]\nname = \"m\"\n");
    assert!(none.contains("describes 0 networks") && none.contains("[[block]]"), "{none}");
    // Any part of a network of one's own is a second one.
    let whole = text.replace("hidden = 0", "hidden = 3");
    for own in
        ["[dims]\nrows = 4\n", "[[input]]\nname = \"x\"\nkind = \"real\"\naxes = [\"rows\"]\n"]
    {
        let two = message(&format!("{whole}\n{own}"));
        assert!(two.contains("m describes 2 networks"), "{two}");
    }
}

fn network() -> impl Strategy<Value = Network> {
    let size = || 1..20_usize;
    let option = |strategy| proptest::option::of(strategy);
    let gpt = (size(), size(), size(), size(), size(), option(size()), 0.0..0.9_f32, any::<bool>());
    let gpt = gpt.prop_map(|(layers, heads, head_dim, seq, vocab, ffn, dropout, tied)| {
        let hidden = heads * head_dim;
        let (norm_epsilon, init_std) = (dropout + 1e-6, dropout + 1e-4);
        let config = GptConfig {
            layers,
            hidden,
            heads,
            seq,
            vocab,
            padded_vocab: (heads > 2).then_some(vocab + heads),
            ffn,
            dropout,
            attention_dropout: (heads > 1).then_some(dropout / 2.0),
            embedding_dropout: (layers > 1).then_some(0.25),
            rotary: (vocab > 2 && (hidden / heads).is_multiple_of(2)).then_some(2),
            rope_theta: None,
            parallel: vocab.is_multiple_of(2),
            head_bias: layers.is_multiple_of(2),
            tied,
            separate_loss: !tied,
            norm_epsilon,
            init_std,
        };
        Network::Gpt(config)
    });
    let u_transformer = gpt.clone().prop_map(|network| match network {
        Network::Gpt(gpt) => {
            let layers = gpt.layers + 2;
            Network::UTransformer(UTransformerConfig(GptConfig { layers, ..gpt }))
        }
        other => other,
    });
    let scaling = proptest::option::of((1.0..9.0_f32, 0.1..1.0_f32, 1.0..5.0_f32, 1..9000_u32));
    let llama = (size(), size(), 1..4_usize, size(), size(), option(size()), scaling, any::<f32>());
    let theta_of = |theta: f32| if theta.is_normal() { theta.abs() } else { 1e4 };
    let llama =
        llama.prop_map(move |(layers, kv, group, seq, vocab, half, rope_scaling, theta)| {
            let windowed = seq.is_multiple_of(3);
            Network::Llama(LlamaConfig {
                layers,
                hidden: 2 * kv * group,
                heads: kv * group,
                kv_heads: Some(kv),
                head_dim: half.map(|half| 2 * half),
                ffn: seq + vocab,
                seq,
                vocab,
                padded_vocab: (kv > 2).then_some(vocab + kv),
                rope_theta: theta_of(theta),
                rope_scaling: match rope_scaling {
                    Some((factor, ..)) if seq.is_multiple_of(2) => {
                        Some(RopeScaling::Linear([factor]))
                    }
                    other => other.map(|(factor, low, high, original)| {
                        RopeScaling::ByWavelength(factor, low, high, original)
                    }),
                },
                windows: if windowed { vec![0, vocab] } else { vec![] },
                window_rope_theta: (windowed && layers > 1).then_some(theta_of(theta)),
                attention_scalar: (group > 1).then_some(seq),
                attention_cap: (kv > 1).then_some(50.0),
                logit_cap: (kv > 1).then_some(0.1),
                post_norms: vocab.is_multiple_of(3),
                norm_epsilon: 1e-6,
                tied: layers.is_multiple_of(2),
                separate_loss: layers.is_multiple_of(3),
                qkv_bias: seq.is_multiple_of(2),
                qk_norm: vocab.is_multiple_of(2),
                geglu: layers.is_multiple_of(2),
                scaled_embedding: kv.is_multiple_of(2),
                zero_centered_gain: group.is_multiple_of(2),
                init_std: 0.02,
            })
        });
    let mlp = (size(), size(), size(), size()).prop_map(|(inputs, hidden, layers, classes)| {
        Network::Mlp(MlpConfig { inputs, hidden, layers, classes })
    });
    prop_oneof![gpt, llama, mlp, u_transformer]
}

/// A valid text with a few characters replaced, dropped or doubled.
fn mutated(text: String) -> impl Strategy<Value = String> {
    let change = (any::<proptest::sample::Index>(), 0..3_u8, "[0-9a-z=:,.\\[\\]{}\"#\n -]|\\PC");
    proptest::collection::vec(change, 1..4).prop_map(move |changes| {
        let mut letters: Vec<char> = text.chars().collect();
        for (at, how, with) in changes {
            let at = at.index(letters.len());
            match how {
                0 => letters.splice(at..=at, with.chars()).for_each(drop),
                1 if letters.len() > 1 => drop(letters.remove(at)),
                _ => letters.insert(at, letters[at]),
            }
        }
        letters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn both_texts_give_back_an_equal_model(network in network(), name in "[a-z0-9][a-z0-9._-]{0,20}") {
        let spec = ModelSpec::new(&name, network).unwrap();
        prop_assert_eq!(&ModelSpec::parse(&spec.to_string()).unwrap(), &spec);
        prop_assert_eq!(&ModelSpec::from_toml(&spec.to_toml(), "text").unwrap(), &spec);
    }

    #[test]
    fn no_text_at_all_makes_the_readers_panic(text in "\\PC{0,200}", head in "(gpt|llama|mlp|u-transformer|lstm|dlrm|custom|gpt-2):?") {
        let _ = ModelSpec::parse(&text);
        let _ = ModelSpec::parse(&format!("{head}{text}"));
        let _ = ModelSpec::from_toml(&text, "text");
    }

    #[test]
    fn no_changed_line_makes_the_reader_panic(text in mutated(GPT.replace("24", "2"))) {
        if let Ok(spec) = ModelSpec::parse(&text) {
            prop_assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
        }
    }

    #[test]
    fn no_changed_description_makes_the_reader_panic(
        text in mutated(include_str!("../../../../examples/models/own-network.toml").to_owned()),
        preset in mutated(include_str!("../../presets/gpt-2.toml").to_owned()),
    ) {
        for text in [text, preset] {
            if let Ok(spec) = ModelSpec::from_toml(&text, "text") {
                prop_assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
            }
        }
    }
}

#[test]
fn spaces_around_a_line_and_its_family_do_not_count() {
    let spaced = GPT.replace(':', " : ");
    assert_eq!(ModelSpec::parse(&format!("  {spaced} ")), ModelSpec::parse(GPT));
    assert_eq!(ModelSpec::parse(" gpt-2 "), ModelSpec::parse("gpt-2"));
    ModelSpec::parse(" gpt-2 ").unwrap();
}

#[test]
fn names_of_families_and_presets_may_have_letters_of_either_case() {
    for (line, same) in [
        (
            "GPT:layers=1,hidden=8,heads=2,seq=4,vocab=16",
            "gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16",
        ),
        ("Mlp:inputs=2,hidden=2,layers=1,classes=2", "mlp:inputs=2,hidden=2,layers=1,classes=2"),
        ("Llama-3-8B", "llama-3-8b"),
        ("GPT-2:seq=512", "gpt-2:seq=512"),
        ("GPT-2:layers=3", "gpt-2:layers=3"),
    ] {
        assert_eq!(ModelSpec::parse(line), ModelSpec::parse(same), "{line}");
        assert!(ModelSpec::parse(line).is_ok(), "{line}");
    }
    // Keys are words of one spelling.
    refused("gpt:LAYERS=1", &["LAYERS"]);
}
