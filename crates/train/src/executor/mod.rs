//! Execution of a program: one thread per rank in real time, or all ranks in one thread under the
//! virtual clock.

mod communicators;
mod recorder;
mod threads;
mod virtual_clock;

use std::sync::Arc;
use std::time::Instant;

use shardloom_program::timeline::Track;
use shardloom_sim::Recording;

use crate::Result;
use crate::rank::{Rank, StepOutcome};
use threads::Threads;
use virtual_clock::VirtualCrew;

/// The rule that the rings of messages keep in training.
const FULL_RING: &str = "a ring holds as many messages as can be under way";

/// Something to do on one rank.
pub(crate) type Visit = Arc<dyn Fn(&mut Rank) -> Result<()> + Send + Sync>;

/// What all ranks are told to do, in the same order.
#[derive(Clone)]
pub(crate) enum Command {
    /// Train steps in a row; record a timeline with times since the origin, if given. The virtual clock
    /// always records. The pipeline is empty before and after.
    /// Servers answer clients in the order in which they come, or as `answers` says by rank.
    Train { first_step: u64, steps: u32, record: Option<Instant>, answers: Option<Arc<Answers>> },
    /// Evaluate some micro-batches of the validation part, from its first sample on.
    Evaluate { microbatches: u64 },
    /// Anything that needs a rank's own state, and nobody else.
    Visit(Visit),
}

/// By rank: the clients that a server has answered in a row of steps, in order, by their number among its
/// clients.
pub(crate) type Answers = Vec<Vec<u32>>;

/// What a command came to on one rank.
pub(crate) struct Done {
    /// Of each step; of an evaluation as if it were one.
    pub steps: Vec<StepOutcome>,
    pub track: Option<Track>,
    /// Whom it has answered as a server, in order.
    pub answers: Vec<u32>,
    /// Bytes sent to other ranks since the start of the run.
    pub sent_bytes: u64,
    pub peak_bytes: u64,
    /// How often the system was asked for a buffer since the rank was built.
    pub system_allocations: usize,
}

/// All ranks of a run.
pub(crate) enum Crew {
    /// In real time.
    Threads(Threads),
    /// In modelled time.
    Virtual(Box<VirtualCrew>),
}

impl Crew {
    /// Has every rank carry out `command`; their answers in order of rank.
    ///
    /// # Errors
    /// The first rank's error, where some failed.
    pub fn run(&mut self, command: &Command) -> Result<Vec<Done>> {
        match self {
            Crew::Threads(threads) => threads.run(command),
            Crew::Virtual(ranks) => ranks.run(command),
        }
    }

    /// What each instruction of the last step took under the virtual clock.
    pub fn recording(&self) -> Option<&Recording> {
        match self {
            Crew::Threads(_) => None,
            Crew::Virtual(ranks) => ranks.recording(),
        }
    }
}

pub(crate) use threads::start as start_threads;
pub(crate) use virtual_clock::start as start_virtual;
