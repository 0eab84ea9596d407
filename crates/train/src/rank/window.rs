//! What a rank publishes and what it fetches of what another has published.

use shardloom_kernels::View as Elements;
use shardloom_program::{Group, Instruction, Rank as RankId, TensorId};

use super::arena::Room;
use super::exchange::{Contribution, Part};
use super::link::Linker;
use super::store::Slot;
use super::{Action, At, Rank};

/// Weights that are published.
pub(crate) struct Publish {
    /// Weights, and where they are for others.
    pairs: Box<[(Slot, Slot)]>,
}

/// Weights that are fetched.
pub(crate) struct Fetch {
    group: Group,
    rooms: Box<[Room]>,
}

impl Publish {
    /// Links a publication.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Publish {
        let pairs = instruction.reads.iter().zip(&instruction.writes);
        let pairs = pairs.map(|(&read, write)| (linker.slot(read), linker.slot(write.to)));
        Publish { pairs: pairs.collect() }
    }
}

impl Fetch {
    /// Links a fetch.
    pub(super) fn link(linker: &Linker<'_>, group: &Group, instruction: &Instruction) -> Fetch {
        let rooms = instruction.writes.iter().map(|write| linker.room(write.to.tensor));
        Fetch { group: group.clone(), rooms: rooms.collect() }
    }
}

impl Rank {
    /// The tensors that the rank publishes, in order; none if it publishes nothing.
    pub fn published_tensors(&self) -> Vec<TensorId> {
        let instructions = self.class().bodies.iter().flat_map(|body| &body.instructions);
        let publishes = |it: &&Instruction| matches!(it.action, Action::Publish { .. });
        let first = instructions.into_iter().find(publishes);
        first.into_iter().flat_map(|it| &it.writes).map(|write| write.to.tensor).collect()
    }

    /// Writes what it publishes to where somebody keeps it who [was lent](Rank::lend_lasting) that.
    pub fn publish_to(&self, publish: &Publish, at: At, parts: &mut [Contribution]) {
        for ((weights, _), part) in publish.pairs.iter().zip(parts) {
            let Part::Elements(buffer, _) = &mut part.part else {
                unreachable!("tensors are lent as elements")
            };
            self.device().copy(self.store.get(*weights, at).view(), buffer.view_mut());
        }
    }

    /// Publishes where the rank keeps it itself.
    pub fn publish(&mut self, publish: &Publish, at: At) {
        for &(weights, window) in &publish.pairs {
            let mut published = self.store.take(window, at).expect("it is there all the time");
            self.device().copy(self.store.get(weights, at).view(), published.view_mut());
            self.store.put(window, at, published);
        }
    }

    /// What it has published, part by part.
    pub fn published(&self) -> impl Iterator<Item = Elements<'_>> {
        let tensors = self.published_tensors().into_iter();
        tensors.map(|tensor| self.store.get(self.store.slot(tensor), At::START).view())
    }

    /// Whom a fetch is from.
    pub fn partner(&self, fetch: &Fetch) -> RankId {
        self.program().partner(self.class, self.position, &fetch.group, self.now.of_step)
    }

    /// Room for what is fetched, part by part.
    pub fn room_for(&mut self, fetch: &Fetch, at: At, parts: &mut Vec<Contribution>) {
        let Rank { arena, .. } = self;
        parts.extend(fetch.rooms.iter().map(|room| {
            let buffer = arena.take(room, at);
            let all = 0..buffer.len();
            Contribution { part: Part::Elements(buffer, all), worked: None }
        }));
    }

    /// Takes what was fetched into that.
    pub fn take_fetched(&mut self, fetch: &Fetch, at: At, parts: &mut Vec<Contribution>) {
        for (room, fetched) in fetch.rooms.iter().zip(parts.drain(..)) {
            let Part::Elements(buffer, _) = fetched.part else {
                unreachable!("room for tensors is of elements")
            };
            self.store.put(room.slot, at, buffer);
        }
    }

    /// The step that the rank's current entry belongs to, counted from the first of the row.
    pub fn step_of_row(&self) -> u64 {
        self.now.of_step - self.now.first_step
    }

    /// The first step of the row.
    pub fn first_step(&self) -> u64 {
        self.now.first_step
    }
}

/// Copies what one rank has published to where another fetches it.
pub(crate) fn copy(from: &Rank, into: &mut [Contribution]) {
    for (published, part) in from.published().zip(into) {
        let Part::Elements(buffer, _) = &mut part.part else {
            unreachable!("room for tensors is of elements")
        };
        from.device().copy(published, buffer.view_mut());
    }
}
