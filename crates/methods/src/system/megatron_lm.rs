//! The rules of Megatron-LM (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
//! Clusters Using Megatron-LM", SC, arXiv 2104.04473, section 3).

use shardloom_search::Rule;

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
    chooser: |task| task.by_rules(&[Rule::Megatron]),
};
