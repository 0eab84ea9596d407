//! Small models and clusters.

use shardloom_cluster::{Attention, Cluster, NodeGroup, Profile, Stack};
use shardloom_graph::{Graph, ModelSpec};

/// A small GPT.
pub const GPT: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=1024";

/// The model of this text.
pub fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

/// Nodes of H100s with this much memory each, whose attention is not fused, so that its core may be computed again.
pub fn h100(nodes: u32, devices_per_node: u32, memory_bytes: u64) -> Cluster {
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.memory_bytes = memory_bytes;
    let stack = Stack { attention: Attention::Separate, ..Stack::default() };
    let groups = vec![NodeGroup { profile, nodes, devices_per_node }];
    Cluster::new(groups).expect("a cluster").under(stack)
}
