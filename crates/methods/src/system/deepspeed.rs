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
