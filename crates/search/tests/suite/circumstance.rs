//! What would make a step take another time, found by experiments.

use crate::scenario::{GPT, h100, model};
use shardloom_cluster::{Cluster, NodeGroup, Stack};
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Plan, Precision, Recompute, Uniform};
use shardloom_program::lower;
use shardloom_search::{Circumstance, Judgement, Needed, circumstances, judge, step_parts};

fn plan(pp: usize, dp: u32, tp: u32) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: 32,
        microbatches: 4,
        precision: Precision::MIXED,
        clip_norm: Some(1.0),
        ..Uniform::default()
    };
    uniform.plan(&model(GPT), GPT, "c")
}

/// Two nodes of 4, whose network is slow enough to matter.
fn two_nodes() -> Cluster {
    let cluster = h100(2, 4, 80_000_000_000);
    let mut groups = cluster.groups().to_vec();
    groups[0].profile.node.inter.bytes_per_second /= 20.0;
    groups[0].profile.node.uplink_bytes_per_second /= 20.0;
    cluster.with_groups(groups).expect("a cluster")
}

fn seconds(graph: &Graph, cluster: &Cluster, plan: &Plan) -> f64 {
    judge(graph, cluster, plan).expect("it can be simulated").step_seconds
}

fn found<'c>(all: &'c [Circumstance], what: &str) -> &'c Circumstance {
    let names: Vec<&str> = all.iter().map(|it| it.what.as_str()).collect();
    all.iter().find(|it| it.what.contains(what)).unwrap_or_else(|| panic!("no {what} in {names:?}"))
}

#[test]
fn circumstances_take_what_they_take_when_they_are_simulated_alone() {
    let (graph, cluster, plan) = (model(GPT), two_nodes(), plan(1, 8, 1));
    let all = circumstances(&graph, &cluster, &plan).expect("it can be simulated");
    let mut groups = cluster.groups().to_vec();
    groups[0].profile.node.inter.bytes_per_second *= 0.5;
    groups[0].profile.node.uplink_bytes_per_second *= 0.5;
    let halved = cluster.with_groups(groups).expect("a cluster");
    let slower = seconds(&graph, &halved, &plan);
    assert_eq!(found(&all, "half the bandwidth between nodes").step_seconds, slower);
    assert!(slower > seconds(&graph, &cluster, &plan));
    let full = Plan { recompute: Recompute::Full, ..plan.clone() };
    let judged = judge(&graph, &cluster, &full).expect("it can be simulated");
    let recomputed = found(&all, "recompute = \"full\"");
    assert_eq!(recomputed.step_seconds, judged.step_seconds);
    assert_eq!(Some(recomputed.peak_bytes), judged.fullest().map(|it| it.peak_bytes));
    let nanotron = cluster.clone().under(Stack::parse("nanotron").expect("a preset"));
    assert_eq!(found(&all, "stack nanotron").step_seconds, seconds(&graph, &nanotron, &plan));
}

/// Four groups of replicas send at once, and what leaves a node is no more than one device's link: other links alone
/// would change nothing.
#[test]
fn other_bandwidths_between_nodes_are_of_links_and_of_what_leaves_a_node() {
    let (graph, cluster, plan) = (model(GPT), two_nodes(), plan(1, 2, 4));
    let times = |links: f64, out: f64| {
        let mut groups = cluster.groups().to_vec();
        let node = &mut groups[0].profile.node;
        let one_device = node.inter.bytes_per_second;
        node.inter.bytes_per_second = links * one_device;
        node.uplink_bytes_per_second = out * one_device;
        cluster.with_groups(groups).expect("a cluster")
    };
    let bound = times(1.0, 1.0);
    let all = circumstances(&graph, &bound, &plan).expect("it can be simulated");
    for (what, factor) in [("half the", 0.5), ("a quarter of the", 0.25), ("twice the", 2.0)] {
        let what = format!("{what} bandwidth between nodes");
        let expected = seconds(&graph, &times(factor, factor), &plan);
        assert_eq!(found(&all, &what).step_seconds, expected, "{what}");
        assert_ne!(expected, seconds(&graph, &times(factor, 1.0), &plan), "{what}");
    }
}

#[test]
fn one_node_has_no_circumstance_between_nodes() {
    let (graph, cluster) = (model(GPT), h100(1, 8, 80_000_000_000));
    let all = circumstances(&graph, &cluster, &plan(1, 8, 1)).expect("it can be simulated");
    let between = all.iter().filter(|it| it.what.contains("between nodes")).count();
    assert_eq!(between, 0);
    found(&all, "an eighth of the bandwidth within nodes");
}

#[test]
fn a_slow_device_makes_the_step_longer_by_at_most_its_own_slowness() {
    let (graph, cluster, plan) = (model(GPT), h100(1, 8, 80_000_000_000), plan(4, 2, 1));
    let predicted = seconds(&graph, &cluster, &plan);
    let all = circumstances(&graph, &cluster, &plan).expect("it can be simulated");
    let one = found(&all, "one device").step_seconds;
    let every = found(&all, "every device computing at 90.0%").step_seconds;
    assert!(predicted < one && one <= every, "{predicted} {one} {every}");
    assert!(every <= predicted / 0.9 * (1.0 + 1e-9), "{every} of {predicted}");
}

#[test]
fn parts_scaled_as_said_give_the_target() {
    let (graph, cluster, plan) = (model(GPT), two_nodes(), plan(1, 4, 2));
    let predicted = seconds(&graph, &cluster, &plan);
    let parts = step_parts(&graph, &cluster, &plan, 1.3 * predicted).expect("it can be simulated");
    let part = |name: &str| parts.iter().find(|it| it.name == name).expect("the part is there");
    // Links between nodes that are so many times slower make the replicas' communication so many times slower.
    let Needed::Times(times) = part("synchronising replicas").needed else { panic!("{parts:?}") };
    assert!(times > 1.0);
    let mut groups = cluster.groups().to_vec();
    let node = &mut groups[0].profile.node;
    for link in [&mut node.inter, &mut node.intra] {
        link.bytes_per_second /= times;
        link.latency_seconds *= times;
    }
    node.uplink_bytes_per_second /= times;
    let slower = cluster.with_groups(groups).expect("a cluster");
    // All links are slower here, those of tensor parallelism too.
    assert!(seconds(&graph, &slower, &plan) >= 1.299 * predicted);
    let Needed::Times(computing) = part("computing").needed else { panic!("{parts:?}") };
    assert!(computing > 1.0);
    let sum: f64 = parts.iter().map(|it| it.seconds).sum();
    assert!((0.8..1.2).contains(&(sum / predicted)), "{sum} of {predicted}: {parts:?}");
}

#[test]
fn no_part_can_make_a_step_shorter_than_the_others_take() {
    let (graph, cluster, plan) = (model(GPT), two_nodes(), plan(1, 8, 1));
    let predicted = seconds(&graph, &cluster, &plan);
    let parts = step_parts(&graph, &cluster, &plan, 1e-3 * predicted).expect("it can be simulated");
    assert!(parts.iter().all(|it| !matches!(it.needed, Needed::Times(_))), "{parts:?}");
}

#[test]
fn a_host_is_a_part_where_launching_takes_time() {
    let (graph, plan) = (model(GPT), plan(1, 4, 1));
    let names = |cluster: &Cluster| -> Vec<&'static str> {
        let target = 2.0 * seconds(&graph, cluster, &plan);
        let parts = step_parts(&graph, cluster, &plan, target).expect("it can be simulated");
        parts.iter().map(|it| it.name).collect()
    };
    let bare = h100(1, 4, 80_000_000_000);
    assert!(!names(&bare).contains(&"waiting for the host"));
    let driven = bare.under(Stack::parse("nanotron").expect("a preset"));
    assert_eq!(names(&driven)[0], "waiting for the host", "small kernels wait for it");
}

/// A cluster that is otherwise, and with what circumstance.
type Machines = (&'static str, fn(&mut NodeGroup));

/// Each change made here, by itself.
#[test]
fn every_circumstance_of_machines_software_and_plan_is_the_change_that_it_names() {
    fn between(group: &mut NodeGroup, factor: f64) {
        group.profile.node.inter.bytes_per_second *= factor;
        group.profile.node.uplink_bytes_per_second *= factor;
    }
    let machines: [Machines; 7] = [
        ("half the bandwidth between nodes", |group| between(group, 0.5)),
        ("a quarter of the bandwidth between nodes", |group| between(group, 0.25)),
        ("twice the bandwidth between nodes", |group| between(group, 2.0)),
        ("all devices of a node sharing what one of them can send out of it", |group| {
            let node = &mut group.profile.node;
            node.uplink_bytes_per_second = node.inter.bytes_per_second;
        }),
        ("half the bandwidth within nodes", |group| {
            group.profile.node.intra.bytes_per_second /= 2.0;
        }),
        ("an eighth of the bandwidth within nodes", |group| {
            group.profile.node.intra.bytes_per_second /= 8.0;
        }),
        ("half the bandwidth of device memory", |group| {
            group.profile.device.memory_bytes_per_second /= 2.0;
        }),
    ];
    let (graph, cluster) = (model(GPT), two_nodes());
    let mut told = std::collections::BTreeSet::new();
    for (pp, dp, tp, zero) in [(1, 8, 1, 2), (1, 2, 4, 3), (2, 1, 4, 0)] {
        let mut plan = plan(pp, dp, tp);
        plan.sync.zero = zero;
        plan.sync.bucket_bytes = 100_000;
        let judged = |cluster: &Cluster, plan: &Plan| -> Judgement {
            judge(&graph, cluster, plan).expect("it can be simulated")
        };
        let mut right: Vec<(String, Judgement)> = vec![];
        for (what, change) in machines {
            let mut groups = cluster.groups().to_vec();
            groups.iter_mut().for_each(change);
            let other = cluster.with_groups(groups).expect("a cluster");
            right.push((what.into(), judged(&other, &plan)));
        }
        for name in Stack::preset_names() {
            let other = cluster.clone().under(Stack::parse(name).expect("a preset"));
            right.push((format!("the software stack {name}"), judged(&other, &plan)));
        }
        let mut stack = cluster.stack().clone();
        assert!(!stack.host.waits_for_steps);
        stack.host.waits_for_steps = true;
        let waiting = judged(&cluster.clone().under(stack), &plan);
        right.push(("hosts that wait for the end of each step".into(), waiting));
        let keeps = Plan { keeps_gathered: true, ..plan.clone() };
        right.push(("keeps_gathered = true".into(), judged(&cluster, &keeps)));
        let mut at_end = plan.clone();
        at_end.sync.bucket_bytes = 1 << 40;
        let one_piece = "gradients reduced in one piece at the end of the step";
        right.push((one_piece.into(), judged(&cluster, &at_end)));
        for (what, of, zero) in [
            ("weights sharded again after the forward pass (sync.zero = 3)", 2, 3),
            ("weights not sharded again after the forward pass (sync.zero = 2)", 3, 2),
            ("sync.zero = 1", plan.sync.zero, 1),
        ] {
            let mut other = plan.clone();
            other.sync.zero = zero;
            if plan.sync.zero == of && dp > 1 {
                right.push((what.into(), judged(&cluster, &other)));
            }
        }
        let predicted = seconds(&graph, &cluster, &plan);
        let all = circumstances(&graph, &cluster, &plan).expect("it can be simulated");
        for (what, judgement) in right {
            let changes = (judgement.step_seconds / predicted - 1.0).abs() >= 1e-3;
            let Some(found) = all.iter().find(|it| it.what == what) else {
                assert!(!changes, "{what} is not told of {pp} x {dp} x {tp}");
                continue;
            };
            assert!(changes && found.step_seconds == judgement.step_seconds, "{what}");
            let peak = judgement.memory.iter().map(|it| it.peak_bytes).max();
            assert_eq!(Some(found.peak_bytes), peak, "{what}");
            told.insert(what);
        }
    }
    let untold: Vec<&str> =
        machines.map(|it| it.0).into_iter().filter(|it| !told.contains(*it)).collect();
    assert_eq!(untold, [""; 0]);
    let kinds = ["the software stack", "keeps_gathered", "gradients reduced", "weights sharded"];
    for kind in kinds.into_iter().chain(["weights not sharded", "sync.zero = 1"]) {
        assert!(told.iter().any(|it| it.starts_with(kind)), "no {kind} in {told:?}");
    }
}

/// On a single device, which does nothing but compute.
#[test]
fn a_device_at_a_share_of_its_speed_takes_so_many_times_as_long() {
    let (graph, cluster, plan) = (model(GPT), h100(1, 1, 80_000_000_000), plan(1, 1, 1));
    let predicted = seconds(&graph, &cluster, &plan);
    let all = circumstances(&graph, &cluster, &plan).expect("it can be simulated");
    let slow: Vec<&Circumstance> =
        all.iter().filter(|it| it.what.contains(" computing at ")).collect();
    assert_eq!(slow.len(), 3, "{slow:?}");
    for (it, (percent, speed)) in slow.iter().zip([("90.0", 0.9), ("75.0", 0.75), ("50.0", 0.5)]) {
        let end = format!(" computing at {percent}% of its speed");
        assert!(it.what.starts_with("one device (") && it.what.ends_with(&end), "{}", it.what);
        let right = predicted / speed;
        assert!((it.step_seconds / right - 1.0).abs() < 1e-6, "{}, not {right}", it.step_seconds);
    }
    let one = "no communication beside computation";
    assert!(all.iter().all(|it| it.what != one), "there is no communication");
}

/// A run that fits computes twice what it would have no room to keep.
#[test]
fn what_does_not_fit_is_no_circumstance_of_a_run() {
    let graph = model(GPT);
    let plan = Plan { recompute: Recompute::Full, ..plan(1, 8, 1) };
    let peak = |plan: &Plan, memory| {
        let judged = judge(&graph, &h100(2, 4, memory), plan).expect("it can be simulated");
        judged.fullest().expect("a device").peak_bytes
    };
    let large = 80_000_000_000;
    let kept = Plan { recompute: Recompute::None, ..plan.clone() };
    let (least, most) = (peak(&plan, large), peak(&kept, large));
    assert!(least < most);
    for (memory, is_there) in [(most, true), (most - 1, false), (least, false), (least / 2, false)]
    {
        let all = circumstances(&graph, &h100(2, 4, memory), &plan).expect("it can be simulated");
        let known = all.iter().any(|it| it.what == "recompute = \"none\"");
        assert_eq!(known, is_there, "{memory} of {least} and {most}");
    }
}

/// Gradients in small buckets are reduced behind the backward pass, where devices do both at a time.
#[test]
fn without_overlap_a_step_takes_longer_by_what_was_hidden() {
    let (graph, cluster, mut plan) = (model(GPT), two_nodes(), plan(1, 8, 1));
    plan.sync.bucket_bytes = 100_000;
    let predicted = seconds(&graph, &cluster, &plan);
    let all = circumstances(&graph, &cluster, &plan).expect("it can be simulated");
    let apart = found(&all, "no communication beside computation").step_seconds;
    assert!(apart > 1.001 * predicted, "{apart} of {predicted}");
    let mut groups = cluster.groups().to_vec();
    groups[0].profile.device.lanes_overlap = false;
    let one_lane = cluster.with_groups(groups).expect("a cluster");
    assert!(apart <= seconds(&graph, &one_lane, &plan) * (1.0 + 1e-9));
}

/// The head's stage computes longest, since the vocabulary is most of the model.
#[test]
fn the_slow_device_is_in_the_stage_that_computes_longest() {
    let text = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=32768";
    let graph = model(text);
    let plan = Uniform {
        pp: 2,
        global_batch: 8,
        microbatches: 4,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    let plan = plan.plan(&graph, text, "c");
    let all = circumstances(&graph, &h100(1, 2, 80_000_000_000), &plan).expect("it simulates");
    let program = lower(&graph, &plan, 2).expect("the plan can be lowered");
    let last = program.classes.last().expect("two stages").place();
    found(&all, &format!("one device ({last}) computing at 50.0% of its speed"));
}
