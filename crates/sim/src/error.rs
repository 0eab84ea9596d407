//! What can go wrong in a simulation.

use shardloom_cluster::ClusterError;
use shardloom_program::ProgramError;

/// Why a program has no simulation.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The cluster lacks a device, or the device a rate.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// What an estimate is asked about cannot be lowered, whatever its layout.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// An instruction asks for a pass that its operator does not have.
    #[error(
        "operator {op} ({kind}) has no {pass} pass; the program was lowered from another graph"
    )]
    NoPass {
        /// The operator's name.
        op: String,
        /// Its kind.
        kind: &'static str,
        /// The pass.
        pass: &'static str,
    },
    /// How many rows go to experts is not known.
    #[error("how many rows {counts} are cannot be said: {reason}")]
    Rows {
        /// What counts them.
        counts: String,
        /// Why.
        reason: String,
    },
    /// Shares of rows are given, and no rows choose their experts.
    #[error("shares of rows are given, and the model has no experts that rows choose from")]
    NoRows,
    /// Some ranks wait for each other for ever.
    #[error("deadlock: {}{}", .waiting.join(", "), more(*.others))]
    Deadlock {
        /// The first ranks that wait, each with the instruction at which it does.
        waiting: Vec<String>,
        /// How many more wait.
        others: usize,
    },
    /// Something that is only simulated.
    #[error("{what} {name} has no estimate; simulate its program")]
    NoEstimate {
        /// What it is.
        what: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// Times are counted in picoseconds, of which there are only so many.
    #[error("{steps} steps take longer than the 213 days that can be simulated")]
    TooLong {
        /// Steps of the simulation.
        steps: usize,
    },
    /// More than can be simulated in reasonable time and memory.
    #[error(
        "{steps} steps have {instructions} instructions or more, and at most {most} are simulated; {}fewer \
         micro-batches or fewer blocks have fewer",
        if *.folded { "" } else { "a folded simulation, one rank for all that do the same, " }
    )]
    TooMany {
        /// Instructions, over all ranks that are simulated and all steps, as far as they were counted.
        instructions: u64,
        /// How many may be.
        most: u64,
        /// Steps of the simulation.
        steps: u32,
        /// Whether ranks that do the same are simulated once.
        folded: bool,
    },
    /// A simulation of no step.
    #[error("a simulation needs at least 1 step, not 0")]
    NoSteps,
    /// A driver does not time each message of a send.
    #[error("rank {rank} sends {messages} messages, but its driver gave {durations} durations")]
    Messages {
        /// The rank.
        rank: u32,
        /// Messages that it sends.
        messages: usize,
        /// Durations that were given.
        durations: usize,
    },
    /// A recording does not belong to this program, or was made with other options.
    #[error(
        "the recording of rank {rank} ends after {recorded} durations; replay the program, folding and \
         number of steps that it was made with"
    )]
    RecordingEnds {
        /// The rank.
        rank: u32,
        /// How many durations it has.
        recorded: usize,
    },
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" and {others} more") }
}
