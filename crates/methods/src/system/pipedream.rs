//! PipeDream (Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP;
//! Harlap et al. 2018, arXiv 1806.03377).

use shardloom_plan::{
    DeviceList, Mesh, Pipeline, Plan, Recompute, ScheduleKind, Stage, Uniform, Weights,
};
use shardloom_program::ProgramError;
use shardloom_search::partition::{Interconnect, Level, Partition, StageTime, pipedream};
use shardloom_search::{SearchError, judge};

use crate::choice::{Best, Task};
use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Supports};
use crate::{Choice, MethodError};

/// 1F1B without flush, weights stashed.
pub(crate) const METHOD: Method = Method {
    name: "pipedream",
    family: Family::AsynchronousPipeline,
    paper: "Narayanan et al. 2019, PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP, \
            arXiv 1806.03377",
    about: "1F1B without flush: every minibatch is a step, and keeps the weights that it went forward \
            with until it has gone backward; stages and their replicas by the paper's dynamic program.",
    supports: Supports::ALL,
    chooser: choose,
};

/// The partition's plan if there is one; otherwise the fastest of equally replicated stages.
fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let partition = partition(task)?;
    let reason = match replicated(task, &partition)? {
        Ok(choice) => return Ok(choice.unclipped(task)),
        Err(reason) => reason,
    };
    let pipelines = Pipelines {
        weights: Weights::Stash,
        counts: |_| Counts::SINGLE,
        ..Pipelines::of(ScheduleKind::PipeDream)
    };
    let mut choice = pipelines.choose(task)?.unclipped(task);
    let replicas: Vec<String> =
        partition.stages.iter().map(|stage| stage.replicas().to_string()).collect();
    choice.notes.push(format!(
        "PipeDream's partition, stages with {} replicas, is no plan here ({reason}); this is the fastest \
         of equally replicated stages",
        replicas.join(", ")
    ));
    Ok(choice)
}

/// The paper's partition of the whole minibatch.
fn partition(task: &mut Task<'_>) -> Result<Partition, MethodError> {
    let links = Interconnect::of(task.cluster);
    let nodes = task.cluster.node_count() as usize;
    let level = |components: usize, bytes_per_second: f64| Level { components, bytes_per_second };
    let mut levels =
        vec![level(links.per_node as usize, links.within.reachable_bytes_per_second())];
    if nodes > 1 {
        levels.push(level(nodes, links.across.reachable_bytes_per_second()));
    }
    let layers = task.layers(task.request.global_batch)?;
    Ok(pipedream(layers, &levels, StageTime::Published)?)
}

/// The plan of a partition with the least recomputation that fits, or why there is none.
fn replicated(
    task: &Task<'_>,
    partition: &Partition,
) -> Result<Result<Choice, String>, MethodError> {
    let mut closest = String::new();
    for recompute in Recompute::ALL {
        let plan = plan(task, partition, recompute);
        let judgement = match judge(task.graph, task.cluster, &plan) {
            Ok(judgement) => judgement,
            Err(SearchError::Program(
                reason @ (ProgramError::Plan(_) | ProgramError::SharedMeshes { .. }),
            )) => return Ok(Err(reason.to_string())),
            Err(other) => return Err(other.into()),
        };
        if judgement.fits(task.request.memory_share) {
            let notes = vec![];
            return Ok(Ok(Choice { plan, judgement, space: 1, simulated: 1, notes }));
        }
        closest = task.nothing_fits(&Best { plan, judgement }, 1).to_string();
    }
    Ok(Err(closest))
}

fn plan(task: &Task<'_>, partition: &Partition, recompute: Recompute) -> Plan {
    let uniform = Uniform {
        schedule: ScheduleKind::PipeDream,
        recompute,
        clip_norm: None,
        ..task.uniform(1, Mesh::SINGLE, 1)
    };
    let mut plan = uniform.plan(task.graph, &task.request.model, &task.request.cluster);
    let devices = workers(task);
    let stages = partition.stages.iter().map(|stage| Stage {
        blocks: (stage.layers.start, stage.layers.end),
        mesh: Mesh { dp: stage.replicas() as u32, ..Mesh::SINGLE },
        devices: DeviceList(stage.workers.iter().map(|&worker| devices[worker]).collect()),
    });
    plan.pipeline = vec![Pipeline { stage: stages.collect() }];
    plan
}

/// The device of each worker: as many of every node as the smallest has.
fn workers(task: &Task<'_>) -> Vec<u32> {
    let per_node = Interconnect::of(task.cluster).per_node;
    let mut devices = vec![];
    let mut first = 0;
    for group in task.cluster.groups() {
        for _ in 0..group.nodes {
            devices.extend(first..first + per_node);
            first += group.devices_per_node;
        }
    }
    devices
}
