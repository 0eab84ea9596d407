//! How often rows of one class were taken for another.

use std::collections::BTreeMap;

/// How many rows of each class got each class, of the classes that some row is of or got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confusion {
    classes: Vec<u32>,
    counts: Vec<Vec<u64>>,
}

impl Confusion {
    /// The counts over rows, each given as the class that it is of and the one that it got.
    ///
    /// ```
    /// use shardloom::Confusion;
    ///
    /// let confusion = Confusion::of([(0, 0), (0, 4), (0, 0), (4, 4)]);
    /// assert_eq!(confusion.classes(), [0, 4]);
    /// assert_eq!(confusion.counts(), [[2, 1], [0, 1]]);
    /// assert_eq!(confusion.accuracy(), Some(0.75));
    /// assert_eq!((confusion.precision(1), confusion.recall(1)), (Some(0.5), Some(1.0)));
    /// ```
    pub fn of(rows: impl IntoIterator<Item = (u32, u32)>) -> Confusion {
        let mut pairs: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for row in rows {
            *pairs.entry(row).or_default() += 1;
        }
        let mut classes: Vec<u32> = pairs.keys().flat_map(|&(of, got)| [of, got]).collect();
        classes.sort_unstable();
        classes.dedup();
        let count = |of: u32, got: u32| pairs.get(&(of, got)).copied().unwrap_or(0);
        let row = |&of: &u32| classes.iter().map(|&got| count(of, got)).collect();
        let counts = classes.iter().map(row).collect();
        Confusion { classes, counts }
    }

    /// The classes, in ascending order.
    pub fn classes(&self) -> &[u32] {
        &self.classes
    }

    /// A list for each class that rows are of, in it a number for each class that they got.
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// How many got the class that they are of.
    pub fn right(&self) -> u64 {
        (0..self.classes.len()).map(|at| self.counts[at][at]).sum()
    }

    /// Their share of all rows; none if there is no row.
    pub fn accuracy(&self) -> Option<f64> {
        share(self.right(), self.rows())
    }

    /// Of the rows that got the n-th of the classes, the share that is of it; none if no row got it.
    pub fn precision(&self, at: usize) -> Option<f64> {
        let right = *self.counts.get(at)?.get(at)?;
        share(right, self.counts.iter().map(|row| row[at]).sum())
    }

    /// Of the rows of the n-th of the classes, the share that got it; none if no row is of it.
    pub fn recall(&self, at: usize) -> Option<f64> {
        let row = self.counts.get(at)?;
        share(*row.get(at)?, row.iter().sum())
    }
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six rows of class 0, three of 2, none of 7, which one got.
    #[test]
    fn a_small_table_counted_by_hand() {
        let rows = [(0, 0), (2, 2), (0, 2), (0, 0), (2, 0), (0, 7), (0, 0), (2, 2), (0, 0)];
        let confusion = Confusion::of(rows);
        assert_eq!(confusion.classes(), [0, 2, 7]);
        assert_eq!(confusion.counts(), [[4, 1, 1], [1, 2, 0], [0, 0, 0]]);
        assert_eq!((confusion.rows(), confusion.right()), (9, 6));
        assert_eq!(confusion.accuracy(), Some(6.0 / 9.0));
        let precision = [Some(4.0 / 5.0), Some(2.0 / 3.0), Some(0.0), None];
        let recall = [Some(4.0 / 6.0), Some(2.0 / 3.0), None, None];
        for at in 0..4 {
            assert_eq!(
                (confusion.precision(at), confusion.recall(at)),
                (precision[at], recall[at])
            );
        }
        let never = Confusion::of([(1, 0)]);
        assert_eq!((never.precision(1), never.recall(1)), (None, Some(0.0)));
        assert_eq!(Confusion::of([]).accuracy(), None);
    }
}
