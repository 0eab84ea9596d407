//! Lowering of a plan to per-device programs: what each device does, in which order.
//!
//! The *same* [`Program`] is simulated and executed. It has two levels: [`Body`] is a run of
//! instructions with local shapes (a stage's forward pass of one micro-batch, say), and each class's
//! `control` orders bodies over a step. Ranks that do the same on different data are one [`Class`] with
//! as many positions, so 16,384 replicas cost as much as one.

pub mod buffers;
pub mod quantity;
pub mod sync;
pub mod text;
pub mod timeline;
pub mod verify;

mod allocation;
mod assignment;
mod class;
mod control;
mod eight_bits;
mod error;
mod instruction;
mod label;
mod layout;
mod live_copies;
mod lower;
mod matrix;
mod measured_rows;
mod memory;
mod outstanding;
mod partner;
mod queue;
mod redistribution;
mod ring;
mod route;
mod row_exchange;
mod table_rows;
mod tensor;
mod traffic;

pub use allocation::Allocation;
pub use assignment::Assignment;
pub use class::{
    Apart, Body, BodyId, BodyKind, Bucket, BucketId, Class, ClassId, HeldStage, ParamId, Part,
    Program, Rank, ServedRange, WeightParam,
};
pub use control::{Client, Control, Cursor, Entry, Guard, Handler, Next, Run, Serve, When};
pub use eight_bits::multiplies_in_8_bits;
pub use error::ProgramError;
pub use instruction::{Action, Collective, Group, Instruction};
pub use layout::{Layout, Placement};
pub use lower::{NeededGradients, lower, lower_with};
pub use matrix::Matrix;
pub use measured_rows::MeasuredRows;
pub use memory::{MemoryTracker, MemoryUse, PersistentBytes};
pub use outstanding::{Issued, Outstanding};
pub use queue::{Point, Queue};
pub use ring::Ring;
pub use route::{Carried, Message, Priority, Route, RouteId};
pub use row_exchange::RowExchange;
pub use table_rows::{TableRows, drawn_share};
pub use tensor::{
    Content, Copies, Counted, Extent, Format, Initial, Keep, Mode, Shape, Tensor, TensorId, View,
    Window, Write, overlap,
};
pub use traffic::Exchange;
