//! How much memory is left on this machine.

use std::fs;

/// Bytes that programs can still allocate without swapping, where the system says so (Linux).
pub(crate) fn available_memory_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// The `MemAvailable` line of `/proc/meminfo` (proc(5)), which is in units of 1024 bytes.
fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_available_line_is_read_in_kibibytes() {
        let text = "MemTotal:       24689764 kB\nMemFree: 1 kB\nMemAvailable:   18000 kB\n";
        assert_eq!(parse(text), Some(18_432_000));
        assert_eq!(parse("MemTotal: 5 kB\n"), None);
        assert_eq!(parse("MemAvailable: many kB\n"), None);
    }
}
