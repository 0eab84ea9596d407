//! Cluster specifications and files: what they mean, and how they are refused.

use proptest::{prelude::*, test_runner::RngSeed};
use shardloom_cluster::{Cluster, DeviceId, NodeGroup, NodeId, Profile};

const LOCAL: &str = r#"
source = "measured"

[device]
name = "this-machine"
memory_bytes = 8589934592
memory_bytes_per_second = 2.0e10
memory_reachable = 1.0
launch_seconds = 0.0
lanes_overlap = false
peak_flops = { fp32 = 1.0e11 }
rates = { layer-norm = [[1000, 1e-6], [100000, 1e-4]] }

[device.matmul.measured]
precision = "fp32"
points = [
    { m = 64, n = 64, k = 64, seconds = 1e-5 },
    { m = 512, n = 512, k = 512, seconds = 3e-3 },
]

[node]
devices = 4
uplink_bytes_per_second = 1.0e9
intra = { latency_seconds = 1e-6, bytes_per_second = 1e10, curve = [[64, 1.1e-6], [65536, 9e-6]] }
inter = { latency_seconds = 1e-5, bytes_per_second = 1e9 }
"#;

fn local() -> Profile {
    Profile::from_toml(LOCAL).unwrap()
}

fn refusal(spec: &str) -> String {
    Cluster::parse(spec).unwrap_err().to_string()
}

#[test]
fn devices_are_numbered_node_by_node_over_all_groups() {
    let cluster = Cluster::parse("h100-80g:2x8 + a100-40g:3x4").unwrap();
    assert_eq!(cluster.device_count(), 28);
    assert_eq!(cluster.node_count(), 5);
    assert_eq!(cluster.devices().len(), 28);
    for (device, node, kind) in [
        (0, 0, "h100-80g"),
        (7, 0, "h100-80g"),
        (8, 1, "h100-80g"),
        (15, 1, "h100-80g"),
        (16, 2, "a100-40g"),
        (19, 2, "a100-40g"),
        (27, 4, "a100-40g"),
    ] {
        assert_eq!(cluster.node_of(DeviceId(device)).unwrap(), NodeId(node), "device {device}");
        assert_eq!(cluster.kind_of(DeviceId(device)).unwrap().name, kind, "device {device}");
    }
    assert!(cluster.same_node(DeviceId(16), DeviceId(19)).unwrap());
    assert!(!cluster.same_node(DeviceId(15), DeviceId(16)).unwrap());
    assert_eq!(
        cluster.kind_of(DeviceId(28)).unwrap_err().to_string(),
        "device 28 is not in this cluster of 28 devices"
    );
}

#[test]
fn one_number_means_one_node() {
    assert_eq!(Cluster::parse("a100-80g:8").unwrap(), Cluster::parse("a100-80g:1x8").unwrap());
}

#[test]
fn a_misspelt_machine_is_refused_with_the_nearest_name() {
    assert_eq!(
        refusal("h100-80gb:8"),
        "unknown machine `h100-80gb`, did you mean `h100-80g`?; known: v100-16g, v100-32g, \
         a100-40g, a100-80g, h100-80g, h200, gh200, b200, gb200, l40s, gtx-1080-ti, titan-rtx, \
         rtx-2080, rtx-3090, mi300x, mi355x, tpu-v3, tpu-v4, tpu-v5p, tpu-v6e, local"
    );
    for (name, near) in
        [("h100:8", "h100-80g"), ("H100-80GB:8", "h100-80g"), ("A100:2x8", "a100-40g")]
    {
        let message = refusal(name);
        assert!(message.contains(&format!("did you mean `{near}`?")), "{message}");
    }
    let devices =
        |spec| Cluster::parse(spec).expect("a cluster").kind_of(DeviceId(0)).unwrap().name.clone();
    assert_eq!(devices("H100-80G:8"), "h100-80g");
    assert!(refusal("toaster:2").starts_with("unknown machine `toaster`; known: v100-16g"));
}

#[test]
fn malformed_text_is_refused_naming_the_part() {
    for (spec, part) in [
        ("", ""),
        ("h100-80g", "h100-80g"),
        ("h100-80g:", "h100-80g:"),
        ("h100-80g:8+", ""),
        ("h100-80g:2x", "h100-80g:2x"),
        ("h100-80g:-8", "h100-80g:-8"),
        ("h200:8+h100-80g:2x4x8", "h100-80g:2x4x8"),
        (":8", ":8"),
    ] {
        let message = refusal(spec);
        let start = format!("cluster `{spec}`: `{part}` is not NAME:DEVICES or NAME:NODESxDEVICES");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn absurd_sizes_are_refused() {
    assert_eq!(refusal("h200:0"), "cluster `h200:0`: 0 devices: at least 1 is needed");
    assert_eq!(refusal("h200:0x8"), "cluster `h200:0x8`: 0 nodes: at least 1 is needed");
    assert_eq!(
        refusal("a100-80g:20"),
        "a node of a100-80g has 8 devices, not 20; for 20 devices write a100-80g:3x8"
    );
    assert_eq!(
        refusal("tpu-v4:8x8"),
        "a node of tpu-v4 has 4 devices, not 8; for 64 devices write tpu-v4:16x4"
    );
    // More than there may be are not said in another way.
    assert_eq!(refusal("tpu-v4:125000x9"), "a node of tpu-v4 has 4 devices, not 9");
    assert_eq!(
        refusal("h200:125001x8"),
        "a cluster of 1000008 devices is over the limit of 1000000"
    );
    for (nodes, devices, what) in [
        ("99999999999999999999", "8", "99999999999999999999 nodes"),
        ("4", "999999999999", "999999999999 devices"),
    ] {
        let spec = format!("h200:{nodes}x{devices}");
        let message = format!("cluster `{spec}`: {what}: over the limit of 1000000");
        assert_eq!(refusal(&spec), message);
    }
    assert_eq!(Cluster::parse("h200:125000x8").unwrap().device_count(), 1_000_000);
}

#[test]
fn local_is_the_measured_profile() {
    assert!(refusal("local:2").starts_with("`local` needs a measured profile"));
    let cluster = Cluster::parse_with("local:2", Some(&local())).unwrap();
    assert_eq!(cluster.groups()[0].profile, local());
    assert_eq!(cluster.device_count(), 2);
}

#[test]
fn a_profile_survives_its_own_toml() {
    assert_eq!(Profile::from_toml(&local().to_toml().unwrap()).unwrap(), local());
    for name in Profile::preset_names() {
        let preset = Profile::preset(name).unwrap();
        assert_eq!(preset.device.name, name);
        assert_eq!(Profile::from_toml(&preset.to_toml().unwrap()).unwrap(), preset, "{name}");
    }
}

/// Two nodes of three devices, then one of two.
#[test]
fn devices_share_a_node_if_both_are_in_it_and_exist() {
    let cluster = Cluster::parse("v100-16g:2x3+h100-80g:2").expect("presets");
    let nodes = [0, 0, 0, 1, 1, 1, 2, 2];
    for (one, other) in (0..10).flat_map(|one| (0..10).map(move |other| (one, other))) {
        let known = [one, other].map(|it: u32| nodes.get(it as usize));
        let together = known[0].is_some() && known[0] == known[1];
        let [a, b] = [one, other].map(DeviceId);
        assert_eq!(cluster.share_node(a, b), together, "{one} and {other}");
        let found = cluster.same_node(a, b).ok();
        assert_eq!(found, known.iter().all(Option::is_some).then_some(together));
    }
}

#[test]
fn kinds_of_machine_are_listed_once_in_order_of_their_devices() {
    let spec = "v100-16g:2x8+h100-80g:8+v100-16g:1x4+a100-40g:8+h100-80g:4";
    let cluster = Cluster::parse(spec).expect("presets");
    let kinds = cluster.profiles().into_iter().map(|it| it.device.name.as_str());
    assert_eq!(kinds.collect::<Vec<_>>(), ["v100-16g", "h100-80g", "a100-40g"]);
}

#[test]
fn a_cluster_file_may_mix_presets_and_its_own_machines() {
    let text = format!(
        "[[group]]\nmachine = \"this-machine\"\nnodes = 2\n\n\
         [[group]]\nmachine = \"v100-16g\"\nnodes = 1\ndevices_per_node = 2\n\n[[machine]]\n{}",
        LOCAL.replace("[device", "[machine.device").replace("[node]", "[machine.node]")
    );
    let cluster = Cluster::from_toml(&text).unwrap();
    assert_eq!(cluster.device_count(), 2 * 4 + 2);
    assert_eq!(cluster.kind_of(DeviceId(7)).unwrap().name, "this-machine");
    assert_eq!(cluster.kind_of(DeviceId(8)).unwrap().name, "v100-16g");
}

#[test]
fn mistakes_in_a_file_are_refused_with_line_and_key() {
    let line_of =
        |needle: &str, text: &str| text.lines().position(|line| line.contains(needle)).unwrap() + 1;
    for (from, to, needle, says) in [
        ("launch_seconds", "launch_secs", "launch_secs", "unknown key `launch_secs`"),
        (
            "= 2.0e10",
            "= -2.0e10",
            "-2.0e10",
            "must be a number of bytes a second, from 1e3 to 1e15, got -20000000000",
        ),
        ("= 2.0e10", "= 400.0", "= 400.0", "of bytes a second, from 1e3 to 1e15, got 400"),
        ("fp32 = 1.0e11", "fp32 = 989.4", "989.4", "of FLOP a second, from 1e6 to 1e18, got 989.4"),
        ("reachable = 1.0", "reachable = 1.5", "1.5", "above 0 and at most 1, got 1.5"),
        ("reachable = 1.0", "reachable = 0.0", "= 0.0", "above 0 and at most 1, got 0"),
        ("devices = 4", "devices = 0", "devices = 0", "must be at least 1, got 0"),
        ("100000, 1e-4", "10, 1e-4", "10, 1e-4", "sizes must ascend strictly"),
        ("m = 512, n = 512, k = 512", "m = 64, n = 64, k = 64", "matmul", "listed twice"),
        ("fp32 = 1.0e11", "fp31 = 1.0e11", "fp31", "unknown key `fp31`"),
    ] {
        assert!(LOCAL.contains(from), "{from}");
        let text = LOCAL.replace(from, to);
        let message = Profile::from_toml(&text).unwrap_err().to_string();
        let line = format!("machine profile:{}: ", line_of(needle, &text));
        assert!(message.starts_with(&line) && message.contains(says), "{from}: {message}");
    }
    let text = "[[group]]\nnodes = 2\nmachine = \"h20\"\n";
    let message = Cluster::from_toml(text).unwrap_err().to_string();
    assert!(
        message.starts_with("cluster file:3: machine: unknown machine `h20`, did you mean `h200`?"),
        "{message}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_refused_with_its_path() {
    let message = refusal("no-such-folder/cluster.toml");
    assert!(message.starts_with("cannot read no-such-folder/cluster.toml: "), "{message}");
}

#[test]
fn two_machines_of_one_name_are_refused() {
    let mut faster = local();
    faster.device.memory_bytes_per_second *= 2.0;
    let group = |profile| NodeGroup { profile, nodes: 1, devices_per_node: 1 };
    let message = Cluster::new(vec![group(local()), group(faster)]).unwrap_err().to_string();
    assert!(message.starts_with("two different machines are called `this-machine`"), "{message}");
    assert!(Cluster::new(Vec::new()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_text_makes_the_parsers_panic(text in ".*", like in "[a-h0-9:x+.-]{0,20}(,(uplink|cards)=[-0-9.xGMTBbps/]{0,9})?") {
        for text in [&text, &like] {
            // Whatever parses must be usable; all else is an error, never a panic.
            for cluster in [Cluster::parse(text), Cluster::from_toml(text)].into_iter().flatten() {
                prop_assert!(cluster.device_count() > 0);
            }
            prop_assert!(Profile::from_toml(text).is_err());
        }
    }

    #[test]
    fn no_damaged_file_makes_the_parser_panic(
        at in 0usize..LOCAL.len(),
        length in 0usize..12,
        insert in "[0-9a-z\\[\\]{}=\",.\n -]{0,6}",
    ) {
        let mut text = LOCAL.to_owned();
        text.replace_range(at..(at + length).min(LOCAL.len()), &insert);
        if let Ok(profile) = Profile::from_toml(&text) {
            let cluster = Cluster::parse_with("local:1", Some(&profile));
            prop_assert_eq!(cluster?.device_count(), 1);
        }
    }

    #[test]
    fn a_cluster_survives_its_own_toml(
        sizes in prop::collection::vec((0usize..20, 1u32..1000, 1u32..=4, 0u32..4), 1..5),
    ) {
        let names: Vec<_> = Profile::preset_names().collect();
        prop_assert_eq!(names.len(), 20, "all presets are tried");
        let spec: Vec<_> = sizes
            .iter()
            .map(|&(machine, nodes, devices, uplink)| {
                let uplink = match uplink {
                    0 => String::new(),
                    1 => ",cards=4x100Gbps".to_owned(),
                    more => format!(",uplink={more}.37Tbps"),
                };
                format!("{}:{nodes}x{devices}{uplink}", names[machine])
            })
            .collect();
        let cluster = Cluster::parse(&spec.join("+"))?;
        prop_assert_eq!(Cluster::from_toml(&cluster.to_toml()?)?, cluster);
    }
}
