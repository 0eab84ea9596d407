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

#[cfg(test)]
mod tests {
    use shardloom_cluster::{NodeGroup, Profile};

    use super::*;

    fn h100(nodes: u32, devices_per_node: u32) -> Cluster {
        let profile = Profile::preset("h100-80g").expect("a preset");
        Cluster::new(vec![NodeGroup { profile, nodes, devices_per_node }]).expect("a cluster")
    }

    /// Of each policy in turn the largest micro-batch of a replica's share first, whatever is sharded.
    #[test]
    fn replicas_are_as_many_as_divide_the_batch_and_take_the_largest_micro_batches_first() {
        let policies = [Recompute::None, Recompute::Full];
        for (nodes, per_node) in [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)] {
            let devices = nodes * per_node;
            for batch in 1..=24 {
                let request = Request::new("a model", "cluster", batch as usize);
                for zero in 0..=3 {
                    let found = replicated(&h100(nodes, per_node), &request, zero, &policies);
                    let mut dp = devices;
                    while batch % dp > 0 {
                        dp -= 1;
                    }
                    let mut expected = vec![];
                    for recompute in policies {
                        let sizes = (1..=batch / dp).rev().filter(|it| batch / dp % it == 0);
                        expected.extend(sizes.map(|it| (recompute, it, batch / dp / it)));
                    }
                    let each =
                        found.iter().map(|it| (it.recompute, it.microbatch, it.microbatches));
                    let at = format!("{batch} samples on {devices} devices");
                    assert_eq!(each.collect::<Vec<_>>(), expected, "{at}");
                    for it in &found {
                        assert_eq!((it.pp, it.cp, it.tp, it.chunks), (1, 1, 1, 1), "{at}");
                        assert_eq!((it.dp, it.sharing), (dp, dp), "{at}");
                        assert_eq!(it.zero, if dp == 1 { 0 } else { zero }, "{at}");
                    }
                }
            }
        }
    }
}
