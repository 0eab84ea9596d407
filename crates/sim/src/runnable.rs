//! Actors that can go on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shardloom_program::timeline::Picos;

/// Actors that can go on, each from the earliest time on that was said of it.
pub(crate) struct Runnable {
    /// With times that were said before an earlier one, which count no more.
    heap: BinaryHeap<Reverse<(Picos, u32)>>,
    times: Vec<Option<Picos>>,
}

impl Runnable {
    /// Of so many actors none.
    pub fn none_of(actors: usize) -> Runnable {
        Runnable { heap: BinaryHeap::new(), times: vec![None; actors] }
    }

    /// An actor can go on from `time` on, or sooner if that is known.
    pub fn add(&mut self, time: Picos, index: usize) {
        let known = &mut self.times[index];
        if known.is_none_or(|known| time < known) {
            *known = Some(time);
            self.heap.push(Reverse((time, index as u32)));
        }
    }

    /// The first that can go on, of several at a time the first by number, and when.
    pub fn first(&mut self) -> Option<(Picos, u32)> {
        while let Some(&Reverse(first)) = self.heap.peek() {
            if self.times[first.1 as usize] == Some(first.0) {
                return Some(first);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the [first](Runnable::first).
    pub fn take(&mut self) -> Option<usize> {
        let (_, index) = self.first()?;
        self.heap.pop();
        self.times[index as usize] = None;
        Some(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held to a list of all actors with their earliest times.
    #[test]
    fn each_goes_on_once_at_the_earliest_time_that_was_said() {
        const ACTORS: usize = 4;
        for seed in 0..100_u64 {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) % below
            };
            let mut runnable = Runnable::none_of(ACTORS);
            let mut times = [None; ACTORS];
            for _ in 0..200 {
                let (index, time) = (draw(ACTORS as u64) as usize, Picos(draw(6)));
                if draw(3) > 0 {
                    runnable.add(time, index);
                    times[index] = Some(times[index].map_or(time, |known: Picos| known.min(time)));
                } else {
                    assert_eq!(runnable.take().map(|it| it as u32), first(&times).map(|it| it.1));
                    if let Some((_, index)) = first(&times) {
                        times[index as usize] = None;
                    }
                }
                assert_eq!(runnable.first(), first(&times), "seed {seed}");
            }
        }
        fn first(times: &[Option<Picos>]) -> Option<(Picos, u32)> {
            times.iter().zip(0..).filter_map(|(time, index)| Some(((*time)?, index))).min()
        }
    }
}
