//! ZeRO (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
//! SC, arXiv 1910.02054).

use shardloom_search::Rule;

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
            let rule = "ZeRO scatters and gathers; ring, direct and halving-doubling do";
            return Err(task.impossible("algorithm", task.request.algorithm, rule));
        }
        task.by_rules(&[Rule::Zero1, Rule::Zero2, Rule::Zero3])
    },
};
