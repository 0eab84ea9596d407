//! The matrix product under every kernel that needs one: strided views over slices, checked once,
//! and multiplied by own code, or by the `gemm` crates where these are faster.

mod blocked;
mod by_crate;
mod operand;
mod pack;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vector;

use half::bf16;

use crate::tier::Tier;
use operand::Pairs;

/// A matrix in a slice: element (i, j) lies at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Rows that are contiguous and start every `row_stride` elements.
    pub(crate) fn new(
        data: &'a [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Matrix<'a, T> {
        check(data.len(), rows, columns, row_stride);
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Matrix<'a, T> {
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
pub(crate) struct MatrixMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Rows that are contiguous and start every `row_stride` elements.
    pub(crate) fn new(
        data: &'a mut [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> MatrixMut<'a, T> {
        check(data.len(), rows, columns, row_stride);
        MatrixMut { data, rows, columns, row_stride }
    }
}

impl MatrixMut<'_> {
    /// The same for a shorter time.
    fn reborrow(&mut self) -> MatrixMut<'_> {
        let MatrixMut { ref mut data, rows, columns, row_stride } = *self;
        MatrixMut { data, rows, columns, row_stride }
    }

    /// Multiplies all elements.
    fn scale(&mut self, by: f32) {
        for number in 0..self.rows {
            let row = &mut self.data[number * self.row_stride..][..self.columns];
            row.iter_mut().for_each(|it| *it *= by);
        }
    }

    /// Writes a row to all rows.
    pub(crate) fn fill_rows(&mut self, row: &[f32]) {
        for number in 0..self.rows {
            self.data[number * self.row_stride..][..self.columns].copy_from_slice(row);
        }
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

/// # Panics
/// If c cannot be the product of a and b.
fn check_shapes<T, R>(a: &Matrix<'_, T>, b: &Matrix<'_, T>, c: &MatrixMut<'_, R>) {
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
}

/// c = scale a b, or with `accumulate` c += scale a b.
pub(crate) fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    check_shapes(&a, &b, &c);
    multiply_by(Tier::current(), scale, a, b, c, accumulate);
}

/// Whether products of bfloat16 are faster as such than widened.
pub(crate) fn multiplies_bf16() -> bool {
    matches!(Tier::current(), Tier::Avx512Bf16 | Tier::Amx)
}

/// c = scale a b, or with `accumulate`, which goes with a scale of 1, c += a b, in fp32. Where the processor has
/// instructions for it, these add the products of a pair of steps at a time, and take numbers below the smallest normal
/// one for 0.
pub(crate) fn multiply_bf16(
    scale: f32,
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    mut c: MatrixMut,
    accumulate: bool,
) {
    check_shapes(&a, &b, &c);
    assert!(scale == 1.0 || !accumulate, "what is there would be scaled too");
    multiply_bf16_by(Tier::current(), a, b, c.reborrow(), accumulate);
    if scale != 1.0 {
        c.scale(scale);
    }
}

/// Whether products of bfloat16 of so many steps are written in bfloat16 as they are computed.
pub fn writes_bf16(steps: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return Tier::current() == Tier::Amx && steps <= tiles::MOST_STEPS;
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// c = a b + bias, which is summed in fp32 and then rounded to bfloat16; with `accumulate` that is added to what is in
/// c, and rounded again. Both are to nearest, and numbers below the smallest normal one become 0.
///
/// # Panics
/// Where [`writes_bf16`] says that it is not.
pub(crate) fn multiply_to_bf16(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    bias: Option<&[f32]>,
    c: MatrixMut<'_, bf16>,
    accumulate: bool,
) {
    check_shapes(&a, &b, &c);
    assert!(writes_bf16(a.columns), "results of {} steps are in fp32", a.columns);
    assert!(bias.is_none_or(|bias| bias.len() == c.columns), "a bias element for each column");
    // SAFETY: the processor has the tier's features.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        blocked::by_tiles(a, b.transposed(), bias, c, accumulate);
    }
}

/// The same with the kernels of a tier that this machine can run, for views whose shapes match.
fn multiply_bf16_by(
    tier: Tier,
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    c: MatrixMut,
    accumulate: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if tier == Tier::Amx && tiles::are_faster(&a, &c) {
        // SAFETY: the processor has the tier's features; so below.
        return unsafe { blocked::by_tiles(a, b.transposed(), None, c, accumulate) };
    }
    let (a, b) = (Pairs(a), Pairs(b.transposed()));
    match tier {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Bf16 | Tier::Amx => unsafe { blocked::pairs_by_avx512(a, b, c, accumulate) },
        _ => blocked::pairs_portable(a, b, c, accumulate),
    }
}

/// The same with the kernels of a tier that this machine can run, for views whose shapes match.
fn multiply_by(tier: Tier, scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    if by_crate::is_faster(tier, &c) {
        return by_crate::multiply(scale, a, b, c, accumulate);
    }
    match tier {
        // SAFETY: the processor has the tier's features; so below.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe {
            blocked::by_avx512(scale, a, b, c, accumulate)
        },
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

    /// A product of strided views of numbers that `of` makes, times `scale`, in which every element outside the result
    /// must survive.
    fn check<T: Copy>(
        of: impl Fn(f32) -> T,
        scale: f32,
        multiply: impl Fn(Matrix<'_, T>, Matrix<'_, T>, MatrixMut<'_>, bool),
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
            for wider in [0, 1] {
                let (a_stride, b_stride) = (a_columns + 2 + wider, b_columns + 2 * wider);
                let c_stride = n + 5;
                let a_data = integers(a_rows * a_stride, 1);
                let b_data = integers(b_rows * b_stride, 2);
                let [a_numbers, b_numbers] =
                    [&a_data, &b_data].map(|it| it.iter().map(|&it| of(it)).collect::<Vec<T>>());
                let a = Matrix::new(&a_numbers, a_rows, a_columns, a_stride);
                let b = Matrix::new(&b_numbers, b_rows, b_columns, b_stride);
                let a = if a_transposed { a.transposed() } else { a };
                let b = if b_transposed { b.transposed() } else { b };
                let at = |x: &Matrix<'_, T>, data: &[f32], i, j| {
                    data[i * x.row_stride + j * x.column_stride]
                };
                let before = integers(m * c_stride, 3);
                let mut want = before.clone();
                for i in 0..m {
                    for j in 0..n {
                        let terms = (0..k).map(|l| at(&a, &a_data, i, l) * at(&b, &b_data, l, j));
                        let old = if accumulate { before[i * c_stride + j] } else { 0.0 };
                        want[i * c_stride + j] = old + scale * terms.sum::<f32>();
                    }
                }
                let mut got = before;
                multiply(a, b, MatrixMut::new(&mut got, m, n, c_stride), accumulate);
                assert!(
                    got == want,
                    "[{m}, {k}] times [{k}, {n}], transposed {a_transposed} {b_transposed}, \
                     accumulate {accumulate}, wider {wider}"
                );
            }
        }
    }

    /// Every tile height, whole and partial widths, edges of blocks, and single elements.
    const SIZES: [(usize, usize, usize); 20] = [
        (1, 1, 1),
        (3, 1, 8),
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
        (50, 300, 1),
    ];

    fn sizes() -> &'static [(usize, usize, usize)] {
        // The larger ones would take Miri hours.
        if cfg!(miri) { &SIZES[..12] } else { &SIZES }
    }

    #[test]
    fn products_of_strided_views_are_exact_and_touch_nothing_else_on_every_tier() {
        for tier in Tier::available() {
            for &sizes in sizes() {
                let multiply = |a: Matrix<'_>, b: Matrix<'_>, c: MatrixMut<'_>, add| {
                    multiply_by(tier, 0.5, a, b, c, add);
                };
                check(|it| it, 0.5, multiply, sizes);
            }
        }
    }

    #[test]
    fn products_of_bfloat16_are_exact_wherever_pairs_begin_on_every_tier() {
        for tier in Tier::available() {
            for &sizes in sizes() {
                let multiply = |a: Matrix<'_, bf16>, b: Matrix<'_, bf16>, c: MatrixMut<'_>, add| {
                    multiply_bf16_by(tier, a, b, c, add);
                };
                check(bf16::from_f32, 1.0, multiply, sizes);
            }
        }
        // Of data that begin in the middle of an fp32 number.
        let ones = [bf16::ONE; 1 + 9 * 8];
        for first in [0, 1] {
            let a = Matrix::new(&ones[first..], 9, 8, 8);
            let b = Matrix::new(&ones[first..], 9, 8, 8).transposed();
            let mut c = [0.0; 81];
            multiply_bf16_by(Tier::current(), a, b, MatrixMut::new(&mut c, 9, 9, 9), false);
            assert_eq!(c, [8.0; 81]);
        }
    }

    /// Panels are a thread's own, and what an overflow has left in them would make 0 no number.
    #[test]
    fn a_product_has_nothing_of_the_one_before_it() {
        for tier in Tier::available() {
            for (number, steps) in [(f32::INFINITY, 63), (1.0, 9)] {
                let numbers = vec![number; 20 * steps];
                let a = Matrix::new(&numbers, 20, steps, steps);
                let mut c = [0.0; 20 * 20];
                let to = MatrixMut::new(&mut c, 20, 20, 20);
                multiply_by(tier, 1.0, a, a.transposed(), to, false);
                assert!(c.iter().all(|&it| it == number * steps as f32), "{tier:?}: {c:?}");
                let numbers: Vec<bf16> = numbers.into_iter().map(bf16::from_f32).collect();
                let a = Matrix::new(&numbers, 20, steps, steps);
                let to = MatrixMut::new(&mut c, 20, 20, 20);
                multiply_bf16_by(tier, a, a.transposed(), to, false);
                assert!(c.iter().all(|&it| it == number * steps as f32), "{tier:?}: {c:?}");
            }
        }
    }

    #[test]
    fn results_in_bfloat16_are_rounded_once_and_touch_nothing_else() {
        let is_there = Tier::current() == Tier::Amx;
        assert!(!writes_bf16(1 << 20), "such sums are of several blocks");
        assert_eq!(writes_bf16(512), is_there);
        for &(m, n, k) in sizes().iter().filter(|_| is_there) {
            let [a, b, bias, before] = [m * k, k * n, n, m * (n + 3)]
                .map(|n| integers(n, n))
                .map(|it| it.iter().map(|it| it * 1.375).collect::<Vec<f32>>());
            let [a16, b16] =
                [&a, &b].map(|it| it.iter().map(|&it| bf16::from_f32(it)).collect::<Vec<_>>());
            for bits in 0..8 {
                let [transposed, has_bias, accumulate] = [1, 2, 4].map(|bit| bits & bit > 0);
                let mut got: Vec<bf16> = before.iter().map(|&it| bf16::from_f32(it)).collect();
                let mut want = got.clone();
                for i in 0..m {
                    for j in 0..n {
                        let b = |l: usize| if transposed { b[j * k + l] } else { b[l * n + j] };
                        let sum: f32 = (0..k).map(|l| a[i * k + l] * b(l)).sum();
                        let sum = bf16::from_f32(sum + if has_bias { bias[j] } else { 0.0 });
                        let to = &mut want[i * (n + 3) + j];
                        *to = match accumulate {
                            true => bf16::from_f32(to.to_f32() + sum.to_f32()),
                            false => sum,
                        };
                    }
                }
                let b = match transposed {
                    true => Matrix::new(&b16, n, k, k).transposed(),
                    false => Matrix::new(&b16, k, n, n),
                };
                let c = MatrixMut::new(&mut got, m, n, n + 3);
                let bias = has_bias.then_some(&bias[..]);
                multiply_to_bf16(Matrix::new(&a16, m, k, k), b, bias, c, accumulate);
                assert_eq!(
                    got, want,
                    "[{m}, {k}] times [{k}, {n}], {transposed} {has_bias} {accumulate}"
                );
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the crate asks the processor for its caches")]
    fn products_by_the_crate_are_exact_and_touch_nothing_else() {
        let multiply = |a: Matrix<'_>, b: Matrix<'_>, c: MatrixMut<'_>, add| {
            by_crate::multiply(0.5, a, b, c, add);
        };
        SIZES.into_iter().for_each(|sizes| check(|it| it, 0.5, multiply, sizes));
    }

    #[test]
    #[should_panic(expected = "do not fit in 8")]
    fn a_matrix_whose_size_overflows_is_refused() {
        Matrix::new(&[0.0; 8], 1 << 33, 1, 1 << 31);
    }
}
