//! Small models and clusters.

use shardloom_cluster::{Cluster, NodeGroup, Profile};
use shardloom_graph::{Graph, ModelSpec};

/// A small GPT.
pub const GPT: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=1024";

/// The model of this text.
pub fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

/// Nodes of H100s with this much memory each.
pub fn h100(nodes: u32, devices_per_node: u32, memory_bytes: u64) -> Cluster {
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.memory_bytes = memory_bytes;
    Cluster::new(vec![NodeGroup { profile, nodes, devices_per_node }]).expect("a cluster")
}
