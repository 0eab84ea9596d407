//! What an actor's memory comes to over time, in a bounded number of changes.

use shardloom_program::timeline::Picos;

/// The most changes that are kept of an actor. A chart is some thousand pixels wide.
const MOST: usize = 4096;

/// Changes of memory. Where there are too many, the highest of so many in a row stands for these, so that the most
/// that was ever held is always among them.
pub(crate) struct MemoryChanges {
    kept: Vec<(Picos, u64)>,
    /// How many changes in a row are kept as one.
    stride: usize,
    /// How many of the next there are so far, and the highest of them.
    met: usize,
    highest: (Picos, u64),
    /// The last change.
    last: (Picos, u64),
}

impl MemoryChanges {
    /// Begins with what is held always.
    pub fn new(bytes: u64) -> MemoryChanges {
        let begin = (Picos::ZERO, bytes);
        MemoryChanges { kept: vec![begin], stride: 1, met: 0, highest: begin, last: begin }
    }

    /// From `time` on, or from the last change on if that is later, `bytes` are held.
    pub fn change(&mut self, time: Picos, bytes: u64) {
        if bytes == self.last.1 {
            return;
        }
        self.last = (time.max(self.last.0), bytes);
        if self.met == 0 || bytes > self.highest.1 {
            self.highest = self.last;
        }
        self.met += 1;
        if self.met == self.stride {
            self.kept.push(self.highest);
            self.met = 0;
            if self.kept.len() > MOST {
                self.halve();
            }
        }
    }

    /// Keeps the higher of every two, and what there was at the beginning.
    fn halve(&mut self) {
        let higher = |pair: &[(Picos, u64)]| {
            pair.iter().copied().reduce(|one, other| if other.1 > one.1 { other } else { one })
        };
        let begin = self.kept[0];
        let pairs = self.kept[1..].chunks(2).filter_map(higher);
        self.kept = std::iter::once(begin).chain(pairs).collect();
        self.stride *= 2;
    }

    /// All that are kept, in order of time, and the last.
    pub fn finish(mut self) -> Vec<(Picos, u64)> {
        if self.met > 0 {
            self.kept.push(self.highest);
        }
        if self.kept.last() != Some(&self.last) {
            self.kept.push(self.last);
        }
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(changes: impl IntoIterator<Item = (u64, u64)>) -> Vec<(Picos, u64)> {
        let mut memory = MemoryChanges::new(5);
        for (time, bytes) in changes {
            memory.change(Picos(time), bytes);
        }
        memory.finish()
    }

    #[test]
    fn few_changes_are_all_kept_and_time_never_goes_back() {
        let kept = of([(1, 7), (2, 7), (4, 9), (3, 6), (5, 5)]);
        let expected = [(0, 5), (1, 7), (4, 9), (4, 6), (5, 5)];
        assert_eq!(kept, expected.map(|(time, bytes)| (Picos(time), bytes)));
        assert_eq!(of([]), [(Picos::ZERO, 5)]);
    }

    #[test]
    fn of_very_many_the_highest_the_first_and_the_last_are_kept() {
        let count = 20 * MOST as u64 + 3;
        let kept =
            of((1..=count).map(|it| (it, if it == 777 { 1 << 30 } else { it * 7919 % 1000 })));
        assert!(kept.len() <= MOST + 2 && kept.len() > MOST / 2, "{}", kept.len());
        assert!(kept.contains(&(Picos(777), 1 << 30)));
        assert_eq!(kept[0], (Picos::ZERO, 5));
        assert_eq!(kept.last(), Some(&(Picos(count), count * 7919 % 1000)));
        assert!(kept.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
