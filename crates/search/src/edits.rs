//! What small changes of a plan would bring, each simulated.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use shardloom_cluster::{Cluster, DeviceId, NodeGroup, NodeId};
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, AttentionKind, Axis, Communication, LayoutRule, LossScale, Plan, Recompute,
    ScheduleKind, Sync,
};
use shardloom_program::quantity::percent;

use crate::explain::{Fact, Topic};
use crate::reshaped::reshaped;
use crate::{Judgement, SearchError, judge};

/// The most changes that are told.
const MOST: usize = 10;

/// What changes of a plan would bring.
#[derive(Default)]
pub(crate) struct Edits {
    /// What each change of one key would, the best first. Those that cannot be are left out.
    pub facts: Vec<Fact>,
    /// By which share a step would be shorter with twice as many micro-batches, where that can be.
    pub with_more_microbatches: Option<f64>,
    /// And with half as many.
    pub with_fewer_microbatches: Option<f64>,
}

/// What changes of `plan` would bring.
///
/// # Errors
/// If the cluster lacks a device or a rate.
pub(crate) fn edits(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Edits, SearchError> {
    let mut facts = vec![];
    let [mut with_more_microbatches, mut with_fewer_microbatches] = [None; 2];
    for (mut what, other) in changed(plan, cluster) {
        if other.attention != plan.attention && !cluster.fuses_attention() {
            what += &format!(" ({} has no kernel for it here)", cluster.stack().name);
        }
        let judgement = match judge(graph, cluster, &other) {
            // The model, the batch or another key of the plan does not go with it.
            Err(SearchError::Program(_)) => continue,
            judgement => judgement?,
        };
        let fact = fact(&what, &judgement, step_seconds);
        match other.microbatches.cmp(&plan.microbatches) {
            Ordering::Greater => with_more_microbatches = Some(fact.number),
            Ordering::Less => with_fewer_microbatches = Some(fact.number),
            Ordering::Equal => {}
        }
        facts.push(fact);
    }
    let reshaped = reshaped(graph, cluster, plan)?;
    facts.extend(reshaped.iter().map(|(what, it)| fact(what, &it.judgement, step_seconds)));
    facts.sort_by(|a, b| b.number.total_cmp(&a.number));
    facts.truncate(MOST);
    Ok(Edits { facts, with_more_microbatches, with_fewer_microbatches })
}

fn fact(what: &str, judgement: &Judgement, step_seconds: f64) -> Fact {
    let saved = 1.0 - judgement.step_seconds / step_seconds;
    let time = match saved {
        saved if saved >= 0.0005 => format!("{} less", percent(saved)),
        saved if saved <= -0.0005 => format!("{} more", percent(-saved)),
        _ => "as long".to_owned(),
    };
    let verdict = judgement.fullest().map(|it| format!("; memory: {}", it.verdict()));
    let sentence = format!("with {what}, a step would take {time}{}", verdict.unwrap_or_default());
    Fact { topic: Topic::Change, sentence, number: saved }
}

/// `plan` with one key changed, and what that is.
pub(crate) fn changed(plan: &Plan, cluster: &Cluster) -> Vec<(String, Plan)> {
    let mut found = vec![];
    let policies = Recompute::by_block_under(cluster.stack(), Some(plan.attention));
    let by_stage = plan.stages().any(|(_, stage)| stage.recompute.is_some());
    for recompute in policies.into_iter().filter(|&it| it != plan.recompute && !by_stage) {
        let what = format!("recompute = {:?}", recompute.name());
        found.push((what, Plan { recompute, ..plan.clone() }));
    }
    if plan.attention == AttentionKind::Unfused {
        let mut other = Plan { attention: AttentionKind::Fused, ..plan.clone() };
        // There is no core left to compute again.
        if other.recompute == Recompute::Selective {
            other.recompute = Recompute::None;
        }
        found.push(("attention = \"fused\"".into(), other));
    }
    let replicated = plan.stages().any(|(_, stage)| stage.mesh.width(Axis::DP) > 1);
    let Sync { shard_over, second_copy_over, averaging, compression, .. } = plan.sync;
    let alone = !plan.sync.has_servers() && averaging.is_none() && compression.is_none();
    let shares = shard_over.is_none() && second_copy_over.is_none() && alone;
    for zero in (0..=3).filter(|&zero| zero != plan.sync.zero && replicated && shares) {
        let mut other = plan.clone();
        other.sync.zero = zero;
        found.push((format!("sync.zero = {zero}"), other));
    }
    for schedule in schedules(plan) {
        let what = format!("schedule = {:?}", schedule.name());
        found.push((what, Plan { schedule, ..plan.clone() }));
    }
    for microbatches in [2 * plan.microbatches, plan.microbatches / 2] {
        let divides = microbatches > 0 && plan.global_batch.is_multiple_of(microbatches);
        if divides && microbatches != plan.microbatches {
            let what = format!("microbatches = {microbatches}");
            found.push((what, Plan { microbatches, ..plan.clone() }));
        }
    }
    let is_tensor_parallel = plan.stages().any(|(_, stage)| stage.mesh.width(Axis::TP) > 1);
    if is_tensor_parallel && !plan.layout.splits("seq", Axis::TP) {
        let mut other = plan.clone();
        other.layout.0.push(LayoutRule { dim: "seq".into(), axis: Axis::TP });
        found.push(("sequence parallelism (layout \"seq:tp\")".into(), other));
    }
    // Workers whose gradients servers sum know the norm of all by themselves.
    let may_overlap = !matches!(plan.loss_scale, Some(LossScale::Dynamic { .. }));
    let waits = plan.looks_at_norm() && may_overlap && plan.sync.summation.is_none();
    if waits && plan.stages().count() > 1 && !plan.post_validation {
        let other = Plan { post_validation: true, ..plan.clone() };
        found.push(("post_validation = true".into(), other));
    }
    if plan.communication == Communication::InLine && leaves_cores_free(plan, cluster) {
        let other = Plan { communication: Communication::Thread, ..plan.clone() };
        found.push(("communication = \"thread\"".into(), other));
    }
    found
}

/// Whether ranks compute and communicate on the same cores, and every machine has a core besides for each of them, in the
/// cluster or left out of it, so that a communication thread takes nothing from computation.
fn leaves_cores_free(plan: &Plan, cluster: &Cluster) -> bool {
    let of_stages = plan.stages().flat_map(|(_, stage)| stage.devices.0.iter().copied());
    let workers: BTreeSet<u32> = of_stages.collect();
    // A server on a worker's device is another rank.
    let ranks = workers.into_iter().chain(plan.server_devices());
    // By node: how many ranks there are, and how many cores its machine has.
    let mut nodes: BTreeMap<NodeId, (u32, u32)> = BTreeMap::new();
    for device in ranks.map(DeviceId) {
        let (Ok(node), Ok(group)) = (cluster.node_of(device), cluster.group_of(device)) else {
            return false;
        };
        let NodeGroup { profile, devices_per_node, .. } = &cluster.groups()[group];
        if profile.device.lanes_overlap {
            return false;
        }
        let cores = profile.node.devices.max(*devices_per_node);
        nodes.entry(node).or_insert((0, cores)).0 += 1;
    }
    plan.device_count() > 1 && nodes.values().all(|&(ranks, cores)| 2 * ranks <= cores)
}

/// How a schedule deals stages to devices, where all with a stage on each are alike.
pub(crate) fn arrangement(kind: ScheduleKind) -> Arrangement {
    match kind.arrangement() {
        None | Some(Arrangement::TakingTurns) => Arrangement::Chain,
        Some(arrangement) => arrangement,
    }
}

/// Other schedules of the same stages on the same devices.
fn schedules(plan: &Plan) -> impl Iterator<Item = ScheduleKind> + use<'_> {
    let own = arrangement(plan.schedule);
    let is_one = plan.pipeline.len() == 1 || own == Arrangement::Bidirectional;
    let has_stages = plan.pipeline.iter().all(|pipeline| pipeline.stage.len() > 1);
    let goes = is_one && has_stages && ScheduleKind::SEARCHED.contains(&plan.schedule);
    let others = ScheduleKind::SEARCHED.into_iter();
    others.filter(move |&kind| goes && arrangement(kind) == own && kind != plan.schedule)
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::Stack;
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Ranges, Share, Summation, Uniform};

    use super::*;

    /// What is changed of a plan of these sizes, 24 samples and a norm.
    fn names(pp: usize, mesh: Mesh, microbatches: usize, also: fn(&mut Plan)) -> Vec<String> {
        let text = "gpt:layers=6,hidden=64,heads=4,seq=32,vocab=64";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let (global_batch, clip_norm) = (24, Some(1.0));
        let uniform =
            Uniform { pp, mesh, global_batch, microbatches, clip_norm, ..Uniform::default() };
        let mut plan = uniform.plan(&graph, text, "c");
        also(&mut plan);
        plan.validate(&graph, plan.device_count()).expect("a plan");
        let cluster = Cluster::parse("h100-80g:8").expect("a cluster").under(Stack::default());
        let found = changed(&plan, &cluster);
        assert!(found.iter().all(|(_, other)| *other != plan));
        found.into_iter().map(|(what, _)| what).collect()
    }

    /// Those that begin so.
    fn of(names: &[String], begin: &str) -> Vec<String> {
        names.iter().filter_map(|it| it.strip_prefix(begin)).map(str::to_owned).collect()
    }

    /// Two workers want four cores for computation and communication, and as many again where each has a server on its
    /// device.
    #[test]
    fn servers_on_workers_devices_want_cores_too() {
        let text = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let gains_a_thread = |summation: Option<Summation>, cores| {
            let (mesh, sync) = (Mesh::of(2, 1, 1), Sync { summation, ..Sync::default() });
            let uniform = Uniform { mesh, sync, global_batch: 2, ..Uniform::default() };
            let plan = uniform.plan(&graph, text, "c");
            let gpus = Cluster::parse("h100-80g:2").expect("a cluster");
            let mut groups = gpus.groups().to_vec();
            groups[0].profile.device.lanes_overlap = false;
            groups[0].profile.node.devices = cores;
            let cluster = gpus.with_groups(groups).expect("a cluster");
            let names = changed(&plan, &cluster);
            names.iter().any(|(what, _)| what == "communication = \"thread\"")
        };
        let colocated = Some(Summation { colocated: true, ..Summation::of(0) });
        let found = [3, 4, 7, 8].map(|cores| [None, colocated].map(|it| gains_a_thread(it, cores)));
        assert_eq!(found, [[false, false], [true, false], [true, false], [true, true]]);
    }

    #[test]
    fn only_what_a_plan_has_is_changed() {
        let nothing = |_: &mut Plan| {};
        let single = names(1, Mesh::SINGLE, 4, nothing);
        let recomputes = of(&single, "recompute = ");
        assert_eq!(recomputes, ["\"selective\"", "\"full\""]);
        assert_eq!(of(&single, "microbatches = "), ["8", "2"]);
        assert_eq!(of(&single, "attention = "), ["\"fused\""]);
        assert_eq!(single.len(), recomputes.len() + 3, "{single:?}");
        let fused = |plan: &mut Plan| plan.attention = AttentionKind::Fused;
        let of_fused = names(1, Mesh::SINGLE, 4, fused);
        assert_eq!(of(&of_fused, "attention = "), [""; 0]);
        assert_eq!(of(&of_fused, "recompute = "), ["\"full\""]);
        for (microbatches, others) in
            [(1, &["2"][..]), (3, &["6", "1"]), (8, &["4"]), (24, &["12"]), (12, &["24", "6"])]
        {
            let found = names(1, Mesh::SINGLE, microbatches, nothing);
            assert_eq!(of(&found, "microbatches = "), others, "{microbatches}");
        }
        let by_stage = |plan: &mut Plan| {
            plan.pipeline[0].stage[0].recompute = Some(Recompute::Full);
        };
        assert_eq!(of(&names(1, Mesh::SINGLE, 4, by_stage), "recompute"), [""; 0]);
        let zeros = |also| of(&names(1, Mesh::of(2, 1, 1), 4, also), "sync.zero = ");
        assert_eq!(zeros(nothing), ["1", "2", "3"]);
        assert_eq!(zeros(|plan| plan.sync.zero = 2), ["0", "1", "3"]);
        let sequence = "sequence parallelism (layout \"seq:tp\")".to_owned();
        assert!(!names(1, Mesh::of(2, 1, 1), 4, nothing).contains(&sequence));
        assert!(names(1, Mesh::of(1, 1, 2), 4, nothing).contains(&sequence));
        let split = |plan: &mut Plan| {
            plan.layout.0.push(LayoutRule { dim: "seq".into(), axis: Axis::TP });
        };
        assert!(!names(1, Mesh::of(1, 1, 2), 4, split).contains(&sequence));
    }

    #[test]
    fn orders_and_validation_afterwards_are_those_of_pipelines() {
        let nothing = |_: &mut Plan| {};
        let stages = names(2, Mesh::SINGLE, 4, nothing);
        let schedules = of(&stages, "schedule = ");
        assert!(schedules.contains(&"\"zb-h1\"".to_owned()), "{schedules:?}");
        // Neither its own nor those with several stages on each device.
        for other in ["\"1f1b\"", "\"interleaved\"", "\"zb-v\"", "\"dualpipe\""] {
            assert!(!schedules.contains(&other.to_owned()), "{schedules:?}");
        }
        let afterwards = "post_validation = true".to_owned();
        assert!(stages.contains(&afterwards));
        assert!(!names(2, Mesh::SINGLE, 4, |plan| plan.clip_norm = None).contains(&afterwards));
        let validated = |plan: &mut Plan| plan.post_validation = true;
        assert!(!names(2, Mesh::SINGLE, 4, validated).contains(&afterwards));
        let single = names(1, Mesh::of(2, 1, 1), 4, nothing);
        assert!(!single.contains(&afterwards));
        assert_eq!(of(&single, "schedule = "), [""; 0]);
    }

    /// What has several stages on a device may have any order of those that deal them likewise.
    #[test]
    fn orders_are_changed_among_those_that_deal_stages_likewise() {
        let text = "gpt:layers=6,hidden=64,heads=4,seq=32,vocab=64";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let others = |schedule: ScheduleKind| -> Vec<ScheduleKind> {
            let uniform =
                Uniform { pp: 2, global_batch: 8, microbatches: 4, schedule, ..Uniform::default() };
            schedules(&uniform.plan(&graph, text, "c")).collect()
        };
        use ScheduleKind::{
            Afab, Chimera, DualPipe, DualPipeV, Hanayo, Interleaved, OneForwardOneBackward,
            PipeDream, VHalf, VMin, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleOneP, ZeroBubbleTwoP,
            ZeroBubbleV,
        };
        let chains = [Afab, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleOneP, ZeroBubbleTwoP];
        assert_eq!(others(OneForwardOneBackward), chains);
        assert_eq!(others(DualPipeV), [ZeroBubbleV, VHalf, VMin, Hanayo]);
        assert_eq!(others(Chimera), [DualPipe]);
        assert_eq!(others(Interleaved), []);
        // One without a flush trains otherwise.
        assert_eq!(others(PipeDream), []);
    }

    /// Two workers whose gradients a server sums: each of them knows the norm once it has the sums, so there is nothing
    /// to wait for.
    #[test]
    fn workers_whose_gradients_servers_sum_are_not_told_to_validate_afterwards() {
        fn two(plan: &mut Plan) {
            let mut other = plan.pipeline[0].clone();
            other.stage[0].devices.0[0] += 1;
            plan.pipeline.push(other);
        }
        fn summed(plan: &mut Plan) {
            two(plan);
            let (ranges, share) = (Ranges::default(), Share::default());
            plan.sync.summation = Some(Summation { ranges, share, ..Summation::of(1) });
        }
        let afterwards = "post_validation = true".to_owned();
        assert!(names(1, Mesh::SINGLE, 4, two).contains(&afterwards));
        let found = names(1, Mesh::SINGLE, 4, summed);
        assert!(!found.contains(&afterwards), "{found:?}");
    }
}
