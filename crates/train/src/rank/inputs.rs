//! Loads of the data that a micro-batch begins with.

use std::collections::BTreeMap;

use half::bf16;
use shardloom_data::{Field, Part};
use shardloom_graph::{Extents, Graph, ValueId};
use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_kernels::window::cut_box;
use shardloom_program::{Action, Class, Instruction, Placement, TensorId, View};

use super::Rank;
use crate::{Error, Result};

/// The parts of inputs that a rank loads, by the tensors that they go to.
pub(super) struct Inputs {
    shares: BTreeMap<TensorId, Share>,
    /// Room for a sample that is rounded.
    rounded: Vec<u16>,
}

/// A rank's part of one input of a micro-batch, whose first axis is over samples.
struct Share {
    global: Vec<usize>,
    placement: Placement,
}

impl Inputs {
    /// Those of `position` in `class`, of micro-batches of these extents.
    pub fn new(graph: &Graph, extents: &Extents, class: &Class, position: usize) -> Inputs {
        let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
        let share = |instruction: &Instruction| {
            let Action::Load { value, layout } = &instruction.action else { return None };
            let global = extents.shape(&graph.value(*value).axes);
            let placement = layout.placement(&global, &class.mesh, position);
            Some((instruction.writes[0].to.tensor, Share { global, placement }))
        };
        Inputs { shares: instructions.filter_map(share).collect(), rounded: vec![] }
    }
}

impl Rank {
    /// Writes this device's part of one input of the micro-batch.
    pub(super) fn load(
        &mut self,
        value: ValueId,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<()> {
        let node = self.shared.graph.value(value);
        let tensor = instruction.writes[0].to.tensor;
        let mut rounded = std::mem::take(&mut self.inputs.rounded);
        let Share { global, placement } = &self.inputs.shares[&tensor];
        let (start, extent) = (&placement.start[1..], &placement.extent[1..]);
        let mut buffer = self.arena.take(tensor, placement.elements());
        let row = extent.iter().product::<usize>();
        let first = match self.now.part {
            Part::Training => u64::from(microbatch) * self.shared.program.microbatch_samples as u64,
            Part::Validation => 0,
        };
        for (index, sample) in placement.range(0).enumerate() {
            let position = self.now.first_sample + first + sample as u64;
            let missing = || Error::Input { input: node.name.clone(), position };
            let field = self.shared.source.field(self.now.part, position, &node.name);
            let at = index * row..(index + 1) * row;
            let field = field.ok_or_else(missing)?;
            let mut copied = None;
            self.device().lend(buffer.view_mut().slice(at), &mut |row| {
                copied = match (&field, row) {
                    (Field::Indices(from), HostSliceMut::U32(row)) => {
                        copy_part(from, &global[1..], start, extent, row)
                    }
                    (Field::Reals(from), HostSliceMut::F32(row)) => {
                        copy_part(from, &global[1..], start, extent, row)
                    }
                    (Field::Reals(from), HostSliceMut::Bf16(row)) => {
                        rounded.clear();
                        rounded.extend(from.iter().map(|&value| bf16::from_f32(value).to_bits()));
                        copy_part(&rounded, &global[1..], start, extent, row)
                    }
                    _ => None,
                };
            });
            copied.ok_or_else(missing)?;
        }
        self.inputs.rounded = rounded;
        self.store.put(tensor, microbatch, buffer);
        Ok(())
    }

    /// Writes an input of the first micro-batch by hand.
    pub(crate) fn write_indices(&mut self, to: View, indices: &[u32]) {
        let mut buffer = self.arena.take(to.tensor, indices.len());
        self.device().upload(HostSlice::U32(indices), buffer.view_mut());
        self.store.put(to.tensor, 0, buffer);
    }
}

/// Copies a part of a row-major tensor of shape `shape`; none if `from` has another size.
fn copy_part<T: Copy>(
    from: &[T],
    shape: &[usize],
    start: &[usize],
    extent: &[usize],
    to: &mut [T],
) -> Option<()> {
    if from.len() != shape.iter().product::<usize>() {
        return None;
    }
    cut_box(from, shape, start, to, extent);
    Some(())
}
