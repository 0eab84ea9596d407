//! How near the answer is to the best plan that there is, and what it must not be slower than.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Axis, Recompute, ScheduleKind};
use shardloom_search::{Request, Space, judge};
use shardloom_sim::estimate::{Cut, Estimator};

use super::{PLENTY, check};
use crate::scenario::{GPT, h100, model};

/// The fastest evenly cut plan that fits, by simulating all.
fn exhaustive(graph: &Graph, cluster: &Cluster, request: &Request) -> Option<f64> {
    let space = Space::new(graph, cluster, request).expect("a space");
    let mut estimator = Estimator::new(graph, cluster, request.settings()).expect("an estimator");
    let even = space.candidates().filter(|it| it.cut == Cut::Even);
    let mut best: Option<f64> = None;
    for candidate in even {
        // There are schedules that do not exist for few micro-batches.
        let exists = estimator.estimate(&candidate).expect("costs").is_some();
        let plan = request.planned(graph, &mut estimator, &candidate).expect("costs");
        let Some(plan) = plan.filter(|_| exists) else { continue };
        let judgement = judge(graph, cluster, &plan).expect("a plan of the space can be lowered");
        if judgement.fits(request.memory_share) {
            best = Some(best.map_or(judgement.step_seconds, |it| it.min(judgement.step_seconds)));
        }
    }
    best
}

#[test]
fn the_answer_is_within_a_fiftieth_of_the_best_of_all_simulated_plans() {
    let text = "gpt:layers=2,hidden=512,heads=4,seq=256,vocab=4096";
    let graph = model(text);
    let request = Request::new(text, "c", 16);
    for memory_bytes in [PLENTY, 400_000_000, 250_000_000] {
        let cluster = h100(1, 4, memory_bytes);
        let best = exhaustive(&graph, &cluster, &request).expect("some plan fits");
        let outcome = check(&graph, &cluster, &request);
        let found = outcome.judgement.step_seconds;
        assert!(found <= 1.02 * best, "{memory_bytes} bytes: found {found}, best {best}");
    }
}

/// A single long sequence: no two devices have different ones, and layers are too few for a deep pipeline.
#[test]
fn a_long_sequence_is_split_where_that_is_faster() {
    let text = "llama:layers=2,hidden=512,heads=4,kv_heads=2,seq=16384,vocab=4096,ffn=1024";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    let cluster = h100(1, 4, PLENTY);
    let best = exhaustive(&graph, &cluster, &request).expect("some plan fits");
    let outcome = check(&graph, &cluster, &request);
    let (found, (_, stage)) =
        (outcome.judgement.step_seconds, outcome.plan.stages().next().expect("a stage"));
    assert!(found <= 1.02 * best, "found {found}, best {best}");
    assert!(stage.mesh.width(Axis::CP) > 1, "{}", stage.mesh);
}

#[test]
fn the_same_request_has_the_same_answer() {
    let graph = model(GPT);
    let cluster = h100(2, 4, 2_000_000_000);
    let request = Request::new(GPT, "c", 32);
    let (first, second) = (check(&graph, &cluster, &request), check(&graph, &cluster, &request));
    assert_eq!(first.plan, second.plan);
    assert_eq!(first.judgement, second.judgement);
    assert_eq!(first.finalists.len(), second.finalists.len());
}

#[test]
fn less_memory_never_makes_the_answer_faster() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 32);
    let mut before = 0.0;
    for memory_bytes in [PLENTY, 300_000_000, 100_000_000, 60_000_000] {
        let outcome = check(&graph, &h100(1, 8, memory_bytes), &request);
        // Within what the estimate misses.
        assert!(outcome.judgement.step_seconds >= 0.98 * before, "{memory_bytes} bytes");
        before = outcome.judgement.step_seconds;
    }
}

#[test]
fn many_devices_are_no_slower_than_fewer() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 64);
    let seconds = |nodes, devices| {
        check(&graph, &h100(nodes, devices, PLENTY), &request).judgement.step_seconds
    };
    let all = seconds(8, 8);
    for (nodes, devices) in [(4, 8), (2, 8), (1, 8), (1, 4), (1, 2), (1, 1)] {
        let fewer = seconds(nodes, devices);
        assert!(all <= fewer, "{all} on 8 x 8, {fewer} on {nodes} x {devices}");
    }
}

/// Nodes of one device, and one sample: of three blocks the middle one is nearly everything, and only
/// tensor parallelism deals it to two devices.
#[test]
fn where_nothing_fits_within_nodes_tensor_parallel_groups_reach_across_nodes() {
    let text = "gpt:layers=1,hidden=1024,heads=16,seq=64,vocab=64";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    // 12 hidden^2 parameters of 18 bytes are 226 MB.
    let outcome = check(&graph, &h100(2, 1, 160_000_000), &request);
    let (_, stage) = outcome.plan.stages().next().expect("a stage");
    assert_eq!((outcome.plan.stages().count(), stage.mesh.tp()), (1, 2));
    // Both spaces were looked through: widths of one and two, the latter also with the sequence split.
    let cluster = h100(2, 1, 160_000_000);
    let within = Space::new(&graph, &cluster, &request).expect("a space").count();
    let across = 2 * Recompute::BY_BLOCK.len();
    // One device is tried, too.
    let single = Space::new(&graph, &h100(1, 1, PLENTY), &request).expect("a space").count();
    assert_eq!(outcome.search.space, within + across + single);
    assert!(!outcome.not_searched.iter().any(|it| it.contains("across nodes")));
    let roomy = check(&graph, &h100(2, 1, PLENTY), &request);
    let counted = roomy.search.space;
    assert_eq!(counted, within + single, "what fits within nodes needs no wider groups");
}

#[test]
fn llama_3_405b_on_16384_h100s_is_planned_as_its_makers_did() {
    let text = "llama-3-405b:seq=8192";
    let graph = model(text);
    let cluster = Cluster::parse("h100-80g:2048x8").expect("a preset");
    let every = Request { finalists: 1, ..Request::new(text, "h100-80g:2048x8", 2048) };
    let request = Request { schedules: ScheduleKind::PLAIN.to_vec(), ..every.clone() };
    let outcome = check(&graph, &cluster, &request);
    // One stage on each device leaves them idle for a third of the time.
    let faster = check(&graph, &cluster, &every).judgement;
    assert!(faster.step_seconds < 0.8 * outcome.judgement.step_seconds, "{faster:?}");
    let plan = outcome.plan;
    let (_, stage) = plan.stages().next().expect("a stage");
    assert_eq!(stage.mesh.tp(), 8);
    assert!(plan.layout.splits("seq", Axis::TP), "sequence parallelism");
    assert!((8..=32).contains(&plan.stages().count()), "{} stages", plan.stages().count());
    assert_ne!(plan.recompute, Recompute::Full);
    assert_eq!(plan.device_count(), 16_384);
}
