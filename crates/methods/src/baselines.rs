//! Plans that people use without a search.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_search::{Baseline, Request, SearchError};

use crate::system::{data_parallel, megatron_lm, zero};

/// Plain data parallelism, ZeRO-3 where the request's algorithm scatters, and the rules of Megatron-LM, each
/// simulated. What a search answers should be no slower.
///
/// # Errors
/// If the request asks for what cannot be.
pub fn baselines(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Vec<Baseline>, SearchError> {
    request.validate()?;
    let graph = &*request.graph_of(graph, cluster)?;
    let mut baselines = vec![data_parallel::baseline(graph, cluster, request)?];
    if request.shards() {
        baselines.push(zero::baseline(zero::Stage::Three, graph, cluster, request)?);
    }
    baselines.push(megatron_lm::baseline(graph, cluster, request)?);
    Ok(baselines)
}
