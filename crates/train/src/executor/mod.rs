//! Execution of a program: one thread per rank in real time, or all ranks in one thread under the
//! virtual clock.

mod command;
mod communicators;
mod fetches;
mod messages;
mod recorder;
mod state;
mod threads;
mod virtual_clock;
mod waiting;
mod worker;

use shardloom_sim::Recording;

use crate::Result;
pub(crate) use command::{
    Answer, Answers, Command, Done, NextRanks, Order, SavedState, StateCommand, Updates,
};
use threads::Threads;
use virtual_clock::VirtualRanks;

/// The rule that pools of messages keep in training.
const FULL_POOL: &str = "a pool has as many buffers as can be under way";

/// All ranks of a run.
pub(crate) enum RunningRanks {
    /// In real time.
    Threads(Threads),
    /// In modelled time.
    Virtual(Box<VirtualRanks>),
}

impl RunningRanks {
    /// Has every rank carry out `command`; their answers in order of rank.
    ///
    /// # Errors
    /// The first rank's error, where some failed.
    pub fn run(&mut self, command: &Command) -> Result<Vec<Done>> {
        match self {
            RunningRanks::Threads(threads) => threads.run(command),
            RunningRanks::Virtual(ranks) => ranks.run(command),
        }
    }

    /// Has the run not end with these ranks, as others go on with it.
    pub fn hand_on(&mut self) {
        if let RunningRanks::Threads(threads) = self {
            threads.hand_on();
        }
    }

    /// What each instruction of the last step took under the virtual clock.
    pub fn recording(&self) -> Option<&Recording> {
        match self {
            RunningRanks::Threads(_) => None,
            RunningRanks::Virtual(ranks) => ranks.recording(),
        }
    }
}

pub(crate) use threads::start as start_threads;
pub(crate) use virtual_clock::start as start_virtual;
pub(crate) use waiting::without_waiting;
