//! Software stacks: presets, files and what they refuse.

use shardloom_cluster::{Attention, Cluster, Habits, Kernels, Stack};

#[test]
fn every_preset_parses_under_its_own_name_and_says_its_source() {
    for name in Stack::preset_names() {
        let stack = Stack::parse(name).expect("a preset");
        assert_eq!(stack.name, name);
        assert!(stack.source.trim().len() > 40, "{name}: {}", stack.source);
    }
}

#[test]
fn a_cluster_is_under_shardloom_itself_until_another_stack_is_named() {
    let cluster = Cluster::parse("h100-80g:8").expect("a preset");
    let preset = Stack::parse("shardloom").expect("a preset");
    assert_eq!(Stack { source: String::new(), ..preset }, *cluster.stack());
    assert_eq!(Stack::preset_names().next(), Some("shardloom"));
    let named = cluster.under(Stack::parse("nanotron").expect("a preset"));
    let larger = named.with_groups(named.groups().to_vec()).expect("the same machines");
    assert_eq!(larger.stack().name, "nanotron");
}

#[test]
fn an_unknown_stack_is_refused_with_the_nearest_and_all_names() {
    let error = Stack::parse("nanotro").unwrap_err().to_string();
    assert!(error.contains("did you mean `nanotron`?"), "{error}");
    assert!(Stack::preset_names().all(|name| error.contains(name)), "{error}");
}

#[test]
fn what_no_stack_can_have_is_refused_by_its_key() {
    let wrong = |text: &str| {
        let head = "name = \"mine\"\nsource = \"measured\"\n";
        Stack::from_toml(&format!("{head}{text}")).unwrap_err().to_string()
    };
    assert!(wrong("host.kernel_seconds = -1e-6").contains("kernel_seconds"));
    assert!(wrong("product_time = 0.0").contains("product_time"));
    assert!(wrong("attention = \"flash\"").contains("separate"));
    assert!(wrong("[operators]\n\"gelu.forward\" = { launched = -1.0 }").contains("launched"));
    assert!(wrong("kernels = 3").contains("kernels"));
    for key in ["step_seconds", "share_seconds"] {
        assert!(wrong(&format!("host.{key} = -1.0")).contains(key), "{key}");
    }
    assert!(wrong("host.crossing = { seconds = -1.0, exponent = 1.0 }").contains("seconds"));
    assert!(wrong("host.crossing = { seconds = 1.0 }").contains("exponent"));
    assert!(wrong("algorithms = \"tree\"").contains("by-size"));
    assert!(wrong("context_bytes = -1").contains("context_bytes"));
    let negative = "[operators]\n\"gelu.forward\" = { workspace = -1.0 }";
    assert!(wrong(negative).contains("workspace"));
    assert!(wrong("[fused_attention]\nh100-80g = 0.0").contains("above 0"));
    assert!(wrong("[fused_attention]\nh100-80g = 1.5").contains("at most 1"));
}

#[test]
fn an_operators_kernels_are_found_whatever_the_suffixes_of_its_rate() {
    let text = "name = \"mine\"\nsource = \"measured\"\nattention = \"separate\"\n[operators]\n\
                \"attention-probs.forward\" = { launched = 3.0, traffic = 2.5 }\n\
                \"attention-probs.input\" = { launched = 4.0 }\ncopy = { traffic = 3.0 }\n";
    let stack = Stack::from_toml(text).expect("a stack");
    assert_eq!(stack.attention, Attention::Separate);
    let found = |rate| stack.kernels(rate);
    let forward = Kernels { launched: 3.0, traffic: 2.5, workspace: 0.0 };
    assert_eq!(found("attention-probs+causal.forward"), forward);
    assert_eq!(found("attention-probs.forward"), forward);
    assert_eq!(
        found("attention-probs+causal.input"),
        Kernels { launched: 4.0, traffic: 1.0, workspace: 0.0 }
    );
    assert_eq!(found("copy").traffic, 3.0);
    for other in
        ["copy.forward", "cop", "attention-probs.weight", "attention.forward", "gelu.forward"]
    {
        assert_eq!(
            found(other),
            Kernels { launched: 1.0, traffic: 1.0, workspace: 0.0 },
            "{other}"
        );
    }
}

#[test]
fn gradients_are_reduced_in_buckets_or_at_the_end_as_software_does_it() {
    let of = |reduces_at_end, reduces_shards_at_end| {
        let habits = Habits { reduces_at_end, reduces_shards_at_end, ..Habits::default() };
        [0, 1, 2, 3].map(|zero| habits.bucket_bytes(1000, zero) > 1000)
    };
    assert_eq!(of(false, false), [false; 4]);
    assert_eq!(of(false, true), [false, true, true, false]);
    assert_eq!(of(true, false), [true; 4]);
}
