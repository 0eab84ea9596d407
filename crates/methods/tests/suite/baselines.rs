//! Plans that people use without a search.

use std::collections::BTreeSet;

use shardloom_cluster::{Attention, Cluster, NodeGroup, Profile, Stack};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::baselines;
use shardloom_plan::{Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_search::{Request, judge};
use shardloom_sim::estimate::{Candidate, Cut};

const GPT: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=1024";
const PLENTY: u64 = 80_000_000_000;

pub(crate) fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

/// Nodes of H100s with this much memory each, whose attention is not fused, so that its core may be computed again.
pub(crate) fn h100(nodes: u32, devices_per_node: u32, memory_bytes: u64) -> Cluster {
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.memory_bytes = memory_bytes;
    let stack = Stack { attention: Attention::Separate, ..Stack::default() };
    let groups = vec![NodeGroup { profile, nodes, devices_per_node }];
    Cluster::new(groups).expect("a cluster").under(stack)
}

/// The evenly cut plan of a candidate.
fn even_plan(graph: &Graph, request: &Request, candidate: &Candidate) -> Plan {
    let uniform = Uniform {
        pp: candidate.pp as usize,
        mesh: Mesh::of(candidate.dp, 1, candidate.tp),
        sequence_parallel: candidate.sequence_parallel,
        global_batch: request.global_batch,
        microbatches: candidate.microbatches as usize,
        schedule: candidate.schedule,
        recompute: candidate.recompute,
        sync: Sync {
            algorithm: request.algorithm,
            zero: candidate.zero,
            bucket_bytes: request.bucket_bytes,
            ..Sync::default()
        },
        precision: request.precision,
        optimizer: request.optimizer,
        clip_norm: request.clip_norm,
    };
    uniform.plan(graph, &request.model, &request.cluster)
}

#[test]
fn baselines_are_data_parallelism_zero_3_and_the_megatron_rules() {
    let graph = model(GPT);
    let found = baselines(&graph, &h100(1, 8, PLENTY), &Request::new(GPT, "c", 32));
    let found = found.expect("baselines");
    let names: Vec<&str> = found.iter().map(|it| it.name).collect();
    assert_eq!(names, ["data parallel", "zero-3", "megatron rules"]);
    for (baseline, zero) in found.iter().zip([0, 3, 1]) {
        assert!(baseline.fits, "{}", baseline.name);
        let plan = baseline.plan.as_ref().expect("what fits has a plan");
        assert_eq!(plan.sync.zero, zero, "{}", baseline.name);
        assert_eq!(plan.device_count(), 8, "{}", baseline.name);
    }
}

/// Stages, width of tensor parallelism and micro-batches that the rules find for two nodes of four devices with so many
/// megabytes each, which are those of the first shape of their order that fits.
fn first_shapes(name: &str, megabytes: &[u64]) -> BTreeSet<(usize, u32, usize)> {
    let graph = model(name);
    let request = Request { memory_share: 1.0, ..Request::new(name, "c", 64) };
    let mut shapes = BTreeSet::new();
    for &megabytes in megabytes {
        let cluster = h100(2, 4, megabytes * 1_000_000);
        let found = baselines(&graph, &cluster, &request).expect("baselines");
        let baseline = found.into_iter().last().expect("the rules are the last");
        // Tensor parallelism within a node first, then stages; all devices, selective recomputation and a
        // sharded optimizer.
        let mut order = vec![];
        for (pp, tp) in [(1, 1), (1, 2), (1, 4), (2, 4)] {
            let dp = 8 / (pp * tp);
            let share = 64 / dp;
            let mut sizes: Vec<u32> = (1..=share).rev().filter(|size| share % size == 0).collect();
            // The largest, but of those that leave four micro-batches to a stage first.
            sizes.sort_by_key(|size| share / size < 4 * pp);
            order.extend(sizes.into_iter().map(|microbatch| Candidate {
                pp,
                dp,
                cp: 1,
                tp,
                sequence_parallel: tp > 1,
                zero: u8::from(dp > 1),
                sharing: dp,
                microbatch,
                microbatches: share / microbatch,
                recompute: Recompute::Selective,
                schedule: ScheduleKind::OneForwardOneBackward,
                chunks: 1,
                cut: Cut::Even,
            }));
        }
        let plans = order.iter().map(|candidate| even_plan(&graph, &request, candidate));
        let fits = |plan: &Plan| judge(&graph, &cluster, plan).expect("a plan").fits(1.0);
        let first = plans.into_iter().find(fits);
        assert_eq!(baseline.fits, first.is_some(), "{megabytes} megabytes");
        let Some(first) = first else { continue };
        let (_, stage) = first.stages().next().expect("a stage");
        shapes.insert((first.stages().count(), stage.mesh.tp(), first.microbatches));
        assert_eq!(baseline.plan, Some(first), "{megabytes} megabytes");
    }
    shapes
}

#[test]
fn megatron_rules_take_the_first_shape_of_their_order_that_fits() {
    let shapes = first_shapes(GPT, &[80_000, 60, 40, 25, 20, 16, 14, 12, 10, 8]);
    let widths: BTreeSet<(usize, u32)> = shapes.iter().map(|&(pp, tp, _)| (pp, tp)).collect();
    assert_eq!(widths.len(), 4, "{shapes:?}");
    assert!(shapes.len() > widths.len(), "one size of micro-batch for each: {shapes:?}");
}

/// Samples of eight positions take little beside weights, so that with two stages four micro-batches would fit, too.
#[test]
fn megatron_rules_leave_four_micro_batches_to_each_stage() {
    let shapes = first_shapes(
        "gpt:layers=8,hidden=256,heads=4,seq=8,vocab=64",
        &[19, 18, 17, 16, 15, 14, 13, 12],
    );
    assert!(shapes.contains(&(2, 4, 8)), "{shapes:?}");
}

#[test]
fn a_single_device_has_nobody_to_share_out_optimizer_state_to() {
    let graph = model(GPT);
    let found = baselines(&graph, &h100(1, 1, PLENTY), &Request::new(GPT, "c", 8));
    for baseline in found.expect("baselines") {
        let plan = baseline.plan.expect("what fits has a plan");
        assert_eq!((plan.device_count(), plan.sync.zero), (1, 0), "{}", baseline.name);
    }
}

/// A sequence of 513 is not split four ways, so four devices that share a layer all hold what lies between its
/// products, which is most of what there is; two by two devices hold that of half the layers each.
#[test]
fn megatron_rules_cut_stages_only_with_the_widest_tensor_parallelism() {
    const ODD: &str = "gpt:layers=8,hidden=64,heads=4,seq=513,vocab=64";
    let graph = model(ODD);
    let request = Request { memory_share: 1.0, ..Request::new(ODD, "c", 2) };
    let mut passed_by = 0;
    let mut shapes = BTreeSet::new();
    for kilobytes in (2_000..16_000).step_by(250) {
        let cluster = h100(2, 4, kilobytes * 1_000);
        let found = baselines(&graph, &cluster, &request).expect("baselines");
        let baseline = found.into_iter().last().expect("the rules are the last");
        let Some(plan) = baseline.plan.filter(|_| baseline.fits) else { continue };
        let (_, stage) = plan.stages().next().expect("a stage");
        let shape = (plan.stages().count(), stage.mesh.tp());
        shapes.insert(shape);
        let narrow = Candidate {
            pp: 2,
            dp: 2,
            cp: 1,
            tp: 2,
            sequence_parallel: false,
            zero: 1,
            sharing: 2,
            microbatch: 1,
            microbatches: 1,
            recompute: Recompute::Selective,
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            cut: Cut::Even,
        };
        let narrow = judge(&graph, &cluster, &even_plan(&graph, &request, &narrow));
        passed_by += usize::from(shape == (2, 4) && narrow.expect("a plan").fits(1.0));
    }
    assert!(shapes.iter().all(|&(pp, tp)| pp == 1 || tp == 4), "{shapes:?}");
    assert!(passed_by > 0, "narrower ones never fit: {shapes:?}");
}
