//! Small programs.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Averaging, Axis, AxisSet, Corrections, Mesh, Plan, Precision, Prediction, ScheduleKind,
    SendOrder, Servers, Staleness, Summation, Sync, Uniform, Weights,
};
use shardloom_program::{Program, lower};

pub fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

pub fn gpt(tied: bool) -> Graph {
    graph(&format!("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16,dropout=0.1,tied={tied}"))
}

pub fn mesh(dp: u32, tp: u32) -> Mesh {
    Mesh::of(dp, 1, tp)
}

pub fn uniform(schedule: ScheduleKind, pp: usize, mesh: Mesh, zero: u8) -> Uniform {
    Uniform {
        pp,
        mesh,
        sequence_parallel: mesh.tp() > 1,
        global_batch: 4 * mesh.dp() as usize,
        microbatches: 4,
        schedule,
        sync: Sync { zero, bucket_bytes: 400, ..Sync::default() },
        clip_norm: schedule.flushes().then_some(1.0),
        ..Uniform::default()
    }
}

pub fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn program(schedule: ScheduleKind, pp: usize, mesh: Mesh, zero: u8) -> Program {
    let graph = gpt(false);
    lowered(&graph, &uniform(schedule, pp, mesh, zero).plan(&graph, "model", "local"))
}

/// Two stages in a row, one device each.
pub fn pipeline() -> Program {
    program(ScheduleKind::OneForwardOneBackward, 2, Mesh::SINGLE, 0)
}

/// Two replicas of all.
pub fn replicas(zero: u8) -> Program {
    program(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1), zero)
}

/// Replicas that all-reduce whole gradients, of which each updates the share that it has within so many.
pub fn all_reduced(dp: u32, sharing: u32) -> Program {
    let graph = gpt(false);
    let mesh = mesh(dp, 1).sharing_within(sharing).expect("it divides the replicas");
    let replicas = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh, 1);
    let sync = Sync { all_reduces: true, ..replicas.sync };
    lowered(&graph, &Uniform { sync, ..replicas }.plan(&graph, "model", "local"))
}

/// Two replicas that update master weights.
pub fn mixed(zero: u8) -> Program {
    let graph = gpt(false);
    let replicas = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1), zero);
    let uniform = Uniform { precision: Precision::MIXED, ..replicas };
    lowered(&graph, &uniform.plan(&graph, "model", "local"))
}

/// Two stages without a flush, which keep the weights of forward passes for backward passes.
pub fn stashed() -> Program {
    let graph = gpt(false);
    let uniform = uniform(ScheduleKind::PipeDream, 2, Mesh::SINGLE, 0);
    let plan = uniform.plan(&graph, "model", "local");
    lowered(&graph, &Plan { weights: Weights::Stash, ..plan })
}

/// Two stages without a flush, which move weights on before passes read them. The embedding's only parameter
/// is alone in its bucket.
pub fn predicted() -> Program {
    let graph = graph("llama:layers=2,hidden=8,heads=2,kv_heads=2,ffn=16,seq=4,vocab=16");
    let uniform = uniform(ScheduleKind::PipeDream, 2, Mesh::SINGLE, 0);
    let plan = uniform.plan(&graph, "model", "local");
    let prediction = Some(Prediction::Weights);
    let weights =
        Weights::Newest { corrections: Corrections { prediction, ..Corrections::default() } };
    lowered(&graph, &Plan { weights, ..plan })
}

/// Two stages whose updates are tested in the next step.
pub fn validated() -> Program {
    validated_on(Mesh::SINGLE)
}

/// The same with a mesh of ranks to each stage.
pub fn validated_on(mesh: Mesh) -> Program {
    let graph = gpt(false);
    let uniform = uniform(ScheduleKind::ZeroBubbleH2, 2, mesh, 0);
    let plan = uniform.plan(&graph, "model", "local");
    lowered(&graph, &Plan { post_validation: true, ..plan })
}

/// Replicas along dp with weights of their own, in so many stages of so many ranks to a replica.
pub fn averaged(averaging: Averaging, pp: usize, tp: u32, precision: Precision) -> Program {
    let graph = gpt(true);
    let replicas = uniform(ScheduleKind::OneForwardOneBackward, pp, mesh(2, tp), 0);
    let sync = Sync { averaging: Some(averaging), ..replicas.sync };
    let uniform = Uniform { sync, precision, clip_norm: None, ..replicas };
    lowered(&graph, &uniform.plan(&graph, "model", "local"))
}

/// Two stages whose two replicas are averaged in every second step, after the update of master weights.
pub fn local_sgd() -> Program {
    averaged(Averaging::local_sgd(2), 2, 1, Precision::MIXED)
}

/// Two replicas that take in half of what one other has published.
pub fn pairs() -> Program {
    averaged(Averaging::PAIRS, 1, 1, Precision::MIXED)
}

/// Two workers, and a server that holds their weights.
pub fn served() -> Program {
    let graph = gpt(false);
    let uniform = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1), 0);
    let sync = Sync { servers: Some(Servers::of(1, Staleness::Within(1))), ..uniform.sync };
    let uniform = Uniform { sync, clip_norm: None, global_batch: 4, microbatches: 2, ..uniform };
    lowered(&graph, &uniform.plan(&graph, "model", "local"))
}

/// Two workers that send pieces by priority to a server that sums them, and update where weights are used next.
pub fn summed() -> Program {
    let graph = gpt(false);
    let uniform = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1), 0);
    let summation = Summation { order: SendOrder::NextUse, ..Summation::of(1) };
    let sync = Sync { summation: Some(summation), bucket_bytes: 1500, ..uniform.sync };
    let uniform = Uniform { sync, clip_norm: None, global_batch: 4, microbatches: 2, ..uniform };
    lowered(&graph, &uniform.plan(&graph, "model", "local"))
}

/// Two by two replicas of a stage that all share weights, and of which two each share a second copy.
pub fn second_copy() -> Program {
    let graph = gpt(false);
    lowered(
        &graph,
        &with_second_copy(ScheduleKind::OneForwardOneBackward, 1).plan(&graph, "m", "c"),
    )
}

/// The same in so many stages under another schedule.
pub fn with_second_copy(schedule: ScheduleKind, pp: usize) -> Uniform {
    let mesh = mesh(4, 1).sharing_within(2).expect("two by two");
    let uniform = uniform(schedule, pp, mesh, 3);
    let sync = Sync { second_copy_over: AxisSet::of(&[Axis::DP]), ..uniform.sync };
    Uniform { sync, global_batch: 16, ..uniform }
}

/// Two pipelines in opposite directions, whose stages are held twice.
pub fn both_ways() -> Program {
    program(ScheduleKind::Chimera, 2, Mesh::SINGLE, 0)
}

/// The example with rows that choose their experts while running, on two ranks that have half of the experts
/// each.
pub fn routed(pp: usize) -> Program {
    let (graph, plan) = routed_plan(pp, mesh(2, 1), "expert:dp, batch:dp");
    lowered(&graph, &plan)
}

/// The example with its plan on a mesh with such layout rules.
pub fn routed_plan(pp: usize, mesh: Mesh, layout: &str) -> (Graph, Plan) {
    let text = include_str!("../../../../../examples/models/routed-experts.toml");
    let spec = ModelSpec::from_toml(text, "routed-experts.toml").expect("a valid model");
    let graph = spec.graph().expect("a valid model");
    let uniform = uniform(ScheduleKind::OneForwardOneBackward, pp, mesh, 0);
    let global_batch = 4 * mesh.size();
    let plan = Uniform { global_batch, ..uniform }.plan(&graph, "model", "local");
    let layout = layout.to_owned().try_into().expect("rules");
    (graph, Plan { layout, ..plan })
}
