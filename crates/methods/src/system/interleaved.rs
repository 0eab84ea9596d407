//! Interleaved 1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
//! Using Megatron-LM", SC, arXiv 2104.04473, section 2.2.2).

use shardloom_plan::ScheduleKind;

use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Rules};

/// 1F1B over two or four stages on each device.
pub(crate) const METHOD: Method = Method {
    name: "interleaved",
    family: Family::ThreeDimensional,
    paper: "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using \
            Megatron-LM, SC, arXiv 2104.04473",
    about: "1F1B over several stages on each device, which divides the bubble by their number and sends \
            as many times more; with tensor parallelism and a sharded optimizer.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let pipelines = Pipelines {
            chunks: &[2, 4],
            tensor: true,
            zero: 1,
            counts: |depth| Counts { at_least: depth, multiple_of: depth, single: false },
            ..Pipelines::of(ScheduleKind::Interleaved)
        };
        pipelines.choose(task)
    },
};
