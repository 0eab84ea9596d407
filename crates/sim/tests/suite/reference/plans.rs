//! Small plans of every kind, at random.

use proptest::prelude::*;
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, Averaging, Axis, Communication, DeviceList, Mesh, Optimizer, ParameterGroup, Plan,
    Ranges, Recompute, ScheduleKind, Share, StageReplicas, Summation, Sync, Uniform, Updates,
    Weights, pipelines_in_turn,
};
use shardloom_program::{Program, lower};

use crate::scenario::{gpt, uniform};

/// A program with what it was lowered from.
#[derive(Clone, Debug)]
pub struct Case {
    pub graph: Graph,
    pub plan: Plan,
    pub program: Program,
}

fn optimizers() -> impl Strategy<Value = Optimizer> {
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 };
    prop::sample::select(vec![Optimizer::default(), Optimizer::sgd(0.9), adafactor, lamb])
}

fn uniforms() -> impl Strategy<Value = (Uniform, usize)> {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    let kind = prop::sample::select(kinds.collect::<Vec<_>>());
    let widths = prop::sample::select(vec![
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 1),
        (2, 1, 1),
        (3, 1, 1),
        (2, 1, 2),
        (2, 2, 1),
        (1, 2, 2),
    ]);
    let recompute = prop::sample::select(&Recompute::ALL[..]);
    let shape = (kind, 1usize..5, widths, 1usize..3, 0usize..2);
    (shape, 0u8..4, recompute, any::<(bool, bool)>(), optimizers()).prop_map(
        |(
            (schedule, pp, (dp, cp, tp), rounds, more),
            zero,
            recompute,
            (sequence, clips),
            optimizer,
        )| {
            let mut plan = uniform(pp, dp, tp, 2 * rounds * pp);
            plan.mesh = Mesh::of(dp, cp, tp);
            plan.schedule = schedule;
            plan.sync.zero = zero;
            plan.recompute = recompute;
            plan.sequence_parallel = sequence;
            plan.clip_norm = (clips && schedule.flushes()).then_some(1.0);
            plan.optimizer = optimizer;
            let least = schedule.arrangement().map_or(1, Arrangement::least_chunks);
            (plan, least * (1 + more))
        },
    )
}

/// Stages whose replicas take micro-batches in turn.
fn in_turn(plan: Plan, replicas: &[u32]) -> Option<Plan> {
    let stages: Vec<StageReplicas> = replicas
        .iter()
        .zip(&plan.pipeline.first()?.stage)
        .scan(0, |next, (&replicas, stage)| {
            let lists = (0..replicas).map(|replica| DeviceList(vec![*next + replica])).collect();
            *next += replicas;
            Some(StageReplicas { blocks: stage.blocks, mesh: stage.mesh, replicas: lists })
        })
        .collect();
    let pipeline = pipelines_in_turn(&stages).ok()?;
    let microbatches = pipeline.len() * plan.microbatches.div_ceil(pipeline.len());
    Some(Plan { pipeline, microbatches, global_batch: microbatches, ..plan })
}

/// The same of as many workers as there would be stages, for whom servers sum some gradients.
fn summed(graph: &Graph, uniform: &Uniform, plan: &Plan) -> Plan {
    let workers = uniform.pp as u32;
    let each = (plan.microbatches / uniform.pp).clamp(1, 4);
    let summation = Summation {
        ranges: if plan.post_validation { Ranges::Equal } else { Ranges::Hashed },
        share: if each.is_multiple_of(2) { Share::Part(1.0) } else { Share::Balanced },
        ..Summation::of(1 + workers % 2)
    };
    let uniform = Uniform {
        pp: 1,
        mesh: Mesh::of(workers, 1, 1),
        microbatches: each,
        global_batch: each * uniform.pp,
        sync: Sync { summation: Some(summation), zero: 0, ..uniform.sync },
        schedule: ScheduleKind::OneForwardOneBackward,
        sequence_parallel: false,
        ..uniform.clone()
    };
    let post_validation = plan.post_validation;
    let mut plan = Plan { post_validation, ..uniform.plan(graph, "gpt", "cluster") };
    let by_workers = ParameterGroup { servers: Some(vec![]), ..ParameterGroup::named("*norm*") };
    let by_last = Some(vec![summation.servers - 1; 2]);
    let cut = ParameterGroup { servers: by_last, ..ParameterGroup::named("*up*") };
    plan.parameters = vec![by_workers, cut];
    plan
}

/// Programs of every schedule and every way of synchronising, of up to sixteen ranks.
pub fn cases() -> impl Strategy<Value = Case> {
    let turns = prop::option::weighted(0.7, prop::collection::vec(1u32..4, 1..4));
    let rules =
        prop::sample::select(vec![Weights::Stash, Weights::VerticalSync, Weights::DoubleBuffer]);
    let averages = prop::option::weighted(
        0.3,
        prop::sample::select(vec![
            Averaging::local_sgd(1),
            Averaging::local_sgd(2),
            Averaging::SYNCHRONOUS,
            Averaging { every: 2, ..Averaging::SYNCHRONOUS },
        ]),
    );
    let sums = prop::bool::weighted(0.1);
    let flags = (any::<(bool, bool, bool, bool, bool)>(), averages, sums);
    let all = (uniforms(), turns, rules, flags);
    all.prop_filter_map("not every plan exists", |((uniform, chunks), turns, rule, flags)| {
        let ((tied, validates, in_rounds, other_meshes, has_thread), averaging, sums) = flags;
        let graph = gpt(6, tied);
        let mut plan = uniform.plan_in_chunks(&graph, "gpt", "cluster", chunks).ok()?;
        let takes_turns = matches!(
            uniform.schedule,
            ScheduleKind::OneForwardOneBackward | ScheduleKind::PipeDream
        );
        if let Some(replicas) = turns.filter(|it| takes_turns && it.len() == uniform.pp)
            && uniform.mesh.size() == 1
        {
            plan = in_turn(plan, &replicas)?;
        }
        if plan.schedule == ScheduleKind::PipeDream {
            plan.weights = rule;
            if in_rounds && rule != Weights::DoubleBuffer {
                plan.updates = Updates::Round;
            }
        }
        plan.post_validation = validates && plan.flushes();
        if averaging.is_some() && plan.flushes() {
            (plan.sync.averaging, plan.sync.zero, plan.clip_norm) = (averaging, 0, None);
        }
        if has_thread {
            plan.communication = Communication::Thread;
        }
        if other_meshes {
            // Stages on odd devices split what the others do not.
            for stage in plan.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
                let size = stage.mesh.size() as u32;
                if size == 2 && stage.devices.0[0] / size % 2 == 1 {
                    let [dp, cp, tp] =
                        [Axis::DP, Axis::CP, Axis::TP].map(|axis| stage.mesh.width(axis));
                    stage.mesh = Mesh::of(tp as u32, dp as u32, cp as u32);
                }
            }
        }
        if sums {
            let communication = plan.communication;
            plan = Plan { communication, ..summed(&graph, &uniform, &plan) };
        }
        let program = lower(&graph, &plan, plan.device_count()).ok()?;
        Some(Case { graph, plan, program })
    })
}
