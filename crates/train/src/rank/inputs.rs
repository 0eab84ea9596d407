//! Loads of the data that a micro-batch begins with.

use half::{bf16, f16};
use shardloom_data::{Field, Part};
use shardloom_graph::ValueId;
use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_kernels::window::cut_box;
use shardloom_program::{Instruction, Layout, Placement};

use super::arena::Room;
use super::link::{Linker, Local, Work};
use super::{At, LinkedInstruction, Rank};
use crate::{Error, Result};

/// A rank's part of one input of a micro-batch, whose first axis is over samples.
pub(crate) struct Load {
    /// What the source of data calls it.
    name: Box<str>,
    global: Box<[usize]>,
    placement: Placement,
    /// Elements of a sample of it.
    row: usize,
    to: Room,
}

impl Load {
    /// Links the load of an input.
    pub(super) fn link(
        linker: &Linker<'_>,
        value: ValueId,
        layout: &Layout,
        instruction: &Instruction,
    ) -> Load {
        let node = linker.shared.graph.value(value);
        let global = linker.extents.shape(&node.axes);
        let placement = layout.placement(&global, &linker.class.mesh, linker.position);
        let row = placement.extent[1..].iter().product();
        let to = linker.room(instruction.writes[0].to.tensor);
        Load { name: node.name.as_str().into(), global: global.into(), placement, row, to }
    }
}

impl Rank {
    /// Writes this device's part of one input of the micro-batch.
    pub(super) fn load(&mut self, load: &Load, at: At) -> Result<()> {
        let Load { name, global, placement, row, to } = load;
        let mut rounded = std::mem::take(&mut self.rounded);
        let mut room = std::mem::take(&mut self.sample);
        let (start, extent) = (&placement.start[1..], &placement.extent[1..]);
        let mut buffer = self.arena.take(to, at);
        let first = match self.now.part {
            Part::Training => {
                u64::from(at.microbatch()) * self.shared.program.microbatch_samples as u64
            }
            Part::Validation => 0,
        };
        for (index, sample) in placement.range(0).enumerate() {
            let position = self.now.first_sample + first + sample as u64;
            let missing = || Error::Input { input: name.to_string(), position };
            let field = self.shared.source.field(self.now.part, position, name, &mut room)?;
            let part = index * row..(index + 1) * row;
            let field = field.ok_or_else(missing)?;
            let mut copied = None;
            self.device().lend(buffer.view_mut().slice(part), &mut |row| {
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
                    (Field::Reals(from), HostSliceMut::F16(row)) => {
                        rounded.clear();
                        rounded.extend(from.iter().map(|&value| f16::from_f32(value).to_bits()));
                        copy_part(&rounded, &global[1..], start, extent, row)
                    }
                    _ => None,
                };
            });
            copied.ok_or_else(missing)?;
        }
        (self.rounded, self.sample) = (rounded, room);
        self.store.put(to.slot, at, buffer);
        Ok(())
    }

    /// Writes an input by hand, at the instruction that would load it.
    pub(crate) fn write_indices(
        &mut self,
        instruction: &LinkedInstruction,
        at: At,
        indices: &[u32],
    ) {
        let Work::Local(Local::Load(Load { to, .. })) = &instruction.work else {
            panic!("inputs are written where they are loaded")
        };
        let mut buffer = self.arena.take(to, at);
        self.device().upload(HostSlice::U32(indices), buffer.view_mut());
        self.store.put(to.slot, at, buffer);
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
