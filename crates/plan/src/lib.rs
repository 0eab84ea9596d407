//! The vocabulary of a parallel training plan: everything that may differ between two ways of training
//! the same model.
//!
//! A [`Plan`] is data with a TOML form. It holds no algorithm: what it means for each device is the
//! `program` crate's, how it is found the `search` crate's.

mod averaging;
mod axis_set;
mod compression;
mod device_list;
mod diff;
mod error;
mod even_cut;
mod layout;
mod loss_scale;
mod mesh;
mod negotiation;
mod optimizer;
mod parameter_group;
mod plan;
mod precision;
mod schedule;
mod server_set;
mod servers;
mod sparse;
mod staleness;
mod summation;
mod text;
mod turns;
mod uniform;
mod updates;
mod validate;
mod weights;

pub use averaging::{Averaging, AveragingTime, Partners};
pub use axis_set::AxisSet;
pub use compression::{Compression, UnknownCompression};
pub use device_list::DeviceList;
pub use diff::{Difference, diff};
pub use error::PlanError;
pub use even_cut::{even_cut, even_cuts};
pub use layout::{LayoutRule, LayoutRules};
pub use loss_scale::LossScale;
pub use mesh::{Axis, Mesh};
pub use negotiation::Negotiation;
pub use optimizer::{Kept, Optimizer};
pub use parameter_group::{ParameterGroup, ParameterGroups};
pub use plan::{
    Communication, FORMAT, Pipeline, Plan, Recompute, Stage, Sync, usual_attention, with_attention,
};
pub use precision::{Number, Precision, Rounding};
pub use schedule::{Arrangement, PassTimes, ScheduleKind, greatest_common_divisor};
pub use server_set::ServerSet;
pub use servers::{Push, Servers};
pub use staleness::{Staleness, StalenessLimits};
pub use summation::{Ranges, SendOrder, Share, Summation};
pub use turns::{StageReplicas, pipelines_in_turn};
pub use uniform::Uniform;
pub use updates::Updates;
pub use weights::{Corrections, Prediction, Weights};

pub use shardloom_graph::AttentionKind;
