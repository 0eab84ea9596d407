//! Softmax cross-entropy in phases, so that the vocabulary can be split between ranks: the ranks
//! combine the row maxima of [`logit_max`] by maximum, the two sums of [`logit_sum`] by addition,
//! and need nothing else from each other (Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section
//! 3).
//!
//! `logits` is `[rows, local vocabulary]`, [`Entries`] say which entries of the vocabulary its columns
//! are; the vectors are `[rows]` and `targets` are entries of the whole vocabulary. Without a split the
//! phases are simply called one after the other.

use crate::elementary::exp;
use crate::reduce::{max, sum};
use crate::simd::simd;

/// Which entries of a vocabulary the columns of local logits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// That of the first column.
    pub first: usize,
    /// How many there are, if fewer than columns on all ranks together: those behind them are padding, which no
    /// phase looks at.
    pub classes: Option<usize>,
}

impl Entries {
    /// Those of a vocabulary that is neither split nor padded.
    pub const ALL: Entries = Entries { first: 0, classes: None };

    /// How many of so many columns are no padding: the first ones.
    #[inline(always)]
    fn of(self, columns: usize) -> usize {
        self.classes.map_or(columns, |classes| classes.saturating_sub(self.first).min(columns))
    }

    /// The column of a target, if it is one of the first `columns`.
    #[inline(always)]
    fn column(self, target: u32, columns: usize) -> Option<usize> {
        (target as usize).checked_sub(self.first).filter(|&column| column < columns)
    }
}

#[inline(always)]
fn columns(logits: usize, rows: usize) -> usize {
    assert!(
        rows > 0 && logits > 0 && logits.is_multiple_of(rows),
        "{logits} logits are not {rows} rows"
    );
    logits / rows
}

#[inline(always)]
fn check_rows(rows: usize, others: &[usize]) {
    assert!(
        others.iter().all(|&len| len == rows),
        "vectors of {others:?} elements for {rows} targets"
    );
}

simd! {
    /// `m[r]` = the largest logit of row r held here, minus infinity where all is padding.
    pub fn logit_max(logits: &[f32], entries: Entries, m: &mut [f32]) {
        let columns = columns(logits.len(), m.len());
        let held = entries.of(columns);
        for (logits, m) in logits.chunks_exact(columns).zip(m) {
            *m = max(&logits[..held]);
        }
    }

    /// Given the maximum `m` over all ranks: `z[r]` = sum of exp(logit - m) held here, and `t[r]` =
    /// the target's logit - m, or 0 where another rank holds the target.
    pub fn logit_sum(
        logits: &[f32],
        m: &[f32],
        targets: &[u32],
        entries: Entries,
        z: &mut [f32],
        t: &mut [f32],
    ) {
        let columns = columns(logits.len(), targets.len());
        let held = entries.of(columns);
        check_rows(targets.len(), &[m.len(), z.len(), t.len()]);
        for (((logits, &m), &target), (z, t)) in
            logits.chunks_exact(columns).zip(m).zip(targets).zip(z.iter_mut().zip(t))
        {
            *z = sum(&logits[..held], |logit| exp(logit - m));
            *t = entries.column(target, held).map_or(0.0, |c| logits[c] - m);
        }
    }

    /// Gradient of scale times [`loss`] with respect to the logits held here, given `m` and `z`
    /// over all ranks: scale (softmax - 1 at the target), 0 of padding.
    pub fn logits_grad(
        logits: &[f32],
        m: &[f32],
        z: &[f32],
        targets: &[u32],
        entries: Entries,
        scale: f32,
        dlogits: &mut [f32],
        accumulate: bool,
    ) {
        let columns = columns(logits.len(), targets.len());
        let held = entries.of(columns);
        assert_eq!(logits.len(), dlogits.len(), "a gradient for each logit");
        check_rows(targets.len(), &[m.len(), z.len()]);
        for (((logits, dlogits), (&m, &z)), &target) in logits
            .chunks_exact(columns)
            .zip(dlogits.chunks_exact_mut(columns))
            .zip(m.iter().zip(z))
            .zip(targets)
        {
            let factor = scale / z;
            let (dlogits, padding) = dlogits.split_at_mut(held);
            for (d, &logit) in dlogits.iter_mut().zip(logits) {
                let term = exp(logit - m) * factor;
                *d = if accumulate { *d + term } else { term };
            }
            if !accumulate {
                padding.fill(0.0);
            }
            if let Some(column) = entries.column(target, held) {
                dlogits[column] -= scale;
            }
        }
    }
}

/// The sum over rows of -ln softmax(target) = ln z - t, given `z` and `t` over all ranks.
pub fn loss(z: &[f32], t: &[f32]) -> f64 {
    check_rows(z.len(), &[t.len()]);
    z.iter().zip(t).map(|(&z, &t)| f64::from(z).ln() - f64::from(t)).sum()
}
