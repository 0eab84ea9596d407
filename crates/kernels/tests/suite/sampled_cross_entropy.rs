//! The loss over drawn classes against its formula in double precision, as it is written over gathered rows.

use std::collections::BTreeSet;

use shardloom_kernels::random::Key;
use shardloom_kernels::sampled_cross_entropy::{Rows, SampledSoftmax, draw};

use crate::oracle::{assert_close, matmul, numbers, numeric_grad, widen};

fn key(step: u64) -> Key {
    Key { seed: 3, stream: 5, step }
}

/// How often a class is expected among those that so many numbers draw.
fn expected(class: u32, classes: usize, tries: u64) -> f64 {
    let class = f64::from(class);
    let p = ((class + 2.0).ln() - (class + 1.0).ln()) / ((classes + 1) as f64).ln();
    1.0 - (1.0 - p).powf(tries as f64)
}

/// Rows of which a target is drawn, and others.
struct Case {
    shape: SampledSoftmax,
    x: Vec<f32>,
    targets: Vec<u32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    drawn: Vec<u32>,
    tries: u64,
}

impl Case {
    fn new(rows: usize, model: usize, classes: usize, samples: usize) -> Case {
        let shape = SampledSoftmax { rows, model, classes, samples };
        let mut drawn = vec![0; samples];
        let tries = draw(key(7), classes, &mut drawn);
        let targets =
            (0..rows).map(|row| if row == 1 { drawn[0] } else { (5 * row % classes) as u32 });
        Case {
            shape,
            x: numbers(1, rows * model),
            targets: targets.collect(),
            w: numbers(2, classes * model),
            bias: numbers(3, classes),
            drawn,
            tries,
        }
    }

    /// The loss, each row's by itself: logits of gathered rows less the logarithm of what is expected, targets that
    /// are drawn for their own row left out.
    fn losses(&self, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
        let SampledSoftmax { rows, model, classes, .. } = self.shape;
        (0..rows)
            .map(|row| {
                let logit = |class: u32| {
                    let at = class as usize;
                    let product =
                        matmul(&x[row * model..][..model], &w[at * model..][..model], 1, model, 1);
                    product[0] + bias[at] - expected(class, classes, self.tries).ln()
                };
                let target = logit(self.targets[row]);
                let others = self.drawn.iter().filter(|&&class| class != self.targets[row]);
                let sum: f64 = others.map(|&class| logit(class).exp()).sum();
                (sum + target.exp()).ln() - target
            })
            .collect()
    }

    /// The probabilities of targets and of drawn classes, and the loss.
    fn forward(&self) -> (Vec<f32>, Vec<f32>, f64) {
        let SampledSoftmax { rows, samples, .. } = self.shape;
        let (mut target, mut sampled) = (vec![f32::NAN; rows], vec![f32::NAN; rows * samples]);
        let mut scratch = vec![f32::NAN; self.shape.scratch_elements()];
        let (of, layer) = ((&self.x[..], &self.targets[..]), (&self.w[..], &self.bias[..]));
        let loss = self.shape.loss(key(7), of, layer, &mut target, &mut sampled, &mut scratch);
        (target, sampled, loss)
    }
}

fn cases() -> [Case; 4] {
    [
        Case::new(5, 7, 40, 9),
        Case::new(3, 33, 600, 300),
        Case::new(2, 1, 2, 1),
        Case::new(9, 16, 64, 32),
    ]
}

#[test]
fn as_many_different_classes_are_drawn_as_asked_for_anew_in_each_step() {
    for (classes, samples) in [(2, 1), (10, 5), (1000, 64), (100_000, 500)] {
        let of_step = |step| {
            let mut drawn = vec![0; samples];
            assert!(draw(key(step), classes, &mut drawn) >= samples as u64);
            drawn
        };
        let drawn = of_step(4);
        assert!(drawn.iter().all(|&class| (class as usize) < classes));
        assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), samples);
        assert_eq!(drawn, of_step(4));
        assert!((5..20).any(|step| of_step(step) != drawn), "{samples} of {classes}");
    }
}

#[test]
fn classes_are_drawn_as_often_as_is_expected() {
    const STEPS: u64 = 4000;
    const CLASSES: usize = 200;
    let mut times = [0.0; CLASSES];
    let mut expectations = [0.0; CLASSES];
    for step in 0..STEPS {
        let mut drawn = [0; 20];
        let tries = draw(key(step), CLASSES, &mut drawn);
        drawn.iter().for_each(|&class| times[class as usize] += 1.0);
        for (class, expectation) in (0..).zip(&mut expectations) {
            *expectation += expected(class, CLASSES, tries);
        }
    }
    for (class, (times, expectation)) in times.iter().zip(expectations).enumerate() {
        // Five standard deviations of so many draws.
        let deviation = (times - expectation).abs() / expectation.sqrt();
        assert!(deviation < 5.0, "class {class}: {times} times, {expectation} expected");
    }
}

#[test]
fn the_loss_is_that_of_the_formula_and_probabilities_add_up_to_one() {
    for case in cases() {
        let (target, sampled, loss) = case.forward();
        let losses = case.losses(&widen(&case.x), &widen(&case.w), &widen(&case.bias));
        assert_close(&[loss as f32], &[losses.iter().sum()], 1e-5);
        let probabilities: Vec<f64> = losses.iter().map(|loss| (-loss).exp()).collect();
        assert_close(&target, &probabilities, 1e-5);
        for (row, sampled) in sampled.chunks(case.shape.samples).enumerate() {
            let sum = f64::from(target[row]) + widen(sampled).iter().sum::<f64>();
            assert!((sum - 1.0).abs() < 1e-5, "row {row}: {sum}");
        }
        // The second row's target is drawn.
        assert_eq!(sampled[case.shape.samples], 0.0);
    }
}

#[test]
fn gradients_are_derivatives_of_the_formula_whether_of_all_rows_or_of_those_that_are_read() {
    const SCALE: f32 = 0.5;
    for case in cases() {
        let shape = case.shape;
        let SampledSoftmax { rows, model, classes, samples } = shape;
        let (x, w, bias) = (widen(&case.x), widen(&case.w), widen(&case.bias));
        let dy = vec![SCALE; rows];
        let (target, sampled, _) = case.forward();
        let (of, probabilities) = ((&case.x[..], &case.targets[..]), (&target[..], &sampled[..]));
        let mut scratch = vec![f32::NAN; shape.scratch_elements()];

        let expected = numeric_grad(|x| case.losses(x, &w, &bias), &case.x, &dy);
        for accumulate in [false, true] {
            let before = if accumulate { numbers(9, x.len()) } else { vec![f32::NAN; x.len()] };
            let mut dx = before.clone();
            let of = (&case.targets[..], &case.w[..]);
            let scratch = &mut scratch[..];
            shape.input_grad(key(7), of, probabilities, SCALE, &mut dx, accumulate, scratch);
            if accumulate {
                dx.iter_mut().zip(&before).for_each(|(dx, before)| *dx -= before);
            }
            assert_close(&dx, &expected, 1e-5);
        }

        let of_weights = numeric_grad(|w| case.losses(&x, w, &bias), &case.w, &dy);
        let of_biases = numeric_grad(|bias| case.losses(&x, &w, bias), &case.bias, &dy);
        let (mut dw, mut dbias) = (numbers(4, w.len()), numbers(5, classes));
        let to = (Rows::All(&mut dw), Rows::All(&mut dbias));
        shape.weight_grad(key(7), of, probabilities, SCALE, to, &mut scratch);
        let less = |all: &[f32], seed| -> Vec<f32> {
            all.iter().zip(numbers(seed, all.len())).map(|(now, before)| now - before).collect()
        };
        assert_close(&less(&dw, 4), &of_weights, 1e-5);
        assert_close(&less(&dbias, 5), &of_biases, 1e-5);

        let read = rows + samples;
        let mut found = [(); 2].map(|()| vec![u32::MAX; read]);
        let (mut values, mut of_bias) = (vec![f32::NAN; read * model], vec![f32::NAN; read]);
        let [rows_w, rows_b] = &mut found;
        let to = (
            Rows::Read { rows: rows_w, values: &mut values },
            Rows::Read { rows: rows_b, values: &mut of_bias },
        );
        shape.weight_grad(key(7), of, probabilities, SCALE, to, &mut scratch);
        assert_eq!(found[0], [&case.targets[..], &case.drawn[..]].concat());
        assert_eq!(found[0], found[1]);
        let (mut dw, mut dbias) = (vec![0.0; w.len()], vec![0.0; classes]);
        for ((&row, values), of_bias) in found[0].iter().zip(values.chunks(model)).zip(&of_bias) {
            let to = &mut dw[row as usize * model..][..model];
            to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
            dbias[row as usize] += of_bias;
        }
        assert_close(&dw, &of_weights, 1e-5);
        assert_close(&dbias, &of_biases, 1e-5);
    }
}

/// Vocabularies of less, of as many and of more columns than are computed at a time.
#[test]
fn over_all_classes_it_is_the_cross_entropy_of_the_linear_layer() {
    for classes in [2, 255, 256, 257, 700] {
        let (rows, model) = (4, 6);
        let shape = SampledSoftmax { rows, model, classes, samples: 0 };
        let (x, w, bias) =
            (numbers(1, rows * model), numbers(2, classes * model), numbers(3, classes));
        let targets: Vec<u32> = (0..rows).map(|row| (row * 173 % classes) as u32).collect();
        let mut scratch = vec![f32::NAN; shape.scratch_elements_over_all()];
        let mut target = vec![f32::NAN; rows];
        let found = shape.loss_over_all((&x, &targets), (&w, &bias), &mut target, &mut scratch);
        let of_row = |row: usize| {
            let logit = |class: usize| {
                let pairs = x[row * model..][..model].iter().zip(&w[class * model..]);
                let product: f64 = pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                product + f64::from(bias[class])
            };
            let sum: f64 = (0..classes).map(|class| logit(class).exp()).sum();
            sum.ln() - logit(targets[row] as usize)
        };
        assert_close(&[found as f32], &[(0..rows).map(of_row).sum()], 1e-5);
    }
}
