use std::time::Duration;

use crate::{FabricError, Lent, Operation};

/// What a rank publishes for others to read without its taking part, and its way to what they publish: one-sided
/// communication, as MPI's windows are for.
///
/// # Errors
///
/// As [`Endpoint`](crate::Endpoint)'s.
pub trait Window<B: Lent>: Send {
    /// Has `fill` write what this rank publishes into what it lent when the window was made. Nobody reads it
    /// meanwhile, and who does afterwards finds all of it. Numbers go up from one publication to the next.
    ///
    /// # Errors
    ///
    /// See [`Window`].
    fn publish(&mut self, number: u64, fill: &mut dyn FnMut(&mut [B])) -> Result<(), FabricError>;

    /// Copies what a rank published last into `into`, part by part, waiting until that has a number of at least
    /// `least`. The number that it has.
    ///
    /// What is copied counts among the bytes of messages of this rank, as the other takes no part.
    ///
    /// # Errors
    ///
    /// See [`Window`]; [`FabricError::PeerGone`] also if the rank had published it before it left;
    /// [`FabricError::Unfit`] if what the rank publishes has other parts.
    fn fetch(&mut self, from: u32, least: u64, into: &mut [B]) -> Result<u64, FabricError>;

    /// How often what this rank publishes has been fetched so far, or sent to who fetches it.
    fn fetched(&self) -> u64;

    /// Waits until what this rank publishes has been fetched so often.
    ///
    /// # Errors
    ///
    /// See [`Window`]; what is waited for are all other ranks.
    fn wait_until_fetched(&mut self, times: u64) -> Result<(), FabricError>;
}

/// Copies what is published part by part, and says how many bytes that were.
pub(crate) fn copy_parts<B: Lent>(published: &mut [B], into: &mut [B]) -> Result<u64, String> {
    if published.len() != into.len() {
        return Err(format!("{} parts for room for {}", published.len(), into.len()));
    }
    let (mut bytes, mut outcome) = (0, Ok(()));
    for (part, own) in published.iter_mut().zip(into) {
        part.lend(&mut |part| {
            let part = part.as_view();
            bytes += (part.elements() * part.format().bytes()) as u64;
            own.lend(&mut |mut own| {
                let copied = own.set(part);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(copied);
            });
        });
    }
    outcome.map(|()| bytes)
}

/// What a rank came to that waited so long at most, and found what it waited for, or that a rank is gone and why.
pub(crate) fn waited<T>(
    found: Option<Result<T, (u32, String)>>,
    (rank, operation): (u32, Operation),
    (waiting_for, after): (Vec<u32>, Duration),
) -> Result<T, FabricError> {
    match found {
        Some(Ok(found)) => Ok(found),
        Some(Err((peer, reason))) => Err(FabricError::PeerGone { rank, operation, peer, reason }),
        None => Err(FabricError::Timeout { rank, operation, waiting_for, after }),
    }
}
