use proptest::prelude::*;
use shardloom_kernels::optimizer::*;
use shardloom_kernels::reduce::sum_into;

use crate::oracle::{assert_close, numbers, widen};

const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
const LAMB: Lamb = Lamb { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.1 };
const ADAFACTOR: Adafactor =
    Adafactor { decay_exponent: 0.8, clip: 1.0, least_parameter_rms: 1e-3, weight_decay: 0.1 };

fn optimizers() -> Vec<Optimizer> {
    let momentum = Sgd::new(0.9, 0.1);
    vec![
        Optimizer::Sgd(Sgd::new(0.0, 0.1)),
        Optimizer::Sgd(Sgd::new(0.0, 0.1).spike_compensated(3.0)),
        Optimizer::Sgd(momentum),
        Optimizer::Sgd(Sgd { velocity_share: 0.9, gradient_share: 1.0, ..momentum }),
        Optimizer::Sgd(momentum.spike_compensated(2.5)),
        Optimizer::AdamW(ADAMW),
        Optimizer::Lamb(LAMB),
        Optimizer::Adafactor(ADAFACTOR),
    ]
}

fn step(number: u64) -> Step {
    Step { number, learning_rate: 0.1, gradient_scale: 0.5 }
}

/// Trains `weights` of a `[rows, cols]` parameter, owned in `pieces`, on gradients made from seeds.
fn train(
    optimizer: &Optimizer,
    (rows, cols): (usize, usize),
    pieces: &[Piece],
    steps: u64,
) -> Vec<f32> {
    let index = |piece: &Piece, i: usize| {
        let at = piece.range.start + i;
        let row = piece.block.row_start + at / piece.block.cols;
        row * cols + piece.block.col_start + at % piece.block.cols
    };
    let take = |piece: &Piece, whole: &[f32]| -> Vec<f32> {
        (0..piece.elements()).map(|i| whole[index(piece, i)]).collect()
    };
    let mut weights = numbers(1, rows * cols);
    let mut states: Vec<Vec<Vec<f32>>> = pieces
        .iter()
        .map(|piece| optimizer.state_lens(piece).iter().map(|&len| vec![0.0; len]).collect())
        .collect();
    for number in 1..=steps {
        let gradient = numbers(100 + number, rows * cols);
        let mut sums: Vec<f32> = vec![];
        for round in 0..optimizer.rounds() {
            let len = optimizer.statistics_len(&pieces[0].block, round);
            let mut total = vec![0.0; len];
            for (piece, state) in pieces.iter().zip(&mut states) {
                let mut out = vec![f32::NAN; len];
                let mut state: Vec<&mut [f32]> = state.iter_mut().map(|s| &mut s[..]).collect();
                optimizer.statistics(
                    step(number),
                    round,
                    piece,
                    &take(piece, &weights),
                    &take(piece, &gradient),
                    &mut state,
                    &sums,
                    &mut out,
                );
                sum_into(&mut total, &out);
            }
            sums = total;
        }
        for (piece, state) in pieces.iter().zip(&mut states) {
            let mut owned = take(piece, &weights);
            let mut state: Vec<&mut [f32]> = state.iter_mut().map(|s| &mut s[..]).collect();
            let gradient = take(piece, &gradient);
            optimizer.apply(step(number), piece, &mut owned, &gradient, &mut state, &sums);
            for (i, w) in owned.into_iter().enumerate() {
                weights[index(piece, i)] = w;
            }
        }
    }
    weights
}

/// The same training in double precision, straight from the papers' formulas.
fn train_exact(optimizer: &Optimizer, (rows, cols): (usize, usize), steps: u64) -> Vec<f64> {
    let n = rows * cols;
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut w = widen(&numbers(1, n));
    let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
    let (mut r, mut c) = (vec![0.0; rows], vec![0.0; cols]);
    for number in 1..=steps {
        let t = number as i32;
        let g: Vec<f64> = widen(&numbers(100 + number, n)).iter().map(|g| 0.5 * g).collect();
        let mut moments = |beta1: f32, beta2: f32, epsilon: f32| -> Vec<f64> {
            let (b1, b2, epsilon) = (f64::from(beta1), f64::from(beta2), f64::from(epsilon));
            (0..n)
                .map(|i| {
                    m[i] = b1 * m[i] + (1.0 - b1) * g[i];
                    v[i] = b2 * v[i] + (1.0 - b2) * g[i] * g[i];
                    let (m_hat, v_hat) = (m[i] / (1.0 - b1.powi(t)), v[i] / (1.0 - b2.powi(t)));
                    m_hat / (v_hat.sqrt() + epsilon)
                })
                .collect()
        };
        let update: Vec<f64> = match *optimizer {
            Optimizer::Sgd(Sgd { momentum, velocity_share, gradient_share, .. }) => {
                let [mu, a, b] = [momentum, velocity_share, gradient_share].map(f64::from);
                (0..n)
                    .map(|i| {
                        let g = g[i] + 0.1 * w[i];
                        m[i] = mu * m[i] + g;
                        a * m[i] + b * g
                    })
                    .collect()
            }
            Optimizer::AdamW(a) => {
                let u = moments(a.beta1, a.beta2, a.epsilon);
                (0..n).map(|i| u[i] + 0.1 * w[i]).collect()
            }
            Optimizer::Lamb(l) => {
                let u = moments(l.beta1, l.beta2, l.epsilon);
                let u: Vec<f64> = (0..n).map(|i| u[i] + 0.1 * w[i]).collect();
                let trust = norm(&w) / norm(&u);
                u.iter().map(|u| trust * u).collect()
            }
            Optimizer::Adafactor(_) => {
                let keep = 1.0 - f64::from(number as u32).powf(-0.8);
                let square = |i: usize| g[i] * g[i] + 1e-30;
                let u: Vec<f64> = if rows == 1 || cols == 1 {
                    (0..n)
                        .map(|i| {
                            v[i] = keep * v[i] + (1.0 - keep) * square(i);
                            g[i] / v[i].sqrt()
                        })
                        .collect()
                } else {
                    for (i, r) in r.iter_mut().enumerate() {
                        let sum: f64 = (0..cols).map(|j| square(i * cols + j)).sum();
                        *r = keep * *r + (1.0 - keep) * sum;
                    }
                    for (j, c) in c.iter_mut().enumerate() {
                        let sum: f64 = (0..rows).map(|i| square(i * cols + j)).sum();
                        *c = keep * *c + (1.0 - keep) * sum;
                    }
                    let total: f64 = r.iter().sum();
                    (0..n).map(|i| g[i] / (r[i / cols] * c[i % cols] / total).sqrt()).collect()
                };
                let root_n = (n as f64).sqrt();
                let clip = (norm(&u) / root_n).max(1.0);
                let rms = (norm(&w) / root_n).max(1e-3);
                (0..n).map(|i| rms * u[i] / clip + 0.1 * w[i]).collect()
            }
        };
        for (w, u) in w.iter_mut().zip(&update) {
            *w -= 0.1 * u;
        }
    }
    w
}

#[test]
fn every_optimizer_follows_its_formula_on_matrices_and_vectors() {
    for shape in [(5, 7), (1, 17), (17, 1), (3, 40)] {
        for optimizer in optimizers() {
            let whole = [Piece::whole(shape.0, shape.1)];
            let got = train(&optimizer, shape, &whole, 5);
            assert_close(&got, &train_exact(&optimizer, shape, 5), 1e-5);
        }
    }
}

/// Cuts a parameter into two by two blocks and each block into three ranges.
fn cut((rows, cols): (usize, usize), at: [usize; 4]) -> Vec<Piece> {
    let (row, col) = (at[0] % (rows + 1), at[1] % (cols + 1));
    let mut pieces = vec![];
    for (row_start, row_end) in [(0, row), (row, rows)] {
        for (col_start, col_end) in [(0, col), (col, cols)] {
            let block = Block {
                global_rows: rows,
                global_cols: cols,
                row_start,
                col_start,
                rows: row_end - row_start,
                cols: col_end - col_start,
            };
            let len = block.rows * block.cols;
            let (a, b) = (at[2] % (len + 1), at[3] % (len + 1));
            let (a, b) = (a.min(b), a.max(b));
            pieces.extend([0..a, a..b, b..len].map(|range| Piece { block, range }));
        }
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pieces_with_summed_statistics_train_like_the_whole(
        shape in (1..12usize, 1..12usize),
        at in [0..1000usize, 0..1000, 0..1000, 0..1000],
    ) {
        for optimizer in optimizers() {
            let whole = train(&optimizer, shape, &[Piece::whole(shape.0, shape.1)], 3);
            let pieces = train(&optimizer, shape, &cut(shape, at), 3);
            assert_close(&pieces, &widen(&whole), 2e-5);
        }
    }
}

#[test]
fn lamb_trusts_fully_when_weights_or_update_are_zero() {
    let optimizer = Optimizer::Lamb(Lamb { weight_decay: 0.0, ..LAMB });
    let piece = Piece::whole(1, 1);
    let step = Step { number: 1, learning_rate: 0.5, gradient_scale: 1.0 };
    for (weight, gradient, want) in [(0.0, 2.0, -0.5), (3.0, 0.0, 3.0)] {
        let (mut m, mut v, mut sums, mut w) = ([0.0], [0.0], [0.0; 2], [weight]);
        let mut state = [&mut m[..], &mut v[..]];
        optimizer.statistics(step, 0, &piece, &w, &[gradient], &mut state, &[], &mut sums);
        optimizer.apply(step, &piece, &mut w, &[gradient], &mut state, &sums);
        assert!((w[0] - want).abs() < 1e-6, "{} for {want}", w[0]);
    }
}

#[test]
fn adafactor_of_a_zero_gradient_stays_finite_and_moves_nothing() {
    let optimizer = Optimizer::Adafactor(Adafactor { weight_decay: 0.0, ..ADAFACTOR });
    for (rows, cols) in [(3, 5), (1, 15)] {
        let piece = Piece::whole(rows, cols);
        let mut moments = vec![0.0; optimizer.state_lens(&piece)[0]];
        let (mut w, g) = (numbers(1, 15), [0.0; 15]);
        let mut sums = vec![];
        for round in 0..2 {
            let mut out = vec![0.0; optimizer.statistics_len(&piece.block, round)];
            optimizer.statistics(
                step(1),
                round,
                &piece,
                &w,
                &g,
                &mut [&mut moments],
                &sums,
                &mut out,
            );
            sums = out;
        }
        optimizer.apply(step(1), &piece, &mut w, &g, &mut [&mut moments], &sums);
        assert_eq!(w, numbers(1, 15));
    }
}

#[test]
fn adafactor_moves_weights_of_zero_by_the_least_root_mean_square() {
    let optimizer = Optimizer::Adafactor(Adafactor { weight_decay: 0.0, ..ADAFACTOR });
    for (rows, cols) in [(3, 5), (1, 15)] {
        let piece = Piece::whole(rows, cols);
        let mut moments = vec![0.0; optimizer.state_lens(&piece)[0]];
        let (mut w, g) = ([0.0; 15], [-2.0; 15]);
        let mut sums = vec![];
        for round in 0..2 {
            let mut out = vec![0.0; optimizer.statistics_len(&piece.block, round)];
            let state = &mut [&mut moments[..]];
            optimizer.statistics(step(1), round, &piece, &w, &g, state, &sums, &mut out);
            sums = out;
        }
        optimizer.apply(step(1), &piece, &mut w, &g, &mut [&mut moments], &sums);
        // All gradients are alike, so that the update before it is scaled is 1.
        let moved = f64::from(step(1).learning_rate * ADAFACTOR.least_parameter_rms);
        assert_close(&w, &[moved; 15], 1e-6 * moved);
    }
}

#[test]
#[should_panic(expected = "the sums of the round before")]
fn the_first_round_of_statistics_takes_no_sums() {
    let (optimizer, piece) = (Optimizer::Adafactor(ADAFACTOR), Piece::whole(1, 3));
    let mut moments = vec![0.0; optimizer.state_lens(&piece)[0]];
    let mut out = vec![0.0; optimizer.statistics_len(&piece.block, 0)];
    let state = &mut [&mut moments[..]];
    optimizer.statistics(step(1), 0, &piece, &[1.0; 3], &[1.0; 3], state, &[1.0], &mut out);
}

#[test]
#[should_panic(expected = "a piece of 3 elements got 3 weights and 2 gradients")]
fn statistics_of_fewer_gradients_than_weights_are_refused() {
    let (optimizer, piece) = (Optimizer::Lamb(LAMB), Piece::whole(1, 3));
    let (mut m, mut v, mut out) = ([0.0; 3], [0.0; 3], [0.0; 2]);
    let state = &mut [&mut m[..], &mut v[..]];
    optimizer.statistics(step(1), 0, &piece, &[1.0; 3], &[1.0; 2], state, &[], &mut out);
}

/// Which is so of the whole parameter: a rank may hold one row of a matrix.
#[test]
fn adafactor_keeps_sums_of_rows_and_columns_of_matrices_and_each_element_s_of_vectors() {
    let kept = |piece: &Piece| Optimizer::Adafactor(ADAFACTOR).state_lens(piece)[0];
    for ((rows, columns), elements) in
        [((3, 5), 3 + 5), ((2, 2), 2 + 2), ((1, 5), 5), ((5, 1), 5), ((1, 1), 1)]
    {
        assert_eq!(kept(&Piece::whole(rows, columns)), elements, "{rows} x {columns}");
    }
    let row = Block { rows: 1, row_start: 2, ..Block::whole(4, 5) };
    assert_eq!(kept(&Piece { block: row, range: 0..5 }), 4 + 5);
    let column = Block { cols: 1, col_start: 2, ..Block::whole(4, 5) };
    assert_eq!(kept(&Piece { block: column, range: 0..4 }), 4 + 5);
}
