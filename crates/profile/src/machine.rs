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
        others_percent: 0,
    })
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What is measured with other kernels than the best is not taken for these. The choice is made once in a
    /// process, so this test runs itself in one of its own.
    #[test]
    fn the_kernels_that_are_noted_are_those_that_were_chosen() {
        const CHOSEN: (&str, &str) = (shardloom_kernels::tier::VARIABLE, "portable");
        if std::env::var(CHOSEN.0).is_ok_and(|it| it == CHOSEN.1) {
            assert_eq!(this_machine().expect("this machine").kernels, CHOSEN.1);
            return;
        }
        let own = std::env::current_exe().expect("this program");
        let name = "machine::tests::the_kernels_that_are_noted_are_those_that_were_chosen";
        let run = Command::new(own).args([name, "--exact"]).env(CHOSEN.0, CHOSEN.1).output();
        let run = run.expect("it can be run");
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_field_is_the_first_line_of_its_name_and_of_no_longer_one() {
        let text = "model\t\t: 85\nno line\nmodel name\t: A: B \nmodel name\t: C\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "model"), Some("85"));
        assert_eq!((field(text, "name"), field("", "model")), (None, None));
    }

    #[test]
    fn this_machine_is_called_by_its_processor_and_has_the_cores_that_a_process_may_use() {
        let found = this_machine().expect("this machine");
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.starts_with("model name"));
        let name = lines.next().and_then(|line| line.split(':').nth(1));
        assert_eq!(found.processor, name.map_or("unnamed processor", str::trim));
        let cores = std::thread::available_parallelism().expect("the system says");
        assert_eq!((found.cores as usize, found.others_percent), (cores.get(), 0));
        assert_eq!(found.version, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn what_is_given_goes_before_what_the_system_says() {
        let ranks = std::num::NonZeroUsize::new(3);
        let found = Machine::of(Options { ranks, memory_bytes: Some(12345), ..Options::default() })
            .expect("a machine");
        assert_eq!((found.ranks, found.memory_bytes, found.rank), (3, 12345, 0));
        assert_eq!(found.sites, Sites::one(3));
        let usual = Machine::of(Options { memory_bytes: Some(1), ..Options::default() })
            .expect("a machine");
        assert_eq!(usual.ranks, usual.measured_on.cores);
    }
}
