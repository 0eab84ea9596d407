//! Factors of small rank (Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727, algorithms 1 and 2).
//!
//! A matrix `M` of `rows` and `columns`, the sum of all members' parts, is near `P Qᵀ`, with left factors `P` of
//! `rows` times `rank` and right factors `Q` of `columns` times `rank`. Members sum their parts of `M Q`, with the
//! `Q` of the step before, make the columns of the sum orthonormal, and sum their parts of `Mᵀ P`. A column of `Q`
//! that is zero, as at first, is drawn anew. Left factors of all matrices lie one after the other,
//! and behind them whatever has no factors, as it is.

use std::ops::Range;

use smallvec::smallvec;

use super::{Matrix, finite};
use crate::random::{Key, normal_fill};
use crate::window::Window;

impl Matrix {
    /// Where it lies.
    fn range(self) -> Range<usize> {
        self.offset..self.offset + self.rows * self.columns
    }
}

/// What of a bucket has factors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factors {
    /// Their rank.
    pub rank: usize,
    /// The matrices that have some.
    pub factored: Box<[Matrix]>,
    /// What has none.
    pub plain: Box<[Matrix]>,
}

/// Added to the norm of a column that it is divided by.
const LEAST_NORM: f32 = 1e-8;

impl Factors {
    /// Calls `each` for all matrices with where their left and their right factors lie, and says where those of
    /// the last end.
    fn visit(&self, mut each: impl FnMut(Matrix, Range<usize>, Range<usize>)) -> usize {
        let (mut left, mut right) = (0, 0);
        for &matrix in &self.factored {
            let [left_end, right_end] =
                [left + matrix.rows * self.rank, right + matrix.columns * self.rank];
            each(matrix, left..left_end, right..right_end);
            (left, right) = (left_end, right_end);
        }
        left
    }

    /// Calls `each` for all that has no factors with where it lies among left factors from `start` on.
    fn visit_plain(&self, mut start: usize, mut each: impl FnMut(Range<usize>, Range<usize>)) {
        for matrix in &self.plain {
            let range = matrix.range();
            let sent = start..start + range.len();
            start = sent.end;
            each(range, sent);
        }
    }

    /// [`Step::Left`](super::Step::Left).
    pub fn left(
        &self,
        gradients: &[f32],
        left: &mut [f32],
        residual: &mut [f32],
        right: &mut [f32],
    ) {
        for (kept, gradient) in residual.iter_mut().zip(gradients) {
            *kept += gradient;
        }
        let rank = self.rank;
        let end = self.visit(|matrix, to, from| {
            let right = &mut right[from.clone()];
            draw_columns(right, rank, from.start / rank);
            let rows = residual[matrix.range()].chunks_exact(matrix.columns);
            for (row, out) in rows.zip(left[to].chunks_exact_mut(rank)) {
                out.fill(0.0);
                for (&element, factors) in row.iter().zip(right.chunks_exact(rank)) {
                    add_scaled(out, element, factors);
                }
            }
        });
        self.visit_plain(end, |own, sent| left[sent].copy_from_slice(&residual[own]));
    }

    /// [`Step::Right`](super::Step::Right).
    pub fn right(&self, residual: &[f32], right: &mut [f32], left: &mut [f32]) {
        let rank = self.rank;
        self.visit(|matrix, from, to| {
            let left = &mut left[from];
            orthonormalise(left, rank);
            let right = &mut right[to];
            right.fill(0.0);
            let rows = residual[matrix.range()].chunks_exact(matrix.columns);
            for (row, factors) in rows.zip(left.chunks_exact(rank)) {
                for (&element, out) in row.iter().zip(right.chunks_exact_mut(rank)) {
                    add_scaled(out, element, factors);
                }
            }
        });
    }

    /// [`Step::FromFactors`](super::Step::FromFactors): each member keeps how far its part is from an equal share
    /// of the sum.
    pub fn product(
        &self,
        left: &[f32],
        members: usize,
        gradients: &mut [f32],
        residual: &mut [f32],
        right: &mut [f32],
    ) {
        let rank = self.rank;
        let share = 1.0 / members as f32;
        let end = self.visit(|matrix, from_left, from_right| {
            let right = &right[from_right];
            let gradients = gradients[matrix.range()].chunks_exact_mut(matrix.columns);
            let residual = residual[matrix.range()].chunks_exact_mut(matrix.columns);
            for ((row, kept), factors) in
                gradients.zip(residual).zip(left[from_left].chunks_exact(rank))
            {
                for ((element, kept), right) in
                    row.iter_mut().zip(kept).zip(right.chunks_exact(rank))
                {
                    *element = factors.iter().zip(right).map(|(one, other)| one * other).sum();
                    *kept = finite(*kept - share * *element);
                }
            }
        });
        self.visit_plain(end, |own, sent| {
            gradients[own.clone()].copy_from_slice(&left[sent]);
            residual[own].fill(0.0);
        });
        right.iter_mut().for_each(|factor| *factor = finite(*factor));
    }
}

/// `to += factor from`.
fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// Draws the columns of right factors anew that are zero; the first row is that of so many among all.
fn draw_columns(right: &mut [f32], rank: usize, first_row: usize) {
    /// Numbers that are drawn at a time.
    const RUN: usize = 64;
    let rows = right.len() / rank;
    for column in 0..rank {
        let values = || right.iter().skip(column).step_by(rank);
        if values().any(|&value| value != 0.0) {
            continue;
        }
        let key = Key { seed: 0, stream: column as u64, step: 0 };
        for row in (0..rows).step_by(RUN) {
            let mut drawn = [0.0; RUN];
            let drawn = &mut drawn[..RUN.min(rows - row)];
            let start = first_row + row;
            let window = Window {
                extent: smallvec![drawn.len()],
                start: smallvec![start],
                global: smallvec![start + drawn.len()],
            };
            normal_fill(key, &window, 0.0, 1.0, drawn);
            for (row, &value) in (row..).zip(&*drawn) {
                right[row * rank + column] = value;
            }
        }
    }
}

/// Makes the columns of a matrix orthonormal, one after the other (Gram and Schmidt), as the authors' code does. Of
/// one that depends on those before it rounding is left, of any direction.
fn orthonormalise(matrix: &mut [f32], rank: usize) {
    for column in 0..rank {
        let squares = matrix.chunks_exact(rank).map(|row| f64::from(row[column]).powi(2));
        let norm = squares.sum::<f64>().sqrt() as f32 + LEAST_NORM;
        matrix.chunks_exact_mut(rank).for_each(|row| row[column] /= norm);
        for other in column + 1..rank {
            let products =
                matrix.chunks_exact(rank).map(|row| f64::from(row[column]) * f64::from(row[other]));
            let along = products.sum::<f64>() as f32;
            matrix.chunks_exact_mut(rank).for_each(|row| row[other] -= along * row[column]);
        }
    }
}
