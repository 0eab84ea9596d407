//! The tensors of one rank.

use std::collections::VecDeque;

use shardloom_kernels::{Buffer, Format, Memory};
use shardloom_program::{Class, Copies, Extent, Instruction, Keep, Shape, TensorId, View, Window};

/// Buffers by tensor.
pub(super) struct Store {
    held: Vec<Held>,
    /// How many micro-batches can be in flight at a time; they take turns.
    in_flight: usize,
    /// Which version the current entry runs with: 0 is the newest.
    age: usize,
}

/// What a rank holds of a tensor.
enum Held {
    /// What is there for the whole run.
    Lasting(Versions),
    /// What comes and goes, in one copy.
    Passing(Option<Buffer>),
    /// What comes and goes with each micro-batch.
    PerMicrobatch(Vec<Option<Buffer>>),
}

/// The versions of a tensor.
struct Versions {
    /// None while it takes part in a collective or is updated.
    newest: Option<Buffer>,
    /// Earlier ones, the latest first.
    older: VecDeque<Buffer>,
    /// Room for earlier ones that there are not yet.
    spare: Vec<Buffer>,
}

/// A program's format as kernels call it.
pub(crate) fn stored(format: shardloom_program::Format) -> Format {
    match format {
        shardloom_program::Format::F32 => Format::F32,
        shardloom_program::Format::Bf16 => Format::Bf16,
        shardloom_program::Format::F16 => Format::F16,
        shardloom_program::Format::F64 => Format::F64,
        shardloom_program::Format::U32 => Format::U32,
        shardloom_program::Format::U8 => Format::U8,
    }
}

impl Store {
    /// What `position` of `class` holds for the whole run, in `memory`, zero until it is filled, and room for
    /// the rest.
    pub fn new(class: &Class, position: usize, in_flight: usize, memory: &Memory) -> Store {
        let hold = |(id, tensor): (TensorId, &shardloom_program::Tensor)| {
            let (format, elements) = (stored(tensor.format), class.elements(id, position));
            match (tensor.keep, tensor.copies) {
                (Keep::Transient, Copies::PerMicrobatch) => {
                    Held::PerMicrobatch(std::iter::repeat_with(|| None).take(in_flight).collect())
                }
                (Keep::Transient, _) => Held::Passing(None),
                (_, copies) => {
                    let older = match copies {
                        Copies::Versions(versions) => versions as usize - 1,
                        Copies::One | Copies::PerMicrobatch => 0,
                    };
                    let room = || memory.alloc_zeroed(format, elements);
                    Held::Lasting(Versions {
                        newest: Some(room()),
                        older: VecDeque::with_capacity(older),
                        spare: std::iter::repeat_with(room).take(older).collect(),
                    })
                }
            }
        };
        Store { held: class.tensors().map(hold).collect(), in_flight, age: 0 }
    }

    /// A tensor, in the version that the current entry runs with.
    ///
    /// # Panics
    /// If it is not there: the program reads before it writes, a mistake in lowering.
    pub fn get(&self, tensor: TensorId, microbatch: u32) -> &Buffer {
        let buffer = match &self.held[tensor.0 as usize] {
            Held::Lasting(Versions { newest, older, .. }) => {
                // Before there were so many updates, the oldest is the one from the start.
                match self.age.min(older.len()) {
                    0 => newest.as_ref(),
                    age => older.get(age - 1),
                }
            }
            Held::Passing(buffer) => buffer.as_ref(),
            Held::PerMicrobatch(rows) => rows[self.row(microbatch)].as_ref(),
        };
        match buffer {
            Some(buffer) => buffer,
            None => panic!("tensor {} of micro-batch {microbatch} is read while empty", tensor.0),
        }
    }

    /// The newest version of a lasting tensor.
    pub fn newest(&self, tensor: TensorId) -> &Buffer {
        match &self.held[tensor.0 as usize] {
            Held::Lasting(Versions { newest: Some(newest), .. }) => newest,
            _ => panic!("tensor {} is not there all the time", tensor.0),
        }
    }

    /// Likewise, to be changed.
    pub fn newest_mut(&mut self, tensor: TensorId) -> &mut Buffer {
        match &mut self.held[tensor.0 as usize] {
            Held::Lasting(Versions { newest: Some(newest), .. }) => newest,
            _ => panic!("tensor {} is not there all the time", tensor.0),
        }
    }

    /// Takes the newest version of a tensor out, if it is there.
    pub fn take(&mut self, tensor: TensorId, microbatch: u32) -> Option<Buffer> {
        self.place(tensor, microbatch).take()
    }

    /// Puts the newest version of a tensor in.
    pub fn put(&mut self, tensor: TensorId, microbatch: u32, buffer: Buffer) {
        *self.place(tensor, microbatch) = Some(buffer);
    }

    fn place(&mut self, tensor: TensorId, microbatch: u32) -> &mut Option<Buffer> {
        let row = self.row(microbatch);
        match &mut self.held[tensor.0 as usize] {
            Held::Lasting(versions) => &mut versions.newest,
            Held::Passing(buffer) => buffer,
            Held::PerMicrobatch(rows) => &mut rows[row],
        }
    }

    fn row(&self, microbatch: u32) -> usize {
        microbatch as usize % self.in_flight
    }

    /// Drops everything that comes and goes.
    pub fn clear(&mut self) {
        for held in &mut self.held {
            match held {
                Held::Lasting(_) => {}
                Held::Passing(buffer) => *buffer = None,
                Held::PerMicrobatch(rows) => rows.fill_with(|| None),
            }
        }
    }

    /// How many micro-batches can be in flight at a time.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Frees what `instruction` says is dead.
    pub fn free(&mut self, instruction: &Instruction, microbatch: u32) {
        for &tensor in &instruction.frees {
            self.take(tensor, microbatch);
        }
    }

    /// Chooses the version as it was `age` updates ago.
    pub fn go_back(&mut self, age: u32) {
        self.age = age as usize;
    }

    /// Forgets all versions but the newest.
    pub fn forget_older(&mut self) {
        for held in &mut self.held {
            if let Held::Lasting(Versions { older, spare, .. }) = held {
                spare.extend(older.drain(..));
            }
        }
        self.age = 0;
    }

    /// Keeps the newest version of a tensor that is about to be updated, if several are held.
    pub fn keep_version(&mut self, tensor: TensorId) {
        let Held::Lasting(Versions { newest: Some(newest), older, spare }) =
            &mut self.held[tensor.0 as usize]
        else {
            panic!("tensor {} is not there all the time", tensor.0)
        };
        let Some(mut copy) = spare.pop().or_else(|| older.pop_back()) else { return };
        newest.device().copy(newest.view(), copy.view_mut());
        older.push_front(copy);
    }
}

/// Where in its bucket a tensor of it begins, as held at `position`.
pub(super) fn origin(class: &Class, tensor: TensorId, position: usize) -> usize {
    let view = View { tensor, window: Window::Whole };
    match class.tensor(tensor).shape {
        Shape::Flat(Extent::Share) => class.bucket_range(view, position).start,
        _ => 0,
    }
}
