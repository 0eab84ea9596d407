//! The times of matrix products as a sum of non-negative terms.

use shardloom_cluster::ProductSeconds;

/// A product `[m, k] x [k, n]`, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TimedProduct {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub seconds: f64,
}

const TERMS: usize = 5;

/// The coefficients with the least sum of squared relative errors among those that are not negative.
///
/// With five terms all subsets of them can be tried: the best one is the least-squares solution of
/// the subset that it uses. Without points, all are zero.
pub(crate) fn fit(points: &[TimedProduct]) -> ProductSeconds {
    // Relative errors count, so each row is divided by its time and is to come to 1.
    let rows: Vec<[f64; TERMS]> = points
        .iter()
        .map(|it| ProductSeconds::terms(it.m, it.n, it.k).map(|term| term / it.seconds))
        .collect();
    // Terms differ by nine orders of magnitude.
    let scales: [f64; TERMS] = std::array::from_fn(|term| {
        let squares: f64 = rows.iter().map(|row| row[term].powi(2)).sum();
        squares.sqrt().max(f64::MIN_POSITIVE)
    });
    let rows: Vec<[f64; TERMS]> =
        rows.iter().map(|row| std::array::from_fn(|term| row[term] / scales[term])).collect();
    let error = |solution: &[f64; TERMS]| -> f64 {
        let come_to =
            |row: &[f64; TERMS]| row.iter().zip(solution).map(|(a, b)| a * b).sum::<f64>();
        rows.iter().map(|row| (come_to(row) - 1.0).powi(2)).sum()
    };
    let mut best = ([0.0; TERMS], f64::INFINITY);
    for subset in 1u32..1 << TERMS {
        let used: Vec<usize> = (0..TERMS).filter(|term| subset >> term & 1 == 1).collect();
        let Some(solution) = least_squares(&rows, &used) else { continue };
        if solution.iter().all(|&each| each >= 0.0) && error(&solution) < best.1 {
            best = (solution, error(&solution));
        }
    }
    let scaled: [f64; TERMS] = std::array::from_fn(|term| best.0[term] / scales[term]);
    ProductSeconds::from(scaled)
}

/// The least-squares solution of `rows` x = 1 with the terms `used` and zeros elsewhere; none where
/// the points do not tell these terms apart.
fn least_squares(rows: &[[f64; TERMS]], used: &[usize]) -> Option<[f64; TERMS]> {
    let size = used.len();
    // Normal equations, the right-hand side as last column.
    let mut matrix = vec![vec![0.0; size + 1]; size];
    for row in rows {
        for (i, &a) in used.iter().enumerate() {
            for (j, &b) in used.iter().enumerate() {
                matrix[i][j] += row[a] * row[b];
            }
            matrix[i][size] += row[a];
        }
    }
    for column in 0..size {
        let pivot = (column..size)
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        matrix.swap(column, pivot);
        // Columns are of length one, so this is how much the terms before leave of this one.
        if matrix[column][column].abs() < 1e-10 {
            return None;
        }
        let pivot_row = matrix[column].clone();
        for (i, row) in matrix.iter_mut().enumerate() {
            if i != column {
                let factor = row[column] / pivot_row[column];
                row.iter_mut().zip(&pivot_row).for_each(|(each, pivot)| *each -= factor * pivot);
            }
        }
    }
    let mut solution = [0.0; TERMS];
    for (i, &term) in used.iter().enumerate() {
        solution[term] = matrix[i][size] / matrix[i][i];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timed(model: &ProductSeconds, shapes: &[[u64; 3]]) -> Vec<TimedProduct> {
        let time =
            |&[m, n, k]: &[u64; 3]| TimedProduct { m, n, k, seconds: model.seconds(m, n, k) };
        shapes.iter().map(time).collect()
    }

    const SHAPES: [[u64; 3]; 8] = [
        [64, 64, 64],
        [128, 512, 128],
        [512, 128, 128],
        [128, 128, 512],
        [1024, 256, 512],
        [2048, 64, 256],
        [300, 700, 200],
        [96, 96, 2048],
    ];

    /// Of a product that took one second and then two, c is to have the least (c / 1 - 1)^2 + (c / 2 - 1)^2, which is
    /// where (c - 1) + (c / 2 - 1) / 2 = 0; with errors in seconds it would be 1.5.
    #[test]
    fn errors_count_by_what_the_times_are() {
        let point = |seconds| TimedProduct { m: 64, n: 64, k: 64, seconds };
        let found = fit(&[point(1.0), point(2.0)]).seconds(64, 64, 64);
        assert!((found - 1.2).abs() < 1e-9, "{found}");
    }

    proptest! {
        #[test]
        fn coefficients_that_made_the_times_are_found(
            fixed in 1e-7..1e-5, left in 1e-11..1e-9, right in 1e-11..1e-9, result in 1e-11..1e-9,
            multiply in 1e-12..1e-10,
        ) {
            let model = ProductSeconds::from([fixed, left, right, result, multiply]);
            let found = fit(&timed(&model, &SHAPES));
            for [m, n, k] in [[100, 100, 100], [5000, 3000, 50], [1, 1, 9000]] {
                let (want, got) = (model.seconds(m, n, k), found.seconds(m, n, k));
                prop_assert!((want - got).abs() < 1e-5 * want, "{} is not {}", got, want);
            }
        }

        #[test]
        fn no_coefficient_is_negative_however_noisy_the_times(
            noise in proptest::collection::vec(0.2..5.0, SHAPES.len()),
        ) {
            let model = ProductSeconds::from([1e-6, 1e-10, 1e-10, 1e-10, 1e-11]);
            let mut points = timed(&model, &SHAPES);
            points.iter_mut().zip(noise).for_each(|(point, factor)| point.seconds *= factor);
            let found = <[f64; 5]>::from(fit(&points));
            prop_assert!(found.iter().all(|&each| each >= 0.0 && each.is_finite()), "{:?}", found);
            prop_assert!(found.iter().any(|&each| each > 0.0));
        }
    }
}
