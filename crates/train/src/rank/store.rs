//! The tensors of one rank: buffers in slots, which are found without a search.

use shardloom_kernels::{Buffer, Format, Memory};
use shardloom_program::{Class, Copies, Extent, Keep, Shape, TensorId, View, Window};

use super::At;

/// Buffers by slot.
pub(super) struct Store {
    slots: Vec<Option<Buffer>>,
    /// By tensor.
    of: Vec<Slot>,
    /// What is held of tensors in several versions.
    versions: Vec<Versions>,
    /// The slots of what comes and goes.
    passing: Vec<u32>,
    /// How many micro-batches can be in flight at a time; they take turns.
    in_flight: usize,
}

/// Where the copies of a tensor are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// There is one.
    One(u32),
    /// Those of micro-batches that take turns, one after the other from this on.
    PerMicrobatch(u32),
    /// The newest version of a lasting tensor, before those that were, and which of the store's `versions`
    /// these are. It is empty while it takes part in a collective or is updated.
    Versions { newest: u32, which: u32 },
}

/// The versions of a tensor before its newest, which take turns.
struct Versions {
    /// How many there can be, and how many there are.
    most: u32,
    known: u32,
    /// The turn of the latest.
    latest: u32,
}

impl Versions {
    /// How many slots behind that of the newest the version is that was there `age` updates ago. Before there
    /// were so many updates, the oldest is the one from the start.
    fn behind(&self, age: u32) -> u32 {
        match age.min(self.known) {
            0 => 0,
            age => 1 + (self.latest + age - 1) % self.most,
        }
    }
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
        shardloom_program::Format::F8 => {
            unreachable!("plans with products in 8 bits are not trained")
        }
    }
}

impl Store {
    /// What `position` of `class` holds for the whole run, in `memory`, zero until it is filled, and room for
    /// the rest.
    pub fn new(class: &Class, position: usize, in_flight: usize, memory: &Memory) -> Store {
        let (slots, of, versions, passing) = (vec![], vec![], vec![], vec![]);
        let mut store = Store { slots, of, versions, passing, in_flight };
        for (id, tensor) in class.tensors() {
            let first = store.slots.len() as u32;
            let slot = match (tensor.keep, tensor.copies) {
                (Keep::Transient, Copies::PerMicrobatch) => Slot::PerMicrobatch(first),
                (_, Copies::Versions(versions))
                    if versions > 1 && tensor.keep != Keep::Transient =>
                {
                    let which = store.versions.len() as u32;
                    store.versions.push(Versions { most: versions - 1, known: 0, latest: 0 });
                    Slot::Versions { newest: first, which }
                }
                _ => Slot::One(first),
            };
            let copies = match slot {
                Slot::One(_) => 1,
                Slot::PerMicrobatch(_) => in_flight as u32,
                Slot::Versions { which, .. } => 1 + store.versions[which as usize].most,
            };
            let (format, elements) = (stored(tensor.format), class.elements(id, position));
            let is_passing = tensor.keep == Keep::Transient;
            let room = || (!is_passing).then(|| memory.alloc_zeroed(format, elements));
            store.slots.extend(std::iter::repeat_with(room).take(copies as usize));
            store.passing.extend((first..first + copies).filter(|_| is_passing));
            store.of.push(slot);
        }
        store
    }

    /// Where a tensor is.
    pub fn slot(&self, tensor: TensorId) -> Slot {
        self.of[tensor.0 as usize]
    }

    /// A tensor, in the version that the entry runs with.
    ///
    /// # Panics
    /// If it is not there: the program reads before it writes, a mistake in lowering.
    pub fn get(&self, slot: Slot, at: At) -> &Buffer {
        let index = match slot {
            Slot::One(index) => index,
            Slot::PerMicrobatch(first) => first + at.turn,
            Slot::Versions { newest, which } => {
                newest + self.versions[which as usize].behind(at.age)
            }
        };
        match &self.slots[index as usize] {
            Some(buffer) => buffer,
            None => panic!("{} is read while empty, {at:?}", self.tensor_text(slot)),
        }
    }

    /// The newest version of a lasting tensor.
    pub fn newest(&self, slot: Slot) -> &Buffer {
        match &self.slots[newest(slot, At::START)] {
            Some(newest) => newest,
            None => panic!("{} is not there all the time", self.tensor_text(slot)),
        }
    }

    /// Likewise, to be changed.
    pub fn newest_mut(&mut self, slot: Slot) -> &mut Buffer {
        let index = newest(slot, At::START);
        if self.slots[index].is_none() {
            panic!("{} is not there all the time", self.tensor_text(slot));
        }
        self.slots[index].as_mut().expect("just looked")
    }

    /// Takes the newest version of a tensor out, if it is there.
    pub fn take(&mut self, slot: Slot, at: At) -> Option<Buffer> {
        self.slots[newest(slot, at)].take()
    }

    /// Puts the newest version of a tensor in.
    pub fn put(&mut self, slot: Slot, at: At, buffer: Buffer) {
        self.slots[newest(slot, at)] = Some(buffer);
    }

    /// The turn of a micro-batch.
    pub fn turn(&self, microbatch: u32) -> u32 {
        (microbatch as usize % self.in_flight) as u32
    }

    /// Drops everything that comes and goes.
    pub fn clear(&mut self) {
        for &slot in &self.passing {
            self.slots[slot as usize] = None;
        }
    }

    /// How many micro-batches can be in flight at a time.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Forgets all versions but the newest.
    pub fn forget_older(&mut self) {
        self.versions.iter_mut().for_each(|versions| versions.known = 0);
    }

    /// Keeps the newest version of a tensor that is about to be updated, if several are held.
    pub fn keep_version(&mut self, slot: Slot) {
        let Slot::Versions { newest, which } = slot else { return };
        let versions = &mut self.versions[which as usize];
        versions.latest = (versions.latest + versions.most - 1) % versions.most;
        versions.known = (versions.known + 1).min(versions.most);
        let [first, copy] = [newest, newest + versions.behind(1)].map(|index| index as usize);
        let [newest, copy] = self.slots.get_disjoint_mut([first, copy]).expect("two slots");
        let there = "a tensor of several versions is there all the time";
        let (newest, copy) = (newest.as_ref().expect(there), copy.as_mut().expect(there));
        newest.device().copy(newest.view(), copy.view_mut());
    }

    /// What is at a slot, for people.
    fn tensor_text(&self, slot: Slot) -> String {
        let same = |&other: &Slot| newest(other, At::START) == newest(slot, At::START);
        let tensor = self.of.iter().position(same);
        tensor.map_or_else(|| format!("{slot:?}"), |tensor| format!("tensor {tensor}"))
    }
}

/// The index of the newest version of a tensor.
fn newest(slot: Slot, at: At) -> usize {
    let index = match slot {
        Slot::One(index) | Slot::Versions { newest: index, .. } => index,
        Slot::PerMicrobatch(first) => first + at.turn,
    };
    index as usize
}

/// Where in its bucket a tensor of it begins, as held at `position`.
pub(super) fn origin(class: &Class, tensor: TensorId, position: usize) -> usize {
    let view = View { tensor, window: Window::Whole };
    match class.tensor(tensor).shape {
        Shape::Flat(Extent::Share | Extent::SecondShare) => {
            class.bucket_range(view, position).start
        }
        _ => 0,
    }
}
