//! Rows for intervals of one lane that overlap, such as two collectives under way at once.

use shardloom_program::timeline::{Interval, Picos};

/// Intervals of one lane, in order of start, each with a row in which it overlaps no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stack<'a> {
    /// How many rows there are; one where nothing overlaps, none where there is nothing.
    pub(crate) depth: usize,
    pub(crate) placed: Vec<(&'a Interval, usize)>,
}

/// Puts every interval in the first row that is free when it starts.
///
/// First fit in order of start uses as few rows as there are intervals at once at the busiest moment.
pub(crate) fn stack<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Stack<'a> {
    let mut ordered: Vec<&Interval> = intervals.collect();
    ordered.sort_by_key(|interval| interval.start);
    let mut free_at: Vec<Picos> = Vec::new();
    let mut placed = Vec::with_capacity(ordered.len());
    for interval in ordered {
        let row = free_at.iter().position(|&free| free <= interval.start);
        let row = row.unwrap_or_else(|| {
            free_at.push(Picos::ZERO);
            free_at.len() - 1
        });
        free_at[row] = interval.end;
        placed.push((interval, row));
    }
    Stack { depth: free_at.len(), placed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardloom_program::timeline::Activity;

    use super::*;
    use crate::visible::tests::interval;

    proptest! {
        #[test]
        fn rows_hold_disjoint_intervals_and_are_as_few_as_possible(
            drawn in prop::collection::vec((0..40u64, 1..10u64), 0..20)
        ) {
            let intervals: Vec<Interval> = drawn
                .into_iter()
                .map(|(start, length)| interval(Activity::Collective, "c", start, start + length))
                .collect();
            let stack = stack(intervals.iter());
            prop_assert_eq!(stack.placed.len(), intervals.len());
            for row in 0..stack.depth {
                let in_row: Vec<_> = stack.placed.iter().filter(|(_, r)| *r == row).collect();
                prop_assert!(in_row.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start));
            }
            let at_once = |moment: u64| {
                intervals.iter().filter(|i| i.start.0 <= moment && moment < i.end.0).count()
            };
            prop_assert_eq!(stack.depth, (0..50).map(at_once).max().unwrap_or(0));
        }
    }
}
