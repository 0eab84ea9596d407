//! What kernels need besides their operands: one buffer, as large as the most that any of them asks for.
//!
//! It is counted apart from what a program's tensors take.

use std::sync::Arc;

use shardloom_kernels::device::OperandSize;
use shardloom_kernels::{Buffer, Format, Memory};
use shardloom_program::{self as program, Action, ClassId, Instruction, View, Window};

use super::parameters::{Parameters, is_weight};
use super::store::stored;
use super::{Rank, Shared};

/// The scratch of a rank of `class` that updates what `parameters` say.
pub(super) fn allocate(shared: &Shared, class: ClassId, parameters: &Parameters) -> Buffer {
    let device = &shared.device;
    let class = shared.program.class(class);
    // Of what is written piece by piece, as much as a piece.
    let shape = |view: View| match view.window {
        Window::Next { elements } => vec![elements],
        _ => class.shape(view).to_vec(),
    };
    let of = |instruction: &Instruction| match instruction.action {
        Action::Kernel { op, pass, .. } => {
            let all: Vec<(Vec<usize>, Format)> = instruction
                .operands()
                .map(|view| (shape(view), stored(class.tensor(view.tensor).format)))
                .collect();
            let sizes: Vec<OperandSize<'_>> =
                all.iter().map(|(shape, format)| OperandSize { shape, format: *format }).collect();
            let (reads, writes) = sizes.split_at(instruction.reads.len());
            device.scratch_elements(&shared.graph.op(op).kind, pass, reads, writes)
        }
        Action::Optimizer | Action::Statistics { .. } => {
            let gradients = instruction.reads[0].tensor;
            let bucket = class.tensor(gradients).bucket.expect("gradients are a bucket's");
            let format = stored(class.tensor(gradients).format);
            let is_of_rows = class.bucket(bucket).held.replicated.rows().is_some();
            let owned = parameters.owned[bucket.0 as usize].iter();
            let of = owned.map(|it| match is_of_rows {
                true => device.row_update_scratch_elements(parameters.optimizer, &it.piece),
                false => device.update_scratch_elements(it.piece.elements(), format),
            });
            of.max().unwrap_or(0)
        }
        _ => 0,
    };
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let elements = instructions.map(of).max().unwrap_or(0);
    Memory::new(Arc::clone(device)).alloc(Format::F32, elements)
}

/// Where a rank of `class` updates weights of 16 bits that have no fp32 copy: room for the largest part of a parameter
/// that it updates so.
pub(super) fn for_weights(
    shared: &Shared,
    class: ClassId,
    parameters: &Parameters,
) -> Option<Buffer> {
    let class = shared.program.class(class);
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let updates = instructions.filter(|it| it.action == Action::Optimizer);
    let updated = updates.map(|it| class.tensor(it.writes[0].to.tensor));
    let of_16_bits = updated.filter(|it| is_weight(it) && it.format != program::Format::F32);
    let parts =
        of_16_bits.filter_map(|it| it.bucket).flat_map(|it| &parameters.owned[it.0 as usize]);
    let elements = parts.map(|it| it.piece.elements()).max()?;
    Some(Memory::new(Arc::clone(&shared.device)).alloc(Format::F32, elements))
}

impl Rank {
    /// Takes the scratch for an instruction, which puts it back.
    pub(super) fn take_scratch(&mut self) -> Buffer {
        self.scratch.take().expect("one instruction runs at a time")
    }
}
