//! A rank's memory with the places that the buffer plan assigned ahead: what comes and goes while it
//! trains or evaluates is in its place, and the system is asked for nothing.

use std::sync::Arc;

use shardloom_kernels::{Buffer, Format, Memory};
use shardloom_program::buffers::PlaceId;
use shardloom_program::{ClassId, Keep, TensorId};

use super::link::Linker;
use super::store::{Slot, stored};
use super::{At, Shared};

/// The places of one rank.
pub(super) struct Arena {
    shared: Arc<Shared>,
    class: ClassId,
    memory: Memory,
    /// How often the system had been asked when the arena was there.
    reserved: usize,
}

/// Where an instruction writes a tensor whole, and where it puts it if it is not there yet.
pub(super) struct Room {
    pub slot: Slot,
    pub elements: usize,
    format: Format,
    tensor: TensorId,
    /// By the row of the plan that the instruction runs in.
    places: Box<[Option<Place>]>,
}

/// A place in the arena.
#[derive(Clone, Copy)]
struct Place {
    id: PlaceId,
    offset: usize,
}

impl Room {
    /// Room for a tensor at the instruction that is linked.
    ///
    /// # Panics
    /// If a place is too small: a mistake in the plan.
    pub fn link(linker: &Linker<'_>, tensor: TensorId) -> Room {
        let Linker { class, plan, body, index, .. } = *linker;
        let elements = class.elements(tensor, linker.position);
        let format = stored(class.tensor(tensor).format);
        let needed = (elements * format.bytes()) as u64;
        let place = |row| {
            let id = plan.find(body, row, index, tensor)?;
            let place = plan.place(id);
            assert!(
                needed <= place.bytes,
                "{} has a place of {} bytes and needs {needed}",
                plan.place_text(class, id),
                place.bytes
            );
            Some(Place { id, offset: place.offset as usize })
        };
        // What lasts has none.
        let rows = if class.tensor(tensor).keep == Keep::Transient { plan.rows() } else { 0 };
        let mut places: Vec<_> = (0..rows).map(place).collect();
        places.truncate(places.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        let slot = linker.store.slot(tensor);
        Room { slot, elements, format, tensor, places: places.into() }
    }
}

impl Arena {
    /// Asks the system for all that ranks of `class` take while they run, in `memory`.
    pub fn new(shared: &Arc<Shared>, class: ClassId, memory: &Memory) -> Arena {
        memory.reserve(shared.buffers[class.0 as usize].arena_bytes as usize);
        memory.reset_peak();
        let reserved = memory.system_allocations();
        Arena { shared: Arc::clone(shared), class, memory: memory.clone(), reserved }
    }

    /// How often the system was asked after that.
    pub fn system_allocations(&self) -> usize {
        self.memory.system_allocations() - self.reserved
    }

    /// A buffer at the place of a tensor that the instruction allocates; its contents are unspecified. That
    /// nothing else is there the memory looks up each time.
    ///
    /// # Panics
    /// If the plan has no place for it or another tensor is there: a mistake in the plan.
    pub fn take(&self, room: &Room, at: At) -> Buffer {
        let Room { elements, format, tensor, ref places, .. } = *room;
        let plan = &self.shared.buffers[self.class.0 as usize];
        let class = self.shared.program.class(self.class);
        let Some(&Some(Place { id, offset })) = places.get(at.row as usize) else {
            let (tensor, body) = (&class.tensor(tensor).name, class.body(at.issued.body));
            let (index, body, row) = (at.issued.index, body.label(None), at.row);
            panic!("instruction {index} of {body} in row {row} has no place for {tensor}");
        };
        let taken = self.memory.take(offset, u64::from(id.0), format, elements);
        taken.unwrap_or_else(|there| {
            let there = PlaceId(there.by as u32);
            panic!(
                "{} is where {} still is",
                plan.place_text(class, id),
                plan.place_text(class, there)
            )
        })
    }
}
