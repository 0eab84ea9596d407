//! PipeDream (Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP;
//! Harlap et al. 2018, arXiv 1806.03377).

pub(crate) mod partition;

use shardloom_plan::{
    DeviceList, LossScale, Mesh, Number, Optimizer, Pipeline, Plan, Precision, Recompute,
    ScheduleKind, Stage, StageReplicas, Uniform, Updates, Weights, pipelines_in_turn,
};
use shardloom_program::ProgramError;
use shardloom_search::{SearchError, judge};

use partition::{Level, Partition, StageTime, pipedream};

use crate::choice::Task;
use crate::configuration::{Counts, Pipelines};
use crate::interconnect::Interconnect;
use crate::method::{Family, Method, Rules};
use crate::selection::Selection;
use crate::{Choice, MethodError};

/// 1F1B without flush, weights stashed.
pub(crate) const METHOD: Method = Method {
    name: "pipedream",
    family: Family::AsynchronousPipeline,
    paper: "Narayanan et al. 2019, PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP, \
            arXiv 1806.03377",
    about: "1F1B without flush: a minibatch keeps the weights that it went forward with until it has gone \
            backward; stages and their replicas, which take minibatches in turn, by the paper's dynamic \
            program.",
    rules,
    chooser: choose,
};

fn rules(_: &Optimizer) -> Rules {
    Rules { weights: Weights::Stash, updates: Updates::Round, ..Rules::FLUSH }
}

/// The fastest of the partitions' plans if there is one; otherwise the fastest of equally replicated stages.
fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let partitions = partitions(task)?;
    let mut selection = Selection::new(task.request.memory_share);
    // Why partitions are no plans, where they are none.
    let mut reasons: Vec<Option<String>> = vec![];
    for partition in &partitions {
        reasons.push(offer(task, partition, &mut selection)?);
    }
    let (space, impossible) = (partitions.len(), reasons.iter().flatten().count());
    let unfit = match selection.finish(task) {
        Ok(found) => {
            let choice = found.choice(space, space - impossible);
            let mut choice = Choice { impossible, ..choice }.without_flush(task);
            if choice.plan.precision.compute != task.request.precision.compute {
                choice.notes.push(
                    "everything is in fp32 and not in fp16, in which the loss is scaled until gradients overflow: \
                     that is seen by the norm of all gradients, which stages that update by themselves do not find"
                        .into(),
                );
            }
            return Ok(choice);
        }
        // There is no pipeline to replace it by.
        Err(Some(why)) if task.cluster.device_count() < 2 => return Err(why),
        Err(why) => why.map(|error| error.to_string()),
    };
    // The paper's is the first.
    let (partition, reason) = (&partitions[0], reasons.swap_remove(0).or(unfit));
    let reason = reason.expect("a plan that was offered fits or does not");
    let pipelines = Pipelines {
        weights: rules(&task.request.optimizer).weights,
        counts: |_| Counts::SINGLE,
        ..Pipelines::of(ScheduleKind::PipeDream)
    };
    let mut choice = pipelines.choose(task)?.without_flush(task);
    let replicas: Vec<String> =
        partition.stages.iter().map(|stage| stage.replicas().to_string()).collect();
    choice.notes.push(format!(
        "PipeDream's partition, stages with {} replicas, is no plan here ({reason}); this is the fastest \
         of equally replicated stages",
        replicas.join(", ")
    ));
    Ok(choice)
}

/// How many partitions are tried.
const MOST_PARTITIONS: usize = 4;

/// The paper's partition for minibatches of the whole global batch. A step has as many minibatches as its
/// replicas take turns; so next the one for minibatches of that share, which may have other replicas,
/// until one has come before.
fn partitions(task: &mut Task<'_>) -> Result<Vec<Partition>, MethodError> {
    let global_batch = task.request.global_batch;
    let mut found = vec![partition_of(task, global_batch)?];
    while found.len() < MOST_PARTITIONS {
        let turns = turns(task, &found[found.len() - 1]).unwrap_or(1);
        if !global_batch.is_multiple_of(turns) {
            break;
        }
        let next = partition_of(task, global_batch / turns)?;
        if found.iter().any(|known| known.stages == next.stages) {
            break;
        }
        found.push(next);
    }
    Ok(found)
}

/// The paper's partition for minibatches of so many samples.
fn partition_of(task: &mut Task<'_>, samples: usize) -> Result<Partition, MethodError> {
    let links = Interconnect::of(task.cluster);
    let nodes = task.cluster.node_count() as usize;
    let level = |components: usize, bytes_per_second: f64| Level { components, bytes_per_second };
    let mut levels =
        vec![level(links.per_node as usize, links.within.reachable_bytes_per_second())];
    if nodes > 1 {
        // The components of this level are nodes: what a whole one exchanges with another, which a ring
        // through all its devices sends over one link.
        levels.push(level(nodes, links.between.reachable_bytes_per_second()));
    }
    let layers = task.layers(samples)?;
    pipedream(layers, &levels, StageTime::Published)
}

/// The minibatches of a step: as many as bring all stages to their first replica again. None if they are
/// too many to be planned.
fn turns(task: &Task<'_>, partition: &Partition) -> Option<usize> {
    match partition.stages[..] {
        [_] => Some(1),
        _ => Some(pipelines_in_turn(&stages(task, partition)).ok()?.len()),
    }
}

/// Offers plans of a partition, from the least recomputation on until one fits; says why where there is
/// none.
fn offer(
    task: &Task<'_>,
    partition: &Partition,
    selection: &mut Selection,
) -> Result<Option<String>, MethodError> {
    let mut refusal = None;
    let mut offered = false;
    let attention = task.graph.attention();
    for recompute in Recompute::by_block_under(task.cluster.stack(), attention) {
        let plan = match plan(task, partition, recompute) {
            Ok(plan) => plan,
            Err(reason) => {
                refusal = Some(reason);
                break;
            }
        };
        let judgement = match judge(task.graph, task.cluster, &plan) {
            Ok(judgement) => judgement,
            Err(SearchError::Program(
                reason @ (ProgramError::Plan(_) | ProgramError::Schedule(_)),
            )) => {
                refusal = Some(reason.to_string());
                break;
            }
            Err(other) => return Err(other.into()),
        };
        offered = true;
        if selection.offer(plan, judgement) {
            break;
        }
    }
    Ok(refusal.filter(|_| !offered))
}

/// The plan of a partition, or why there is none.
fn plan(task: &Task<'_>, partition: &Partition, recompute: Recompute) -> Result<Plan, String> {
    let uniform = Uniform {
        schedule: ScheduleKind::PipeDream,
        recompute,
        clip_norm: None,
        ..task.uniform(1, Mesh::SINGLE, 1)
    };
    let of = |pipelines| {
        let request = task.request;
        let plan = uniform.plan_of(task.graph, &request.model, &request.cluster, pipelines);
        Plan { parameters: request.frozen.clone(), ..plan }
    };
    let stages = stages(task, partition);
    if let [stage] = &stages[..] {
        // All replicas of one stage update together: as if each had a part of one minibatch.
        let devices = stage.replicas.iter().flat_map(|list| &list.0).copied().collect();
        let mesh = Mesh::of(stage.replicas.len() as u32, 1, 1);
        let stage = Stage::new(stage.blocks, mesh, DeviceList(devices));
        let mut plan = of(vec![Pipeline::of(vec![stage])]);
        // Nobody is ahead of anybody, so the norm keeps nobody waiting.
        plan.clip_norm = task.request.clip_norm;
        return Ok(Plan { loss_scale: LossScale::usual(&plan), ..plan });
    }
    let mut plan = of(pipelines_in_turn(&stages).map_err(|error| error.to_string())?);
    plan.microbatches = plan.pipeline.len();
    if plan.microbatches > 1 {
        plan.updates = rules(&task.request.optimizer).updates;
        // Stages that update by themselves find no norm of all gradients, by which a scale of the loss is watched.
        if plan.precision.compute == Number::Fp16 {
            plan.precision = Precision::FP32;
        }
    }
    Ok(Plan { loss_scale: LossScale::usual(&plan), ..plan })
}

/// The stages of a partition with each replica's device.
fn stages(task: &Task<'_>, partition: &Partition) -> Vec<StageReplicas> {
    let devices = workers(task);
    let stages = partition.stages.iter().map(|stage| StageReplicas {
        blocks: (stage.layers.start, stage.layers.end),
        mesh: Mesh::SINGLE,
        replicas: stage.workers.iter().map(|&it| DeviceList(vec![devices[it]])).collect(),
    });
    stages.collect()
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

#[cfg(test)]
mod tests {
    use shardloom_cluster::{Cluster, NodeGroup, Profile};
    use shardloom_graph::ModelSpec;
    use shardloom_search::Request;

    use super::*;

    /// Replicas of each stage.
    fn replicas(partition: &Partition) -> Vec<usize> {
        partition.stages.iter().map(|it| it.workers.len()).collect()
    }

    /// The least number of minibatches after which all stages are at their first replica again.
    fn least_turns(partition: &Partition) -> usize {
        let all = replicas(partition);
        if all.len() == 1 {
            return 1;
        }
        (1..).find(|turns| all.iter().all(|it| turns % it == 0)).expect("their product")
    }

    /// Each is for minibatches of the share of a step that the one before leaves to one.
    #[test]
    fn partitions_follow_from_each_other_until_one_has_come_before() {
        let text = "gpt:layers=3,hidden=256,heads=4,seq=128,vocab=2000,tied=false";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let mut lengths = std::collections::BTreeMap::<usize, usize>::new();
        for (devices_per_node, rate) in
            (4..=7).flat_map(|it| [1e9, 5e9, 1e10].map(|rate| (it, rate)))
        {
            let mut profile = Profile::preset("h100-80g").expect("a preset");
            profile.node.intra.bytes_per_second = rate;
            let group = NodeGroup { profile, nodes: 1, devices_per_node };
            let cluster = Cluster::new(vec![group]).expect("a cluster");
            for batch in [60, 64, 120] {
                let request = Request::new(text, "cluster", batch);
                let mut task = Task::new("pipedream", &graph, &cluster, &request);
                let found = partitions(&mut task).expect("partitions");
                let mut expected: Vec<Partition> = vec![];
                let mut samples = Some(batch);
                while let Some(each) = samples.filter(|_| expected.len() < 4) {
                    let next = partition_of(&mut task, each).expect("a partition");
                    if expected.iter().any(|it| it.stages == next.stages) {
                        break;
                    }
                    let turns = least_turns(&next);
                    samples = (batch % turns == 0).then_some(batch / turns);
                    expected.push(next);
                }
                let [found, expected] = [found, expected].map(|all| {
                    all.iter()
                        .map(|it| (it.stages.clone(), it.bottleneck_seconds))
                        .collect::<Vec<_>>()
                });
                assert_eq!(found, expected, "{batch} samples, {devices_per_node} devices, {rate}");
                *lengths.entry(found.len()).or_default() += 1;
            }
        }
        assert!([1, 2, 4].iter().all(|it| lengths.contains_key(it)), "by length: {lengths:?}");
    }
}
