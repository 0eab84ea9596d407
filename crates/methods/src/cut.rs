//! Where stages are cut.

use shardloom_plan::even_cuts;
use shardloom_sim::estimate::balanced_stages;

use crate::MethodError;
use crate::layer_profile::LayerProfile;
use crate::partition::running_sums;
use crate::system::gpipe::least_variance::least_variance;
use crate::system::torchgpipe::block_partition::{Unit, block_partition};

/// A rule for cuts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    /// The least time of the slowest device.
    LeastSlowest,
    /// The least variance of stages' times (GPipe).
    LeastVariance,
    /// torchgpipe's block partition.
    BlockPartition,
    /// As many blocks in each.
    Even,
}

impl Cut {
    /// The first block of each stage, and then the number of blocks, of pipelines that are cut alike and
    /// whose stages live at `places`. `again` is whether forward passes run a second time.
    pub fn blocks(
        self,
        layers: &[LayerProfile],
        places: &[Vec<usize>],
        again: bool,
    ) -> Result<Vec<usize>, MethodError> {
        let forwards = if again { 2.0 } else { 1.0 };
        let seconds: Vec<f64> = layers
            .iter()
            .map(|layer| forwards * layer.forward_seconds + layer.backward_seconds)
            .collect();
        let stages = places[0].len();
        Ok(match self {
            Cut::LeastSlowest => balanced_stages(&running_sums(seconds.iter().copied()), places),
            Cut::LeastVariance => least_variance(&seconds, stages)?,
            Cut::BlockPartition => block_partition(&seconds, stages, Unit::Spread)?,
            Cut::Even => even_cuts(seconds.len(), stages),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stages_are_cut_as_every_even_plan_is() {
        let layers = [LayerProfile::default(); 6];
        let cuts = Cut::Even.blocks(&layers, &[vec![0, 1, 2, 3]], false).expect("a cut");
        assert_eq!(cuts, [0, 1, 3, 5, 6]);
    }
}
