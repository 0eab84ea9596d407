//! What a plan is for.

use shardloom::cluster::{Cluster, PlanDefaults};
use shardloom::collectives::Algorithm;
use shardloom::plan::{Precision, Sync};
use shardloom::search::Request;

use super::Dimensions;

/// What a plan is for: the cluster's name, its format and its collectives.
#[derive(Clone, Debug)]
pub struct Place {
    /// As the plan writes it.
    pub cluster: String,
    /// Number formats.
    pub precision: Precision,
    /// Collectives, where no option says another.
    pub algorithm: Algorithm,
    /// Bytes of gradients that are reduced together, where the software has no default of its own.
    pub bucket_bytes: usize,
    /// What plans for the software usually have.
    pub plan_defaults: PlanDefaults,
    /// Whether there are fused kernels for attention.
    pub fuses_attention: bool,
}

impl Place {
    /// Ranks that are threads of this machine.
    pub fn here(dimensions: &Dimensions) -> Place {
        // Too many ranks are refused with the plan, whatever its cluster is called.
        let ranks = dimensions.ranks().unwrap_or(0);
        Place {
            cluster: format!("local:{ranks}"),
            precision: Precision::FP32,
            algorithm: Algorithm::Direct,
            bucket_bytes: Sync::default().bucket_bytes,
            plan_defaults: PlanDefaults::default(),
            fuses_attention: false,
        }
    }

    /// What plans for this cluster usually have.
    pub fn on(cluster: &Cluster, usual: &Request) -> Place {
        Place {
            cluster: usual.cluster.clone(),
            precision: usual.precision,
            algorithm: usual.algorithm,
            bucket_bytes: usual.bucket_bytes,
            plan_defaults: usual.plan_defaults,
            fuses_attention: cluster.fuses_attention(),
        }
    }
}
