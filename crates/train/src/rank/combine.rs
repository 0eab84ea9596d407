//! Sums and copies of tensors that a rank holds.

use std::ops::Range;

use shardloom_kernels::Combine;
use shardloom_program::{Content, Instruction, Mode, TensorId};

use super::arena::Room;
use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// A copy of what nobody reads afterwards: it changes its name.
pub(crate) struct Move {
    from: Slot,
    to: Slot,
}

/// A part of a tensor that is copied or added to a part of another.
pub(crate) struct Combination {
    from: Slot,
    read: Range<usize>,
    to: Room,
    written: Range<usize>,
    adds: bool,
    /// What becomes of the number of updates of a bucket, by its number.
    counts: Option<(usize, Counts)>,
}

/// What a copy does with the number of updates that parameters have had.
#[derive(Clone, Copy)]
enum Counts {
    /// It is kept, as what an update changes is.
    Kept,
    /// It becomes what it was.
    Restored,
}

impl Move {
    /// Links a copy of what is freed.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Move {
        let [from, to] = [instruction.reads[0], instruction.writes[0].to];
        Move { from: linker.slot(from), to: linker.slot(to) }
    }
}

impl Combination {
    /// Links the parts of a sum or copy.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Box<[Combination]> {
        let Linker { class, position, .. } = *linker;
        let parts = instruction.reads.iter().zip(&instruction.writes);
        let part = |(read, write): (&shardloom_program::View, &shardloom_program::Write)| {
            let content = |tensor: TensorId| class.tensor(tensor).content;
            let counts = match (content(write.to.tensor), content(read.tensor)) {
                (Content::Backup, _) => Some(Counts::Kept),
                (_, Content::Backup) => Some(Counts::Restored),
                _ => None,
            };
            let bucket = class.tensor(write.to.tensor).bucket.map(|bucket| bucket.0 as usize);
            Combination {
                from: linker.slot(*read),
                read: class.view_range(*read, position),
                to: linker.room(write.to.tensor),
                written: class.view_range(write.to, position),
                adds: write.mode != Mode::Set,
                counts: bucket.zip(counts),
            }
        };
        parts.map(part).collect()
    }
}

impl Rank {
    /// Gives what is held of a tensor to another.
    pub(super) fn move_over(&mut self, of: &Move, at: At) {
        let moved = self.store.take(of.from, at).expect("read tensors are held");
        self.store.put(of.to, at, moved);
    }

    /// Adds or copies one part of a tensor to another.
    pub(super) fn combine(&mut self, part: &Combination, at: At) {
        let Rank { shared, arena, store, parameters, .. } = self;
        let Combination { from, read, to, written, adds, counts } = part;
        let mut target = store.take(to.slot, at).unwrap_or_else(|| arena.take(to, at));
        let source = store.get(*from, at).view().slice(read.clone());
        let into = target.view_mut().slice(written.clone());
        match adds {
            false => shared.device.copy(source, into),
            true => shared.device.combine(into, source, Combine::Sum),
        }
        store.put(to.slot, at, target);
        // A copy made before an update brings the number of updates back with what it was made of.
        if let Some((bucket, counts)) = *counts {
            for owned in &mut parameters.owned[bucket] {
                match counts {
                    Counts::Kept => owned.updates_kept = owned.updates,
                    Counts::Restored => owned.updates = owned.updates_kept,
                }
            }
        }
    }
}
