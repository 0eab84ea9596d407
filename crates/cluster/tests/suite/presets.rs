//! Presets of devices: what every one of them has to say, and that it is no slip of the pen.

use shardloom_cluster::{Cluster, MatmulRates, MeasuredOn, NodeGroup, Precision, Profile};

fn presets() -> impl Iterator<Item = (&'static str, Profile)> {
    Profile::preset_names().map(|name| (name, Profile::preset(name).expect("a preset")))
}

#[test]
fn every_file_is_a_preset_of_its_own_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/presets");
    let files = std::fs::read_dir(folder).expect("the folder of presets");
    let mut files: Vec<String> = files
        .map(|file| file.expect("a file").path().file_stem().expect("a name").display().to_string())
        .collect();
    files.sort();
    let mut names: Vec<&str> = Profile::preset_names().collect();
    names.sort();
    assert_eq!(files, names);
    for (name, profile) in presets() {
        assert_eq!(profile.device.name, name);
    }
}

#[test]
fn every_preset_says_where_its_numbers_are_from_and_which_are_estimates() {
    for (name, profile) in presets() {
        let source = &profile.source;
        assert!(source.len() > 200, "{name}: {source}");
        let says_estimates = source.contains("Engineering estimates, to be calibrated:");
        assert!(says_estimates || profile.calibrated_on.is_some(), "{name}");
        let device = &profile.device;
        let priced = device.price_per_hour.is_some() || device.price_to_buy.is_some();
        let says = source.lines().any(|line| line.starts_with("Price:"));
        assert_eq!(priced, says, "{name}: a price and its source come together");
    }
}

/// Half the width of a format at most about doubles the rate of the same units (data sheets round), and never
/// lowers it; units for matrices are up to 16 times as fast as those for vectors.
#[test]
fn narrower_formats_are_no_slower() {
    use Precision::{Bf16, Fp8, Fp16, Fp32, Tf32};
    for (name, profile) in presets() {
        let rate = |precision| profile.device.peak_flops(precision).ok();
        for (wider, narrower, most) in [
            (Fp32, Tf32, 16.0),
            (Tf32, Fp16, 2.05),
            (Fp32, Fp16, 32.0),
            (Fp16, Fp8, 2.03),
            (Bf16, Fp8, 2.03),
        ] {
            if let (Some(wide), Some(narrow)) = (rate(wider), rate(narrower)) {
                let ratio = narrow / wide;
                assert!((1.0..=most).contains(&ratio), "{name}: {narrower} {ratio} x {wider}");
            }
        }
        if let (Some(bf16), Some(fp16)) = (rate(Bf16), rate(Fp16)) {
            assert_eq!(bf16, fp16, "{name}: their units take both alike");
        }
        let fastest =
            [Fp32, Tf32, Fp16, Bf16, Fp8].into_iter().filter_map(rate).fold(0.0, f64::max);
        assert!((1e13..1e16).contains(&fastest), "{name}: {fastest}");
    }
}

#[test]
fn memory_and_links_are_of_the_size_that_such_devices_have() {
    for (name, profile) in presets() {
        let (device, node) = (&profile.device, &profile.node);
        let gib = device.memory_bytes as f64 / f64::powi(2.0, 30);
        assert!((8.0..=288.0).contains(&gib), "{name}: {gib} GiB");
        // A device reads all its memory in 10 to 60 ms.
        let seconds = device.memory_bytes as f64 / device.memory_bytes_per_second;
        assert!((0.01..0.06).contains(&seconds), "{name}: {seconds} s");
        // What leaves a node is slower than what stays, and no more than its devices have ways for.
        assert!(node.inter.bytes_per_second < node.intra.bytes_per_second, "{name}");
        assert!(node.inter.latency_seconds > node.intra.latency_seconds, "{name}");
        let devices = f64::from(node.devices);
        assert!(node.uplink_bytes_per_second <= devices * node.inter.bytes_per_second, "{name}");
        assert!(node.uplink_bytes_per_second >= node.inter.bytes_per_second, "{name}");
        let MatmulRates::Analytic(matmul) = &device.matmul else {
            panic!("{name} is measured");
        };
        let reached: Vec<f64> = matmul.tiles.iter().map(|tile| tile.reachable).collect();
        assert!(reached.is_sorted_by(|large, small| large >= small), "{name}: {reached:?}");
    }
}

/// The figures of data sheets, written a second time: what an NVL72 rack or a platform of 8 is said to have in all.
#[test]
fn platforms_add_up_to_what_their_makers_say() {
    for (name, precision, petaflops, terabytes_per_second) in [
        ("gb200", Precision::Bf16, 180.0, 576.0),
        ("gb200", Precision::Fp8, 360.0, 576.0),
        ("mi300x", Precision::Bf16, 10.5, 42.4),
        ("mi355x", Precision::Fp8, 40.3, 64.0),
        ("h100-80g", Precision::Fp8, 15.8, 26.8),
    ] {
        let Profile { device, node, .. } = Profile::preset(name).expect("a preset");
        let devices = f64::from(node.devices);
        let all = devices * device.peak_flops(precision).expect("a rate") / 1e15;
        assert!((all / petaflops - 1.0).abs() < 0.01, "{name}: {all} PFLOP/s");
        let bandwidth = devices * device.memory_bytes_per_second / 1e12;
        assert!((bandwidth / terabytes_per_second - 1.0).abs() < 0.01, "{name}: {bandwidth} TB/s");
    }
}

#[test]
fn a_rack_of_72_is_one_node() {
    let cluster = Cluster::parse("gb200:2x72").expect("two racks");
    let [first, last, next] = [0, 71, 72].map(shardloom_cluster::DeviceId);
    assert!(cluster.same_node(first, last).expect("devices"));
    assert!(!cluster.same_node(last, next).expect("devices"));
}

#[test]
fn a_profile_says_what_its_numbers_rest_on() {
    let mut profile = Profile::preset("mi300x").expect("a preset");
    assert_eq!(profile.described(), "mi300x, data sheet only");
    profile.measured_on = Some(MeasuredOn {
        processor: "a processor".into(),
        cores: 2,
        kernels: "avx2".into(),
        version: "1".into(),
        others_percent: 0,
    });
    assert_eq!(profile.described(), "mi300x, measured on a processor");
    profile.calibrated_on = Some("a sweep".into());
    assert_eq!(profile.described(), "mi300x, calibrated on a sweep");
    let read = Profile::from_toml(&profile.to_toml().expect("TOML")).expect("a profile");
    assert_eq!(read, profile);
}

#[test]
fn every_preset_names_software_that_there_is_and_only_gpus_name_any() {
    for name in Profile::preset_names() {
        let profile = Profile::preset(name).expect("a preset");
        let fuses = profile.device.fused_attention.is_some();
        let group = NodeGroup { profile, nodes: 1, devices_per_node: 1 };
        let cluster = Cluster::new(vec![group]).expect("one device");
        let stack = cluster.usual_stack().unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = match (name.starts_with("tpu"), fuses) {
            (true, _) => "shardloom",
            (false, true) => "megatron",
            (false, false) => "megatron-2021",
        };
        assert_eq!(stack.name, expected, "{name}");
        let usual = cluster.under(stack);
        assert_eq!(usual.fuses_attention(), fuses, "{name}");
    }
}
