//! How many rows went to each expert, and how many of a table were looked up, as a run has measured it.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_graph::ValueId;

use crate::{BucketId, ClassId, Placement, TableRows};

/// By the value that counts a routing's rows, and by micro-batch of a step: how many rows of each sample each
/// expert had.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredRows {
    counts: BTreeMap<(ValueId, u32), Counts>,
    /// By worker and table: how many different rows of each piece it looked up in a step.
    lookups: BTreeMap<(ClassId, BucketId), Vec<u32>>,
}

/// The counts of one routing and micro-batch.
#[derive(Clone, Debug, PartialEq)]
struct Counts {
    samples: usize,
    /// `[experts, samples]`.
    rows: Vec<u32>,
}

impl MeasuredRows {
    /// Notes what one rank counted: `rows [experts, samples]` of those that `placement` says, of `of`
    /// experts and samples in all.
    pub fn note(
        &mut self,
        (counts, microbatch): (ValueId, u32),
        of: [usize; 2],
        placement: &Placement,
        rows: impl IntoIterator<Item = u32>,
    ) {
        let [experts, samples] = of;
        let all = || Counts { samples, rows: vec![0; experts * samples] };
        let known = self.counts.entry((counts, microbatch)).or_insert_with(all);
        let places = placement
            .range(0)
            .flat_map(|expert| placement.range(1).map(move |sample| expert * samples + sample));
        for (place, rows) in places.zip(rows) {
            known.rows[place] = rows;
        }
    }

    /// How many rows some experts had of some samples of a micro-batch; none if that was not measured.
    pub fn rows(
        &self,
        counts: ValueId,
        microbatch: u32,
        experts: Range<usize>,
        samples: Range<usize>,
    ) -> Option<usize> {
        let known = self.counts.get(&(counts, microbatch))?;
        let of = |expert: usize| {
            let first = expert * known.samples;
            known.rows[first + samples.start..first + samples.end].iter().map(|&it| it as usize)
        };
        Some(experts.flat_map(of).sum())
    }

    /// Notes how many different rows of each piece of a table a worker looked up in a step.
    pub fn note_lookups(&mut self, worker: ClassId, table: BucketId, pieces: Vec<u32>) {
        self.lookups.insert((worker, table), pieces);
    }

    /// How many different rows of a piece of a table its worker looked up in a step; none if that was not measured.
    pub fn looked_up(&self, rows: &TableRows) -> Option<usize> {
        let pieces = self.lookups.get(&(rows.worker, rows.bucket))?;
        pieces.get(rows.piece as usize).map(|&count| count as usize)
    }

    /// By routing and micro-batch, how many rows each expert had.
    pub fn by_expert(&self) -> impl Iterator<Item = (ValueId, u32, Vec<usize>)> + '_ {
        self.counts.iter().map(|(&(counts, microbatch), known)| {
            let of = |rows: &[u32]| rows.iter().map(|&it| it as usize).sum();
            (counts, microbatch, known.rows.chunks(known.samples).map(of).collect())
        })
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.lookups.is_empty()
    }
}
