use shardloom_kernels::{interaction::*, sigmoid_cross_entropy};

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

fn reference(parts: &[Vec<f64>], width: usize, diagonal: bool) -> Vec<f64> {
    let mut all = vec![];
    for row in 0..parts[0].len() / width {
        for i in 0..parts.len() {
            for j in 0..i + usize::from(diagonal) {
                let at = row * width..(row + 1) * width;
                all.push(parts[i][at.clone()].iter().zip(&parts[j][at]).map(|(a, b)| a * b).sum());
            }
        }
    }
    all
}

fn parts(count: usize, rows: usize, width: usize) -> Vec<Vec<f32>> {
    (0..count).map(|part| numbers(part as u64 + 1, rows * width)).collect()
}

const CASES: [(usize, usize, usize); 4] = [(2, 1, 1), (3, 4, 5), (5, 3, 17), (9, 2, 64)];

fn slices(parts: &[Vec<f32>]) -> Vec<&[f32]> {
    parts.iter().map(Vec::as_slice).collect()
}

#[test]
fn pairs_are_the_lower_triangle_row_by_row() {
    // 3 parts of one number: b a, c a, c b; with the diagonal a a, b a, b b, c a, c b, c c.
    let parts = [[2.0], [3.0], [5.0]];
    let parts: Vec<&[f32]> = parts.iter().map(|part| part.as_slice()).collect();
    let mut y = [0.0; 3];
    dot_interaction(&parts, 1, false, &mut y);
    assert_eq!(y, [6.0, 10.0, 15.0]);
    let mut y = [0.0; 6];
    dot_interaction(&parts, 1, true, &mut y);
    assert_eq!(y, [4.0, 6.0, 9.0, 10.0, 15.0, 25.0]);
}

#[test]
fn pairs_and_their_gradients_are_those_written_out_and_of_central_differences() {
    for (count, rows, width) in CASES {
        for diagonal in [false, true] {
            let parts = parts(count, rows, width);
            let wide: Vec<Vec<f64>> = parts.iter().map(|part| widen(part)).collect();
            let want = reference(&wide, width, diagonal);
            let mut y = vec![f32::NAN; want.len()];
            dot_interaction(&slices(&parts), width, diagonal, &mut y);
            assert_close(&y, &want, 1e-6);
            let dy = numbers(77, y.len());
            for of in [0, count / 2, count - 1] {
                let whole = |x: &[f64]| {
                    let mut all = wide.clone();
                    all[of] = x.to_vec();
                    reference(&all, width, diagonal)
                };
                let want = numeric_grad(whole, &parts[of], &dy);
                check_destination(&want, 1e-6, |dx, accumulate| {
                    let parts = slices(&parts);
                    dot_interaction_input_grad(&parts, width, diagonal, &dy, of, dx, accumulate);
                });
            }
        }
    }
}

#[test]
#[should_panic(expected = "do not have 4 pairs")]
fn a_result_of_another_number_of_pairs_is_refused() {
    dot_interaction(&[&[0.0; 2], &[0.0; 2], &[0.0; 2]], 2, false, &mut [0.0; 4]);
}

#[test]
fn binary_cross_entropy_and_its_gradient_are_those_of_the_probabilities() {
    let logits: Vec<f32> = numbers(5, 40).iter().map(|x| 8.0 * x).collect();
    let targets: Vec<u32> = (0..40).map(|at| u32::from(at % 3 == 0)).collect();
    let whole = |logits: &[f64]| {
        let each = logits.iter().zip(&targets).map(|(&x, &target)| {
            let probability = 1.0 / (1.0 + (-x).exp());
            -(if target == 1 { probability } else { 1.0 - probability }).ln()
        });
        vec![each.sum()]
    };
    let loss = sigmoid_cross_entropy::loss(&logits, &targets);
    assert_close(&[loss as f32], &whole(&widen(&logits)), 1e-6);
    let scale = 0.25;
    let want = numeric_grad(whole, &logits, &[scale]);
    check_destination(&want, 1e-6, |d, accumulate| {
        sigmoid_cross_entropy::logits_grad(&logits, &targets, scale, d, accumulate);
    });
}

#[test]
fn the_loss_of_extreme_logits_is_their_distance_from_the_right_side() {
    let loss = |logit: f32, target| sigmoid_cross_entropy::loss(&[logit], &[target]);
    assert_eq!((loss(1e30, 1), loss(-1e30, 0)), (0.0, 0.0));
    assert_eq!((loss(1000.0, 0), loss(-1000.0, 1)), (1000.0, 1000.0));
    assert!(loss(f32::NAN, 0).is_nan());
}
