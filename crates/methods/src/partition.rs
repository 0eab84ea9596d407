//! Where the planners of published systems cut a chain of layers into pipeline stages.
//!
//! Each stands in the folder of its system. They are pure functions of what layers cost; [`profile`] finds
//! that for the blocks of a graph. Every cut is the first layer of each stage and then the number of layers,
//! as [`Estimator::cuts`](shardloom_sim::estimate::Estimator::cuts) gives it.
//!
//! | function | published as | decides |
//! |---|---|---|
//! | [`least_variance`] | GPipe (Huang et al. 2019) | cuts |
//! | [`block_partition`] | torchgpipe (Kim et al. 2020) | cuts |
//! | [`pipedream`] | PipeDream (Narayanan et al. 2019) | cuts and the replicas of each stage |
//! | [`two_bw`] | PipeDream-2BW (Narayanan et al. 2021) | width, depth, micro-batch, recomputation |
//! | [`chimera`] | Chimera (Li & Hoefler 2021) | width, depth, micro-batch, recomputation |
//!
//! The cut with the least time of the slowest stage and one replica each is the estimator's
//! [`Cut::Balanced`](shardloom_sim::estimate::Cut::Balanced).
//!
//! ```
//! use shardloom_cluster::{Cluster, DeviceId};
//! use shardloom_graph::ModelSpec;
//! use shardloom_methods::partition::{least_variance, profile};
//! use shardloom_plan::Precision;
//!
//! let graph = ModelSpec::parse("gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024")?.graph()?;
//! let cluster = Cluster::parse("h100-80g:2")?;
//! let layers = profile(&graph, &cluster, DeviceId(0), (Precision::MIXED, &[]), 4)?;
//! let seconds: Vec<f64> = layers.iter().map(|layer| layer.seconds()).collect();
//! let cuts = least_variance(&seconds, 2)?;
//! assert_eq!((cuts[0], cuts[2]), (0, graph.blocks().len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::interconnect::Interconnect;
pub use crate::layer_profile::{LayerProfile, profile};
pub use crate::system::chimera::planner::{ChimeraConfiguration, ChimeraRequest, chimera};
pub use crate::system::gpipe::least_variance::least_variance;
pub use crate::system::pipedream::partition::{
    Level, Partition, ReplicatedStage, StageTime, pipedream,
};
pub use crate::system::pipedream_2bw::planner::{
    TwoBwConfiguration, TwoBwRequest, Updates, two_bw,
};
pub use crate::system::torchgpipe::block_partition::{Unit, block_partition};

use crate::MethodError;

/// Whether `layers` layers of these `costs` can be cut into `stages` stages that each have one.
pub(crate) fn check_layers(costs: &[f64], stages: usize) -> Result<(), MethodError> {
    if let Some(cost) = costs.iter().find(|cost| !(cost.is_finite() && **cost >= 0.0)) {
        let rule = "what a layer costs is a finite number from 0".into();
        return Err(MethodError::Planner { key: "layers", value: cost.to_string(), rule });
    }
    if stages == 0 || stages > costs.len() {
        let rule = format!("1 to {}: each of the stages needs a layer", costs.len());
        return Err(MethodError::Planner { key: "stages", value: stages.to_string(), rule });
    }
    Ok(())
}

pub(crate) fn at_least_one(key: &'static str, value: u32) -> Result<(), MethodError> {
    match value {
        0 => {
            let rule = "at least one".into();
            Err(MethodError::Planner { key, value: value.to_string(), rule })
        }
        _ => Ok(()),
    }
}

/// The sums of the first none, one, two and so on of `numbers`.
pub(crate) fn running_sums(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = numbers.map(|number| {
        sum += number;
        sum
    });
    std::iter::once(0.0).chain(sums).collect()
}
