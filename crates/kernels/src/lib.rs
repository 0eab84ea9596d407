//! Kernels: the arithmetic of training, one thread, single precision, over plain slices.
//!
//! Each operator has a forward function, a function for the gradients of its inputs and one for
//! those of its weights, so that the two halves of a backward pass can be scheduled apart. Storage
//! is a [`Buffer`] from a rank's [`Memory`], which reuses blocks and counts bytes; kernels write
//! into what they are given and allocate nothing, but for the 1.3 MB in which a thread packs matrix
//! products.
//!
//! Kernels use the best instructions of the processor. `SHARDLOOM_KERNELS=portable`, `avx2` or
//! `avx512` in the environment makes them use others: see [`tier`].
//!
//! Slices whose lengths contradict each other are a mistake of the caller, never of a user, and
//! panic with the lengths in the message.
//!
//! ```
//! use shardloom_kernels::matmul::{Linear, WeightLayout, linear};
//! use shardloom_kernels::{DType, Memory};
//!
//! let memory = Memory::new();
//! let mut y = memory.alloc(DType::F32, 2);
//! let shape = Linear { rows: 1, inputs: 2, outputs: 2, layout: WeightLayout::InputsByOutputs };
//! linear(shape, &[1.0, 2.0], &[1.0, 0.0, 0.0, 1.0], Some(&[10.0, 20.0]), y.as_f32_mut());
//! assert_eq!(y.as_f32(), [11.0, 22.0]);
//! assert_eq!(memory.live_bytes(), 8);
//! ```
#![warn(missing_docs)]
#![allow(
    clippy::too_many_arguments,
    reason = "a kernel names each tensor it reads and writes; a struct would only repeat the list"
)]

pub mod activation;
pub mod attention;
pub mod concat;
pub mod cross_entropy;
pub mod dispatch;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod expert_contract;
pub mod layer_norm;
pub mod matmul;
pub mod optimizer;
pub mod random;
pub mod reduce;
pub mod rms_norm;
pub mod rotary;
pub mod routing;
pub mod tier;
pub mod window;

mod arena;
mod elementary;
mod gemm;
mod memory;
mod simd;

pub use memory::{Buffer, DType, Memory, Occupied};
pub use tier::{Tier, TierError};
