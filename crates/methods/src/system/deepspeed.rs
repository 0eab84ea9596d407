//! DeepSpeed's 3D parallelism (Majumder & Wang 2020, "DeepSpeed: Extreme-scale model training for everyone",
//! Microsoft Research blog) with ZeRO (Rajbhandari et al. 2020, SC, arXiv 1910.02054).

use std::cmp::Reverse;

use shardloom_plan::ScheduleKind;
use shardloom_search::{Baseline, SearchError, Space};
use shardloom_sim::estimate::{Candidate, Cut};

use super::zero::Stage;
use crate::choice::Task;
use crate::method::{Family, Method, Rules};

/// Tensor parallelism in the node and 1F1B with ZeRO 1, or ZeRO 2 or 3 without stages; the fastest that fits.
pub(crate) const METHOD: Method = Method {
    name: "deepspeed",
    family: Family::ThreeDimensional,
    paper: "Majumder & Wang 2020, DeepSpeed: Extreme-scale model training for everyone, Microsoft Research \
            blog; Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion Parameter \
            Models, SC, arXiv 1910.02054",
    about: "Tensor parallelism within a node, pipeline stages beyond, replicas that share optimizer state; or \
            no stages, and replicas that share gradients or parameters too. Activations are checkpointed.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let mut found = vec![baseline(task, Stage::One)?];
        if task.request.shards() {
            found.extend([baseline(task, Stage::Two)?, baseline(task, Stage::Three)?]);
        }
        task.by_rules(found)
    },
};

/// The first that fits with a ZeRO stage.
fn baseline(task: &Task<'_>, stage: Stage) -> Result<Baseline, SearchError> {
    let name = match stage {
        Stage::One => "3D with ZeRO 1",
        Stage::Two => "ZeRO 2",
        Stage::Three => "ZeRO 3",
    };
    let candidates = candidates(task, stage)?;
    Baseline::first_fitting(name, candidates, task.graph, task.cluster, task.request)
}

/// What there is with a ZeRO stage, the least model parallelism first: tensor parallelism up to a node, then
/// stages, which only go with ZeRO 1 (`PipelineEngine` refuses 2 and 3); at least four micro-batches a stage
/// where the batch has them, then the largest micro-batch.
fn candidates(task: &Task<'_>, stage: Stage) -> Result<Vec<Candidate>, SearchError> {
    let (cluster, request) = (task.cluster, task.request);
    let space = Space::new(task.graph, cluster, request)?;
    let all: Vec<Candidate> = space.candidates().filter(|it| it.cp == 1).collect();
    let widest = all.iter().map(|it| it.tp).max().unwrap_or(1);
    // Whole blocks, unless the software cannot compute them again.
    let checkpointed = all.iter().map(|it| it.recompute).max();
    let usual = |it: &Candidate| {
        let staged = it.schedule == ScheduleKind::OneForwardOneBackward && it.tp == widest;
        let zero = if request.shards() && it.dp > 1 { stage as u8 } else { 0 };
        Some(it.recompute) == checkpointed
            && it.zero == zero
            && it.sharing == it.dp
            && it.cut == Cut::Even
            && !it.sequence_parallel
            && (it.pp == 1 || (staged && matches!(stage, Stage::One)))
    };
    let mut candidates: Vec<Candidate> = all.into_iter().filter(usual).collect();
    let scarce = |it: &Candidate| u64::from(it.microbatches) < 4 * u64::from(it.pp);
    candidates.sort_by_key(|it| {
        let left_out = cluster.device_count() - it.devices();
        (left_out, it.pp, it.tp, scarce(it), Reverse(it.microbatch))
    });
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::{Cluster, NodeGroup, Profile};
    use shardloom_collectives::Algorithm;
    use shardloom_graph::ModelSpec;
    use shardloom_plan::Recompute;
    use shardloom_search::Request;

    use super::*;

    /// Stages, replicas, width of tensor parallelism, samples of a micro-batch, and micro-batches.
    type Words = (u32, u32, u32, u32, u32);

    /// All splits of `devices` on nodes of so many and of the batch, of which tensor parallelism divides four heads.
    fn all(stage: Stage, devices: u32, per_node: u32, batch: u32) -> Vec<Words> {
        let widest = [4, 2, 1].into_iter().find(|it| *it <= per_node).expect("one device");
        let mut all = vec![];
        for (pp, tp) in (1..=8).flat_map(|pp| [1, 2, 4].map(|tp| (pp, tp))) {
            let staged = matches!(stage, Stage::One) && tp == widest;
            if tp > per_node
                || pp * tp > devices
                || !(devices / tp).is_multiple_of(pp)
                || (pp > 1 && !staged)
            {
                continue;
            }
            let room = devices / tp / pp;
            let dp =
                (1..=room).rev().find(|it| batch.is_multiple_of(*it)).expect("one divides all");
            for microbatch in (1..=batch / dp).filter(|it| (batch / dp).is_multiple_of(*it)) {
                all.push((pp, dp, tp, microbatch, batch / dp / microbatch));
            }
        }
        all
    }

    /// Those on more devices come first, then those with fewer stages, less tensor parallelism, at least four
    /// micro-batches a stage, and larger micro-batches.
    #[test]
    fn candidates_are_all_splits_of_the_devices_with_the_least_model_parallelism_first() {
        let text = "gpt:layers=6,hidden=64,heads=4,seq=24,vocab=64";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        for (nodes, per_node) in [(1, 1), (1, 4), (2, 2), (2, 4), (3, 2)] {
            let profile = Profile::preset("h100-80g").expect("a preset");
            let group = NodeGroup { profile, nodes, devices_per_node: per_node };
            let cluster = Cluster::new(vec![group]).expect("a cluster");
            for (batch, algorithm) in [1, 2, 6, 32, 48, 96]
                .into_iter()
                .flat_map(|it| [Algorithm::Ring, Algorithm::BinaryTree].map(|how| (it, how)))
            {
                let request = Request { algorithm, ..Request::new(text, "cluster", batch) };
                let task = Task::new("deepspeed", &graph, &cluster, &request);
                for (stage, zero) in [(Stage::One, 1), (Stage::Two, 2), (Stage::Three, 3)] {
                    let found = candidates(&task, stage).expect("candidates");
                    let words = found
                        .iter()
                        .map(|it| (it.pp, it.dp, it.tp, it.microbatch, it.microbatches));
                    let words: Vec<Words> = words.collect();
                    let mut expected = all(stage, nodes * per_node, per_node, batch as u32);
                    expected.sort_by(|one, other| {
                        let used = |it: &Words| it.0 * it.1 * it.2;
                        let fills = |it: &Words| it.4 >= 4 * it.0;
                        used(other)
                            .cmp(&used(one))
                            .then((one.0, one.2).cmp(&(other.0, other.2)))
                            .then(fills(other).cmp(&fills(one)))
                            .then(other.3.cmp(&one.3))
                    });
                    let at =
                        format!("{nodes} x {per_node}, {batch} samples, {algorithm}, ZeRO {zero}");
                    assert_eq!(words, expected, "{at}");
                    for it in &found {
                        let shares = it.dp > 1 && algorithm == Algorithm::Ring;
                        assert_eq!((it.cp, it.zero), (1, if shares { zero } else { 0 }), "{at}");
                        assert_eq!((it.sharing, it.recompute), (it.dp, Recompute::Full), "{at}");
                        assert_eq!((it.sequence_parallel, it.cut), (false, Cut::Even), "{at}");
                        let staged = it.schedule == ScheduleKind::OneForwardOneBackward;
                        assert!(it.pp == 1 || staged, "{at}");
                    }
                }
            }
        }
    }
}
