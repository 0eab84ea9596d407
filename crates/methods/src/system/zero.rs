//! ZeRO (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
//! SC, arXiv 1910.02054).

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Recompute;
use shardloom_search::{Baseline, Request, SearchError};

use super::data_parallel::replicated;
use crate::method::{Family, Method, Rules};

/// ZeRO's stages 1 to 3; the fastest that fits.
pub(crate) const METHOD: Method = Method {
    name: "zero",
    family: Family::DataParallel,
    paper: "Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion Parameter \
            Models, SC, arXiv 1910.02054",
    about: "Data parallelism whose replicas share optimizer state, gradients and parameters out among \
            them.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        if !task.request.shards() {
            let rule =
                "ZeRO scatters and gathers; ring, direct, halving-doubling and hierarchical do";
            return Err(task.impossible("algorithm", task.request.algorithm, rule));
        }
        let (graph, cluster, request) = (task.graph, task.cluster, task.request);
        let stages = [Stage::One, Stage::Two, Stage::Three];
        let found = stages.map(|stage| baseline(stage, graph, cluster, request));
        task.by_rules(found.into_iter().collect::<Result<_, _>>()?)
    },
};

/// What replicas share out among them, each with what the one before does.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// Optimizer state.
    One = 1,
    /// Gradients.
    Two,
    /// Parameters.
    Three,
}

/// Replicas on as many devices as the batch can be dealt to, with the least recomputation that fits.
///
/// # Errors
/// If the request asks for what cannot be.
pub(crate) fn baseline(
    stage: Stage,
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Baseline, SearchError> {
    let name = match stage {
        Stage::One => "zero-1",
        Stage::Two => "zero-2",
        Stage::Three => "zero-3",
    };
    let policies = Recompute::by_block_under(cluster.stack(), graph.attention());
    let candidates = replicated(cluster, request, stage as u8, &policies);
    Baseline::first_fitting(name, candidates, graph, cluster, request)
}
