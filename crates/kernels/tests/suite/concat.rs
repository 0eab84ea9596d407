use proptest::prelude::*;
use shardloom_kernels::concat::*;

use crate::oracle::{check_destination, numbers, numeric_grad, widen};

/// Where element `j` of row `i` of the joined tensor comes from: part and place in it.
fn origin(widths: &[usize], i: usize, mut j: usize) -> (usize, usize) {
    for (part, &width) in widths.iter().enumerate() {
        if j < width {
            return (part, i * width + j);
        }
        j -= width;
    }
    panic!("column {j} lies beyond all parts");
}

fn joined<T: Copy>(parts: &[Vec<T>], widths: &[usize], rows: usize) -> Vec<T> {
    let columns: usize = widths.iter().sum();
    (0..rows * columns)
        .map(|at| {
            let (part, place) = origin(widths, at / columns, at % columns);
            parts[part][place]
        })
        .collect()
}

fn parts(widths: &[usize], rows: usize) -> Vec<Vec<f32>> {
    widths.iter().zip(1..).map(|(width, seed)| numbers(seed, width * rows)).collect()
}

proptest! {
    #[test]
    fn each_row_is_the_rows_of_all_parts_one_after_another(
        rows in 1..7usize,
        widths in prop::collection::vec(1..20usize, 1..5),
    ) {
        let parts = parts(&widths, rows);
        let mut y = vec![f32::NAN; rows * widths.iter().sum::<usize>()];
        let slices: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        concat(&slices, rows, &mut y);
        prop_assert_eq!(y, joined(&parts, &widths, rows));
    }
}

#[test]
fn the_gradient_of_each_part_is_that_of_the_whole_by_central_differences() {
    for (rows, widths) in [(1, vec![1, 1]), (3, vec![17, 5]), (5, vec![2, 33, 16])] {
        let parts = parts(&widths, rows);
        let dy = numbers(77, rows * widths.iter().sum::<usize>());
        let mut first = 0;
        for (index, &width) in widths.iter().enumerate() {
            let whole = |x: &[f64]| {
                let mut all: Vec<Vec<f64>> = parts.iter().map(|part| widen(part)).collect();
                all[index] = x.to_vec();
                joined(&all, &widths, rows)
            };
            let want = numeric_grad(whole, &parts[index], &dy);
            check_destination(&want, 1e-6, |dx, accumulate| {
                concat_input_grad(&dy, rows, first, dx, accumulate);
            });
            first += width;
        }
    }
}

#[test]
#[should_panic(expected = "concat moves each element of its parts once")]
fn a_result_of_another_size_than_the_parts_is_refused() {
    concat(&[&[0.0; 4], &[0.0; 2]], 2, &mut [0.0; 8]);
}
