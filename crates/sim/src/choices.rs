//! What an actor may choose of where it runs entries as what they receive comes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use shardloom_program::RouteId;
use shardloom_program::timeline::Picos;

/// Entries that have not been run, each by its number, and when all of what they receive is there. An entry is looked
/// at when something that it waited for has come, not each time that the actor chooses.
#[derive(Default)]
pub(crate) struct Choices {
    left: usize,
    /// The entry that receives a route.
    receiving: HashMap<RouteId, usize>,
    /// Those of which something may have come since they were looked at.
    changed: Vec<usize>,
    /// Those whose messages have all been sent, by when these are there.
    later: BinaryHeap<Reverse<(Picos, usize)>>,
    /// Those whose messages were there when the actor chose.
    there: BinaryHeap<Reverse<usize>>,
}

impl Choices {
    /// Whether all entries have been run.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Begins anew, with entries and the routes that they receive.
    pub fn begin(&mut self, entries: impl Iterator<Item = (usize, impl Iterator<Item = RouteId>)>) {
        self.receiving.clear();
        for (entry, routes) in entries {
            self.left += 1;
            self.changed.push(entry);
            self.receiving.extend(routes.map(|route| (route, entry)));
        }
    }

    /// All messages of a route that an entry waited for have been sent.
    pub fn sent(&mut self, route: RouteId) {
        self.changed.extend(self.receiving.get(&route));
    }

    /// Looks again at the entries of which something may have come. `ready` says when all that an entry receives is
    /// there; none if it now waits for something that has not been sent.
    pub fn look(&mut self, mut ready: impl FnMut(usize) -> Option<Picos>) {
        for entry in self.changed.drain(..) {
            self.later.extend(ready(entry).map(|time| Reverse((time, entry))));
        }
    }

    /// What can be run first, from the actor's `clock` on, and when: of several the first entry.
    pub fn first(&mut self, clock: Picos) -> Option<(Picos, usize)> {
        while let Some(&Reverse((time, entry))) = self.later.peek()
            && time <= clock
        {
            self.later.pop();
            self.there.push(Reverse(entry));
        }
        let there = self.there.peek().map(|&Reverse(entry)| (clock, entry));
        there.or_else(|| self.later.peek().map(|&Reverse(first)| first))
    }

    /// Takes what can be run [first](Self::first) from that clock on.
    pub fn take(&mut self, clock: Picos) {
        if self.first(clock).is_some() {
            self.left -= 1;
            if self.there.pop().is_none() {
                self.later.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_that_are_there_is_chosen_and_else_the_earliest() {
        // Messages of an entry's routes, a to c, are there at these times, once they have been sent.
        let times = [[5, 9, 2], [3, 3, 3], [9, 1, 1], [7, 7, 7]].map(|it| it.map(Picos));
        let route = |entry: usize, of: usize| RouteId((3 * entry + of) as u32);
        for seed in 0..200_u64 {
            let mut state = seed;
            let mut draw = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) as usize % below
            };
            let mut choices = Choices::default();
            assert!(choices.is_empty());
            choices.begin((0..4).map(|entry| (entry, (0..3).map(move |of| route(entry, of)))));
            let mut unsent: Vec<(usize, usize)> =
                (0..4).flat_map(|entry| (0..3).map(move |of| (entry, of))).collect();
            let (mut left, mut clock) = (vec![0, 1, 2, 3], Picos(0));
            while !left.is_empty() {
                if !unsent.is_empty() && draw(2) == 0 {
                    let (entry, of) = unsent.remove(draw(unsent.len()));
                    choices.sent(route(entry, of));
                }
                let ready = |entry: usize| {
                    let is_sent = unsent.iter().all(|&(waits, _)| waits != entry);
                    is_sent.then(|| *times[entry].iter().max().unwrap())
                };
                choices.look(ready);
                let due = |entry: &usize| Some((ready(*entry)?.max(clock), *entry));
                let expected = left.iter().filter_map(due).min();
                assert_eq!(choices.first(clock), expected, "seed {seed}");
                if let Some((time, entry)) = expected
                    && draw(2) == 0
                {
                    choices.take(clock);
                    left.retain(|&it| it != entry);
                    clock = time.max(clock) + Picos(draw(3) as u64);
                }
                assert_eq!(choices.is_empty(), left.is_empty());
            }
        }
    }
}
