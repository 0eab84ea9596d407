//! Changes of layout: what is local of them. Collectives see chunks side by side; tensors may have them
//! interleaved along any axis.

use shardloom_kernels::device::BoxOf;
use shardloom_kernels::window::PerAxis;
use shardloom_kernels::{Buffer, Device};
use shardloom_plan::Axis;
use shardloom_program::{Collective, Group, Instruction};
use smallvec::smallvec;

use super::arena::Room;
use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// The part of a tensor that a rank keeps.
pub(crate) struct Slice {
    from: Slot,
    whole: Box<[usize]>,
    start: Box<[usize]>,
    to: Room,
    shape: Box<[usize]>,
}

/// A change of layout by a collective.
pub(super) struct Change {
    from: Slot,
    /// Where the rank's part is brought.
    brought: Brought,
    /// Where the result is.
    to: Slot,
    /// Where the result is made of what the collective leaves, if not there.
    result: Option<(Room, Made)>,
}

/// What a rank brings.
enum Brought {
    /// What it holds and nobody reads afterwards.
    Held,
    /// A copy of it.
    Copied(Room),
    /// It, as the n-th chunk.
    Chunk(Room, usize),
    /// It, cut into chunks.
    Cut(Room, Chunks),
}

/// What is made of what a collective leaves.
enum Made {
    /// The n-th chunk of it.
    Chunk(usize),
    /// A tensor, of which it is the chunks.
    Joined(Chunks),
}

/// A tensor in chunks along an axis, which lie side by side.
struct Chunks {
    whole: Box<[usize]>,
    chunk: Box<[usize]>,
    along: usize,
}

impl Slice {
    /// Links what keeps the rank's part along a tensor axis.
    pub(super) fn link(
        linker: &Linker<'_>,
        along: usize,
        over: Axis,
        instruction: &Instruction,
    ) -> Slice {
        let Linker { class, position, .. } = *linker;
        let (read, write) = (instruction.reads[0], instruction.writes[0].to);
        let shape = class.tensor(write.tensor).local_shape();
        let mut start: Box<[usize]> = vec![0; shape.len()].into();
        start[along] = class.mesh.coordinate(position, over) * shape[along];
        Slice {
            from: linker.slot(read),
            whole: class.tensor(read.tensor).local_shape().into(),
            start,
            to: linker.room(write.tensor),
            shape: shape.into(),
        }
    }
}

impl Change {
    /// Links a change of layout.
    pub fn link(
        linker: &Linker<'_>,
        kind: Collective,
        group: &Group,
        instruction: &Instruction,
    ) -> Change {
        let (from, to) = (instruction.reads[0].tensor, instruction.writes[0].to.tensor);
        let (index, width) = linker.place_in_group(group);
        let shape = |tensor| linker.class.tensor(tensor).local_shape();
        let (read, written) = (shape(from), shape(to));
        // What is made whole as it lies needs no staging: it becomes the result.
        let staging = instruction.writes.get(1).map(|write| write.to.tensor);
        let room = || linker.room(staging.unwrap_or(to));
        let chunks = |whole: &[usize], chunk: &[usize], along: usize| Chunks {
            whole: whole.into(),
            chunk: chunk.into(),
            along,
        };
        let brought = match kind {
            Collective::AllReduce(_) if instruction.frees.contains(&from) => Brought::Held,
            Collective::AllReduce(_) => Brought::Copied(linker.room(to)),
            Collective::AllGather { .. } => Brought::Chunk(room(), index),
            Collective::ReduceScatter { axis: along, .. } => {
                Brought::Cut(room(), chunks(read, written, along))
            }
            Collective::AllToAll { to: along, .. } => {
                let mut chunk = read.to_vec();
                chunk[along] /= width;
                Brought::Cut(room(), chunks(read, &chunk, along))
            }
        };
        let made = match kind {
            Collective::AllReduce(_) => None,
            Collective::ReduceScatter { .. } => Some(Made::Chunk(index)),
            Collective::AllGather { axis: along } => {
                staging.map(|_| Made::Joined(chunks(written, read, along)))
            }
            Collective::AllToAll { from: along, to: apart } => staging.map(|_| {
                let mut chunk = written.to_vec();
                chunk[along] = read[along];
                debug_assert_eq!(chunk[apart] * width, read[apart]);
                Made::Joined(chunks(written, &chunk, along))
            }),
        };
        let result = made.map(|made| (linker.room(to), made));
        let slot = |tensor| linker.store.slot(tensor);
        Change { from: slot(from), brought, to: slot(to), result }
    }
}

impl Rank {
    /// Keeps this device's part along a tensor axis.
    pub(super) fn slice(&mut self, slice: &Slice, at: At) {
        let Slice { from, whole, start, to, shape } = slice;
        let mut part = self.arena.take(to, at);
        let origin: PerAxis = smallvec![0; shape.len()];
        let source = self.store.get(*from, at).view();
        self.device().copy_box(
            BoxOf { elements: source, shape: whole, start },
            BoxOf { elements: part.view_mut(), shape, start: &origin },
            shape,
        );
        self.store.put(to.slot, at, part);
    }

    /// The buffer this rank brings into a collective change of layout.
    pub(super) fn bring(&mut self, change: &Change, at: At) -> Buffer {
        if let Brought::Held = change.brought {
            return self.store.take(change.from, at).expect("read tensors are held");
        }
        if let Brought::Chunk(room, index) = &change.brought {
            // What lasts is there.
            let there = self.store.take(room.slot, at);
            let mut buffer = there.unwrap_or_else(|| self.arena.take(room, at));
            let source = self.store.get(change.from, at);
            let own = index * source.len()..(index + 1) * source.len();
            self.device().copy(source.view(), buffer.view_mut().slice(own));
            return buffer;
        }
        let (device, source) = (self.device(), self.store.get(change.from, at));
        match &change.brought {
            Brought::Held | Brought::Chunk(..) => unreachable!("it was taken"),
            Brought::Copied(room) => {
                let mut copy = self.arena.take(room, at);
                device.copy(source.view(), copy.view_mut());
                copy
            }
            Brought::Cut(room, chunks) => {
                let mut buffer = self.arena.take(room, at);
                chunks.cut(&**device, source, &mut buffer);
                buffer
            }
        }
    }

    /// Where the result of a collective change of layout is to be, if not where the collective leaves it.
    pub(super) fn result_place(&self, change: &Change, at: At) -> Option<Buffer> {
        change.result.as_ref().map(|(room, _)| self.arena.take(room, at))
    }

    /// Makes the written tensor of what a collective change of layout left in `buffer`, at its place.
    pub(super) fn settle(
        &mut self,
        change: &Change,
        at: At,
        (buffer, place): (Buffer, Option<Buffer>),
    ) {
        let device = &**self.device();
        let result = match (place, &change.result) {
            (Some(mut own), Some((_, Made::Chunk(index)))) => {
                let chunk = index * own.len()..(index + 1) * own.len();
                device.copy(buffer.view().slice(chunk), own.view_mut());
                own
            }
            (Some(mut joined), Some((_, Made::Joined(chunks)))) => {
                chunks.join(device, &buffer, &mut joined);
                joined
            }
            _ => buffer,
        };
        self.store.put(change.to, at, result);
    }
}

impl Chunks {
    /// Calls `visit` for each chunk that lies in so many elements side by side, with where it lies there and
    /// where it begins in the tensor.
    fn each(&self, elements: usize, mut visit: impl FnMut(std::ops::Range<usize>, &[usize])) {
        let mut start: PerAxis = smallvec![0; self.whole.len()];
        let each: usize = self.chunk.iter().product();
        for index in 0..elements / each.max(1) {
            start[self.along] = index * self.chunk[self.along];
            visit(index * each..(index + 1) * each, &start);
        }
    }

    /// Cuts a tensor into its chunks.
    fn cut(&self, device: &dyn Device, source: &Buffer, buffer: &mut Buffer) {
        let Chunks { whole, chunk, .. } = self;
        let origin: PerAxis = smallvec![0; whole.len()];
        self.each(buffer.len(), |part, start| {
            device.copy_box(
                BoxOf { elements: source.view(), shape: whole, start },
                BoxOf { elements: buffer.view_mut().slice(part), shape: chunk, start: &origin },
                chunk,
            );
        });
    }

    /// Joins chunks to the tensor that they are of.
    fn join(&self, device: &dyn Device, buffer: &Buffer, joined: &mut Buffer) {
        let Chunks { whole, chunk, .. } = self;
        let origin: PerAxis = smallvec![0; whole.len()];
        self.each(buffer.len(), |part, start| {
            device.copy_box(
                BoxOf { elements: buffer.view().slice(part), shape: chunk, start: &origin },
                BoxOf { elements: joined.view_mut(), shape: whole, start },
                chunk,
            );
        });
    }
}
