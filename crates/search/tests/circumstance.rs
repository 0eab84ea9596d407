//! What would make a step take another time, found by experiments.

mod scenario;

use scenario::{GPT, h100, model};
use shardloom_cluster::{Cluster, Stack};
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Plan, Precision, Recompute, Uniform};
use shardloom_search::{Circumstance, Needed, circumstances, judge, step_parts};

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
