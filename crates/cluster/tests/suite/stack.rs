//! Software stacks: presets, files and what they refuse.

use std::collections::BTreeMap;

use shardloom_cluster::{
    Attention, BetweenNodes, Cluster, FusedAttention, Host, Kernels, NodeGroup, PlanDefaults,
    Profile, Residuals, Stack, StepGroup, StepKind,
};

#[test]
fn every_preset_says_its_source_and_if_calibrated_its_residuals() {
    for name in Stack::preset_names() {
        let stack = Stack::parse(name).expect("a preset");
        assert_eq!(stack.name, name);
        assert!(stack.source.trim().len() > 40, "{name}: {}", stack.source);
        // Times under a stack that was fitted to measurements come with an interval.
        for several_nodes in [false, true] {
            let of = |residuals: &&Residuals| {
                let devices = residuals.devices.clone();
                residuals.include(&StepKind { several_nodes, devices })
            };
            let known = stack.residuals.iter().filter(of).count();
            assert_eq!(known, usize::from(stack.calibrated_on.is_some()), "{name}");
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
fn a_stack_says_to_what_its_constants_were_fitted() {
    let head = "name = \"mine\"\nsource = \"measured\"\n";
    let described =
        |text: &str| Stack::from_toml(&format!("{head}{text}")).expect("a stack").described();
    assert_eq!(described(""), "mine, not calibrated");
    assert_eq!(described("calibrated_on = \"ten rows\""), "mine, calibrated on ten rows");
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
    for (key, meant) in [
        ("layer-nrom.forward", "`layer-norm.forward`"),
        ("gelu.backward", "`gelu.forward`"),
        ("contract+bias.weight", "`contract.weight`"),
        ("update.adam", "`update.adamw`"),
    ] {
        let error =
            wrong(&format!("[operators]\n\"gelu.input\" = {{}}\n\"{key}\" = {{ traffic = 2.0 }}"));
        assert!(error.contains(":5: ") && error.contains(key) && error.contains(meant), "{error}");
    }
    for key in ["step_seconds", "share_seconds"] {
        assert!(wrong(&format!("host.{key} = -1.0")).contains(key), "{key}");
    }
    assert!(wrong("host.between_nodes = { seconds = -1.0, exponent = 1.0 }").contains("seconds"));
    assert!(wrong("host.between_nodes = { seconds = 1.0 }").contains("exponent"));
    assert!(wrong("algorithms = \"tree\"").contains("by-size"));
    assert!(wrong("context_bytes = -1").contains("context_bytes"));
    for key in ["workspace", "saved"] {
        let negative = format!("[operators]\n\"gelu.forward\" = {{ {key} = -1.0 }}");
        assert!(wrong(&negative).contains(key), "{key}");
    }
    assert!(wrong("memory = { queued_kernels = -1 }").contains("queued_kernels"));
    assert!(wrong("memory = { copies = 2 }").contains("copies"));
    assert!(wrong("[fused_attention]\nh100-80g = 0.0").contains("above 0"));
    assert!(wrong("[fused_attention]\nh100-80g = 1.5").contains("at most 1"));
    // Nor what would come to times and sizes that cannot be counted.
    assert!(wrong("memory_time = 1e300").contains("at most 1000"));
    assert!(wrong("host.step_seconds = 3601.0").contains("from 0 to 3600"));
    assert!(wrong("host.share_seconds = 1e300").contains("from 0 to 3600"));
    let steep = "host.between_nodes = { seconds = 1.0, exponent = 100.0 }";
    assert!(wrong(steep).contains("from 0 to 3"));
    let large = "[operators]\n\"gelu.forward\" = { workspace = 1e13 }";
    assert!(wrong(large).contains("from 0 to 1000"));
}

#[test]
fn a_host_launches_where_any_of_what_it_does_takes_time() {
    let none = Host::default();
    assert!(!none.launches());
    // Between steps it pauses only where it waits for them.
    assert!(!Host { step_seconds: 1e-3, waits_for_steps: false, ..none }.launches());
    for (number, alone) in [
        Host { kernel_seconds: 1e-6, ..none },
        Host { communication_seconds: 1e-6, ..none },
        Host { between_nodes: BetweenNodes { seconds: 1e-6, exponent: 1.0 }, ..none },
        Host { share_seconds: 1e-6, ..none },
        Host { step_seconds: 1e-6, waits_for_steps: true, ..none },
    ]
    .into_iter()
    .enumerate()
    {
        assert!(alone.launches(), "number {number}");
    }
}

#[test]
fn a_collective_takes_the_host_longer_by_its_members_only_where_messages_cross_nodes() {
    let between_nodes = BetweenNodes { seconds: 1e-6, exponent: 2.0 };
    let host = Host { communication_seconds: 2e-6, between_nodes, ..Host::default() };
    for (members, squared) in [(1, 1.0), (2, 4.0), (4, 16.0)] {
        assert_eq!(host.collective_seconds(members, false), 2e-6);
        let crossing = host.collective_seconds(members, true);
        assert!((crossing / (2e-6 + squared * 1e-6) - 1.0).abs() < 1e-12, "{members}: {crossing}");
    }
}

#[test]
fn an_operators_kernels_are_found_whatever_the_suffixes_of_its_rate() {
    let text = "name = \"mine\"\nsource = \"measured\"\nattention = \"separate\"\n[operators]\n\
                \"attention-probs.forward\" = { launched = 3.0, traffic = 2.5 }\n\
                \"attention-probs.input\" = { launched = 4.0 }\ncopy = { traffic = 3.0 }\n";
    let stack = Stack::from_toml(text).expect("a stack");
    assert_eq!(stack.attention, Attention::Separate);
    let found = |rate| stack.kernels(rate);
    let forward = Kernels { launched: 3.0, traffic: 2.5, workspace: 0.0, saved: 0.0 };
    assert_eq!(found("attention-probs+causal.forward"), forward);
    assert_eq!(found("attention-probs.forward"), forward);
    assert_eq!(
        found("attention-probs+causal.input"),
        Kernels { launched: 4.0, traffic: 1.0, workspace: 0.0, saved: 0.0 }
    );
    assert_eq!(found("copy").traffic, 3.0);
    for other in
        ["copy.forward", "cop", "attention-probs.weight", "attention.forward", "gelu.forward"]
    {
        assert_eq!(
            found(other),
            Kernels { launched: 1.0, traffic: 1.0, workspace: 0.0, saved: 0.0 },
            "{other}"
        );
    }
}

#[test]
fn gradients_are_reduced_in_buckets_or_at_the_end_as_software_does_it() {
    let of = |reduces_at_end, reduces_shards_at_end| {
        let plan_defaults =
            PlanDefaults { reduces_at_end, reduces_shards_at_end, ..PlanDefaults::default() };
        [0, 1, 2, 3].map(|zero| plan_defaults.bucket_bytes(1000, zero, 2) > 1000)
    };
    assert_eq!(of(false, false), [false; 4]);
    assert_eq!(of(false, true), [false, true, true, false]);
    assert_eq!(of(true, false), [true; 4]);
}

#[test]
fn a_default_size_of_buckets_is_of_one_rank_and_plans_count_all_ranks_of_a_replica() {
    let plan_defaults = PlanDefaults {
        reduces_shards_at_end: true,
        bucket_bytes: Some(300),
        splits_blocks: true,
        ..PlanDefaults::default()
    };
    assert_eq!(plan_defaults.bucket_bytes(1000, 0, 4), 1200);
    assert_eq!(plan_defaults.bucket_bytes(1000, 3, 1), 300);
    // One bucket has no end within a block, and weights are gathered block by block.
    assert!(plan_defaults.bucket_bytes(1000, 1, 4) > 1_000_000_000);
    assert_eq!(
        [0, 1, 2, 3].map(|zero| plan_defaults.splits_blocks(zero)),
        [true, false, false, false]
    );
}

/// A stack with residuals of these groups: name, rows, low and high.
fn with_residuals(groups: &[(&str, u32, f64, f64)]) -> Result<Stack, String> {
    let mut text = "name = \"mine\"\nsource = \"measured\"\n".to_owned();
    for (of, rows, low, high) in groups {
        text += &format!(
            "[[residuals]]\nof = \"{of}\"\ndevices = [\"mine\", \"yours\"]\nrows = {rows}\nlow = {low}\nhigh = {high}\n"
        );
    }
    Stack::from_toml(&text).map_err(|error| error.to_string())
}

#[test]
fn residuals_are_those_of_the_group_that_a_step_is_in() {
    let on = |several_nodes, devices: &[&str]| StepKind {
        several_nodes,
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
    };
    let step = |several_nodes| on(several_nodes, &["mine"]);
    let low = |stack: &Stack, step: &StepKind| stack.residuals_of(step).map(|group| group.low);
    let (one_node, several) = (("one-node", 15, 0.8, 1.2), ("several-nodes", 40, 0.9, 1.1));
    let both = with_residuals(&[one_node, several]).expect("good");
    assert_eq!([false, true].map(|it| low(&both, &step(it))), [Some(0.8), Some(0.9)]);
    let one = with_residuals(&[several]).expect("good");
    assert_eq!([false, true].map(|it| low(&one, &step(it))), [None, Some(0.9)]);
    let all = with_residuals(&[("all", 15, 0.8, 1.25)]).expect("good");
    for kind in [step(false), step(true), on(true, &["mine", "yours"])] {
        let found = all.residuals_of(&kind).expect("all steps are in it");
        assert_eq!((found.of, found.rows, found.low, found.high), (StepGroup::All, 15, 0.8, 1.25));
        assert_eq!(found.interval(10.0), [8.0, 12.5]);
        assert_eq!(Stack::default().residuals_of(&kind), None);
    }
    // Nobody measured others.
    for devices in [&["another"][..], &["mine", "another"]] {
        assert_eq!(all.residuals_of(&on(false, devices)), None);
    }
}

#[test]
fn residuals_that_cannot_be_are_refused_with_what_would_be_right() {
    let wrong = |groups: &[(&str, u32, f64, f64)], what: &str| {
        let error = with_residuals(groups).expect_err("no stack can have that");
        assert!(error.contains(what), "{what:?} is not in {error}");
    };
    wrong(&[("all", 14, 0.9, 1.1)], "of all: rows must be at least 15, got 14");
    wrong(&[("one-node", 20, 1.1, 0.9)], "of one-node: high must be at least low (1.1), got 0.9");
    wrong(&[("all", 20, -0.1, 0.9)], "must be a number above 0, got -0.1");
    wrong(&[("all", 20, 0.1, 0.0)], "must be a number above 0, got 0");
    wrong(&[("pipeline", 20, 0.9, 1.1)], "several-nodes");
    for (group, other) in [("one-node", "all"), ("one-node", "one-node"), ("all", "one-node")] {
        let what = format!("of {other}: a step can be in this group and in {group}; right are");
        wrong(&[(group, 20, 0.9, 1.1), (other, 20, 0.9, 1.1)], &what);
    }
    let head = "name = \"mine\"\nsource = \"measured\"\n[[residuals]]\nof = \"all\"\ndevices = [\"a\"]\nrows = 20\n";
    let error = Stack::from_toml(&format!("{head}low = 0.9\n")).unwrap_err().to_string();
    assert!(error.contains("the key `high` is missing"), "{error}");
    let error = Stack::from_toml(&format!("{head}low = 0.9\nhigh = 1.0\nmiddle = 1.0\n"));
    assert!(error.unwrap_err().to_string().contains("middle"));
    let nowhere = head.replace("[\"a\"]", "[]") + "low = 0.9\nhigh = 1.0\n";
    let error = Stack::from_toml(&nowhere).unwrap_err().to_string();
    assert!(error.contains("at least one kind of device"), "{error}");
}

#[test]
fn stacks_are_written_with_their_residuals_and_read_again() {
    for groups in [
        &[][..],
        &[("all", 15, 0.8, 1.2)],
        &[("one-node", 15, 0.8, 1.2), ("several-nodes", 16, 0.9, 1.1)],
    ] {
        let stack = with_residuals(groups).expect("good");
        let names: Vec<String> = stack.residuals.iter().map(|group| group.of.to_string()).collect();
        assert_eq!(names, groups.iter().map(|(of, ..)| *of).collect::<Vec<_>>());
        let text = toml::to_string(&stack).expect("it can be written");
        assert_eq!(text.contains("residuals"), !groups.is_empty(), "{text}");
        assert_eq!(Stack::from_toml(&text).expect("what was written"), stack);
    }
}

/// A rate of the stack's own comes before that of the device, but does not make up for a kernel that the device has no
/// rate of, nor for software without such kernels.
#[test]
fn attention_is_fused_where_the_device_and_the_software_have_a_kernel() {
    let [mut plain, mut fusing] = ["v100-16g", "h100-80g"].map(|name| {
        let mut device = Profile::preset(name).expect("a preset").device;
        device.fused_attention = None;
        device
    });
    (plain.name, fusing.name) = ("plain".into(), "fusing".into());
    fusing.fused_attention = Some(FusedAttention::flat(0.5));
    let own = ["plain", "fusing"].map(|name| (name.to_owned(), FusedAttention::flat(0.25)));
    for (own, rate) in [(vec![], 0.5), (own[..1].to_vec(), 0.5), (own.to_vec(), 0.25)] {
        let own: BTreeMap<_, _> = own.into_iter().collect();
        let stack = Stack { fused_attention: own, ..Stack::default() };
        assert_eq!(stack.fused_attention(&fusing), Some(FusedAttention::flat(rate)));
        assert_eq!(stack.fused_attention(&plain), None);
        let separate = Stack { attention: Attention::Separate, ..stack };
        assert_eq!(separate.fused_attention(&fusing), None);
    }
    // All machines must have it.
    for kinds in 1..8usize {
        let group = |place: usize| NodeGroup {
            profile: Profile {
                device: if kinds >> place & 1 == 1 { fusing.clone() } else { plain.clone() },
                ..Profile::preset("h100-80g").expect("a preset")
            },
            nodes: 1,
            devices_per_node: 8,
        };
        let cluster = Cluster::new((0..3).map(group).collect()).expect("three nodes");
        assert_eq!(cluster.fuses_attention(), kinds == 7, "{kinds:03b}");
        let separate = Stack { attention: Attention::Separate, ..Stack::default() };
        assert!(!cluster.under(separate).fuses_attention());
    }
}

#[test]
fn tensors_have_what_the_software_leaves_of_a_devices_memory() {
    let cluster = Cluster::parse("h100-80g:8").expect("a preset");
    let device = cluster.groups()[0].profile.device.clone();
    for context_bytes in [0, 1, device.memory_bytes - 1, device.memory_bytes, u64::MAX] {
        let cluster = cluster.clone().under(Stack { context_bytes, ..Stack::default() });
        let left = device.memory_bytes.saturating_sub(context_bytes);
        assert_eq!(cluster.memory_bytes(&device), left);
    }
}

#[test]
fn only_replicas_that_share_optimizer_states_alone_all_reduce_where_a_reduce_scatter_would_do() {
    for all_reduces_shards in [false, true] {
        let defaults = PlanDefaults { all_reduces_shards, ..PlanDefaults::NONE };
        let found = [0, 1, 2, 3].map(|zero| defaults.all_reduces(zero));
        assert_eq!(found, [false, all_reduces_shards, false, false]);
    }
}
