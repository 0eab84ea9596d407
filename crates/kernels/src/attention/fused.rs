//! Attention as one operator, which keeps no probabilities: they live by tiles of query rows, and its
//! gradient computes them again, as FlashAttention does (Dao et al. 2022, arXiv 2205.14135, algorithm 4).
//! Dropout draws the numbers of the same elements again.
//!
//! A tile has all keys that its queries see, and with a window or documents few others, so that its softmax is that of [`probs`](super::probs) and the
//! results are those of the two operators to the bit. Where operands are in bfloat16, probabilities and the gradients of
//! scores are rounded to it before they are multiplied, as FlashAttention does it. What is needed besides the operands grows with the
//! number of keys and not with its square.

use super::{Attention, Scores, Tile, cap_rows, clear_unseen, scale_by_cap_slope, softmax_rows};
use crate::gemm::{Matrix, MatrixMut};
use crate::matmul::Factor;
use crate::random::{Key, dropout_factors};
use crate::reduce::sum_pairs;
use crate::simd::simd;
use crate::window::{PerAxis, Window};

/// Dropout on the probabilities, drawn where they are needed.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// Of the numbers.
    pub key: Key,
    /// The part of all probabilities `[batch, kv_heads, (group), queries, keys]` that this is.
    pub window: &'a Window,
    /// Probability of dropping one, below 1.
    pub probability: f32,
}

impl Drawn<'_> {
    /// The factors on the probabilities of the keys that a tile sees.
    fn factors(&self, tile: &Tile<'_>, keys: usize, factors: &mut [f32]) {
        let Window { extent, start, global } = self.window;
        let (mut extent, mut start) = (extent.clone(), start.clone());
        let queries = extent.len() - 2;
        let mut row = tile.probs_at / keys;
        for axis in (0..=queries).rev() {
            start[axis] += row % extent[axis];
            row /= extent[axis];
        }
        extent[..queries].fill(1);
        extent[queries] = tile.rows;
        extent[queries + 1] = tile.seen;
        start[queries + 1] += tile.first_key;
        let window = Window { extent, start, global: PerAxis::from_slice(global) };
        dropout_factors(self.key, &window, self.probability, factors);
    }
}

/// Elements of the scratch slice that [`attention`] needs.
pub fn scratch_elements(shape: &Attention, drops: bool) -> usize {
    (2 + usize::from(drops)) * shape.scratch_elements()
}

/// Elements of the scratch slice that [`attention_input_grad`] needs.
pub fn input_grad_scratch_elements(shape: &Attention, drops: bool, capped: bool) -> usize {
    (3 + usize::from(drops) + usize::from(capped)) * shape.scratch_elements()
}

/// o = dropout(p) v, with the probabilities of [`probs`](super::probs).
///
/// `scratch` holds at least [`scratch_elements`].
pub fn attention<T: Factor>(
    shape: &Attention,
    q: &[T],
    k: &[T],
    v: &[T],
    documents: Option<&[u32]>,
    scores: Scores,
    dropout: Option<Drawn>,
    o: &mut [f32],
    scratch: &mut [f32],
) {
    check(shape, &[q.len(), o.len()], &[k.len(), v.len()], dropout);
    shape.check_documents(documents);
    if shape.is_empty() {
        o.fill(0.0);
        return;
    }
    let (p, rest) = scratch.split_at_mut(shape.scratch_elements());
    let (room, factors) = rest.split_at_mut(shape.scratch_elements());
    for tile in shape.tiles(documents) {
        let p = &mut p[..tile.rows * tile.seen];
        raw_scores(shape, &tile, q, k, scores.scale, p);
        probabilities(&tile, scores.cap, p);
        if let Some(dropout) = dropout {
            let factors = &mut factors[..p.len()];
            dropout.factors(&tile, shape.keys, factors);
            scale_by(p, factors);
        }
        let (p, _) = T::factors(p, 1.0, room);
        let p = Matrix::new(p, tile.rows, tile.seen, tile.seen);
        T::multiply(1.0, p, shape.key(&tile, v), shape.query_mut(&tile, o), false);
    }
}

/// Input gradients of [`attention`]: for `q`, `k` and `v`, added onto what is there where `accumulate` says
/// so of each.
///
/// `scratch` holds at least [`input_grad_scratch_elements`].
pub fn attention_input_grad<T: Factor>(
    shape: &Attention,
    q: &[T],
    k: &[T],
    v: &[T],
    documents: Option<&[u32]>,
    scores: Scores,
    dropout: Option<Drawn>,
    d_o: &[T],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
    scratch: &mut [f32],
    accumulate: [bool; 3],
) {
    let queries = [q.len(), d_o.len(), dq.len()];
    check(shape, &queries, &[k.len(), v.len(), dk.len(), dv.len()], dropout);
    shape.check_documents(documents);
    let [accumulate_q, accumulate_k, accumulate_v] = accumulate;
    if !accumulate_k {
        dk.fill(0.0);
    }
    if !accumulate_v {
        dv.fill(0.0);
    }
    if shape.is_empty() {
        if !accumulate_q {
            dq.fill(0.0);
        }
        return;
    }
    let (p, rest) = scratch.split_at_mut(shape.scratch_elements());
    let (ds, rest) = rest.split_at_mut(shape.scratch_elements());
    let (room, rest) = rest.split_at_mut(shape.scratch_elements());
    let drawn = if dropout.is_some() { shape.scratch_elements() } else { 0 };
    let (factors, uncapped) = rest.split_at_mut(drawn);
    let Scores { scale, cap } = scores;
    for tile in shape.tiles(documents) {
        let Tile { rows, seen, .. } = tile;
        let (p, ds) = (&mut p[..rows * seen], &mut ds[..rows * seen]);
        raw_scores(shape, &tile, q, k, scale, p);
        let uncapped = cap.map(|cap| {
            let uncapped = &mut uncapped[..rows * seen];
            uncapped.copy_from_slice(p);
            (cap, &*uncapped)
        });
        probabilities(&tile, cap, p);
        let factors = dropout.map(|dropout| {
            let factors = &mut factors[..rows * seen];
            dropout.factors(&tile, shape.keys, factors);
            &*factors
        });
        let d_o = shape.query(&tile, d_o);
        // What was multiplied with the values, in place of which its gradient is computed next.
        let multiplied = match factors {
            Some(factors) => {
                ds.copy_from_slice(p);
                scale_by(ds, factors);
                &*ds
            }
            None => &*p,
        };
        let (multiplied, _) = T::factors(multiplied, 1.0, room);
        let multiplied = Matrix::new(multiplied, rows, seen, seen).transposed();
        T::multiply(1.0, multiplied, d_o, shape.key_mut(&tile, dv), true);
        let dp = MatrixMut::new(ds, rows, seen, seen);
        T::multiply(1.0, d_o, shape.key(&tile, v).transposed(), dp, false);
        if let Some(factors) = factors {
            scale_by(ds, factors);
        }
        clear_unseen(ds, seen, tile.sight, tile.first_key);
        softmax_rows_grad_in_place(p, seen, ds);
        if let Some((cap, scores)) = uncapped {
            scale_by_cap_slope(ds, scores, cap);
        }
        let (ds, scale) = T::factors(ds, scale, room);
        let ds = Matrix::new(ds, rows, seen, seen);
        T::multiply(scale, ds, shape.key(&tile, k), shape.query_mut(&tile, dq), accumulate_q);
        T::multiply(scale, ds.transposed(), shape.query(&tile, q), shape.key_mut(&tile, dk), true);
    }
}

/// The scores of a tile before they are capped, of the keys it sees.
fn raw_scores<T: Factor>(
    shape: &Attention,
    tile: &Tile<'_>,
    q: &[T],
    k: &[T],
    scale: f32,
    s: &mut [f32],
) {
    let target = MatrixMut::new(s, tile.rows, tile.seen, tile.seen);
    T::multiply(scale, shape.query(tile, q), shape.key(tile, k).transposed(), target, false);
}

/// The probabilities of a tile, in place of these scores.
fn probabilities(tile: &Tile<'_>, cap: Option<f32>, p: &mut [f32]) {
    if let Some(cap) = cap {
        cap_rows(p, tile.seen, 0..tile.seen, cap);
    }
    softmax_rows(p, tile.seen, tile.sight, tile.first_key);
}

fn check(shape: &Attention, queries: &[usize], keys: &[usize], dropout: Option<Drawn>) {
    shape.check(queries, keys, &[]);
    let drawn = dropout.map(|it| it.window.elements());
    assert!(
        drawn.is_none_or(|elements| elements == shape.probs_elements()),
        "{shape:?} got {drawn:?} factors to draw"
    );
}

simd! {
    /// Each element times its factor.
    fn scale_by(values: &mut [f32], factors: &[f32]) {
        for (value, &factor) in values.iter_mut().zip(factors) {
            *value *= factor;
        }
    }

    /// What [`softmax_rows_grad`](super::softmax_rows_grad) computes, in place of the probabilities' gradients.
    fn softmax_rows_grad_in_place(p: &[f32], seen: usize, ds: &mut [f32]) {
        for (p, ds) in p.chunks_exact(seen).zip(ds.chunks_exact_mut(seen)) {
            let mean = sum_pairs(p, ds, |p, dp| p * dp);
            for (ds, &p) in ds.iter_mut().zip(p) {
                *ds = p * (*ds - mean);
            }
        }
    }
}
