//! Data parallelism with all-reduced gradients (Sergeev & Del Balso 2018, "Horovod: fast and easy
//! distributed deep learning in TensorFlow", arXiv 1802.05799).

use shardloom_search::Rule;

use crate::method::{Family, Method, Rules};

/// Data parallelism.
pub(crate) const METHOD: Method = Method {
    name: "data-parallel",
    family: Family::DataParallel,
    paper: "Sergeev & Del Balso 2018, Horovod: fast and easy distributed deep learning in TensorFlow, \
            arXiv 1802.05799",
    about: "Every device holds the whole model and a share of the batch; gradients are all-reduced.",
    rules: |_| Rules::FLUSH,
    chooser: |task| task.by_rules(&[Rule::DataParallel]),
};
