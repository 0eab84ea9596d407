//! Updates of whole blocks whose gradient is zero but in some rows, with exactly what they come to with the gradient
//! of all elements, which is made piece by piece and nowhere whole.

use std::ops::Range;

use smallvec::SmallVec;

use super::adafactor::Gradient;
use super::{Adafactor, Optimizer, Piece, Sgd, Step};

/// The elements whose gradients are made at a time. LAMB adds up squares of as many.
const CHUNK: usize = super::lamb::NORM_BLOCK;

/// Gradients of some rows of a block; in all others they are zero.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Which rows, in ascending order.
    pub rows: &'a [u32],
    /// Elements of a row.
    pub columns: usize,
    /// Copies some of the rows' values, which lie side by side.
    pub copy: &'a dyn Fn(Range<usize>, &mut [f32]),
}

impl Rows<'_> {
    /// Writes the gradients of a range of the block's elements.
    fn expand(&self, range: Range<usize>, out: &mut [f32]) {
        let Rows { rows, columns, copy } = *self;
        out.fill(0.0);
        let first = rows.partition_point(|&row| (row as usize + 1) * columns <= range.start);
        for (place, &row) in (first..).zip(&rows[first..]) {
            let start = row as usize * columns;
            if start >= range.end {
                break;
            }
            let part = start.max(range.start)..(start + columns).min(range.end);
            let of_row = place * columns + part.start - start..place * columns + part.end - start;
            copy(of_row, &mut out[part.start - range.start..part.end - range.start]);
        }
    }
}

/// Gradients that are made where they are asked for.
struct Expanded<'a> {
    rows: &'a Rows<'a>,
    buffer: &'a mut [f32],
}

impl Gradient for Expanded<'_> {
    fn of(&mut self, elements: Range<usize>) -> &[f32] {
        let part = &mut self.buffer[..elements.len()];
        self.rows.expand(elements, part);
        part
    }
}

impl Optimizer {
    /// How many elements the buffer has that [`Optimizer::apply_rows`] and [`Optimizer::row_statistics`] want.
    pub fn row_buffer_len(&self, piece: &Piece) -> usize {
        match self {
            Optimizer::Adafactor(_) if piece.block.is_vector() => piece.elements(),
            Optimizer::Adafactor(_) => piece.block.cols,
            Optimizer::Sgd(_) | Optimizer::AdamW(_) | Optimizer::Lamb(_) => CHUNK,
        }
    }

    /// [`Optimizer::statistics`] of a piece that is a whole block.
    pub fn row_statistics(
        &self,
        step: Step,
        round: usize,
        piece: &Piece,
        weights: &[f32],
        rows: &Rows<'_>,
        state: &mut [&mut [f32]],
        previous: &[f32],
        out: &mut [f32],
        buffer: &mut [f32],
    ) {
        check(piece, rows, weights);
        assert_eq!(out.len(), self.statistics_len(&piece.block, round), "statistics of a round");
        self.check_sums(piece, round, previous);
        let mut gradient = Expanded { rows, buffer };
        match (self, state) {
            (Optimizer::Lamb(lamb), [m, v]) => {
                out[0] = crate::reduce::squared_norm(weights) as f32;
                let mut norm = 0.0;
                for start in (0..weights.len()).step_by(CHUNK) {
                    let chunk = start..weights.len().min(start + CHUNK);
                    let gradient = gradient.of(chunk.clone());
                    let (m, v) = (&mut m[chunk.clone()], &mut v[chunk.clone()]);
                    norm += lamb.advance(step, &weights[chunk], gradient, m, v);
                }
                out[1] = norm as f32;
            }
            (Optimizer::Adafactor(adafactor), [moments]) => {
                let (scale, number) = (step.gradient_scale, step.number);
                match round {
                    0 => Adafactor::square_sums(piece, &mut gradient, scale, out),
                    _ => adafactor.update_sums(
                        number,
                        piece,
                        weights,
                        &mut gradient,
                        scale,
                        moments,
                        previous,
                        out,
                    ),
                }
            }
            (optimizer, state) => {
                unreachable!("{optimizer:?} with {} state tensors has no statistics", state.len())
            }
        }
    }

    /// [`Optimizer::apply`] to a piece that is a whole block. Where nothing changes without a gradient, no other
    /// rows are touched.
    pub fn apply_rows(
        &self,
        step: Step,
        piece: &Piece,
        weights: &mut [f32],
        rows: &Rows<'_>,
        state: &mut [&mut [f32]],
        sums: &[f32],
        buffer: &mut [f32],
    ) {
        check(piece, rows, weights);
        self.check_sums(piece, self.rounds(), sums);
        let mut gradient = Expanded { rows, buffer };
        let mut apply = |elements: Range<usize>, state: &mut [&mut [f32]]| {
            for start in elements.clone().step_by(CHUNK) {
                let chunk = start..elements.end.min(start + CHUNK);
                let part = Piece { block: piece.block, range: chunk.clone() };
                let (weights, gradient) = (&mut weights[chunk.clone()], gradient.of(chunk.clone()));
                let of_chunk = state.iter_mut().map(|all| &mut all[chunk.clone()]);
                let mut of_chunk: SmallVec<[&mut [f32]; 2]> = of_chunk.collect();
                self.apply(step, &part, weights, gradient, &mut of_chunk, &[]);
            }
        };
        match (self, state) {
            (Optimizer::Sgd(Sgd { weight_decay: 0.0, .. }), []) => {
                for &row in rows.rows {
                    let start = row as usize * rows.columns;
                    apply(start..start + rows.columns, &mut []);
                }
            }
            (Optimizer::Sgd(_) | Optimizer::AdamW(_), state) => apply(0..piece.elements(), state),
            (Optimizer::Lamb(lamb), [m, v]) => lamb.apply(step, weights, m, v, sums),
            (Optimizer::Adafactor(adafactor), [moments]) => {
                adafactor.apply(step, piece, weights, &mut gradient, moments, sums);
            }
            (optimizer, state) => unreachable!("{optimizer:?} with {} state tensors", state.len()),
        }
    }
}

fn check(piece: &Piece, rows: &Rows<'_>, weights: &[f32]) {
    let block = piece.block.rows * piece.block.cols;
    assert!(
        piece.range == (0..block) && weights.len() == block && rows.columns == piece.block.cols,
        "rows of {} elements for {} weights of {piece:?}",
        rows.columns,
        weights.len()
    );
    let is_below = |&last: &u32| (last as usize) < piece.block.rows;
    assert!(rows.rows.last().is_none_or(is_below), "rows lie in {piece:?}");
}
