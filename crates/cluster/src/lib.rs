//! The machines: devices, nodes, the links between them, and how long a collective
//! takes on them.
//!
//! A [`Profile`] describes one kind of machine: its [`DeviceKind`] and its
//! [`NodeKind`]. Profiles of common machines are data files with their sources
//! ([`Profile::preset`]); one of the machine at hand is measured and kept in a file
//! of the same form. A [`Cluster`] is so many nodes of each kind.
//!
//! ```
//! use shardloom_cluster::{Cluster, DeviceId, Precision};
//! use shardloom_collectives::{Algorithm, Kind};
//!
//! let cluster = Cluster::parse("h100-80g:2x8")?;
//! let device = cluster.kind_of(DeviceId(0))?;
//! let product = device.matmul_seconds(Precision::Bf16, 1, 4096, 4096, 4096)?;
//! assert!(product > 2.0 * 4096f64.powi(3) / 989e12);
//!
//! let group: Vec<DeviceId> = cluster.devices().collect();
//! let reduce = |group: &[DeviceId]| {
//!     cluster.collective_seconds(Kind::AllReduce, Algorithm::Ring, group, 1e9, 1)
//! };
//! assert!(reduce(&group[..8])? < reduce(&group)?);
//! # Ok::<(), shardloom_cluster::ClusterError>(())
//! ```
//!
//! What drives machines is a [`Stack`]: the software, whose kernels, host and plan defaults decide how much of
//! the machines' speed a step sees. A cluster is under Shardloom's own unless [`Cluster::under`] says
//! another.
//!
//! Everything here is a model: spec-sheet numbers, the fraction of them that is
//! reached (an estimate until measured), and alpha-beta links. It knows nothing of
//! networks, plans or schedules.

mod attention_time;
mod checked;
mod cluster;
mod collective_time;
mod constant;
mod curve;
mod device;
mod error;
mod group_shape;
mod hosts;
mod link;
mod matmul;
mod node;
mod product;
mod profile;
pub mod rate_class;
mod residuals;
mod spec;
mod stack;
mod star_time;
mod uplink;

pub use attention_time::{AttentionPass, FusedAttention};
pub use cluster::{Cluster, DeviceId, NodeGroup, NodeId};
pub use curve::Curve;
pub use device::{DeviceKind, FormatRates, PeakFlops, Precision};
pub use error::ClusterError;
pub use group_shape::GroupShape;
pub use hosts::Hosts;
pub use link::{Link, Path};
pub use matmul::{AnalyticMatmul, MatmulPoint, MatmulRates, MeasuredMatmul, Tile};
pub use node::{NodeKind, Torus};
pub use product::ProductSeconds;
pub use profile::{MeasuredOn, Profile};
pub use residuals::{Residuals, StepGroup, StepKind};
pub use stack::{
    Algorithms, Attention, BetweenNodes, Host, Kernels, LibraryAlgorithm, PlanDefaults, Stack,
};
pub use uplink::Uplink;
