//! From a graph operator's pass to its kernel.
//!
//! The one place that knows both the graph's operators and the kernels' signatures. A caller brings the
//! tensors in the order the graph's tables list them and says where the device's part of each loop
//! begins.

mod arguments;
mod chunking;
mod formats;
mod forward;
mod input_gradient;
mod operand;
mod scratch;
mod weight_gradient;

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

use crate::device::Setting;
pub(crate) use chunking::{Chunking, Unit, chunking};
pub(crate) use formats::{InBf16, in_bf16, unread};
use forward::forward;
use input_gradient::input_gradient;
pub(crate) use operand::{Data, DataMut, Input, Output};
pub(crate) use scratch::scratch_elements;
use weight_gradient::weight_gradient;

/// Runs `pass` of an operator of kind `kind`, with as much `scratch` as [`scratch_elements`] says. Reads and
/// writes stand in the order of the operator's inputs and outputs (forward), or of its gradient rule's reads
/// and produced gradients. The mask of what a forward pass drops has been drawn.
///
/// # Panics
/// If the tensors are not those of the pass: a mistake of the caller, never of a user.
pub(crate) fn run(
    kind: &OpKind,
    pass: Pass,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    match pass {
        Pass::Forward => forward(kind, reads, writes, setting, scratch),
        Pass::Input => input_gradient(kind, reads, writes, setting, scratch),
        Pass::Weight => weight_gradient(kind, reads, writes, setting, scratch),
    }
}
