//! Adafactor (Shazeer and Stern, arXiv 1804.04235), algorithms 4 (matrices) and 5 (vectors),
//! without momentum: the second moment of a matrix is kept as its row and column sums.
//!
//! Round 0 sums the squared gradients over rows and columns. Round 1 moves the kept sums towards
//! them (every owner the same) and sums the squares of the update and of the weights over the whole
//! parameter, which [`Adafactor::apply`] needs to clip the one and to scale by the other. A vector
//! keeps its second moment element by element and has nothing to sum in round 0.

use super::{Block, Piece, Segment, Step};
use crate::reduce::{squared_norm, sum};
use crate::simd::simd;

/// Added to squared gradients (the paper's first regularisation constant).
const SQUARE_FLOOR: f32 = 1e-30;

/// Hyper-parameters of Adafactor.
///
/// The learning rate of a [`Step`] is the paper's relative step size, which is multiplied by the
/// root mean square of the parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The second moment decays by 1 - number^-`decay_exponent`: the paper's 0.8.
    pub decay_exponent: f32,
    /// Root mean square the update is clipped to: the paper's 1.
    pub clip: f32,
    /// The least root mean square a parameter is taken to have: the paper's 1e-3.
    pub least_parameter_rms: f32,
    /// Share of the weights, times the learning rate, taken off at each update; not in the paper.
    pub weight_decay: f32,
}

/// The gradient of a piece, of which one range after the other is asked for.
pub(super) trait Gradient {
    /// That of some elements.
    fn of(&mut self, elements: std::ops::Range<usize>) -> &[f32];
}

impl Gradient for &[f32] {
    fn of(&mut self, elements: std::ops::Range<usize>) -> &[f32] {
        &self[elements]
    }
}

/// What the elements of one segment are divided by: the root of the second moment, factored or not.
enum Moment<'a> {
    Factored { inverse_root_row: f32, columns: &'a [f32] },
    Elements(&'a [f32]),
}

impl Adafactor {
    pub(super) fn state_len(piece: &Piece) -> usize {
        if piece.block.is_vector() {
            piece.elements()
        } else {
            piece.block.global_rows + piece.block.global_cols
        }
    }

    pub(super) fn statistics_len(block: &Block, round: usize) -> usize {
        match round {
            0 if block.is_vector() => 0,
            0 => block.global_rows + block.global_cols,
            _ => 2,
        }
    }

    /// Round 0: the piece's share of the row sums, then of the column sums.
    pub(super) fn square_sums(
        piece: &Piece,
        gradient: &mut impl Gradient,
        scale: f32,
        out: &mut [f32],
    ) {
        if piece.block.is_vector() {
            return;
        }
        out.fill(0.0);
        let (rows, cols) = out.split_at_mut(piece.block.global_rows);
        for Segment { row, col, elements } in piece.segments() {
            let cols = &mut cols[col..col + elements.len()];
            rows[row] += add_squares(gradient.of(elements), scale, cols);
        }
    }

    /// Round 1: advances the moments and gives the squared norms of the update and of the weights.
    pub(super) fn update_sums(
        &self,
        number: u64,
        piece: &Piece,
        weights: &[f32],
        gradient: &mut impl Gradient,
        scale: f32,
        moments: &mut [f32],
        square_sums: &[f32],
        out: &mut [f32],
    ) {
        let keep = (1.0 - (number as f64).powf(-f64::from(self.decay_exponent))) as f32;
        if piece.block.is_vector() {
            average_squares(moments, gradient.of(0..piece.elements()), scale, keep);
        } else {
            for (moment, &sum) in moments.iter_mut().zip(square_sums) {
                *moment = keep * *moment + (1.0 - keep) * sum;
            }
        }
        let mut norm = 0.0;
        for_each_segment(piece, moments, |elements, moment| {
            let gradient = gradient.of(elements);
            norm += match moment {
                Moment::Factored { inverse_root_row, columns } => {
                    factored_norm(gradient, scale * inverse_root_row, columns)
                }
                Moment::Elements(moments) => factored_norm(gradient, scale, moments),
            };
        });
        out[0] = norm as f32;
        out[1] = squared_norm(weights) as f32;
    }

    pub(super) fn apply(
        &self,
        step: Step,
        piece: &Piece,
        weights: &mut [f32],
        gradient: &mut impl Gradient,
        moments: &[f32],
        sums: &[f32],
    ) {
        let count = (piece.block.global_rows * piece.block.global_cols) as f32;
        let (update_rms, parameter_rms) = ((sums[0] / count).sqrt(), (sums[1] / count).sqrt());
        let clip = (update_rms / self.clip).max(1.0);
        let rate = step.learning_rate * parameter_rms.max(self.least_parameter_rms) / clip;
        let keep = 1.0 - step.learning_rate * self.weight_decay;
        let factor = rate * step.gradient_scale;
        for_each_segment(piece, moments, |elements, moment| {
            let (weights, gradient) = (&mut weights[elements.clone()], gradient.of(elements));
            match moment {
                Moment::Factored { inverse_root_row, columns } => {
                    descend(weights, gradient, keep, factor * inverse_root_row, columns);
                }
                Moment::Elements(moments) => descend(weights, gradient, keep, factor, moments),
            }
        });
    }
}

/// Visits the piece row by row with the second moment of its elements: R_i C_j / sum of R for a
/// matrix, taken apart so that the product of two tiny sums does not underflow.
fn for_each_segment(
    piece: &Piece,
    moments: &[f32],
    mut visit: impl FnMut(std::ops::Range<usize>, Moment),
) {
    if piece.block.is_vector() {
        visit(0..piece.elements(), Moment::Elements(moments));
        return;
    }
    let (rows, cols) = moments.split_at(piece.block.global_rows);
    let total: f64 = rows.iter().map(|&row| f64::from(row)).sum();
    for Segment { row, col, elements } in piece.segments() {
        let inverse_root_row = (total / f64::from(rows[row])).sqrt() as f32;
        let columns = &cols[col..col + elements.len()];
        visit(elements, Moment::Factored { inverse_root_row, columns });
    }
}

simd! {
    /// Adds the squared gradients of a row segment to their columns' sums and returns their sum.
    fn add_squares(gradient: &[f32], scale: f32, cols: &mut [f32]) -> f32 {
        let square = |g: f32| (scale * g).mul_add(scale * g, SQUARE_FLOOR);
        for (col, &g) in cols.iter_mut().zip(gradient) {
            *col += square(g);
        }
        sum(gradient, square)
    }

    fn average_squares(moments: &mut [f32], gradient: &[f32], scale: f32, keep: f32) {
        for (moment, &g) in moments.iter_mut().zip(gradient) {
            let square = (scale * g).mul_add(scale * g, SQUARE_FLOOR);
            *moment = keep.mul_add(*moment, (1.0 - keep) * square);
        }
    }

    fn factored_norm(gradient: &[f32], factor: f32, moments: &[f32]) -> f64 {
        f64::from(crate::reduce::sum_pairs(gradient, moments, |g, moment| {
            factor * g * (factor * g) / moment
        }))
    }

    fn descend(weights: &mut [f32], gradient: &[f32], keep: f32, factor: f32, moments: &[f32]) {
        for (w, (&g, &moment)) in weights.iter_mut().zip(gradient.iter().zip(moments)) {
            *w = keep.mul_add(*w, -(factor * g / moment.sqrt()));
        }
    }
}
