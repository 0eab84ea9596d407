//! Rows of tables that servers hold, on their ways between them and workers: which rows of which piece a route brings,
//! and how many these are.

use std::ops::Range;

use crate::{Bucket, BucketId, Carried, ClassId, Program, Route};

/// What a route brings rows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRows {
    /// The worker that looks them up.
    pub worker: ClassId,
    /// The server that holds them.
    pub server: ClassId,
    /// The table, a bucket of the worker's.
    pub bucket: BucketId,
    /// The piece's number among those of the table.
    pub piece: u32,
    /// The rows of the table that are the piece's.
    pub rows: Range<usize>,
    /// All rows of the table.
    pub of: usize,
    /// How often the worker looks one up in a step.
    pub lookups: usize,
}

impl Bucket {
    /// The rows of a piece of a table that servers hold, of so many in all.
    pub(crate) fn piece_rows(&self, piece: u32, of: usize) -> Option<Range<usize>> {
        let range = &self.served.get(piece as usize)?.range;
        let columns = self.elements.checked_div(of).filter(|&columns| columns > 0)?;
        Some(range.start / columns..range.end / columns)
    }
}

impl Program {
    /// What a route brings rows of; none if it brings something else.
    pub fn table_rows(&self, route: &Route) -> Option<TableRows> {
        let (worker, server, bucket, piece) = match route.carried {
            Carried::Lookups(bucket, piece) | Carried::RowGradients(bucket, piece) => {
                (route.from, route.to, bucket, piece)
            }
            Carried::LookedUp(bucket, piece) => (route.to, route.from, bucket, piece),
            _ => return None,
        };
        let class = self.classes.get(worker.0 as usize)?;
        let held = class.buckets.get(bucket.0 as usize)?;
        let of = *class.params.get(held.params.first()?.0 as usize)?.shape.first()?;
        let rows = held.piece_rows(piece, of)?;
        let written = held.held.replicated.rows()?.written;
        let lookups = *class.tensors.get(written.0 as usize)?.local_shape().first()?;
        Some(TableRows { worker, server, bucket, piece, rows, of, lookups })
    }
}

/// The share of a table's rows that so many lookups find on average, where every row is as likely as any other.
pub fn drawn_share(rows: usize, lookups: usize) -> f64 {
    1.0 - (1.0 - 1.0 / rows as f64).powf(lookups as f64)
}

impl TableRows {
    /// How many different rows of the piece are looked up, on average, where every row of the table is as likely as any
    /// other. In data where some are likelier there are fewer.
    pub fn expected(&self) -> f64 {
        self.rows.len() as f64 * drawn_share(self.of, self.lookups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rows_are_expected_as_all_draws_have_on_average() {
        // Of a table of 3 rows a piece has 2; 3 lookups are 27 draws.
        let mut found = 0;
        for draw in 0..27 {
            let drawn = [draw % 3, draw / 3 % 3, draw / 9];
            found += (0..2).filter(|row| drawn.contains(row)).count();
        }
        let (worker, server, bucket, piece) = (ClassId(0), ClassId(1), BucketId(0), 0);
        let rows = TableRows { worker, server, bucket, piece, rows: 0..2, of: 3, lookups: 3 };
        assert!((rows.expected() - found as f64 / 27.0).abs() < 1e-12);
    }
}
