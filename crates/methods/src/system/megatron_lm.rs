//! The rules of Megatron-LM (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
//! Clusters Using Megatron-LM", SC, arXiv 2104.04473, section 3).

use std::cmp::Reverse;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{AttentionKind, Recompute, ScheduleKind};
use shardloom_search::{Baseline, Request, SearchError, Space};
use shardloom_sim::estimate::{Candidate, Cut};

use crate::method::{Family, Method, Rules};

/// Tensor parallelism in the node, 1F1B between nodes, data parallelism outermost.
pub(crate) const METHOD: Method = Method {
    name: "megatron-lm",
    family: Family::ThreeDimensional,
    paper: "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using \
            Megatron-LM, SC, arXiv 2104.04473",
    about: "Tensor parallelism within a node as wide as is needed to fit, pipeline stages beyond, data \
            parallelism outermost.",
    rules: |_| Rules::FLUSH,
    chooser: |task| task.by_rules(vec![baseline(task.graph, task.cluster, task.request)?]),
};

/// Narayanan et al. 2021, section 3, with sequence parallelism, selective recomputation (Korthikanti et al.
/// 2022, arXiv 2205.05198) and a sharded optimizer: tensor parallelism within a node up to what is needed to
/// fit, then pipeline stages, data parallelism outermost, at least four micro-batches a stage where the
/// batch has them, then the largest micro-batch.
///
/// # Errors
/// If the request asks for what cannot be.
pub(crate) fn baseline(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Baseline, SearchError> {
    let candidates = candidates(graph, cluster, request)?;
    Baseline::first_fitting("megatron rules", candidates, graph, cluster, request)
}

/// What the rules choose from, best first.
fn candidates(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Vec<Candidate>, SearchError> {
    let schedule = match request.schedules.contains(&ScheduleKind::OneForwardOneBackward) {
        true => ScheduleKind::OneForwardOneBackward,
        false => request.schedules[0],
    };
    let space = Space::new(graph, cluster, request)?;
    let all: Vec<Candidate> = space.candidates().filter(|it| it.cp == 1).collect();
    let widest = all.iter().map(|it| it.tp).max().unwrap_or(1);
    let mut sequences: Vec<u32> =
        all.iter().filter(|it| it.sequence_parallel).map(|it| it.tp).collect();
    sequences.dedup();
    // No scores are kept.
    let kept = match graph.attention() {
        Some(AttentionKind::Fused) => Recompute::None,
        _ => Recompute::Selective,
    };
    let usual = |it: &Candidate| {
        it.recompute == kept
            && it.zero == u8::from(request.shards() && it.dp > 1)
            && it.sharing == it.dp
            && it.cut == Cut::Even
            && (it.pp == 1 || (it.schedule == schedule && it.tp == widest))
            && it.sequence_parallel == sequences.contains(&it.tp)
    };
    let mut candidates: Vec<Candidate> = all.into_iter().filter(usual).collect();
    let scarce = |it: &Candidate| u64::from(it.microbatches) < 4 * u64::from(it.pp);
    candidates.sort_by_key(|it| {
        let left_out = cluster.device_count() - it.devices();
        (left_out, it.pp, it.tp, scarce(it), Reverse(it.microbatch))
    });
    Ok(candidates)
}
