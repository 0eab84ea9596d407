//! Software stacks: presets, files and what they refuse.

use shardloom_cluster::{
    Attention, Cluster, Habits, Kernels, Residuals, Stack, StepGroup, StepKind,
};

#[test]
fn every_preset_says_its_source_and_if_calibrated_its_residuals() {
    for name in Stack::preset_names() {
        let stack = Stack::parse(name).expect("a preset");
        assert_eq!(stack.name, name);
        assert!(stack.source.trim().len() > 40, "{name}: {}", stack.source);
        // Times under a stack that was fitted to measurements come with an interval.
        for several_nodes in [false, true] {
            let step = StepKind { several_nodes, fp8_products: false };
            let known = stack.residuals_of(step).is_some();
            assert_eq!(known, stack.calibrated_on.is_some(), "{name}");
        }
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

/// A stack with residuals of these groups: name, rows, low and high.
fn with_residuals(groups: &[(&str, u32, f64, f64)]) -> Result<Stack, String> {
    let mut text = "name = \"mine\"\nsource = \"measured\"\n".to_owned();
    for (of, rows, low, high) in groups {
        text +=
            &format!("[[residuals]]\nof = \"{of}\"\nrows = {rows}\nlow = {low}\nhigh = {high}\n");
    }
    Stack::from_toml(&text).map_err(|error| error.to_string())
}

#[test]
fn residuals_are_those_of_the_group_that_a_step_is_in() {
    let step = |several_nodes, fp8_products| StepKind { several_nodes, fp8_products };
    let low = |stack: &Stack, step| stack.residuals_of(step).map(|group| group.low);
    for (group, rest, in_group, in_rest) in [
        ("one-node", "several-nodes", step(false, true), step(true, true)),
        ("fp8", "no-fp8", step(true, true), step(true, false)),
    ] {
        let both = with_residuals(&[(group, 15, 0.8, 1.2), (rest, 40, 0.9, 1.1)]).expect("good");
        assert_eq!([low(&both, in_group), low(&both, in_rest)], [Some(0.8), Some(0.9)], "{group}");
        let one = with_residuals(&[(rest, 40, 0.9, 1.1)]).expect("good");
        assert_eq!([low(&one, in_group), low(&one, in_rest)], [None, Some(0.9)], "{group}");
    }
    let all = with_residuals(&[("all", 15, 0.8, 1.25)]).expect("good");
    for kind in [step(false, false), step(false, true), step(true, false), step(true, true)] {
        let found = all.residuals_of(kind).expect("all steps are in it");
        assert_eq!(*found, Residuals { of: StepGroup::All, rows: 15, low: 0.8, high: 1.25 });
        assert_eq!(found.interval(10.0), [8.0, 12.5]);
        assert_eq!(Stack::default().residuals_of(kind), None);
    }
}

#[test]
fn residuals_that_cannot_be_are_refused_with_what_would_be_right() {
    let wrong = |groups: &[(&str, u32, f64, f64)], what: &str| {
        let error = with_residuals(groups).expect_err("no stack can have that");
        assert!(error.contains(what), "{what:?} is not in {error}");
    };
    wrong(&[("all", 14, 0.9, 1.1)], "of all: rows must be at least 15, got 14");
    wrong(&[("fp8", 20, 1.1, 0.9)], "of fp8: high must be at least low (1.1), got 0.9");
    wrong(&[("all", 20, -0.1, 0.9)], "must be a number above 0, got -0.1");
    wrong(&[("all", 20, 0.1, 0.0)], "must be a number above 0, got 0");
    wrong(&[("pipeline", 20, 0.9, 1.1)], "several-nodes");
    for (group, other) in [("one-node", "fp8"), ("one-node", "one-node"), ("all", "fp8")] {
        let what = format!("of {other}: a step can be in this group and in {group}; right are");
        wrong(&[(group, 20, 0.9, 1.1), (other, 20, 0.9, 1.1)], &what);
    }
    let head = "name = \"mine\"\nsource = \"measured\"\n[[residuals]]\nof = \"all\"\nrows = 20\n";
    let error = Stack::from_toml(&format!("{head}low = 0.9\n")).unwrap_err().to_string();
    assert!(error.contains("missing field `high`"), "{error}");
    let error = Stack::from_toml(&format!("{head}low = 0.9\nhigh = 1.0\nmiddle = 1.0\n"));
    assert!(error.unwrap_err().to_string().contains("middle"));
}

#[test]
fn stacks_are_written_with_their_residuals_and_read_again() {
    for groups in [
        &[][..],
        &[("all", 15, 0.8, 1.2)],
        &[("one-node", 15, 0.8, 1.2), ("several-nodes", 16, 0.9, 1.1)],
        &[("no-fp8", 15, 0.8, 1.2), ("fp8", 16, 0.9, 1.1)],
    ] {
        let stack = with_residuals(groups).expect("good");
        let names: Vec<String> = stack.residuals.iter().map(|group| group.of.to_string()).collect();
        assert_eq!(names, groups.iter().map(|(of, ..)| *of).collect::<Vec<_>>());
        let text = toml::to_string(&stack).expect("it can be written");
        assert_eq!(text.contains("residuals"), !groups.is_empty(), "{text}");
        assert_eq!(Stack::from_toml(&text).expect("what was written"), stack);
    }
}
