//! What nodes send out, where a cluster's text says it.

use shardloom_cluster::{Cluster, DeviceId, Uplink};
use shardloom_collectives::{Algorithm, Kind};

/// What a node, and one of its devices, sends out.
fn sent(spec: &str) -> [f64; 2] {
    let cluster = Cluster::parse(spec).expect("a cluster");
    let node = &cluster.groups()[0].profile.node;
    [node.uplink_bytes_per_second, node.inter.bytes_per_second]
}

fn refusal(spec: &str) -> String {
    Cluster::parse(spec).unwrap_err().to_string()
}

#[test]
fn an_uplink_is_of_the_whole_node_in_bits_or_bytes() {
    assert_eq!(sent("a100-80g:4x8"), [200e9, 25e9]);
    for spec in ["uplink=800Gbps", "uplink=0.8Tbps", "uplink=800000Mbps", "uplink=100GB/s"] {
        assert_eq!(sent(&format!("a100-80g:4x8,{spec}")), [100e9, 25e9], "{spec}");
    }
    assert_eq!(sent(" a100-80g:4x8 , uplink=800 Gb/s "), [100e9, 25e9]);
    // More than the preset's cards carry means faster cards: a device gets its share.
    assert_eq!(sent("a100-80g:4x8,uplink=3200Gbps"), [400e9, 50e9]);
}

#[test]
fn a_device_uses_one_card_or_its_share_of_more() {
    assert_eq!(sent("h100-80g:4x8,cards=8x100Gbps"), [100e9, 12.5e9]);
    assert_eq!(sent("h100-80g:4x8,cards=2x100Gbps"), [25e9, 12.5e9]);
    assert_eq!(sent("h100-80g:4x8,cards=32x100Gbps"), [400e9, 50e9]);
}

/// A ring over nodes is as fast as what leaves them, so half the uplink takes twice the time.
#[test]
fn collectives_between_nodes_take_as_long_as_the_uplink_says() {
    let seconds = |spec: &str| {
        let cluster = Cluster::parse(spec).expect("a cluster");
        let group: Vec<DeviceId> = cluster.devices().collect();
        let reduce = |group: &[DeviceId]| {
            let kind = Kind::AllReduce;
            cluster.collective_seconds(kind, Algorithm::Ring, group, 1e12, 1).expect("a time")
        };
        [reduce(&group), reduce(&group[..8])]
    };
    let [slow, fast] =
        ["400Gbps", "800Gbps"].map(|it| seconds(&format!("h100-80g:2x8,uplink={it}")));
    assert!((slow[0] / fast[0] - 2.0).abs() < 1e-3, "{slow:?} {fast:?}");
    assert_eq!(slow[1], fast[1], "within a node");
}

#[test]
fn groups_of_one_machine_may_send_out_differently_and_survive_their_file() {
    let cluster =
        Cluster::parse("h100-80g:2x8,uplink=800Gbps+h100-80g:1x8+h100-80g:1x4,cards=2x50Gbps")
            .expect("a cluster");
    let uplinks: Vec<f64> =
        cluster.groups().iter().map(|it| it.profile.node.uplink_bytes_per_second).collect();
    assert_eq!(uplinks, [100e9, 400e9, 12.5e9]);
    assert_eq!(Cluster::from_toml(&cluster.to_toml().expect("TOML")).expect("a file"), cluster);
    let text = "[[group]]\nmachine = \"h200\"\nnodes = 2\nuplink_bytes_per_second = 1e11\n";
    let cluster = Cluster::from_toml(text).expect("a file");
    assert_eq!(cluster.groups()[0].profile.node.uplink_bytes_per_second, 1e11);
}

#[test]
fn what_is_no_uplink_is_refused_with_what_would_be_right() {
    for (written, says) in [
        ("uplink=800", "the rate `800` needs a unit: 800Gbps are bits a second, 100GB/s bytes"),
        (
            "uplink=800GBps",
            "the rate `800GBps` has no unit that is known: write 800GB/s for bytes a second, 800Gbps for bits",
        ),
        (
            "uplink=25 gbit/s",
            "the rate `25 gbit/s` has no unit that is known: write 25GB/s for bytes a second, 25Gbps for bits",
        ),
        ("uplink=800kbps", "the rate `800kbps` needs a unit"),
        ("uplink=", "the rate `` needs a unit"),
        ("uplink=fastGbps", "`fast` is not a number"),
        ("uplink=0Gbps", "a rate must be above 0, not 0"),
        ("uplink=-5Gbps", "a rate must be above 0, not -5"),
        ("uplink=NaNGbps", "a rate must be above 0, not NaN"),
        ("uplink=1e-9Mbps", "a node must send at least a byte a second"),
        ("uplink=infGbps", "a node cannot send more than 1000 TB/s"),
        ("cards=8", "write cards and the rate of one, such as 8x100Gbps"),
        ("cards=0x100Gbps", "`0` is not a number of cards above 0"),
        ("cards=4294967295x1000TB/s", "a node cannot send more than 1000 TB/s"),
        ("latency=3", "there are uplink=RATE and cards=NxRATE, such as uplink=800Gbps"),
        ("", "there are uplink=RATE and cards=NxRATE"),
    ] {
        let message = refusal(&format!("h100-80g:2x8,{written}"));
        assert!(message.starts_with(&format!("`{written}`: {says}")), "{message}");
    }
    assert_eq!(
        refusal("h100-80g:2x8,uplink=800Gbps,cards=8x100Gbps"),
        "`uplink=800Gbps`: `cards=8x100Gbps` is said of the same nodes"
    );
}

#[test]
fn an_uplink_goes_to_every_group_in_place_of_theirs() {
    let uplink = Uplink::parse("cards=4x200Gbps").expect("cards");
    assert_eq!(
        uplink.of("h100-80g:2x8,uplink=400Gbps + a100-40g:8").expect("a cluster"),
        "h100-80g:2x8,cards=4x200Gbps+a100-40g:8,cards=4x200Gbps"
    );
    for (cluster, says) in [
        ("h100-80g:2x8,latency=3", "`latency=3`: there are uplink=RATE"),
        ("h100-80g:2x8,uplink=1", "`uplink=1`: the rate `1` needs a unit"),
    ] {
        let message = uplink.of(cluster).unwrap_err().to_string();
        assert!(message.starts_with(says), "{message}");
    }
    let message = uplink.of("my/cluster.toml").unwrap_err().to_string();
    assert!(message.contains("cluster.toml; write uplink_bytes_per_second"), "{message}");
}

/// Where many send to one, however slowly each of them does.
#[test]
fn the_way_into_a_node_is_the_receivers() {
    let cluster = Cluster::parse("a100-80g:2x8,uplink=100Gbps+h100-80g:2x8,uplink=800Gbps");
    let cluster = cluster.expect("a cluster");
    let way_in = |from, to| {
        let path = cluster.way_in(DeviceId(from), DeviceId(to)).expect("devices of the cluster");
        let path = path.expect("not to itself");
        (path.link.clone(), path.shared_bytes_per_second)
    };
    let [slow, slow_too, fast, fast_too] = [0, 8, 16, 24];
    assert_eq!(way_in(slow, fast), way_in(fast_too, fast));
    assert_eq!(way_in(fast, slow), way_in(slow_too, slow));
    assert!(way_in(slow, fast).1 > way_in(fast, slow).1);
}
