//! Operators compute with the numbers that they have, not with those that are usual: each is run with several, beside
//! its formula in double precision.

use shardloom_graph::OpKind;
use shardloom_graph::op::{RotaryScaling, Visibility};
use shardloom_graph::work::Pass;
use shardloom_kernels::device::{
    HostSlice, HostSliceMut, Input, Kernel, OperandSize, Output, Setting,
};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Format, Memory, processor};

use crate::oracle::{assert_close, numbers, widen};

const SETTING: Setting = Setting {
    mask: None,
    first_position: 0,
    first_index: 0,
    loss_scale: 1.0,
    key: Key { seed: 1, stream: 2, step: 3 },
};

/// What the forward pass of an operator writes, of these shapes and formats.
fn forward(
    kind: &OpKind,
    setting: &Setting,
    reads: &[(&[usize], &[f32])],
    writes: &[(&[usize], Format)],
) -> Vec<Buffer> {
    let (device, memory) = (processor(), Memory::new(processor()));
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let held: Vec<Buffer> = reads
        .iter()
        .map(|&(shape, numbers)| {
            let mut buffer = memory.alloc(Format::F32, elements(shape));
            device.set_reals(numbers, buffer.view_mut());
            buffer
        })
        .collect();
    let mut made: Vec<Buffer> =
        writes.iter().map(|&(shape, format)| memory.alloc(format, elements(shape))).collect();
    let read_sizes: Vec<OperandSize<'_>> =
        reads.iter().map(|&(shape, _)| OperandSize { shape, format: Format::F32 }).collect();
    let write_sizes: Vec<OperandSize<'_>> =
        writes.iter().map(|&(shape, format)| OperandSize { shape, format }).collect();
    let scratch = device.scratch_elements(kind, Pass::Forward, &read_sizes, &write_sizes);
    let mut scratch = memory.alloc(Format::F32, scratch);
    let inputs: Vec<Input<'_>> =
        reads.iter().zip(&held).map(|(&(shape, _), it)| Input { shape, data: it.view() }).collect();
    let mut outputs: Vec<Output<'_>> = writes
        .iter()
        .zip(&mut made)
        .map(|(&(shape, _), it)| Output { shape, data: it.view_mut(), accumulate: false })
        .collect();
    let kernel = Kernel { kind, pass: Pass::Forward, setting };
    device.run(kernel, &inputs, &mut outputs, scratch.view_mut());
    drop(outputs);
    made
}

/// The first of them, in fp32.
fn result(
    kind: &OpKind,
    setting: &Setting,
    reads: &[(&[usize], &[f32])],
    writes: &[&[usize]],
) -> Vec<f32> {
    let writes: Vec<_> = writes.iter().map(|&shape| (shape, Format::F32)).collect();
    processor().reals(forward(kind, setting, reads, &writes)[0].view())
}

#[test]
fn norms_add_their_own_epsilon_and_offset() {
    // Small, so that what is added to their squares counts.
    let x: Vec<f32> = numbers(1, 15).iter().map(|x| 0.01 * x).collect();
    let (gain, bias) = (numbers(2, 5), numbers(3, 5));
    let (exact, gains, biases) = (widen(&x), widen(&gain), widen(&bias));
    for epsilon in [1e-5_f32, 1e-3, 0.5] {
        let added = f64::from(epsilon);
        let mut want = vec![];
        for row in exact.chunks(5) {
            let mean = row.iter().sum::<f64>() / 5.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.0;
            let normal = |at: usize| (row[at] - mean) / (variance + added).sqrt();
            want.extend((0..5).map(|at| normal(at) * gains[at] + biases[at]));
        }
        let reads: [(&[usize], &[f32]); 3] = [(&[3, 5], &x), (&[5], &gain), (&[5], &bias)];
        let kind = OpKind::LayerNorm { epsilon };
        let found = result(&kind, &SETTING, &reads, &[&[3, 5], &[3, 2]]);
        assert_close(&found, &want, 1e-5);
        for offset in [0.0_f32, 1.0, 0.25] {
            let mut want = vec![];
            for row in exact.chunks(5) {
                let square = row.iter().map(|x| x * x).sum::<f64>() / 5.0;
                let normal = |at: usize| row[at] / (square + added).sqrt();
                want.extend((0..5).map(|at| normal(at) * (f64::from(offset) + gains[at])));
            }
            let kind = OpKind::RmsNorm { epsilon, offset };
            let found = result(&kind, &SETTING, &reads[..2], &[&[3, 5], &[3]]);
            assert_close(&found, &want, 1e-5);
        }
    }
}

#[test]
fn factors_and_bounds_are_the_operator_s_own() {
    let x: Vec<f32> = numbers(1, 12).iter().map(|x| 5.0 * x).collect();
    for number in [0.5_f32, 3.0, 30.0] {
        let own = f64::from(number);
        let scaled: Vec<f64> = widen(&x).iter().map(|x| own * x).collect();
        let capped: Vec<f64> = widen(&x).iter().map(|x| own * (x / own).tanh()).collect();
        for (kind, want) in
            [(OpKind::Scale { factor: number }, scaled), (OpKind::SoftCap { cap: number }, capped)]
        {
            assert_close(&result(&kind, &SETTING, &[(&[12], &x)], &[&[12]]), &want, 1e-6);
        }
    }
}

#[test]
fn what_dropout_keeps_is_divided_by_the_share_that_it_keeps() {
    let (shape, x) = ([8, 40], numbers(1, 320));
    let (bias, residual) = (numbers(2, 40), numbers(3, 320));
    for probability in [0.1_f32, 0.5, 0.9] {
        let window = Window::whole(&shape);
        let setting = Setting { mask: Some(window), ..SETTING };
        let writes = [(&shape[..], Format::F32), (&shape[..], Format::U8)];
        let alone = OpKind::Dropout { probability };
        let together = OpKind::BiasDropoutAdd { probability };
        let reads: [(&[usize], &[f32]); 3] = [(&shape, &x), (&[40], &bias), (&shape, &residual)];
        for (kind, reads) in [(alone, &reads[..1]), (together, &reads[..])] {
            let made = forward(&kind, &setting, reads, &writes);
            let mut mask = vec![0; 320];
            processor().download(made[1].view(), HostSliceMut::U8(&mut mask));
            let kept = mask.iter().map(|&it| usize::from(it)).sum::<usize>() as f32 / 320.0;
            assert!((kept - (1.0 - probability)).abs() < 0.1, "{kept} kept of {probability}");
            let want: Vec<f64> = (0..320)
                .map(|at| {
                    let factor = f64::from(mask[at]) / (1.0 - f64::from(probability));
                    match reads.len() {
                        1 => factor * f64::from(x[at]),
                        _ => {
                            let biased = f64::from(x[at]) + f64::from(bias[at % 40]);
                            factor * biased + f64::from(residual[at])
                        }
                    }
                })
                .collect();
            assert_close(&processor().reals(made[0].view()), &want, 1e-6);
        }
    }
}

/// One head of two queries and three keys.
#[test]
fn scores_of_attention_have_the_operator_s_scale_and_bound() {
    let (q, k): (Vec<f32>, Vec<f32>) = (numbers(1, 8), numbers(2, 12));
    let (q64, k64) = (widen(&q), widen(&k));
    for scale in [0.25_f32, 2.0] {
        for soft_cap in [None, Some(0.5_f32), Some(4.0)] {
            let score = |query: usize, key: usize| {
                let product: f64 = (0..4).map(|at| q64[4 * query + at] * k64[4 * key + at]).sum();
                let scaled = f64::from(scale) * product;
                soft_cap.map(f64::from).map_or(scaled, |cap| cap * (scaled / cap).tanh())
            };
            let mut want = vec![];
            for query in 0..2 {
                let weights = [0, 1, 2].map(|key| score(query, key).exp());
                want.extend(weights.map(|weight| weight / weights.iter().sum::<f64>()));
            }
            let kind = OpKind::AttentionProbs { visibility: Visibility::All, scale, soft_cap };
            let reads: [(&[usize], &[f32]); 2] = [(&[1, 2, 1, 4], &q), (&[1, 3, 1, 4], &k)];
            let found = result(&kind, &SETTING, &reads, &[&[1, 1, 2, 3]]);
            assert_close(&found, &want, 1e-6);
        }
    }
}

/// Llama 3's rule is that of Transformers' `_compute_llama3_parameters`.
#[test]
fn heads_turn_by_the_operator_s_base_width_and_scaling_from_its_first_position_on() {
    let (positions, head_dim) = (3, 10);
    let x = numbers(1, positions * head_dim);
    let by_wavelength = RotaryScaling::ByWavelength {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 64,
    };
    let scalings = [None, Some(RotaryScaling::Linear { factor: 4.0 }), Some(by_wavelength)];
    for (width, theta, first) in [(10, 10_000.0_f32, 0), (4, 100.0, 7), (8, 500_000.0, 2)] {
        for scaling in scalings {
            let turn = |pair: usize| {
                let plain = f64::from(theta).powf(-2.0 * pair as f64 / width as f64);
                match scaling {
                    None => plain,
                    Some(RotaryScaling::Linear { .. }) => plain / 4.0,
                    Some(RotaryScaling::ByWavelength { .. }) => {
                        let wavelength = 2.0 * std::f64::consts::PI / plain;
                        if wavelength < 64.0 / 4.0 {
                            plain
                        } else if wavelength > 64.0 {
                            plain / 8.0
                        } else {
                            let smooth = (64.0 / wavelength - 1.0) / (4.0 - 1.0);
                            (1.0 - smooth) * plain / 8.0 + smooth * plain
                        }
                    }
                }
            };
            let mut want = widen(&x);
            for (position, head) in want.chunks_mut(head_dim).enumerate() {
                for pair in 0..width / 2 {
                    let angle = (first + position) as f64 * turn(pair);
                    let (one, other) = (head[pair], head[pair + width / 2]);
                    head[pair] = one * angle.cos() - other * angle.sin();
                    head[pair + width / 2] = other * angle.cos() + one * angle.sin();
                }
            }
            let kind = OpKind::Rotary { width, theta, scaling };
            let setting = Setting { first_position: first, ..SETTING };
            let shape = [1, positions, 1, head_dim];
            let found = result(&kind, &setting, &[(&shape, &x)], &[&shape]);
            assert_close(&found, &want, 1e-5);
        }
    }
}

/// Of one cell and one position: the candidate through the input gate, and the output gate; what is forgotten shows
/// at the second position.
#[test]
fn a_recurrence_adds_its_own_bias_to_forget_gates() {
    let (gates, w) = (numbers(1, 8), numbers(2, 4));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for forget_bias in [0.0_f32, 1.0, -2.0] {
        let (mut cell, mut y, mut want) = (0.0, 0.0, vec![]);
        for position in widen(&gates).chunks(4) {
            let [input, forget, candidate, output] =
                [0, 1, 2, 3].map(|gate| position[gate] + y * f64::from(w[gate]));
            let kept = sigmoid(forget + f64::from(forget_bias)) * cell;
            cell = kept + sigmoid(input) * candidate.tanh();
            y = sigmoid(output) * cell.tanh();
            want.push(y);
        }
        let kind = OpKind::Lstm { forget_bias };
        let reads: [(&[usize], &[f32]); 2] = [(&[1, 2, 4, 1], &gates), (&[1, 4, 1], &w)];
        let writes: [&[usize]; 3] = [&[1, 2, 1], &[1, 2, 4, 1], &[1, 2, 1]];
        assert_close(&result(&kind, &SETTING, &reads, &writes), &want, 1e-6);
    }
}

/// The loss of an evaluation is over all classes, more than are computed at a time, for which the pass says how much
/// room it needs.
#[test]
fn an_evaluation_of_drawn_classes_is_the_cross_entropy_over_all_of_them() {
    for (rows, model, classes) in [(1, 2, 3), (7, 3, 40), (5, 2, 300), (40, 1, 257)] {
        let [x, w, bias] = [(1, rows * model), (2, classes * model), (3, classes)]
            .map(|(seed, n)| numbers(seed, n));
        let targets: Vec<u32> = (0..rows).map(|row| (row * 11 % classes) as u32).collect();
        let mut want = 0.0;
        for (row, &target) in targets.iter().enumerate() {
            let logit = |class: usize| {
                let product: f64 = (0..model)
                    .map(|at| f64::from(x[row * model + at]) * f64::from(w[class * model + at]))
                    .sum();
                product + f64::from(bias[class])
            };
            want += (0..classes).map(|class| logit(class).exp()).sum::<f64>().ln();
            want -= logit(target as usize);
        }
        let (device, memory) = (processor(), Memory::new(processor()));
        let shapes: [&[usize]; 4] = [&[rows, model], &[rows], &[classes, model], &[classes]];
        let formats = [Format::F32, Format::U32, Format::F32, Format::F32];
        let mut held: Vec<Buffer> = shapes
            .iter()
            .zip(formats)
            .map(|(shape, format)| memory.alloc(format, shape.iter().product()))
            .collect();
        device.set_reals(&x, held[0].view_mut());
        device.upload(HostSlice::U32(&targets), held[1].view_mut());
        device.set_reals(&w, held[2].view_mut());
        device.set_reals(&bias, held[3].view_mut());
        let kind = OpKind::SampledCrossEntropy { classes, samples: 0 };
        let written: [&[usize]; 3] = [&[], &[rows], &[rows, 0]];
        let sizes: Vec<_> = shapes
            .iter()
            .zip(formats)
            .map(|(shape, format)| OperandSize { shape, format })
            .collect();
        let of_written = written.map(|shape| OperandSize { shape, format: Format::F32 });
        let elements = device.scratch_elements(&kind, Pass::Forward, &sizes, &of_written);
        let mut scratch = memory.alloc(Format::F32, elements);
        let mut made = written.map(|shape| memory.alloc(Format::F32, shape.iter().product()));
        let inputs: Vec<_> =
            shapes.iter().zip(&held).map(|(shape, it)| Input { shape, data: it.view() }).collect();
        let mut outputs: Vec<_> = written
            .iter()
            .zip(&mut made)
            .map(|(shape, it)| Output { shape, data: it.view_mut(), accumulate: false })
            .collect();
        let kernel = Kernel { kind: &kind, pass: Pass::Forward, setting: &SETTING };
        device.run(kernel, &inputs, &mut outputs, scratch.view_mut());
        drop(outputs);
        let found = f64::from(device.reals(made[0].view())[0]);
        assert!((found - want).abs() < 1e-5 * want, "{found} for {want} over {classes}");
    }
}
