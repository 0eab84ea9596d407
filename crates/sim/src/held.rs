//! What software holds of a device's memory besides the plan's tensors.

use serde::{Deserialize, Serialize};
use shardloom_cluster::Stack;
use shardloom_plan::Precision;
use shardloom_program::{Class, Program};

/// Bytes that an instruction takes besides the program's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraBytes {
    /// While it runs.
    pub workspace: u64,
    /// Of a forward pass: from when it runs until its operator's backward pass has.
    pub saved: u64,
}

/// Bytes of the copies that `stack` makes of an element of a parameter's gradient, where there are replicas if it is
/// `replicated`.
pub(crate) fn copy_bytes(stack: &Stack, precision: Precision, replicated: bool) -> usize {
    let memory = stack.memory;
    let separate = memory.separate_gradients && precision.gradients != precision.compute;
    let copies = usize::from(separate) + usize::from(memory.reduction_buckets && replicated);
    copies * precision.compute.bytes()
}

/// Bytes that each rank of `class` holds all the time for copies of its gradients.
pub(crate) fn copies_bytes(stack: &Stack, program: &Program, class: &Class) -> u64 {
    let bytes = class.buckets.iter().map(|bucket| {
        let replicated = class.mesh.span(&bucket.replicas) > 1;
        bucket.elements * copy_bytes(stack, program.precision, replicated)
    });
    bytes.sum::<usize>() as u64
}
