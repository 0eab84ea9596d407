//! Ways into and out of a device on which there are several actors.

use std::collections::BTreeMap;

use shardloom_program::timeline::Picos;

/// The ways of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedWays {
    pub inward: Way,
    pub outward: Way,
}

/// When a way is taken. Who takes it need not ask in the order of time: what is known first may go later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// The end of each span in which it is taken, by its start. They neither overlap nor touch.
    taken: BTreeMap<Picos, Picos>,
}

impl Way {
    /// Takes the way for so long as soon as it is free for all of that from `first` on: when that begins. What takes no
    /// time does not wait.
    pub fn take(&mut self, first: Picos, takes: Picos) -> Picos {
        if takes == Picos::ZERO {
            return first;
        }
        let mut start = first;
        if let Some((_, &end)) = self.taken.range(..=first).next_back() {
            start = start.max(end);
        }
        for (&begin, &end) in self.taken.range(first..) {
            if start + takes <= begin {
                break;
            }
            start = start.max(end);
        }
        let (mut begin, mut end) = (start, start + takes);
        if let Some((&before, _)) =
            self.taken.range(..=start).next_back().filter(|it| *it.1 == start)
        {
            begin = before;
        }
        if let Some(behind) = self.taken.remove(&end) {
            end = behind;
        }
        self.taken.insert(begin, end);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_way_begins_as_soon_as_that_is_free_for_all_of_it() {
        let mut way = Way::default();
        let mut take = |first, takes| way.take(Picos(first), Picos(takes)).0;
        assert_eq!(take(10, 5), 10);
        assert_eq!(take(10, 5), 15);
        // Before what was asked for first, if there is room.
        assert_eq!(take(0, 10), 0);
        assert_eq!(take(0, 1), 20);
        assert_eq!(take(30, 10), 30);
        assert_eq!(take(12, 10), 40);
        assert_eq!(take(12, 9), 21);
        assert_eq!(take(5, 0), 5);
        assert_eq!(take(0, 1), 50);
    }

    /// Held against a list of moments that are taken.
    #[test]
    fn no_two_have_a_way_at_once_and_none_waits_without_need() {
        let mut way = Way::default();
        let mut moments = [false; 4000];
        let mut number = 7_u64;
        let mut next = |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % below
        };
        for _ in 0..300 {
            let (first, takes) = (next(1500), 1 + next(9));
            let free = |start: u64| (start..start + takes).all(|moment| !moments[moment as usize]);
            let expected = (first..).find(|&start| free(start)).expect("there is room");
            assert_eq!(way.take(Picos(first), Picos(takes)), Picos(expected));
            (expected..expected + takes).for_each(|moment| moments[moment as usize] = true);
        }
        let spans: Vec<(u64, u64)> =
            way.taken.iter().map(|(start, end)| (start.0, end.0)).collect();
        assert!(spans.windows(2).all(|two| two[0].1 < two[1].0), "{spans:?}");
    }
}
