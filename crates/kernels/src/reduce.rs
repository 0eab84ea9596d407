//! Sums, maxima and norms over slices, and the column sums that bias and gain gradients are.

use crate::simd::simd;

/// Independent partial sums of a row: enough to hide the latency of an addition, and a fixed order.
pub(crate) const LANES: usize = 32;

/// Folds the lanes pairwise.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = combine(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sum of `term(x)` over a slice.
#[inline(always)]
pub(crate) fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += term(chunk[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += term(x);
    }
    fold(lanes, |a, b| a + b)
}

/// Sum of `term(x, y)` over two slices of one length.
#[inline(always)]
pub(crate) fn sum_pairs(x: &[f32], y: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for i in 0..LANES {
            lanes[i] += term(x[i], y[i]);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *lane += term(x, y);
    }
    fold(lanes, |a, b| a + b)
}

/// Sum of `term(x, y, z)` over three slices of one length.
#[inline(always)]
pub(crate) fn sum_triples(
    x: &[f32],
    y: &[f32],
    z: &[f32],
    term: impl Fn(f32, f32, f32) -> f32,
) -> f32 {
    let mut lanes = [0.0; LANES];
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    let (z_chunks, z_rest) = z.as_chunks::<LANES>();
    for ((x, y), z) in x_chunks.iter().zip(y_chunks).zip(z_chunks) {
        for i in 0..LANES {
            lanes[i] += term(x[i], y[i], z[i]);
        }
    }
    for (lane, ((&x, &y), &z)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest).zip(z_rest)) {
        *lane += term(x, y, z);
    }
    fold(lanes, |a, b| a + b)
}

/// Largest element; negative infinity for an empty slice. A NaN may or may not be passed over.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, x);
    }
    fold(lanes, larger)
}

/// Rows whose terms are added in registers before they are added to the running column sums.
const ROW_BLOCK: usize = 8;

/// Adds to (or sets) `sums[c]` the sum over rows r of `term(of_row(r), x[r, c], y[r, c])`, for
/// row-major `x` and `y` of `sums.len()` columns.
#[inline(always)]
pub(crate) fn column_sums<X: Copy, Y: Copy, R: Copy>(
    x: &[X],
    y: &[Y],
    sums: &mut [f32],
    accumulate: bool,
    of_row: impl Fn(usize) -> R,
    term: impl Fn(R, X, Y) -> f32,
) {
    let columns = sums.len();
    assert_eq!(x.len(), y.len(), "column sums of two matrices of one shape");
    if !accumulate {
        sums.fill(0.0);
    }
    if columns == 0 {
        return;
    }
    assert_eq!(x.len() % columns, 0, "{} elements are not rows of {columns}", x.len());
    let block = ROW_BLOCK * columns;
    for (index, (x, y)) in x.chunks(block).zip(y.chunks(block)).enumerate() {
        let first = index * ROW_BLOCK;
        if x.len() == block {
            let x: [&[X]; ROW_BLOCK] = std::array::from_fn(|r| &x[r * columns..][..columns]);
            let y: [&[Y]; ROW_BLOCK] = std::array::from_fn(|r| &y[r * columns..][..columns]);
            let row: [R; ROW_BLOCK] = std::array::from_fn(|r| of_row(first + r));
            for c in 0..columns {
                let mut partial = 0.0;
                for r in 0..ROW_BLOCK {
                    partial += term(row[r], x[r][c], y[r][c]);
                }
                sums[c] += partial;
            }
        } else {
            for (r, (x, y)) in x.chunks(columns).zip(y.chunks(columns)).enumerate() {
                let row = of_row(first + r);
                for (sum, (&x, &y)) in sums.iter_mut().zip(x.iter().zip(y)) {
                    *sum += term(row, x, y);
                }
            }
        }
    }
}

simd! {
    /// Adds `source` onto `destination`, element by element.
    pub fn sum_into(destination: &mut [f32], source: &[f32]) {
        assert_eq!(destination.len(), source.len(), "sum_into of two slices of one length");
        for (d, &s) in destination.iter_mut().zip(source) {
            *d += s;
        }
    }

    /// Sets each element of `destination` to the larger of itself and that of `source`.
    pub fn max_into(destination: &mut [f32], source: &[f32]) {
        assert_eq!(destination.len(), source.len(), "max_into of two slices of one length");
        for (d, &s) in destination.iter_mut().zip(source) {
            *d = if s > *d { s } else { *d };
        }
    }

    /// Sum of the squares, in double precision: what a gradient norm adds up over tensors and
    /// ranks.
    pub fn squared_norm(x: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += f64::from(chunk[i]) * f64::from(chunk[i]);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(x) * f64::from(x);
        }
        lanes.iter().sum()
    }

    /// Whether any element is infinite or not a number.
    pub fn any_non_finite(x: &[f32]) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        x.chunks(1024).any(|chunk| {
            chunk.iter().fold(false, |found, x| found | (x.to_bits() & EXPONENT == EXPONENT))
        })
    }
}
