//! Where stages are cut.

use shardloom_plan::Pipeline;
use shardloom_search::partition::{LayerProfile, Unit, block_partition, least_variance};
use shardloom_sim::estimate::balanced_stages;

use crate::MethodError;

/// A rule for cuts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cut {
    /// The least time of the slowest device.
    LeastSlowest,
    /// The least variance of stages' times (GPipe).
    LeastVariance,
    /// torchgpipe's block partition.
    BlockPartition,
    /// The first block of each stage and then the number of blocks.
    At(Vec<usize>),
}

impl Cut {
    /// The first block of each stage of `pipelines`, which are cut alike, and then the number of blocks.
    /// `again` is whether forward passes run a second time.
    pub fn blocks(
        &self,
        layers: &[LayerProfile],
        pipelines: &[Pipeline],
        again: bool,
    ) -> Result<Vec<usize>, MethodError> {
        let forwards = if again { 2.0 } else { 1.0 };
        let seconds: Vec<f64> = layers
            .iter()
            .map(|layer| forwards * layer.forward_seconds + layer.backward_seconds)
            .collect();
        let stages = pipelines[0].stage.len();
        Ok(match self {
            Cut::LeastSlowest => {
                let mut before = vec![0.0];
                for (block, seconds) in seconds.iter().enumerate() {
                    before.push(before[block] + seconds);
                }
                balanced_stages(&before, pipelines)
            }
            Cut::LeastVariance => least_variance(&seconds, stages)?,
            Cut::BlockPartition => block_partition(&seconds, stages, Unit::Spread)?,
            Cut::At(blocks) => blocks.clone(),
        })
    }
}
