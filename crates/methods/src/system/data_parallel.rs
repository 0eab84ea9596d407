//! Data parallelism with all-reduced gradients (Sergeev & Del Balso 2018, "Horovod: fast and easy
//! distributed deep learning in TensorFlow", arXiv 1802.05799).

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Recompute;
use shardloom_search::{Baseline, Request, SearchError, divisors};
use shardloom_sim::estimate::{Candidate, Cut};

use crate::method::{Family, Method, Rules};

/// Data parallelism.
pub(crate) const METHOD: Method = Method {
    name: "data-parallel",
    family: Family::DataParallel,
    paper: "Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB, \
            arXiv 2006.15704",
    about: "Every device holds the whole model and a share of the batch; gradients are all-reduced.",
    rules: |_| Rules::FLUSH,
    chooser: |task| task.by_rules(vec![baseline(task.graph, task.cluster, task.request)?]),
};

/// Replicas on as many devices as the batch can be dealt to, with the largest micro-batches that fit.
///
/// # Errors
/// If the request asks for what cannot be.
pub(crate) fn baseline(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Baseline, SearchError> {
    let policy = Recompute::None.under(cluster.stack());
    let candidates = replicated(cluster, request, 0, &[policy]);
    Baseline::first_fitting("data parallel", candidates, graph, cluster, request)
}

/// Replicas on as many devices as the batch can be dealt to; the largest micro-batches first, and least
/// recomputation before smaller micro-batches.
pub(super) fn replicated(
    cluster: &Cluster,
    request: &Request,
    zero: u8,
    policies: &[Recompute],
) -> Vec<Candidate> {
    let global_batch = request.global_batch as u32;
    let dp = divisors(global_batch).filter(|&it| it <= cluster.device_count()).max().unwrap_or(1);
    let share = global_batch / dp;
    let mut candidates = vec![];
    for &recompute in policies {
        let mut microbatches: Vec<u32> = divisors(share).collect();
        microbatches.reverse();
        candidates.extend(microbatches.into_iter().map(|microbatch| Candidate {
            pp: 1,
            dp,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            zero: if dp > 1 { zero } else { 0 },
            sharing: dp,
            microbatch,
            microbatches: share / microbatch,
            recompute,
            schedule: request.schedules[0],
            chunks: 1,
            cut: Cut::Even,
        }));
    }
    candidates
}
