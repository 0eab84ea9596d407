//! How much memory this process may use: what the machine has (proc(5)), and no more than the control
//! groups that it runs in allow it, which is how containers and batch systems limit memory (cgroups(7);
//! versions 1 and 2 of the memory controller), nor than its own limit of addresses (`ulimit -v`, getrlimit(2)).

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Memory as the system tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Bytes there are: the machine's, or the lowest limit of a control group or of the process if that is lower.
    pub total_bytes: u64,
    /// Bytes that can still be allocated without swapping.
    pub available_bytes: u64,
}

impl SystemMemory {
    /// What this process may use; `None` where the system does not say, as only Linux does.
    pub fn of_this_process() -> Option<SystemMemory> {
        SystemMemory::under(Path::new("/"))
    }

    /// As [`SystemMemory::of_this_process`], with the system's files under `root`.
    fn under(root: &Path) -> Option<SystemMemory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let mut memory = SystemMemory {
            total_bytes: kibibytes(&meminfo, "MemTotal")?,
            available_bytes: kibibytes(&meminfo, "MemAvailable")?,
        };
        for group in control_groups(root) {
            let Some(limit) = group.number(group.version.limit) else { continue };
            let used = group.number(group.version.usage).unwrap_or(0);
            // The cache of files counts as used, but gives way before anybody is killed.
            let yielding = group.statistic(group.version.inactive_cache).unwrap_or(0);
            let left = limit.saturating_sub(used.saturating_sub(yielding));
            memory.total_bytes = memory.total_bytes.min(limit);
            memory.available_bytes = memory.available_bytes.min(left);
        }
        if let Some(limit) = address_limit(root) {
            let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
            let used = kibibytes(&status, "VmSize").unwrap_or(0);
            memory.total_bytes = memory.total_bytes.min(limit);
            memory.available_bytes = memory.available_bytes.min(limit.saturating_sub(used));
        }
        Some(memory)
    }
}

/// How many bytes of addresses this process may have, if that is limited.
fn address_limit(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let values = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    values.split_whitespace().next()?.parse().ok()
}

/// The value of a line `name: N kB`, in bytes.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// A version of the memory controller.
#[derive(Clone, Copy)]
struct Version {
    /// Where its groups are mounted.
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` for cached files that have not been used of late.
    inactive_cache: &'static str,
}

const FIRST: Version = Version {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_cache: "total_inactive_file",
};

const SECOND: Version = Version {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    inactive_cache: "inactive_file",
};

struct ControlGroup {
    folder: PathBuf,
    version: Version,
}

impl ControlGroup {
    /// The number that is all of a file; `None` if there is no such file or it says `max`.
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn statistic(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

/// The groups this process is in: its own and those around it, as each limits all within. Some may not
/// be there: inside a container, `/proc/self/cgroup` can name a group as the host sees it, while the
/// mount shows the container's own as the outermost.
fn control_groups(root: &Path) -> Vec<ControlGroup> {
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = vec![];
    // Lines are `hierarchy:controllers:path`; version 2 has hierarchy 0 and names no controllers.
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = match (hierarchy, controllers) {
            ("0", "") => SECOND,
            _ if controllers.split(',').any(|controller| controller == "memory") => FIRST,
            _ => continue,
        };
        let mut folder = root.join(version.mount);
        groups.push(ControlGroup { folder: folder.clone(), version });
        for component in Path::new(path).components() {
            if let Component::Normal(name) = component {
                folder.push(name);
                groups.push(ControlGroup { folder: folder.clone(), version });
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n";
    const MIB: u64 = 1 << 20;

    /// What a system of these files says, in MiB.
    fn memory(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, text).expect("written");
        }
        let memory = SystemMemory::under(root.path())?;
        assert_eq!((memory.total_bytes % MIB, memory.available_bytes % MIB), (0, 0));
        Some((memory.total_bytes / MIB, memory.available_bytes / MIB))
    }

    #[test]
    fn without_control_groups_memory_is_the_machines_in_kibibytes() {
        assert_eq!(memory(&[("proc/meminfo", MEMINFO)]), Some((16, 8)));
        assert_eq!(memory(&[("proc/meminfo", "MemTotal: much kB\nMemAvailable: 1 kB\n")]), None);
        assert_eq!(memory(&[("proc/meminfo", "MemAvailable: 1 kB\n")]), None);
        assert_eq!(memory(&[]), None);
    }

    #[test]
    fn a_limit_of_version_2_counts_and_cached_files_of_the_group_do_not() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "4194304\n"),
            ("sys/fs/cgroup/memory.current", "3145728\n"),
            ("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 2097152\nactive_file 5\n"),
        ];
        assert_eq!(memory(&files), Some((4, 3)));
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_around_it_counts() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/batch/job\n"),
            ("sys/fs/cgroup/batch/memory.max", "2097152\n"),
            ("sys/fs/cgroup/batch/memory.current", "1048576\n"),
            ("sys/fs/cgroup/batch/job/memory.max", "max\n"),
            ("sys/fs/cgroup/batch/job/memory.current", "1048576\n"),
        ];
        assert_eq!(memory(&files), Some((2, 1)));
    }

    #[test]
    fn a_limit_of_version_1_counts_inside_a_container_that_sees_its_group_as_outermost() {
        let unlimited = "9223372036854771712\n";
        let files = |limit| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "9:cpu,memory:/docker/1a2b\n1:name=systemd:/docker/1a2b\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 7\ntotal_inactive_file 1048576",
                ),
            ]
        };
        assert_eq!(memory(&files("3145728\n")), Some((3, 2)));
        assert_eq!(memory(&files(unlimited)), Some((16, 8)));
    }

    #[test]
    fn a_limit_of_the_process_counts_and_what_it_has_of_addresses_is_taken() {
        let line = |limit: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             1048576              unlimited            bytes     \n\
                 Max address space         {limit}              unlimited            bytes     \n"
            )
        };
        let (some, none) = (line("4194304"), line("unlimited"));
        let files = |limits, status| {
            [("proc/meminfo", MEMINFO), ("proc/self/limits", limits), ("proc/self/status", status)]
        };
        let size = "VmPeak:\t 4000 kB\nVmSize:\t    3072 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(memory(&files(&some, size)), Some((4, 1)));
        assert_eq!(memory(&files(&some, "")), Some((4, 4)));
        assert_eq!(memory(&files(&none, size)), Some((16, 8)));
        let more = "VmSize:\t 5120 kB\n";
        assert_eq!(memory(&files(&some, more)), Some((4, 0)));
    }

    #[test]
    fn a_group_over_its_limit_has_nothing_left() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/../other/job\n"),
            ("sys/fs/cgroup/other/job/memory.max", "1048576\n"),
            ("sys/fs/cgroup/other/job/memory.current", "2097152\n"),
        ];
        assert_eq!(memory(&files), Some((1, 0)));
    }
}
