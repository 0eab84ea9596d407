//! Kernels: the arithmetic of training, and the devices that do it.
//!
//! A [`Device`] is what computes: it offers operations on [`View`]s of [`Buffer`]s, which come from a
//! rank's [`Memory`] on it, and nobody else knows what their elements are. [`Processor`] is the device that
//! is here; another is another implementation of the trait, in any crate.
//!
//! The processor's kernels are functions over plain slices, one thread, single precision. Each operator has
//! a forward function, a function for the gradients of its inputs and one for those of its weights, so that
//! the two halves of a backward pass can be scheduled apart. They write into what they are given and
//! allocate nothing, but for the 1.3 MB in which a thread packs matrix products. Operands of 16 bits are
//! widened before, but for what linear layers, experts and attention multiply in bfloat16 where the processor does
//! that faster; what a kernel writes in 16 bits is rounded afterwards, or as it is computed, once for each tensor.
//!
//! Kernels use the best instructions of the processor. `SHARDLOOM_KERNELS=portable`, `avx2`,
//! `avx512`, `avx512-bf16` or `amx` in the environment makes them use others: see [`tier`].
//!
//! Slices whose lengths contradict each other are a mistake of the caller, never of a user, and
//! panic with the lengths in the message.
//!
//! ```
//! use shardloom_kernels::{Combine, Format, Memory, processor};
//!
//! let device = processor();
//! let memory = Memory::new(device.clone());
//! let [mut sum, mut part] = [(); 2].map(|()| memory.alloc(Format::Bf16, 2));
//! device.set_reals(&[1.0, 2.0], sum.view_mut());
//! device.set_reals(&[10.0, 20.0], part.view_mut());
//! device.combine(sum.view_mut(), part.view(), Combine::Sum);
//! assert_eq!(device.reals(sum.view()), [11.0, 22.0]);
//! assert_eq!(memory.live_bytes(), 8);
//! ```
#![warn(missing_docs)]
#![allow(
    clippy::too_many_arguments,
    reason = "a kernel names each tensor it reads and writes; a struct would only repeat the list"
)]

pub mod activation;
pub mod attention;
pub mod compression;
pub mod concat;
pub mod cross_entropy;
pub mod device;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod expert_contract;
pub mod interaction;
pub mod layer_norm;
pub mod lstm;
pub mod matmul;
pub mod optimizer;
pub mod random;
pub mod reduce;
pub mod rms_norm;
pub mod rotary;
pub mod routing;
pub mod rows;
pub mod sampled_cross_entropy;
pub mod sigmoid_cross_entropy;
pub mod soft_cap;
pub mod tier;
pub mod window;

mod arena;
mod arithmetic;
mod combine;
mod dispatch;
mod elementary;
mod gemm;
mod memory;
mod processor;
mod simd;
mod view;

pub use arithmetic::Arithmetic;
pub use device::{Combine, Device};
pub use memory::{Buffer, Memory, Occupied};
pub use processor::{Processor, processor};
pub use shardloom_fabric::Format;
pub use tier::{Tier, TierError};
pub use view::{View, ViewMut};
