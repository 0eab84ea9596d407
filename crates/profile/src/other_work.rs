//! What other programs do while this one measures (proc(5)).

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Processor time so far, in ticks of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessorTime {
    /// Of all processors: at work and idle.
    all: u64,
    /// Of all processors: at work, for whomever, other virtual machines included.
    busy: u64,
    /// Of this process.
    own: u64,
}

impl ProcessorTime {
    /// Until now; none where the system does not say, as only Linux does.
    pub fn now() -> Option<ProcessorTime> {
        ProcessorTime::under(Path::new("/"))
    }

    fn under(root: &Path) -> Option<ProcessorTime> {
        let machine = fs::read_to_string(root.join("proc/stat")).ok()?;
        let all = machine.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, waiting for disks, interrupts, soft ones, stolen; guests are in the first two.
        let ticks: Vec<u64> =
            all.split_whitespace().map_while(|it| it.parse().ok()).take(8).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all = ticks.iter().sum();
        let process = fs::read_to_string(root.join("proc/self/stat")).ok()?;
        // The program's name, in brackets, may have anything in it.
        let (_, fields) = process.rsplit_once(") ")?;
        let mut times = fields.split_whitespace().skip(11).map_while(|it| it.parse::<u64>().ok());
        let own = times.next()? + times.next()?;
        Some(ProcessorTime { all, busy: all - idle, own })
    }

    /// What others took since `before` that `ranks` of `cores` processors would have needed, in percent of these.
    pub fn taken_since(&self, before: &ProcessorTime, (ranks, cores): (u32, u32)) -> u32 {
        // What the system counts as waiting for disks may become less again.
        let [all, busy, own] =
            [(self.all, before.all), (self.busy, before.busy), (self.own, before.own)]
                .map(|(now, before)| now.saturating_sub(before));
        let (others, all) = (busy.saturating_sub(own), all.max(1));
        let of_cores = others as f64 / all as f64 * f64::from(cores);
        let free = f64::from(cores.saturating_sub(ranks));
        let taken = (of_cores - free) / f64::from(ranks.max(1));
        (100.0 * taken.clamp(0.0, 1.0)).round() as u32
    }
}

/// Up to how many percent of its processors others may take from a measurement: less than its repeats differ by.
pub(crate) const UNDISTURBED: u32 = 10;

/// Whether other programs are at work now, so that what is measured would be disturbed. It watches for a fifth of a
/// second, in which the caller does nothing else.
pub fn is_busy() -> bool {
    let Some(before) = ProcessorTime::now() else { return false };
    sleep(Duration::from_millis(200));
    let cores = std::thread::available_parallelism().map_or(1, |it| it.get() as u32);
    let taken = ProcessorTime::now().map(|now| now.taken_since(&before, (cores, cores)));
    taken.is_some_and(|taken| taken > UNDISTURBED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(machine: &str, process: &str) -> Option<ProcessorTime> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let own = folder.path().join("proc/self");
        fs::create_dir_all(&own).expect("a folder");
        fs::write(folder.path().join("proc/stat"), machine).expect("a file");
        fs::write(own.join("stat"), process).expect("a file");
        ProcessorTime::under(folder.path())
    }

    #[test]
    fn the_system_says_who_was_at_work() {
        let machine = "cpu  100 10 20 300 40 5 6 7 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let process = "77 (a ) name) S 1 77 77 0 -1 4 1 2 3 4 60 15 0 0 20 0 3 0 9\n";
        let expected = ProcessorTime { all: 488, busy: 148, own: 75 };
        assert_eq!(read(machine, process), Some(expected));
        assert_eq!(read("cpu0 1 1 1 1\n", process), None);
        assert_eq!(read(machine, "77 (name) S 1\n"), None);
    }

    #[test]
    fn what_others_take_counts_where_ranks_would_have_needed_it() {
        let before = ProcessorTime { all: 1000, busy: 500, own: 200 };
        // Of 400 ticks of four processors others worked 100, one processor's worth.
        let now = ProcessorTime { all: 1400, busy: 800, own: 400 };
        let taken = |ranks| now.taken_since(&before, (ranks, 4));
        assert_eq!([taken(4), taken(3), taken(2)], [25, 0, 0]);
        let alone = ProcessorTime { all: 1400, busy: 700, own: 401 };
        assert_eq!(alone.taken_since(&before, (4, 4)), 0);
        assert_eq!(before.taken_since(&now, (4, 4)), 0);
    }
}
