//! What the tests share: reproducible numbers, comparison, and numerical gradients.

/// `n` numbers in [-1, 1) that depend only on `seed`.
pub fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..n)
        .map(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// A mask of `n` bytes that keeps about two thirds.
pub fn mask(seed: u64, n: usize) -> Vec<u8> {
    numbers(seed, n).into_iter().map(|x| u8::from(x > -0.33)).collect()
}

pub fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Asserts each element within `tolerance` of the largest magnitude of `want` (at least 1).
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "lengths");
    let size = want.iter().fold(1.0, |size: f64, x| size.max(x.abs()));
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance * size, "element {i} is {got}, expected {want}");
    }
}

/// The gradient with respect to `x` of the sum of `dy` times `f(x)`, by central differences.
pub fn numeric_grad(f: impl Fn(&[f64]) -> Vec<f64>, x: &[f32], dy: &[f32]) -> Vec<f64> {
    let mut x = widen(x);
    let h = 1e-5;
    (0..x.len())
        .map(|i| {
            let original = x[i];
            x[i] = original + h;
            let above = f(&x);
            x[i] = original - h;
            let below = f(&x);
            x[i] = original;
            let change = above.iter().zip(&below).zip(dy);
            change.map(|((a, b), &dy)| (a - b) * f64::from(dy)).sum::<f64>() / (2.0 * h)
        })
        .collect()
}

/// Runs a gradient kernel with and without accumulation and compares both with `want`.
#[track_caller]
pub fn check_destination(want: &[f64], tolerance: f64, mut kernel: impl FnMut(&mut [f32], bool)) {
    let mut overwritten = vec![f32::NAN; want.len()];
    kernel(&mut overwritten, false);
    assert_close(&overwritten, want, tolerance);

    let mut accumulated = numbers(99, want.len());
    let sums: Vec<f64> = accumulated.iter().zip(want).map(|(&a, w)| f64::from(a) + w).collect();
    kernel(&mut accumulated, true);
    assert_close(&accumulated, &sums, tolerance);
}

/// The product of row-major `[m, k]` and `[k, n]`.
pub fn matmul(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

pub fn transpose(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|i| a[i % rows * cols + i / rows]).collect()
}
