//! Collective times: closed forms against step lists, and against what links allow.

use proptest::{prelude::*, sample::select, test_runner::RngSeed};
use shardloom_cluster::{Cluster, ClusterError, DeviceId, GroupShape};
use shardloom_collectives::{Algorithm, Kind, Member};

const REDUCING: [Kind; 3] = [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather];

/// `per_node` devices in each of `nodes` nodes of 8.
fn group(nodes: u32, per_node: u32) -> Vec<DeviceId> {
    (0..nodes)
        .flat_map(|node| (0..per_node).map(move |device| DeviceId(8 * node + device)))
        .collect()
}

fn kinds(members: u32) -> [Kind; 6] {
    let root = Member(members - 1);
    let [a, b, c] = REDUCING;
    [a, b, c, Kind::AllToAll, Kind::Broadcast { root }, Kind::Reduce { root }]
}

fn algorithms(members: u32) -> Vec<Algorithm> {
    let inner = (1..=members).filter(|inner| members.is_multiple_of(*inner));
    let nested = inner.flat_map(|inner| Algorithm::NESTED.map(|of_inner| of_inner(inner)));
    Algorithm::FLAT.into_iter().chain(nested).collect()
}

/// Time by the step list, and by the closed form.
fn both(
    cluster: &Cluster,
    kind: Kind,
    algorithm: Algorithm,
    group: &[DeviceId],
    bytes: f64,
    concurrent: u32,
) -> Result<(f64, f64), ClusterError> {
    Ok((
        cluster.collective_seconds(kind, algorithm, group, bytes, concurrent)?,
        cluster.group_shape(group, concurrent)?.seconds(kind, algorithm, bytes)?,
    ))
}

fn equal(listed: f64, closed: f64) -> bool {
    (listed - closed).abs() <= 1e-9 * listed
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        rng_seed: RngSeed::Fixed(13),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn within_a_node_every_closed_form_equals_the_step_list(
        machine in select(vec!["v100-16g", "a100-80g", "b200"]),
        members in 1u32..=8,
        magnitude in 0.0..10.0,
    ) {
        // From bytes, where latency counts, to gigabytes.
        let bytes = 10f64.powf(magnitude);
        let cluster = Cluster::parse(&format!("{machine}:8"))?;
        for kind in kinds(members) {
            for algorithm in algorithms(members).into_iter().filter(|&a| kind.has(a)) {
                let group = group(1, members);
                let (listed, closed) = both(&cluster, kind, algorithm, &group, bytes, 3)?;
                prop_assert!(
                    equal(listed, closed),
                    "{} by {} over {}: {} and {}", kind, algorithm, members, listed, closed
                );
            }
        }
    }

    #[test]
    fn across_nodes_the_exact_closed_forms_equal_the_step_list(
        machine in select(vec!["v100-16g", "a100-80g", "h200"]),
        nodes in 2u32..=8,
        per_node in 1u32..=8,
        magnitude in 0.0..10.0,
        concurrent in 1u32..=8,
    ) {
        let cluster = Cluster::parse(&format!("{machine}:8x8"))?;
        let (members, bytes) = (nodes * per_node, 10f64.powf(magnitude));
        let powers = members.is_power_of_two();
        for kind in kinds(members) {
            for algorithm in algorithms(members).into_iter().filter(|&a| kind.has(a)) {
                let exact = match algorithm {
                    Algorithm::Direct => true,
                    Algorithm::Ring => REDUCING.contains(&kind),
                    Algorithm::HalvingDoubling => powers,
                    Algorithm::BinaryTree | Algorithm::DoubleBinaryTree => false,
                    Algorithm::Star => true,
                    Algorithm::Hierarchical { inner }
                    | Algorithm::TwoLevelStar { inner }
                    | Algorithm::MultiStar { inner } => per_node.is_multiple_of(inner),
                    Algorithm::BinaryTreeStar { inner }
                    | Algorithm::MultiBinaryTreeStar { inner } => per_node == inner,
                };
                if exact {
                    let group = group(nodes, per_node);
                    let (listed, closed) =
                        both(&cluster, kind, algorithm, &group, bytes, concurrent)?;
                    prop_assert!(
                        equal(listed, closed),
                        "{} by {} over {} x {}: {} and {}",
                        kind, algorithm, nodes, per_node, listed, closed
                    );
                }
            }
        }
    }

    #[test]
    fn across_nodes_no_closed_form_is_far_from_the_step_list(
        nodes in 2u32..=8,
        per_node in 1u32..=8,
        bytes in 1.0f64..1e10,
    ) {
        let cluster = Cluster::parse("a100-80g:8x8")?;
        let members = nodes * per_node;
        for kind in kinds(members) {
            for algorithm in algorithms(members).into_iter().filter(|&a| kind.has(a)) {
                let group = group(nodes, per_node);
                let (listed, closed) = both(&cluster, kind, algorithm, &group, bytes, 1)?;
                prop_assert!(
                    closed > 0.3 * listed && closed < 2.8 * listed,
                    "{} by {} over {} x {}: {} and {}",
                    kind, algorithm, nodes, per_node, listed, closed
                );
            }
        }
    }

    #[test]
    fn time_grows_with_bytes_and_with_sharing(
        nodes in 1u32..=4,
        per_node in 1u32..=8,
        bytes in 1.0f64..1e9,
    ) {
        let cluster = Cluster::parse("v100-16g:4x8")?;
        let group = group(nodes, per_node);
        for algorithm in algorithms(nodes * per_node) {
            let seconds = |bytes, concurrent| {
                cluster.collective_seconds(Kind::AllReduce, algorithm, &group, bytes, concurrent)
            };
            prop_assert!(seconds(2.0 * bytes, 1)? >= seconds(bytes, 1)?);
            prop_assert!(seconds(bytes, 8)? >= seconds(bytes, 1)?);
            prop_assert_eq!(seconds(0.0, 1)?, 0.0);
        }
    }
}

#[test]
fn a_ring_in_a_node_takes_its_textbook_time() {
    let cluster = Cluster::parse("a100-80g:8").unwrap();
    let bytes = 1e9;
    let seconds = cluster
        .collective_seconds(Kind::AllReduce, Algorithm::Ring, &group(1, 8), bytes, 1)
        .unwrap();
    let expected = 14.0 * 2.5e-6 + 1.75 * bytes / (300e9 * 0.8);
    assert!((seconds - expected).abs() < 1e-12, "{seconds} {expected}");
}

#[test]
fn a_tree_of_nodes_takes_each_latency_twice_and_the_buffer_twice() {
    let bytes = 1e9;
    let seconds = |nodes: u32| {
        let cluster = Cluster::parse(&format!("h100-80g:{nodes}x8")).unwrap();
        let shape = cluster.group_shape(&group(nodes, 8), 1).unwrap();
        assert_eq!(shape.tree_of_nodes_seconds(0.0), 0.0);
        shape.tree_of_nodes_seconds(bytes)
    };
    // Of 16 nodes there are 4 levels, and 7 hops in each node; of 9 there are as many.
    let latency = 2.0 * (7.0 * 2.5e-6 + 4.0 * 6e-6);
    let expected = latency + 2.0 * bytes / (400e9 * 0.85);
    for nodes in [9, 16] {
        assert!((seconds(nodes) - expected).abs() < 1e-12, "{} {expected}", seconds(nodes));
    }
    let chain = 14.0 * 2.5e-6 + 2.0 * bytes / (450e9 * 0.8);
    assert!((seconds(1) - chain).abs() < 1e-12, "{} {chain}", seconds(1));
}

#[test]
fn a_node_that_is_filled_in_part_is_one_of_a_tree_of_nodes() {
    let cluster = Cluster::parse("h100-80g:2x8").unwrap();
    let seconds = |members| {
        let shape = cluster.groups()[0].group_shape(members, 8, 1);
        shape.tree_of_nodes_seconds(1e9)
    };
    assert_eq!(seconds(12), seconds(16));
}

#[test]
fn a_ring_across_nodes_runs_at_the_slower_of_link_and_cards() {
    let bytes = 1e10;
    let bus_bandwidth = |machine: &str, per_node: u32, concurrent| {
        let cluster = Cluster::parse(&format!("{machine}:4x8")).unwrap();
        let group = group(4, per_node);
        let time = cluster
            .collective_seconds(Kind::AllReduce, Algorithm::Ring, &group, bytes, concurrent)
            .unwrap();
        let members = f64::from(4 * per_node);
        2.0 * (members - 1.0) / members * bytes / time / 1e9
    };
    let near = |value: f64, expected: f64| {
        assert!((value / expected - 1.0).abs() < 0.02, "{value} is not near {expected}");
    };
    // Eight cards of 25 GB/s at 0.85 are slower than NVLink at 240 GB/s.
    near(bus_bandwidth("a100-80g", 8, 1), 8.0 * 25.0 * 0.85);
    near(bus_bandwidth("a100-80g", 1, 1), 25.0 * 0.85);
    // Eight groups of one device per node each have their own card.
    near(bus_bandwidth("a100-80g", 1, 8), 25.0 * 0.85);
    near(bus_bandwidth("a100-80g", 2, 8), 25.0 * 0.85);
    // Four cards for eight devices: half each.
    near(bus_bandwidth("v100-16g", 1, 8), 12.5 / 2.0 * 0.85);
}

/// 16 members, five to a node: partners at any distance may be in another node, so that all five
/// members of a node send over its cards in every step, 1, 2, 4 and 8 blocks each.
#[test]
fn halving_and_doubling_crosses_nodes_in_every_step_if_they_do_not_hold_a_power_of_two() {
    let cluster = Cluster::parse("a100-80g:4x8").unwrap();
    let shape = cluster.groups()[0].group_shape(16, 5, 1);
    let bytes = 1.6e9;
    let seconds = shape.seconds(Kind::AllGather, Algorithm::HalvingDoubling, bytes).unwrap();
    // Five cards of 25 GB/s at 0.85.
    let expected = 4.0 * shape.inter.latency_seconds + 5.0 * 15.0 * 1e8 / (5.0 * 25e9 * 0.85);
    assert!(equal(seconds, expected), "{seconds} {expected}");
}

#[test]
fn the_order_of_members_does_not_matter_and_a_root_keeps_its_device() {
    let cluster = Cluster::parse("h200:2x8+a100-40g:1x8").unwrap();
    let sorted: Vec<DeviceId> = cluster.devices().collect();
    let shuffled: Vec<DeviceId> = (0..24).map(|index| DeviceId(index * 7 % 24)).collect();
    let seconds = |kind, group: &[DeviceId]| {
        cluster.collective_seconds(kind, Algorithm::Direct, group, 1e8, 1).unwrap()
    };
    assert_eq!(seconds(Kind::AllReduce, &sorted), seconds(Kind::AllReduce, &shuffled));
    let place = shuffled.iter().position(|&device| device == DeviceId(21)).unwrap() as u32;
    let from = |root| Kind::Broadcast { root: Member(root) };
    assert_eq!(seconds(from(21), &sorted), seconds(from(place), &shuffled));
    assert_ne!(seconds(from(20), &sorted), seconds(from(0), &sorted));
}

/// Of an inner group as large as two nodes, a node sends for the members that it has, and not for all.
#[test]
fn inner_groups_of_whole_nodes_are_timed_as_their_step_lists() {
    let cluster = Cluster::parse("h100-80g:4x8").unwrap();
    let group = group(4, 4);
    for kind in REDUCING {
        let algorithm = Algorithm::Hierarchical { inner: 8 };
        let (listed, closed) = both(&cluster, kind, algorithm, &group, 1e9, 1).unwrap();
        assert!(equal(listed, closed), "{kind}: {listed} and {closed}");
    }
}

#[test]
fn a_slow_node_slows_a_mixed_group() {
    let fast = Cluster::parse("h100-80g:2x8").unwrap();
    let mixed = Cluster::parse("h100-80g:8+v100-16g:8").unwrap();
    for algorithm in [Algorithm::Ring, Algorithm::Hierarchical { inner: 8 }] {
        let seconds = |cluster: &Cluster| {
            let group = group(2, 8);
            both(cluster, Kind::AllReduce, algorithm, &group, 1e9, 1).unwrap()
        };
        assert!(seconds(&mixed).0 > 2.0 * seconds(&fast).0);
        assert!(seconds(&mixed).1 > 2.0 * seconds(&fast).1);
    }
}

#[test]
fn big_groups_are_timed_by_the_closed_form() {
    let cluster = Cluster::parse("h100-80g:2048x8").unwrap();
    let group: Vec<DeviceId> = cluster.devices().collect();
    for algorithm in [Algorithm::Ring, Algorithm::Hierarchical { inner: 8 }] {
        let (listed, closed) = both(&cluster, Kind::AllReduce, algorithm, &group, 1e10, 1).unwrap();
        assert_eq!(listed, closed);
    }
    let chosen = cluster.groups()[0].group_shape(16_384, 8, 1);
    assert_eq!(chosen, cluster.group_shape(&group, 1).unwrap());
}

#[test]
fn a_torus_offers_a_ring_both_directions_of_every_axis_it_spans() {
    let cluster = Cluster::parse("tpu-v4:16x4").unwrap();
    let links = |members: u32| {
        let group: Vec<DeviceId> = (0..members).map(DeviceId).collect();
        let shape = cluster.group_shape(&group, 1).unwrap();
        assert_eq!(shape.members_per_node, members, "all traffic stays on the torus");
        let chosen = cluster.groups()[0].group_shape(members, 4.min(members), 1);
        assert_eq!(chosen, shape);
        let (listed, closed) =
            both(&cluster, Kind::AllReduce, Algorithm::Ring, &group, 1e9, 1).unwrap();
        assert!(equal(listed, closed));
        shape.intra_links
    };
    // By their numbers and by name: so many on each of so many hosts.
    for (hosts, per_host) in [(2, 1), (5, 1), (3, 2), (4, 3), (16, 4)] {
        let members = (0..hosts).flat_map(|host| (0..per_host).map(move |it| 4 * host + it));
        let group: Vec<DeviceId> = members.map(DeviceId).collect();
        for concurrent in [1, 3] {
            let shape = cluster.group_shape(&group, concurrent).unwrap();
            let chosen = cluster.groups()[0].group_shape(hosts * per_host, per_host, concurrent);
            assert_eq!(chosen, shape, "{per_host} on each of {hosts} hosts");
        }
    }
    // A torus of 4 x 4 x 4.
    assert_eq!([2, 4, 16, 17, 64].map(links), [1.0, 2.0, 4.0, 6.0, 6.0]);
    // One of 10 x 10 x 10, whose root is no whole number in floating point.
    let large = Cluster::parse("tpu-v4:250x4").unwrap();
    let links = |members| large.groups()[0].group_shape(members, 4.min(members), 1).intra_links;
    assert_eq!([10, 11, 100, 101].map(links), [2.0, 4.0, 4.0, 6.0]);
    let far = cluster.link(DeviceId(0), DeviceId(63)).unwrap().unwrap();
    assert_eq!(far.shared_bytes_per_second, None);
}

#[test]
fn impossible_groups_are_refused() {
    let cluster = Cluster::parse("h200:8").unwrap();
    let refused = |group: &[u32], algorithm| {
        let group: Vec<DeviceId> = group.iter().copied().map(DeviceId).collect();
        let time = cluster.collective_seconds(Kind::AllReduce, algorithm, &group, 1e6, 1);
        time.unwrap_err().to_string()
    };
    assert_eq!(refused(&[0, 1, 0], Algorithm::Ring), "device 0 occurs more than once in a group");
    assert_eq!(refused(&[0, 8], Algorithm::Ring), "device 8 is not in this cluster of 8 devices");
    assert_eq!(refused(&[], Algorithm::Ring), "a collective needs at least 1 member, got 0");
    assert!(refused(&[0, 1, 2], Algorithm::Hierarchical { inner: 2 }).contains("must divide 3"));
    assert!(cluster.group_shape(&[], 1).is_err());
}

/// Nobody there has whom to talk to within the node.
#[test]
fn the_links_in_a_node_with_one_member_do_not_count() {
    let cluster = Cluster::parse("h100-80g:8+v100-16g:8").unwrap();
    let links = |group: &[u32]| {
        let group: Vec<DeviceId> = group.iter().copied().map(DeviceId).collect();
        cluster.group_shape(&group, 1).unwrap().intra.bytes_per_second
    };
    let [fast, slow] = [links(&[0, 1]), links(&[8, 9])];
    assert!(slow < fast);
    assert_eq!(links(&[0, 1, 8]), fast);
    assert_eq!(links(&[0, 8, 9]), slow);
    assert_eq!(links(&[0, 1, 8, 9]), slow);
}

/// By the numbers of members and of those in a node, as searches ask, and by the devices.
#[test]
fn a_shape_by_its_sizes_is_that_of_such_devices() {
    for machines in ["v100-16g:4x8", "a100-80g:4x8", "h200:4x8,uplink=400Gbps"] {
        let cluster = Cluster::parse(machines).unwrap();
        for (nodes, per_node) in (1..=4).flat_map(|nodes| (1..=8).map(move |it| (nodes, it))) {
            for concurrent in [1, 2, 8] {
                let chosen =
                    cluster.groups()[0].group_shape(nodes * per_node, per_node, concurrent);
                let shape = cluster.group_shape(&group(nodes, per_node), concurrent).unwrap();
                assert_eq!(chosen, shape, "{per_node} on each of {nodes} nodes of {machines}");
            }
        }
    }
}

/// The links in nodes are those of the node in which members reach each other slowest, on all links and by what
/// messages reach of them; the way out that of the node that sends least, whether cards or the uplink are in the way.
#[test]
fn of_unlike_nodes_the_slowest_links_within_and_the_slowest_way_out_count() {
    let cluster = Cluster::parse("h100-80g:8+v100-16g:8+tpu-v4:2x4").unwrap();
    let mut groups = cluster.groups().to_vec();
    // Nominally the fastest links, of which messages reach a tenth.
    groups[0].profile.node.intra.reachable = 0.1;
    let cluster = cluster.with_groups(groups).unwrap();
    let firsts = [0, 8, 16];
    for counts in (0..125).map(|it| [it % 5, it / 5 % 5, it / 25]) {
        let of = |(first, count): (u32, u32)| (first..first + count).map(DeviceId).collect();
        let parts: Vec<Vec<DeviceId>> = firsts.into_iter().zip(counts).map(of).collect();
        for concurrent in [1, 4] {
            let shape = |devices: &[DeviceId]| cluster.group_shape(devices, concurrent);
            let Ok(found) = shape(&parts.concat()) else {
                assert_eq!(counts, [0, 0, 0]);
                continue;
            };
            let alone = || parts.iter().filter_map(|devices| shape(devices).ok());
            let out = alone().map(|it| it.outgoing_bytes_per_second).fold(f64::INFINITY, f64::min);
            assert_eq!(found.outgoing_bytes_per_second, out, "{counts:?}");
            let within = |it: &GroupShape<'_>| {
                it.intra_links * it.intra.bytes_per_second * it.intra.reachable
            };
            let talking = alone().filter(|it| it.members > 1);
            let slowest = talking.map(|it| within(&it)).fold(f64::INFINITY, f64::min);
            if slowest.is_finite() {
                assert_eq!(within(&found), slowest, "{counts:?}");
            }
        }
    }
}
