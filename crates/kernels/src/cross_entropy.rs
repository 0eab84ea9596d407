//! Softmax cross-entropy in phases, so that the vocabulary can be split between ranks: the ranks
//! combine the row maxima of [`logit_max`] by maximum, the two sums of [`logit_sum`] by addition,
//! and need nothing else from each other (Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section
//! 3).
//!
//! `logits` is `[rows, local vocabulary]`, the first local column being the vocabulary's entry
//! `vocab_start`; the vectors are `[rows]` and `targets` are entries of the whole vocabulary.
//! Without a split the phases are simply called one after the other.

use crate::elementary::exp;
use crate::reduce::{max, sum};
use crate::simd::simd;

#[inline(always)]
fn columns(logits: usize, rows: usize) -> usize {
    assert!(
        rows > 0 && logits > 0 && logits.is_multiple_of(rows),
        "{logits} logits are not {rows} rows"
    );
    logits / rows
}

/// The column of a target, if it is one of the `columns` from `vocab_start`.
#[inline(always)]
fn local_column(target: u32, vocab_start: usize, columns: usize) -> Option<usize> {
    (target as usize).checked_sub(vocab_start).filter(|&column| column < columns)
}

#[inline(always)]
fn check_rows(rows: usize, others: &[usize]) {
    assert!(
        others.iter().all(|&len| len == rows),
        "vectors of {others:?} elements for {rows} targets"
    );
}

simd! {
    /// `m[r]` = the largest logit of row r held here.
    pub fn logit_max(logits: &[f32], m: &mut [f32]) {
        let columns = columns(logits.len(), m.len());
        for (logits, m) in logits.chunks_exact(columns).zip(m) {
            *m = max(logits);
        }
    }

    /// Given the maximum `m` over all ranks: `z[r]` = sum of exp(logit - m) held here, and `t[r]` =
    /// the target's logit - m, or 0 where another rank holds the target.
    pub fn logit_sum(
        logits: &[f32],
        m: &[f32],
        targets: &[u32],
        vocab_start: usize,
        z: &mut [f32],
        t: &mut [f32],
    ) {
        let columns = columns(logits.len(), targets.len());
        check_rows(targets.len(), &[m.len(), z.len(), t.len()]);
        for (((logits, &m), &target), (z, t)) in
            logits.chunks_exact(columns).zip(m).zip(targets).zip(z.iter_mut().zip(t))
        {
            *z = sum(logits, |logit| exp(logit - m));
            *t = local_column(target, vocab_start, columns).map_or(0.0, |c| logits[c] - m);
        }
    }

    /// Gradient of scale times [`loss`] with respect to the logits held here, given `m` and `z`
    /// over all ranks: scale (softmax - 1 at the target).
    pub fn logits_grad(
        logits: &[f32],
        m: &[f32],
        z: &[f32],
        targets: &[u32],
        vocab_start: usize,
        scale: f32,
        dlogits: &mut [f32],
        accumulate: bool,
    ) {
        let columns = columns(logits.len(), targets.len());
        assert_eq!(logits.len(), dlogits.len(), "a gradient for each logit");
        check_rows(targets.len(), &[m.len(), z.len()]);
        for (((logits, dlogits), (&m, &z)), &target) in logits
            .chunks_exact(columns)
            .zip(dlogits.chunks_exact_mut(columns))
            .zip(m.iter().zip(z))
            .zip(targets)
        {
            let factor = scale / z;
            for (d, &logit) in dlogits.iter_mut().zip(logits) {
                let term = exp(logit - m) * factor;
                *d = if accumulate { *d + term } else { term };
            }
            if let Some(column) = local_column(target, vocab_start, columns) {
                dlogits[column] -= scale;
            }
        }
    }

    /// [`logits_grad`] without a second matrix: overwrites the logits with their gradient.
    pub fn logits_grad_in_place(
        logits: &mut [f32],
        m: &[f32],
        z: &[f32],
        targets: &[u32],
        vocab_start: usize,
        scale: f32,
    ) {
        let columns = columns(logits.len(), targets.len());
        check_rows(targets.len(), &[m.len(), z.len()]);
        for ((logits, (&m, &z)), &target) in
            logits.chunks_exact_mut(columns).zip(m.iter().zip(z)).zip(targets)
        {
            let factor = scale / z;
            for logit in logits.iter_mut() {
                *logit = exp(*logit - m) * factor;
            }
            if let Some(column) = local_column(target, vocab_start, columns) {
                logits[column] -= scale;
            }
        }
    }
}

/// The sum over rows of -ln softmax(target) = ln z - t, given `z` and `t` over all ranks.
pub fn loss(z: &[f32], t: &[f32]) -> f64 {
    check_rows(z.len(), &[t.len()]);
    z.iter().zip(t).map(|(&z, &t)| f64::from(z).ln() - f64::from(t)).sum()
}
