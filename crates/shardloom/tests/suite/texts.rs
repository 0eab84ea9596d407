//! Whatever the texts say, models, clusters, optimizers and plans are loaded or refused in words.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom::{Defaults, Error, LocalProfile, Model, Plan, load_cluster, parse_optimizer};

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Texts near what is meant: heads, keys and values that exist, put together wrongly as often as not.
fn near() -> impl Strategy<Value = String> {
    let head = prop::sample::select(vec![
        "gpt",
        "llama",
        "mlp",
        "custom",
        "gpt-2",
        "llama-3-8b",
        "h100-80g",
        "a100-40g",
        "sgd",
        "lamb",
        "",
        " gpt ",
        "+",
        "{}",
    ]);
    let key = prop::sample::select(vec![
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "ffn",
        "seq",
        "vocab",
        "tied",
        "dropout",
        "classes",
        "inputs",
        "name",
        "beta1",
        "momentum",
        "",
        "rope_scaling",
        "windows",
        "attention_cap",
    ]);
    let value = prop::sample::select(vec![
        "0",
        "1",
        "2",
        "8",
        "64",
        "-1",
        "1e9",
        "99999999999999999999",
        "18446744073709551615",
        "1099511627776",
        "true",
        "NaN",
        "inf",
        "",
        "[8,1,4,8192]",
        "[8]",
        "5x8-0",
        "[",
        "x",
        "2x8",
        "µ",
    ]);
    let pairs =
        prop::collection::vec((key, value, prop::sample::select(vec!["=", ":", "", "=="])), 0..6);
    (head, prop::sample::select(vec![":", "", "::", "+"]), pairs).prop_map(
        |(head, colon, pairs)| {
            let pairs: Vec<String> =
                pairs.into_iter().map(|(key, value, sign)| format!("{key}{sign}{value}")).collect();
            format!("{head}{colon}{}", pairs.join(","))
        },
    )
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![4 => near(), 1 => "\\PC{0,40}", 1 => "[a-z0-9:x+.-]{0,20}"]
}

fn in_words(error: &Error) -> bool {
    !error.to_string().trim().is_empty() && !error.kind().is_empty()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn models(text in any_text(), seq in prop::option::of(0..100_usize), vocab in prop::option::of(0..300_usize)) {
        let defaults = Defaults { sequence_length: seq, vocabulary: vocab };
        match Model::load_with(&text, defaults) {
            Ok(model) => {
                let again = Model::load(&model.text()).expect("a model's own text");
                prop_assert_eq!(again.spec(), model.spec());
            }
            Err(error) => prop_assert!(in_words(&error)),
        }
    }

    #[test]
    fn clusters(text in any_text()) {
        // There is no place to measure into, so that `local` is refused, too.
        let local = LocalProfile::at("/dev/null/profile.toml".as_ref());
        match load_cluster(&text, &local, &mut |_, _| {}) {
            Ok(cluster) => prop_assert!(cluster.device_count() > 0),
            Err(error) => prop_assert!(in_words(&error)),
        }
    }

    #[test]
    fn optimizers(text in any_text()) {
        if let Err(error) = parse_optimizer(&text) {
            prop_assert!(in_words(&error));
        }
    }

    #[test]
    fn plans(text in any_text()) {
        let found = Plan::from_toml(&format!("format = 1\nmodel = {text:?}\n"), "plan.toml");
        prop_assert!(found.is_err_and(|error| error.to_string().contains("plan.toml")));
    }
}
