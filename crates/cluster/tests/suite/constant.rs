//! Constants of software stacks by name.

use shardloom_cluster::{ClusterError, Stack};

fn stack(name: &str) -> Stack {
    Stack::parse(name).expect("a preset")
}

fn value(stack: &Stack, name: &str) -> f64 {
    let all = stack.constants().expect("they can be written");
    all.iter().find(|(it, _)| it == name).unwrap_or_else(|| panic!("no {name} in {all:?}")).1
}

#[test]
fn names_are_the_keys_of_the_file() {
    let nanotron = stack("nanotron");
    for (name, right) in [
        ("product_time", nanotron.product_time),
        ("host.kernel_seconds", 60e-6),
        ("host.between_nodes.exponent", 1.3),
        ("operators.update.adamw.traffic", 0.3),
        ("operators.rotary.forward.launched", 5.0),
    ] {
        assert_eq!(value(&nanotron, name), right, "{name}");
    }
    assert_eq!(value(&stack("fsdp-eager"), "fused_attention.h100-80g"), 0.17);
    let names = nanotron.constants().expect("they can be written");
    assert!(names.iter().all(|(name, _)| !name.contains("residuals")), "{names:?}");
}

#[test]
fn only_what_is_named_changes() {
    let before = stack("nanotron");
    let values = [("operators.update.adamw.traffic", 0.5), ("host.step_seconds", 0.01)];
    let after = before.with_constants(values).expect("they are in range");
    for (name, old) in before.constants().expect("they can be written") {
        let named = values.iter().find(|(it, _)| *it == name);
        assert_eq!(value(&after, &name), named.map_or(old, |(_, new)| *new), "{name}");
    }
    assert_eq!((&after.plan_defaults, &after.source), (&before.plan_defaults, &before.source));
    assert_eq!(before.with_constants([]).expect("nothing to do"), before);
}

#[test]
fn unknown_names_and_values_out_of_range_are_refused() {
    let unknown = stack("megatron").with_constants([("host.kernel_second", 1.0)]);
    let Err(ClusterError::Constant { name, known }) = unknown else { panic!("{unknown:?}") };
    assert_eq!(name, "host.kernel_second");
    assert!(known.contains("host.kernel_seconds, "), "{known}");
    for (name, value) in [("fused_attention.h100-80g", 1.5), ("memory_time", -1.0)] {
        assert!(stack("megatron").with_constants([(name, value)]).is_err(), "{name} = {value}");
    }
    // Tables and words are no constants.
    for name in ["host", "attention", "plan_defaults.reruns_blocks", ""] {
        assert!(stack("megatron").with_constants([(name, 1.0)]).is_err(), "{name}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    for name in Stack::preset_names() {
        let stack = stack(name);
        let text = stack.to_toml().expect("it can be written");
        assert_eq!(Stack::from_toml(&text).expect("it can be read"), stack, "{text}");
    }
}
