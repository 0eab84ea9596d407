//! The model as a static operator graph with named dimensions.
//!
//! Every tensor axis carries a [`DimId`], every operator a [`Signature`]: the loops it runs over,
//! which axis of which operand each loop indexes, and what splitting a loop means. Layouts, gradient
//! layouts, FLOPs and bytes all derive from that one table. There is no tape: for every forward
//! operator [`gradient::rule`] says which values its input-gradient and weight-gradient operators
//! read, so memory is counted exactly and recomputation is a choice per value.
//!
//! The graph knows nothing of devices, and its `batch` dimension has no size of its own: whoever asks
//! for shapes brings [`Extents`].

pub mod builder;
pub mod dim;
mod document_mask;
pub mod families;
pub mod gradient;
pub mod op;
pub mod signature;
pub mod spec;
pub mod value;
pub mod work;

mod block_kind;
mod classes;
mod error;
mod fused_attention;
mod model;
mod representative;
mod tables;

pub use builder::GraphBuilder;
pub use classes::SampleClasses;
pub use dim::{Dim, DimId, Extents};
pub use error::GraphError;
pub use fused_attention::AttentionKind;
pub use model::{Block, BlockId, Graph};
pub use op::{Op, OpId, OpKind};
pub use representative::Representative;
pub use signature::{Loop, Reduction, Signature, Split};
pub use spec::{ModelSpec, Network};
pub use value::{DType, Init, Parameter, Role, Value, ValueId};
