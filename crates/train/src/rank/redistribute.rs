//! Changes of layout: what is local of them. Collectives see chunks side by side; tensors may have them
//! interleaved along any axis.

use shardloom_kernels::window::{PerAxis, cut_box, place_box};
use shardloom_kernels::{Buffer, DType};
use shardloom_plan::Axis;
use shardloom_program::{Change, Instruction, Operand, SlotId, Tenant};
use smallvec::smallvec;

use super::Rank;

impl Rank {
    /// Keeps this device's part along a tensor axis.
    pub(super) fn slice(
        &mut self,
        change: Change,
        axis: Axis,
        instruction: &Instruction,
        microbatch: u32,
    ) {
        let Change::Slice { axis: along } = change else {
            unreachable!("{change:?} involves other ranks")
        };
        let (from, to) = ends(instruction);
        let shape = &self.class().slot(to).shape;
        let mut start: PerAxis = smallvec![0; shape.len()];
        start[along] = self.class().mesh.coordinate(self.position, axis) * shape[along];
        let whole = &self.class().slot(from).shape;
        let tenant = Tenant::Slot(to, Some(microbatch));
        let mut part = self.arena.take(tenant, DType::F32, shape.iter().product());
        let source = self.slots.get(from, microbatch).as_f32();
        cut_box(source, whole, &start, part.as_f32_mut(), shape);
        self.slots.put(to, microbatch, part);
    }

    /// The buffer this rank brings into a collective change of layout.
    pub(super) fn bring(
        &mut self,
        change: Change,
        axis: Axis,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Buffer {
        let (from, to) = ends(instruction);
        let width = self.class().mesh.width(axis);
        let index = self.class().mesh.coordinate(self.position, axis);
        let shape = |slot| PerAxis::from_slice(&self.class().slot(slot).shape);
        let (read, written) = (shape(from), shape(to));
        let (result, staging) = tenants(to, microbatch);
        // What is made whole as it lies needs no staging: it becomes the result.
        let brought = if self.arena.expects(staging) { staging } else { result };
        match change {
            Change::Slice { .. } => unreachable!("slices are local"),
            Change::AllReduce(_) => match instruction.frees.contains(&from) {
                true => self.slots.take(from, microbatch).expect("read slots are held"),
                false => {
                    let source = self.slots.get(from, microbatch);
                    let mut copy = self.arena.take(result, DType::F32, source.len());
                    copy.as_f32_mut().copy_from_slice(source.as_f32());
                    copy
                }
            },
            Change::AllGather { .. } => {
                let source = self.slots.get(from, microbatch);
                let mut buffer = self.arena.take(brought, DType::F32, source.len() * width);
                let own = index * source.len()..(index + 1) * source.len();
                buffer.as_f32_mut()[own].copy_from_slice(source.as_f32());
                buffer
            }
            Change::ReduceScatter { axis: along, .. } => {
                let source = self.slots.get(from, microbatch);
                let buffer = self.arena.take(brought, DType::F32, source.len());
                split(buffer, source, &read, &written, along)
            }
            Change::AllToAll { to: along, .. } => {
                let source = self.slots.get(from, microbatch);
                let mut chunk = read.clone();
                chunk[along] /= width;
                let buffer = self.arena.take(brought, DType::F32, source.len());
                split(buffer, source, &read, &chunk, along)
            }
        }
    }

    /// Makes the written tensor of what a collective change of layout left in `buffer`.
    pub(super) fn settle(
        &mut self,
        change: Change,
        axis: Axis,
        instruction: &Instruction,
        microbatch: u32,
        buffer: Buffer,
    ) {
        let (from, to) = ends(instruction);
        let class = self.class();
        let index = class.mesh.coordinate(self.position, axis);
        let read = &class.slot(from).shape;
        let written = &class.slot(to).shape;
        let (tenant, staging) = tenants(to, microbatch);
        let elements = written.iter().product();
        let place = || self.arena.take(tenant, DType::F32, elements);
        let result = match change {
            Change::Slice { .. } => unreachable!("slices are local"),
            Change::AllReduce(_) => buffer,
            Change::AllGather { .. } | Change::AllToAll { .. } if !self.arena.expects(staging) => {
                buffer
            }
            Change::AllGather { axis: along } => join(place(), buffer, read, written, along),
            Change::ReduceScatter { .. } => {
                let mut own = place();
                let at = index * elements..(index + 1) * elements;
                own.as_f32_mut().copy_from_slice(&buffer.as_f32()[at]);
                own
            }
            Change::AllToAll { from: along, to: apart } => {
                let mut chunk = PerAxis::from_slice(written);
                chunk[along] = read[along];
                debug_assert_eq!(chunk[apart] * class.mesh.width(axis), read[apart]);
                join(place(), buffer, &chunk, written, along)
            }
        };
        self.slots.put(to, microbatch, result);
    }
}

fn ends(instruction: &Instruction) -> (SlotId, SlotId) {
    match (instruction.reads[0], instruction.writes[0].to) {
        (Operand::Slot(from), Operand::Slot(to)) => (from, to),
        _ => unreachable!("layouts of slots change, parameters keep theirs"),
    }
}

/// The tenants of the slot that a change of layout writes, and of what it needs beside.
fn tenants(written: SlotId, microbatch: u32) -> (Tenant, Tenant) {
    (Tenant::Slot(written, Some(microbatch)), Tenant::Staging(written, Some(microbatch)))
}

/// Cuts a tensor of shape `whole` along one axis into chunks of shape `chunk`, side by side in `buffer`.
fn split(
    mut buffer: Buffer,
    source: &Buffer,
    whole: &[usize],
    chunk: &[usize],
    along: usize,
) -> Buffer {
    let mut start: PerAxis = smallvec![0; whole.len()];
    let elements: usize = chunk.iter().product();
    for (index, part) in buffer.as_f32_mut().chunks_exact_mut(elements).enumerate() {
        start[along] = index * chunk[along];
        cut_box(source.as_f32(), whole, &start, part, chunk);
    }
    buffer
}

/// Joins chunks of shape `chunk`, side by side in `buffer`, along one axis into `joined`.
fn join(
    mut joined: Buffer,
    buffer: Buffer,
    chunk: &[usize],
    whole: &[usize],
    along: usize,
) -> Buffer {
    let mut start: PerAxis = smallvec![0; whole.len()];
    let elements: usize = chunk.iter().product();
    for (index, part) in buffer.as_f32().chunks_exact(elements).enumerate() {
        start[along] = index * chunk[along];
        place_box(part, chunk, joined.as_f32_mut(), whole, &start);
    }
    joined
}
