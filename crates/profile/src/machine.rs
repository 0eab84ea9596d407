//! What the operating system says of the machine.

use shardloom_cluster::MeasuredOn;
use shardloom_kernels::Tier;

use crate::Options;
use crate::{ProfileError, Result, Sites, SystemMemory};

/// The machine measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    /// All ranks that measure, this machine's among them.
    pub sites: Sites,
    /// One of this machine's.
    pub rank: u32,
    /// How many are this machine's.
    pub ranks: u32,
    pub memory_bytes: u64,
    pub measured_on: MeasuredOn,
}

impl Machine {
    /// This machine, where `options` do not say otherwise.
    ///
    /// # Errors
    /// [`ProfileError::Machine`] if the system does not say how large the memory or how many the cores are;
    /// [`ProfileError::Kernels`] if the environment asks for kernels that cannot be had.
    pub fn of(options: Options) -> Result<Machine> {
        let measured_on = this_machine()?;
        let ranks = match options.ranks {
            Some(ranks) => u32::try_from(ranks.get()).unwrap_or(u32::MAX),
            None => measured_on.cores,
        };
        Machine::among(Sites::one(ranks), 0, measured_on, options.memory_bytes)
    }

    /// The machine of a rank among several machines.
    ///
    /// # Errors
    /// As [`Machine::of`].
    pub fn among(
        sites: Sites,
        rank: u32,
        measured_on: MeasuredOn,
        memory_bytes: Option<u64>,
    ) -> Result<Machine> {
        let memory_bytes = match memory_bytes {
            Some(bytes) => bytes,
            None => {
                let reason = "the system does not say; give it in bytes".to_owned();
                let unknown = ProfileError::Machine { what: "size of the memory", reason };
                SystemMemory::of_this_process().ok_or(unknown)?.total_bytes
            }
        };
        let ranks = sites.beside(rank).len() as u32;
        Ok(Machine { sites, rank, ranks, memory_bytes, measured_on })
    }
}

/// See [`crate::this_machine`].
pub(crate) fn this_machine() -> Result<MeasuredOn> {
    let cores = std::thread::available_parallelism().map_err(|error| ProfileError::Machine {
        what: "number of cores",
        reason: format!("the system does not say: {error}"),
    })?;
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = field(&processor, "model name").unwrap_or("unnamed processor").to_owned();
    Ok(MeasuredOn {
        processor,
        cores: u32::try_from(cores.get()).unwrap_or(u32::MAX),
        kernels: Tier::selected()?.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}
