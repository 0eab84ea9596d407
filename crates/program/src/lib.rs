//! Lowering of a plan to per-device programs: what each device does, in which order.
//!
//! The *same* [`Program`] is simulated and executed. It has two levels: [`Body`] is a run of
//! instructions with local shapes (a stage's forward pass of one micro-batch, say), and each class's
//! `stream` orders bodies over a step. Ranks that do the same on different data are one [`Class`] with
//! as many positions, so 16,384 replicas cost as much as one.

pub mod buffers;
pub mod quantity;
pub mod schedule;
pub mod timeline;

mod assignment;
mod class;
mod error;
mod instruction;
mod label;
mod layout;
mod lower;
mod memory;
mod redistribution;
mod route;
mod tenant;
mod traffic;

pub use assignment::Assignment;
pub use class::{
    Body, BodyId, BodyKind, Bucket, BucketId, Class, ClassId, HeldStage, ParamId, Part, Program,
    Rank, Shard, Slot, SlotId, StreamItem, WeightParam,
};
pub use error::ProgramError;
pub use instruction::{Action, Change, Group, Instruction, Operand, Write};
pub use layout::{Layout, Placement};
pub use lower::lower;
pub use memory::{Ledger, MemoryUse, PersistentBytes};
pub use route::{Cargo, Message, Route, RouteId};
pub use tenant::Tenant;
pub use traffic::Exchange;
