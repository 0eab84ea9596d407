//! Changes of layout: what is local of them. Collectives see chunks side by side; tensors may have them
//! interleaved along any axis.

use shardloom_kernels::device::BoxOf;
use shardloom_kernels::window::PerAxis;
use shardloom_kernels::{Buffer, Device};
use shardloom_plan::Axis;
use shardloom_program::{Action, Collective, Content, Group, Instruction, TensorId};
use smallvec::smallvec;

use super::Rank;

impl Rank {
    /// Keeps this device's part along a tensor axis.
    pub(super) fn slice(
        &mut self,
        along: usize,
        over: Axis,
        instruction: &Instruction,
        microbatch: u32,
    ) {
        let (from, to) = ends(instruction);
        let shape = self.class().tensor(to).local_shape();
        let mut start: PerAxis = smallvec![0; shape.len()];
        start[along] = self.class().mesh.coordinate(self.position, over) * shape[along];
        let whole = self.class().tensor(from).local_shape();
        let mut part = self.arena.take(to, shape.iter().product());
        let origin: PerAxis = smallvec![0; shape.len()];
        let source = self.store.get(from, microbatch).view();
        self.device().copy_box(
            BoxOf { elements: source, shape: whole, start: &start },
            BoxOf { elements: part.view_mut(), shape, start: &origin },
            shape,
        );
        self.store.put(to, microbatch, part);
    }

    /// The place of this rank among those that it changes a layout with, and how many they are.
    pub(super) fn place_in_group(&self, instruction: &Instruction) -> (usize, usize) {
        let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action else {
            unreachable!("layouts change within a mesh")
        };
        let mesh = &self.class().mesh;
        (mesh.index_along(self.position, axes), mesh.span(axes))
    }

    /// The buffer this rank brings into a collective change of layout.
    pub(super) fn bring(
        &mut self,
        kind: Collective,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Buffer {
        let (from, to) = ends(instruction);
        let (index, width) = self.place_in_group(instruction);
        let shape = |it| PerAxis::from_slice(self.class().tensor(it).local_shape());
        let (read, written) = (shape(from), shape(to));
        // What is made whole as it lies needs no staging: it becomes the result.
        let brought = staging(instruction).unwrap_or(to);
        match kind {
            Collective::AllReduce(_) => match instruction.frees.contains(&from) {
                true => self.store.take(from, microbatch).expect("read tensors are held"),
                false => {
                    let source = self.store.get(from, microbatch);
                    let mut copy = self.arena.take(to, source.len());
                    self.device().copy(source.view(), copy.view_mut());
                    copy
                }
            },
            Collective::AllGather { .. } => {
                let source = self.store.get(from, microbatch);
                let mut buffer = self.arena.take(brought, source.len() * width);
                let own = index * source.len()..(index + 1) * source.len();
                self.device().copy(source.view(), buffer.view_mut().slice(own));
                buffer
            }
            Collective::ReduceScatter { axis: along, .. } => {
                let source = self.store.get(from, microbatch);
                let buffer = self.arena.take(brought, source.len());
                split(&**self.device(), buffer, source, &read, &written, along)
            }
            Collective::AllToAll { to: along, .. } => {
                let source = self.store.get(from, microbatch);
                let mut chunk = read.clone();
                chunk[along] /= width;
                let buffer = self.arena.take(brought, source.len());
                split(&**self.device(), buffer, source, &read, &chunk, along)
            }
        }
    }

    /// Where the written tensor of a collective change of layout is to be, if not where the collective leaves
    /// it.
    pub(super) fn result_place(&self, instruction: &Instruction) -> Option<Buffer> {
        let Action::Collective { kind, .. } = instruction.action else { return None };
        let to = instruction.writes[0].to.tensor;
        let class = self.class();
        if instruction.moves_rows(class) {
            return self.rows_place(instruction);
        }
        let stays = match kind {
            _ if class.tensor(to).content != Content::Activation => true,
            Collective::AllReduce(_) => true,
            Collective::AllGather { .. } | Collective::AllToAll { .. } => {
                staging(instruction).is_none()
            }
            Collective::ReduceScatter { .. } => false,
        };
        let elements = class.tensor(to).local_shape().iter().product();
        (!stays).then(|| self.arena.take(to, elements))
    }

    /// Makes the written tensor of what a collective change of layout left in `buffer`, at its place.
    pub(super) fn settle(
        &mut self,
        kind: Collective,
        instruction: &Instruction,
        microbatch: u32,
        (buffer, place): (Buffer, Option<Buffer>),
    ) {
        let (from, to) = ends(instruction);
        let class = self.class();
        let (index, width) = self.place_in_group(instruction);
        let read = class.tensor(from).local_shape();
        let written = class.tensor(to).local_shape();
        let elements: usize = written.iter().product();
        let device = &**self.device();
        let result = match (place, kind) {
            (None, _) | (_, Collective::AllReduce(_)) => buffer,
            (Some(place), Collective::AllGather { axis: along }) => {
                join(device, place, buffer, read, written, along)
            }
            (Some(mut own), Collective::ReduceScatter { .. }) => {
                let at = index * elements..(index + 1) * elements;
                device.copy(buffer.view().slice(at), own.view_mut());
                own
            }
            (Some(place), Collective::AllToAll { from: along, to: apart }) => {
                let mut chunk = PerAxis::from_slice(written);
                chunk[along] = read[along];
                debug_assert_eq!(chunk[apart] * width, read[apart]);
                join(device, place, buffer, &chunk, written, along)
            }
        };
        self.store.put(to, microbatch, result);
    }
}

fn ends(instruction: &Instruction) -> (TensorId, TensorId) {
    (instruction.reads[0].tensor, instruction.writes[0].to.tensor)
}

/// Where parts lie side by side during a change of layout, if it needs that.
fn staging(instruction: &Instruction) -> Option<TensorId> {
    instruction.writes.get(1).map(|write| write.to.tensor)
}

/// Cuts a tensor of shape `whole` along one axis into chunks of shape `chunk`, side by side in `buffer`.
fn split(
    device: &dyn Device,
    mut buffer: Buffer,
    source: &Buffer,
    whole: &[usize],
    chunk: &[usize],
    along: usize,
) -> Buffer {
    let mut start: PerAxis = smallvec![0; whole.len()];
    let origin = start.clone();
    let elements: usize = chunk.iter().product();
    for index in 0..buffer.len() / elements.max(1) {
        start[along] = index * chunk[along];
        let part = buffer.view_mut().slice(index * elements..(index + 1) * elements);
        device.copy_box(
            BoxOf { elements: source.view(), shape: whole, start: &start },
            BoxOf { elements: part, shape: chunk, start: &origin },
            chunk,
        );
    }
    buffer
}

/// Joins chunks of shape `chunk`, side by side in `buffer`, along one axis into `joined`.
fn join(
    device: &dyn Device,
    mut joined: Buffer,
    buffer: Buffer,
    chunk: &[usize],
    whole: &[usize],
    along: usize,
) -> Buffer {
    let mut start: PerAxis = smallvec![0; whole.len()];
    let origin = start.clone();
    let elements: usize = chunk.iter().product();
    for index in 0..buffer.len() / elements.max(1) {
        start[along] = index * chunk[along];
        let part = buffer.view().slice(index * elements..(index + 1) * elements);
        device.copy_box(
            BoxOf { elements: part, shape: chunk, start: &origin },
            BoxOf { elements: joined.view_mut(), shape: whole, start: &start },
            chunk,
        );
    }
    joined
}
