use shardloom_collectives::Reduction;

use crate::{View, ViewMut};

/// The arithmetic of reductions, which engines have none of their own of.
///
/// Every rank of an engine brings the same. An engine that works in other members' buffers calls it while
/// they are lent, so an implementation must not panic: a panic there ends the process.
pub trait Reduce: Send + Sync {
    /// Sets each element of `into` to what it and the one of `part` come to. Both have the same format
    /// and length, and do not overlap.
    fn reduce(&self, reduction: Reduction, into: ViewMut<'_>, part: View<'_>);
}
