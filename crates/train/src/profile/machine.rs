//! What the operating system says of the machine.

use super::Options;
use crate::{Error, Result};

/// The machine measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub ranks: u32,
    pub memory_bytes: u64,
    /// The processor's name, where the system tells.
    pub processor: String,
}

impl Machine {
    /// This machine, where `options` do not say otherwise.
    ///
    /// # Errors
    /// [`Error::Machine`] if the system does not say how large the memory or how many the cores are.
    pub fn of(options: Options) -> Result<Machine> {
        let ranks = match options.ranks {
            Some(ranks) => ranks.get(),
            None => std::thread::available_parallelism()
                .map_err(|error| Error::Machine {
                    what: "number of cores",
                    reason: format!("{error}; give the number of ranks"),
                })?
                .get(),
        };
        let memory_bytes = match options.memory_bytes {
            Some(bytes) => bytes,
            None => system_memory()?,
        };
        let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = field(&processor, "model name").unwrap_or("unnamed processor").to_owned();
        Ok(Machine { ranks: ranks as u32, memory_bytes, processor })
    }
}

fn system_memory() -> Result<u64> {
    let unknown = |reason: String| Error::Machine {
        what: "size of the memory",
        reason: format!("{reason}; give it in bytes"),
    };
    let text = std::fs::read_to_string("/proc/meminfo")
        .map_err(|error| unknown(format!("/proc/meminfo: {error}")))?;
    total_memory(&text).ok_or_else(|| unknown("/proc/meminfo has no line `MemTotal: N kB`".into()))
}

/// Bytes that the text of `/proc/meminfo` gives as total.
fn total_memory(text: &str) -> Option<u64> {
    let kilobytes: u64 = field(text, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
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
    use super::*;

    #[test]
    fn memory_is_read_in_units_of_1024_bytes() {
        let text = "MemTotal:       24684092 kB\nMemFree:        18684320 kB\n";
        assert_eq!(total_memory(text), Some(24_684_092 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
        assert_eq!(total_memory("MemTotal: much\n"), None);
    }
}
