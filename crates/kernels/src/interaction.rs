//! Dot products of all pairs of features (Naumov et al., "Deep Learning Recommendation Model for
//! Personalization and Recommendation Systems", arXiv 1906.00091, section 2.1.3).
//!
//! Each part is `[rows, width]`. The pairs of a row are those of the lower triangle, row by row: part 1
//! with 0, 2 with 0, 2 with 1, and so on; with `diagonal` each part with itself comes after those before
//! it.

use std::cmp::Ordering;

use crate::reduce::sum_pairs;
use crate::simd::simd;

/// Where the product of two parts stands among those of a row, the later part first.
#[inline(always)]
fn place(of: usize, before: usize, diagonal: bool) -> usize {
    of * (of + 1) / 2 - if diagonal { 0 } else { of } + before
}

/// How many parts the `i`-th is multiplied with.
#[inline(always)]
fn partners(i: usize, diagonal: bool) -> usize {
    i + usize::from(diagonal)
}

#[inline(always)]
fn check(parts: &[&[f32]], width: usize, pairs: usize, diagonal: bool) -> usize {
    let each = parts.first().map_or(0, |part| part.len());
    let rows = each / width;
    let count: usize = (0..parts.len()).map(|i| partners(i, diagonal)).sum();
    assert!(
        each.is_multiple_of(width)
            && parts.iter().all(|part| part.len() == each)
            && pairs == rows * count,
        "{} parts of {each} elements in rows of {width} do not have {pairs} pairs",
        parts.len()
    );
    count
}

simd! {
    /// `y[r]` = the products of the pairs of the r-th rows.
    pub fn dot_interaction(parts: &[&[f32]], width: usize, diagonal: bool, y: &mut [f32]) {
        let count = check(parts, width, y.len(), diagonal);
        for (row, y) in y.chunks_exact_mut(count).enumerate() {
            let mut pairs = y.iter_mut();
            for (i, a) in parts.iter().enumerate() {
                let a = &a[row * width..][..width];
                let before = &parts[..partners(i, diagonal)];
                for (b, y) in before.iter().zip(&mut pairs) {
                    *y = sum_pairs(a, &b[row * width..][..width], |a, b| a * b);
                }
            }
        }
    }

    /// Gradient of [`dot_interaction`] for the part number `of`: the sum of the other parts, each times
    /// the gradient of its product with this one.
    pub fn dot_interaction_input_grad(
        parts: &[&[f32]],
        width: usize,
        diagonal: bool,
        dy: &[f32],
        of: usize,
        dx: &mut [f32],
        accumulate: bool,
    ) {
        let count = check(parts, width, dy.len(), diagonal);
        assert_eq!(dx.len(), parts[of].len(), "a gradient for each element");
        if !accumulate {
            dx.fill(0.0);
        }
        for ((row, dx), dy) in
            dx.chunks_exact_mut(width).enumerate().zip(dy.chunks_exact(count))
        {
            for (other, part) in parts.iter().enumerate() {
                let factor = match other.cmp(&of) {
                    Ordering::Less => dy[place(of, other, diagonal)],
                    Ordering::Greater => dy[place(other, of, diagonal)],
                    // A product with itself has this part twice.
                    Ordering::Equal if diagonal => 2.0 * dy[place(of, of, diagonal)],
                    Ordering::Equal => continue,
                };
                for (dx, &x) in dx.iter_mut().zip(&part[row * width..][..width]) {
                    *dx += factor * x;
                }
            }
        }
    }
}
