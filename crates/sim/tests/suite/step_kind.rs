//! Which published steps a step is like.

use shardloom_cluster::Cluster;
use shardloom_plan::Plan;
use shardloom_sim::step_kind;

/// A plan of two stages on these devices, with something more in its sync and its precision.
fn plan(devices: [u32; 2], sync: &str, precision: &str) -> Plan {
    let [first, second] = devices;
    let text = format!(
        r#"
        format = 1
        model = "gpt"
        cluster = "h100-80g:2x2"
        global_batch = 8
        microbatches = 4
        schedule = "1f1b"
        recompute = "none"
        layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
        sync = {{ algorithm = "ring", zero = 0, bucket_bytes = 25000000{sync} }}
        precision = {{ compute = "bf16", gradients = "fp32", master = true{precision} }}
        optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
        [[pipeline]]
        stage = [
            {{ blocks = [0, 3], mesh = {{}}, devices = "{first}" }},
            {{ blocks = [3, 6], mesh = {{}}, devices = "{second}" }},
        ]
        "#
    );
    Plan::from_toml(&text, "plan.toml").expect("a plan")
}

#[test]
fn nodes_are_those_of_the_plans_devices_and_not_of_the_cluster() {
    let cluster = Cluster::parse("h100-80g:2x2").expect("a preset");
    let several = |plan: Plan| step_kind(&plan, &cluster).several_nodes;
    for (devices, right) in
        [([0, 1], false), ([2, 3], false), ([1, 2], true), ([0, 3], true), ([1, 1], false)]
    {
        assert_eq!(several(plan(devices, "", "")), right, "{devices:?}");
    }
    // A server is on the device after the last stage's.
    let server = ", servers = { count = 1, staleness = 0 }";
    assert!(several(plan([0, 1], server, "")));
    assert!(!several(plan([0, 0], server, "")));
}

#[test]
fn its_devices_are_of_the_kinds_that_the_plan_has() {
    let cluster = Cluster::parse("h100-80g:1x2+a100-80g:1x2").expect("presets");
    let kinds = |devices| -> Vec<String> {
        step_kind(&plan(devices, "", ""), &cluster).devices.into_iter().collect()
    };
    assert_eq!(kinds([0, 1]), ["h100-80g"]);
    assert_eq!(kinds([1, 2]), ["a100-80g", "h100-80g"]);
}
