//! Lowering: (graph, plan) to a program.
//!
//! Stage by stage: operators get their loops assigned to mesh axes, parameters their layouts and
//! buckets, a backward body is built that asks for the values it needs (which decides what the forward
//! body keeps and what is computed again), then the forward body, then the synchronisation that ZeRO
//! and the plan's `sync` call for, and last the stream in the schedule's order. No step looks at which
//! combination of parallelisms it serves.

mod backward;
mod boundary;
mod buckets;
mod emitter;
mod epilogue;
mod forward;
mod liveness;
mod sharding;
mod stage;
mod stream;

use shardloom_cluster::DeviceId;
use shardloom_graph::{BlockId, Graph};
use shardloom_plan::{Arrangement, Mesh, PassTimes, Plan};

use crate::class::{Body, BodyKind, Class, Program, Rank, Shard};
use crate::schedule::{Schedule, StageMap};
use crate::{ClassId, ProgramError};
use boundary::Boundaries;
use stage::StageModel;

/// The program of `plan` for `graph` on a cluster of `devices` devices.
///
/// # Errors
/// If the plan does not fit the graph or the number of devices, or asks for layouts that cannot be
/// joined.
pub fn lower(graph: &Graph, plan: &Plan, devices: usize) -> Result<Program, ProgramError> {
    plan.validate(graph, devices)?;
    let stages = stage_models(graph, plan)?;
    let boundaries = Boundaries::find(graph, &stages)?;
    let map = StageMap::arranged(Arrangement::Chain, stages.len(), 1, plan.microbatches)?;
    let orders = Schedule::build(plan.schedule, map, &PassTimes::default())?.orders;
    let mut classes = vec![];
    let mut first_rank = 0;
    for ((((place, planned), model), order), index) in
        plan.stages().zip(&stages).zip(&orders).zip(0u32..)
    {
        let mesh: Mesh = planned.mesh;
        let parts = buckets::Parameters::of(graph, plan, &stages, index as usize)?;
        let mut slots = vec![];
        let context = stage::Context {
            graph,
            plan,
            model,
            params: &parts,
            boundaries: &boundaries,
            class: ClassId(index),
        };
        let backward = backward::body(&context, &mut slots)?;
        let mut forward = forward::body(&context, &mut slots, &backward.kept)?;
        let mut evaluation = forward::body(&context, &mut slots, &forward::Kept::new())?;
        let mut backward = backward.instructions;
        let mut last = backward.clone();
        liveness::mark(&mut forward, &slots, &context.kept_slots(&last));
        for body in [&mut evaluation, &mut backward, &mut last] {
            liveness::mark(body, &slots, &Default::default());
        }
        let zero = plan.sync.zero;
        sharding::insert_reductions(&mut backward, &parts, zero, false);
        sharding::insert_reductions(&mut last, &parts, zero, true);
        if zero >= 3 {
            for body in [&mut forward, &mut backward, &mut last, &mut evaluation] {
                sharding::insert_gathers(body, graph, &parts);
            }
        }
        let epilogue = epilogue::body(&parts, plan);
        let body = |kind, instructions| Body { kind, instructions };
        let bodies = vec![
            body(BodyKind::Forward, forward),
            body(BodyKind::Backward, backward),
            body(BodyKind::Backward, last),
            body(BodyKind::Epilogue, epilogue),
            body(BodyKind::Evaluation, evaluation),
        ];
        classes.push(Class {
            stage: place,
            mesh,
            first_rank: Rank(first_rank),
            devices: planned.devices.0.iter().map(|&device| DeviceId(device)).collect(),
            slots,
            params: parts.params,
            buckets: parts.buckets,
            bodies,
            stream: stream::of(order),
            evaluation: stream::EVALUATION,
        });
        first_rank += mesh.size() as u32;
    }
    Ok(Program {
        classes,
        routes: boundaries.routes,
        shard: Shard { zero: plan.sync.zero },
        algorithm: plan.sync.algorithm,
        precision: plan.precision,
        optimizer: plan.optimizer,
        clip_norm: plan.clip_norm,
        global_batch: plan.global_batch,
        microbatch_samples: plan.microbatch_samples(),
        microbatches: plan.microbatches,
    })
}

fn stage_models(graph: &Graph, plan: &Plan) -> Result<Vec<StageModel>, ProgramError> {
    plan.stages()
        .map(|(_, stage)| {
            let blocks = (stage.blocks.0 as u32..stage.blocks.1 as u32).map(BlockId).collect();
            StageModel::of(graph, plan, blocks, stage.mesh)
        })
        .collect()
}
