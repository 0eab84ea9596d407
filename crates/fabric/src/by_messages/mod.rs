//! Collectives over messages between members, whatever carries these.
//!
//! - `script`: those that have a step list; `counted`: all-to-all with counts.
//! - `stock`: what an engine that gives buffers back has to have at hand for them.

mod counted;
mod script;
mod scripts;
mod stock;

pub(crate) use counted::Counts;
pub(crate) use script::Script;
pub(crate) use scripts::Scripts;
pub(crate) use stock::Stock;

use crate::{FabricError, contents::Storage, view::Element};

/// How one member exchanges the messages of one collective. Both ends take them in the same order, so they
/// have no tags.
pub(crate) trait Exchange {
    /// Ranks of the group, by position.
    fn members(&self) -> &[u32];

    /// Has so much, at least, to send messages to one member in; `stocked` says how much there was.
    fn stock(&self, to: usize, needed: Stock, stocked: &mut [Stock]);

    /// Sends a copy of `values` to a position, without waiting.
    fn send<T: Element>(&self, to: usize, values: &[T]);

    /// The next message of a position.
    fn receive(&self, from: usize) -> Result<Storage, FabricError>;

    /// Gives back what a message was in.
    fn give_back(&self, from: usize, message: Storage);

    /// Breaks the group, as members count differently.
    fn counts_differ(&self, reason: String) -> FabricError;
}
