//! Queues of a rank, and where instructions of one wait for others.

use std::fmt;

use crate::BodyId;

/// A queue of a rank. Instructions of an [ordered](Queue::is_ordered) queue run one after another, in the order in
/// which they are issued; those of different queues run side by side where the device can, and wait for each other
/// only at [points](Point).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Whatever needs nobody else.
    #[default]
    Compute,
    /// Messages in, and what is fetched.
    Receive,
    /// Messages out.
    Send,
    /// Messages out that have a [priority](crate::Route::priority): whenever another may be under way, that goes
    /// first which has the highest of those that are ready. All that one follows is its points.
    Prioritised,
    /// Collectives over one of the class's [groups](crate::Class::communicators), each of which has a
    /// queue of its own, as communication libraries have a stream for each communicator. A group along which
    /// both values pass and replicas are kept equal has one for either.
    Communicator(u16),
    /// Requests of one of those groups. In which order they are carried out, and which of them together, members
    /// agree on while running: all that one follows is its points. They are carried out beside everything else.
    Negotiated(u16),
}

impl Queue {
    /// A number from 0: computation, receives, both kinds of sends, then the communicators.
    pub fn index(self) -> usize {
        match self {
            Queue::Compute => 0,
            Queue::Receive => 1,
            Queue::Send => 2,
            Queue::Prioritised => 3,
            Queue::Communicator(number) | Queue::Negotiated(number) => 4 + usize::from(number),
        }
    }

    /// How many queues a rank with so many communicators has.
    pub fn count(communicators: usize) -> usize {
        4 + communicators
    }

    /// Whether its instructions are carried out in the order in which they are issued.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Queue::Prioritised | Queue::Negotiated(_))
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Compute => out.write_str("compute"),
            Queue::Receive => out.write_str("receive"),
            Queue::Send => out.write_str("send"),
            Queue::Prioritised => out.write_str("send by priority"),
            Queue::Communicator(number) => write!(out, "communicator {number}"),
            Queue::Negotiated(number) => write!(out, "negotiated communicator {number}"),
        }
    }
}

/// What must have ended in another queue before an instruction starts. Bodies are run many times, so a
/// point names an instruction and which of its runs. One that has not been run yet is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Everything that was issued to the queue before.
    Queue(Queue),
    /// An earlier instruction of the same entry.
    Here(u32),
    /// An instruction, in the last run of its body for the same micro-batch.
    Microbatch(BodyId, u32),
    /// An instruction, in the last run of its body.
    Latest(BodyId, u32),
}
