use shardloom_collectives::{Algorithm, Kind, Reduction};

use crate::{Contents, FabricError, ViewMut};

/// What members of a group do together with their buffers, in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective<'a> {
    /// All buffers have the same length, and chunks are those of
    /// [`chunk`](shardloom_collectives::chunk). What of a buffer the kind leaves undefined holds partial
    /// results.
    Equal {
        /// What is achieved; roots are positions in the group.
        kind: Kind,
        /// How.
        algorithm: Algorithm,
        /// What reducing means; passed over where `kind` reduces nothing.
        reduction: Reduction,
    },
    /// All-to-all with counts of each member's own. Before, a buffer begins with what goes to the
    /// members, one after the other; afterwards with what came from them. What lies behind is as before
    /// or undefined, up to the longer of the two.
    AllToAllV {
        /// Elements that go to each member, by position; the own position's stay.
        sent: &'a [usize],
        /// Elements that come from each member.
        received: &'a [usize],
    },
}

/// What a collective works on, lent to the engine from its start until it has been waited for.
///
/// It is given away and given back rather than borrowed, so that no mistake of the caller leaves an
/// engine's thread with memory that is gone.
pub trait Lent: Send + 'static {
    /// Has `work` done on the buffer, once. What lies elsewhere, on a device, is brought here for that and
    /// taken back.
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>));
}

impl Lent for Contents {
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
        work(self.view_mut());
    }
}

/// A collective that was started, to be waited for once with the group that started it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what was lent comes back only to who waits"]
pub struct Handle(u64);

impl Handle {
    /// The n-th of its group, counted however the engine likes.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number that it was made with.
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// A collective that has ended: what was lent, and whether it holds the result.
pub type Completed<B> = (B, Result<(), FabricError>);
