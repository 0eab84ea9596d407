//! The matrix product under every kernel that needs one: strided views over slices, checked once,
//! and multiplied by own code, or by the `gemm` crates where these are faster.

mod blocked;
mod by_crate;
mod pack;
mod vector;

use crate::tier::Tier;

/// A matrix in a slice: element (i, j) lies at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows that are contiguous and start every `row_stride` elements.
    pub(crate) fn new(
        data: &'a [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Matrix<'a> {
        check(data.len(), rows, columns, row_stride);
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A writable matrix of contiguous rows.
pub(crate) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Rows that are contiguous and start every `row_stride` elements.
    pub(crate) fn new(
        data: &'a mut [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> MatrixMut<'a> {
        check(data.len(), rows, columns, row_stride);
        MatrixMut { data, rows, columns, row_stride }
    }
}

/// # Panics
/// If the matrix does not lie within `len` elements, or its rows overlap. Unsafe code relies on it, so
/// the arithmetic must not wrap.
fn check(len: usize, rows: usize, columns: usize, row_stride: usize) {
    let end = |rows: usize| (rows - 1).checked_mul(row_stride)?.checked_add(columns);
    assert!(
        rows == 0 || columns == 0 || end(rows).is_some_and(|end| end <= len),
        "{rows} rows of {columns} every {row_stride} elements do not fit in {len}"
    );
    assert!(columns <= row_stride || rows <= 1, "rows of {columns} overlap every {row_stride}");
}

/// c = scale a b, or with `accumulate` c += scale a b.
pub(crate) fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    assert!(
        a.rows == c.rows && a.columns == b.rows && b.columns == c.columns,
        "[{}, {}] times [{}, {}] is not [{}, {}]",
        a.rows,
        a.columns,
        b.rows,
        b.columns,
        c.rows,
        c.columns
    );
    multiply_by(Tier::current(), scale, a, b, c, accumulate);
}

/// The same with the kernels of a tier that this machine can run, for views whose shapes match.
fn multiply_by(tier: Tier, scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    if by_crate::is_faster(tier, &c) {
        return by_crate::multiply(scale, a, b, c, accumulate);
    }
    match tier {
        // SAFETY: the processor has the tier's features; so below.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => unsafe { blocked::by_avx512(scale, a, b, c, accumulate) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { blocked::by_avx2(scale, a, b, c, accumulate) },
        _ => blocked::portable(scale, a, b, c, accumulate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers, so that every order of summation gives the same bits.
    fn integers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 31 + seed * 17) % 13) as f32 - 6.0).collect()
    }

    /// A product of strided views in which every element outside the result must survive.
    fn check(
        multiply: impl Fn(f32, Matrix, Matrix, MatrixMut, bool),
        (m, n, k): (usize, usize, usize),
    ) {
        for [a_transposed, b_transposed, accumulate] in
            (0..8).map(|bits| [1, 2, 4].map(|bit| bits & bit > 0))
        {
            let shape = |rows, columns, transposed| {
                if transposed { (columns, rows) } else { (rows, columns) }
            };
            let ((a_rows, a_columns), (b_rows, b_columns)) =
                (shape(m, k, a_transposed), shape(k, n, b_transposed));
            let (a_stride, b_stride, c_stride) = (a_columns + 3, b_columns + 1, n + 5);
            let (a_data, b_data) = (integers(a_rows * a_stride, 1), integers(b_rows * b_stride, 2));
            let mut a = Matrix::new(&a_data, a_rows, a_columns, a_stride);
            let mut b = Matrix::new(&b_data, b_rows, b_columns, b_stride);
            if a_transposed {
                a = a.transposed();
            }
            if b_transposed {
                b = b.transposed();
            }
            let at = |x: &Matrix, i, j| x.data[i * x.row_stride + j * x.column_stride];
            let before = integers(m * c_stride, 3);
            let mut want = before.clone();
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| at(&a, i, l) * at(&b, l, j)).sum();
                    let old = if accumulate { before[i * c_stride + j] } else { 0.0 };
                    want[i * c_stride + j] = old + 0.5 * sum;
                }
            }
            let mut got = before;
            multiply(0.5, a, b, MatrixMut::new(&mut got, m, n, c_stride), accumulate);
            assert!(
                got == want,
                "[{m}, {k}] times [{k}, {n}], transposed {a_transposed} {b_transposed}, \
                 accumulate {accumulate}"
            );
        }
    }

    /// Every tile height, whole and partial widths, edges of blocks, and single elements.
    const SIZES: [(usize, usize, usize); 18] = [
        (1, 1, 1),
        (4, 4, 0),
        (4, 5, 1),
        (3, 16, 2),
        (4, 64, 3),
        (5, 17, 2),
        (6, 16, 3),
        (7, 31, 4),
        (8, 32, 5),
        (9, 33, 7),
        (22, 48, 9),
        (11, 65, 40),
        (253, 40, 257),
        (14, 1061, 12),
        (36, 64, 515),
        (17, 32, 0),
        (50, 300, 300),
        (52, 2100, 260),
    ];

    #[test]
    fn products_of_strided_views_are_exact_and_touch_nothing_else_on_every_tier() {
        // The larger ones would take Miri hours.
        let sizes = if cfg!(miri) { &SIZES[..12] } else { &SIZES[..] };
        for tier in Tier::available() {
            for &sizes in sizes {
                check(|scale, a, b, c, add| multiply_by(tier, scale, a, b, c, add), sizes);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the crate asks the processor for its caches")]
    fn products_by_the_crate_are_exact_and_touch_nothing_else() {
        SIZES.into_iter().for_each(|sizes| check(by_crate::multiply, sizes));
    }

    #[test]
    #[should_panic(expected = "do not fit in 8")]
    fn a_matrix_whose_size_overflows_is_refused() {
        Matrix::new(&[0.0; 8], 1 << 33, 1, 1 << 31);
    }
}
