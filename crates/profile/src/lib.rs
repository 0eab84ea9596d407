//! Measures this machine: the profile that predicted step times come from.
//!
//! Single operators and links are timed, never a model or a layer. What is timed runs on all ranks at
//! once, as it does in training, because ranks share memory bandwidth and power. Every pass of every
//! operator runs its real kernel; its operands lie where they would in training: what the operator
//! before has just made is in cache, weights and what was kept since the forward pass are not.
//!
//! What a rank does alone is timed by its thread's processor time, what ranks do together by the wall
//! clock. Of the repeats of a measurement the lower quartile counts. Both because other work on the
//! machine can only add time.
//!
//! Streaming operators become curves over elements, made to rise. Matrix products become five
//! coefficients ([`ProductSeconds`](shardloom_cluster::ProductSeconds)) for each kind of contraction
//! and attention and each pass: forward, input and weight products differ in how their operands lie.

mod bench;
mod error;
mod examples;
mod fit;
mod links;
mod machine;
mod measurement;
mod monotone;
mod operand;
mod other_work;
mod sites;
mod streaming;
mod subject;
mod system_memory;
mod task;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

use shardloom_cluster::{MeasuredOn, Profile};
use shardloom_fabric::Engine;

use other_work::{ProcessorTime, UNDISTURBED};

pub use bench::Timed;

pub use error::{ProfileError, Result};
pub use other_work::is_busy;
pub use sites::Sites;
pub use system_memory::SystemMemory;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Ranks that run at once, each on a core of its own: the devices of the profile. All cores if
    /// absent.
    pub ranks: Option<NonZeroUsize>,
    /// Memory of the machine. What the system says if absent, which it does on Linux.
    pub memory_bytes: Option<u64>,
    /// In which formats, and how long to take.
    pub scope: Scope,
}

/// How much is measured of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scope {
    /// How long to take.
    pub effort: Effort,
    /// Whether operators are measured in fp16, too, beside fp32 and bf16: few train in it on processors, and it takes
    /// half as long again.
    pub fp16: bool,
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// Half a minute, and up to a minute and a half where caches are large.
    #[default]
    Quick,
    /// More repeats of more sizes, for a machine on which other work disturbs: some minutes.
    Thorough,
}

/// How an estimate from a profile compares with what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The rate class, such as `contract+bias.weight`.
    pub class: String,
    /// The size: elements, or those of a product.
    pub size: String,
    /// What the profile says.
    pub estimated_seconds: f64,
    /// What was measured.
    pub measured_seconds: f64,
}

impl Estimate {
    /// The estimate's relative error; 0.1 if it is a tenth above what was measured.
    pub fn error(&self) -> f64 {
        self.estimated_seconds / self.measured_seconds - 1.0
    }
}

/// What a measurement made here and now would depend on: where it differs from what a profile was
/// measured on, the profile does not hold.
///
/// # Errors
/// If the system does not say how many cores there are, or the environment asks for kernels that cannot
/// be had.
pub fn this_machine() -> Result<MeasuredOn> {
    machine::this_machine()
}

/// Measures this machine, with ranks that `engine` connects, as one node of as many devices, called
/// `local`. `progress` is told
/// what is being measured and which share of the measurement is done. The profile says how much of the processors' time
/// other programs took meanwhile, if that is enough to matter.
///
/// # Errors
/// If the size of the memory is unknown, or a rank fails.
pub fn measure(
    engine: &dyn Engine<Timed>,
    options: Options,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Profile> {
    let machine = machine::Machine::of(options)?;
    let before = ProcessorTime::now();
    let plan = measurement::Plan::of(options.scope);
    let mut profile = measurement::measure(engine, &machine, &plan, progress)?;
    let taken = before
        .zip(ProcessorTime::now())
        .map(|(before, now)| now.taken_since(&before, (machine.ranks, machine.measured_on.cores)));
    if let Some(measured_on) = &mut profile.measured_on {
        measured_on.others_percent = taken.filter(|&it| it > UNDISTURBED).unwrap_or(0);
    }
    Ok(profile)
}

/// Measures the machines that processes run on, all at once, and the links between them: the profile of the
/// machine of this process, whose name is `local`. Machines of one kind get the same. All processes of
/// `engine` call it; each has one rank.
///
/// Where a machine has more ranks than cores, all is timed by the wall clock, as ranks then take turns in
/// training, too.
///
/// # Errors
/// As [`measure`].
pub fn measure_among(
    engine: &dyn Engine<Timed>,
    sites: &Sites,
    scope: Scope,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Profile> {
    let rank = engine.process().number;
    let machine = machine::Machine::among(sites.clone(), rank, this_machine()?, None)?;
    measurement::measure(engine, &machine, &measurement::Plan::of(scope), progress)
}

/// Measures operators at sizes that [`measure`] leaves out, and compares with what `profile` says:
/// how far the profile can be trusted.
///
/// # Errors
/// As [`measure`].
pub fn check(
    profile: &Profile,
    engine: &dyn Engine<Timed>,
    options: Options,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Vec<Estimate>> {
    let machine = machine::Machine::of(options)?;
    measurement::check(profile, engine, &machine, &measurement::Plan::of(options.scope), progress)
}
