//! The processor as a device: operations in fp32 on operands of 16 bits equal the fp32 kernel on the widened
//! operands, rounded once, but for the order of sums where bfloat16 is multiplied as such.

use half::bf16;
use shardloom_graph::OpKind;
use shardloom_graph::op::Overflow;
use shardloom_graph::op::Visibility;
use shardloom_graph::work::Pass;
use shardloom_kernels::device::{BoxOf, HostSlice, Input, Kernel, OperandSize, Output, Setting};
use shardloom_kernels::matmul::{self, Linear, WeightLayout};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Buffer, Combine, Format, Memory, processor, reduce};

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 11) % 61) as f32 / 23.0 - 1.3).collect()
}

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&value| bf16::from_f32(value).to_f32()).collect()
}

fn buffer(memory: &Memory, format: Format, values: &[f32]) -> Buffer {
    let mut buffer = memory.alloc(format, values.len());
    processor().set_reals(values, buffer.view_mut());
    buffer
}

const SETTING: Setting = Setting {
    mask: None,
    first_position: 0,
    first_index: 0,
    loss_scale: 1.0,
    key: Key { seed: 0, stream: 0, step: 0 },
};

/// As PyTorch multiplies a tensor by a number of the same format.
#[test]
fn a_scale_multiplies_by_a_number_of_the_format_of_what_it_reads() {
    let (device, memory) = (processor(), Memory::new(processor()));
    // The root of 3072, which in bfloat16 is 55.5.
    let factor = 55.425_625;
    let kind = OpKind::Scale { factor };
    let numbers = rounded(&values(40, 3));
    for (format, expected) in [(Format::F32, factor), (Format::Bf16, 55.5), (Format::F16, 55.4375)]
    {
        for pass in [Pass::Forward, Pass::Input] {
            let x = buffer(&memory, format, &numbers);
            let mut y = memory.alloc(format, 40);
            let size = [OperandSize { shape: &[40], format }];
            let elements = device.scratch_elements(&kind, pass, &size, &size);
            let mut scratch = memory.alloc(Format::F32, elements);
            device.run(
                Kernel { kind: &kind, pass, setting: &SETTING },
                &[Input { shape: &[40], data: x.view() }],
                &mut [Output { shape: &[40], data: y.view_mut(), accumulate: false }],
                scratch.view_mut(),
            );
            let x = device.reals(x.view());
            let products: Vec<f32> = x.iter().map(|x| expected * x).collect();
            let want = buffer(&memory, format, &products);
            assert_eq!(device.reals(y.view()), device.reals(want.view()), "{format} {pass:?}");
        }
    }
}

/// The weight gradient of a linear layer of bfloat16 operands, added to `before` where there is something.
fn weight_gradient(format: Format, before: Option<&[f32]>) -> Vec<f32> {
    let (device, memory) = (processor(), Memory::new(processor()));
    let (rows, inputs, outputs) = (5, 7, 3);
    let x = buffer(&memory, Format::Bf16, &values(rows * inputs, 1));
    let dy = buffer(&memory, Format::Bf16, &values(rows * outputs, 2));
    let mut dw = buffer(&memory, format, before.unwrap_or(&[0.5; 21]));
    let kind = OpKind::Contract { transposed: false };
    let shapes: [&[usize]; 3] = [&[rows, inputs], &[rows, outputs], &[inputs, outputs]];
    let size = |shape, format| OperandSize { shape, format };
    let reads = [size(shapes[0], Format::Bf16), size(shapes[1], Format::Bf16)];
    let writes = [size(shapes[2], format)];
    let elements = device.scratch_elements(&kind, Pass::Weight, &reads, &writes);
    let mut scratch = memory.alloc(Format::F32, elements);
    device.run(
        Kernel { kind: &kind, pass: Pass::Weight, setting: &SETTING },
        &[Input { shape: shapes[0], data: x.view() }, Input { shape: shapes[1], data: dy.view() }],
        &mut [Output { shape: shapes[2], data: dw.view_mut(), accumulate: before.is_some() }],
        scratch.view_mut(),
    );
    device.reals(dw.view())
}

#[test]
fn attention_needs_scratch_where_probabilities_are_dropped_and_else_none() {
    let size = |shape: &'static [usize]| OperandSize { shape, format: Format::F32 };
    let (probs, values, context) = (size(&[2, 3, 4, 4]), size(&[2, 4, 3, 5]), size(&[2, 4, 3, 5]));
    for probability in [0.0, 0.1] {
        let kind = OpKind::AttentionContext { visibility: Visibility::Causal, probability };
        let mask = (probability > 0.0).then_some(probs);
        let needs = |pass, reads: &[OperandSize<'_>], writes: &[OperandSize<'_>]| {
            processor().scratch_elements(&kind, pass, reads, writes) > 0
        };
        let written: Vec<_> = [context].into_iter().chain(mask).collect();
        assert_eq!(needs(Pass::Forward, &[probs, values], &written), mask.is_some());
        let read: Vec<_> = mask.into_iter().chain([probs, values, context]).collect();
        assert_eq!(needs(Pass::Input, &read, &[probs, values]), mask.is_some());
    }
}

/// Of linear layers forward and back, with few sums and with many, to features of one axis and of two.
#[test]
fn products_of_bfloat16_are_those_of_fp32_rounded_once_however_long_their_sums_are() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let kind = OpKind::Contract { transposed: false };
    for (inputs, features) in [(24, [1, 40]), (1500, [1, 20]), (20, [1, 1500]), (24, [30, 70])] {
        let outputs: usize = features.iter().product();
        let [x, w, y]: [&[usize]; 3] = [
            &[3, 5, inputs],
            &[inputs, features[0], features[1]],
            &[3, 5, features[0], features[1]],
        ];
        for (pass, reads, written) in [(Pass::Forward, [x, w], y), (Pass::Input, [w, y], x)] {
            let results = [Format::F32, Format::Bf16].map(|format| {
                let size = |shape| OperandSize { shape, format };
                let held = [reads[0], reads[1], written]
                    .map(|shape| integers(shape.iter().product(), shape.len()))
                    .map(|numbers| buffer(&memory, format, &numbers));
                let [first, second, mut result] = held;
                let elements =
                    device.scratch_elements(&kind, pass, &reads.map(size), &[size(written)]);
                let mut scratch = memory.alloc(Format::F32, elements);
                device.run(
                    Kernel { kind: &kind, pass, setting: &SETTING },
                    &[
                        Input { shape: reads[0], data: first.view() },
                        Input { shape: reads[1], data: second.view() },
                    ],
                    &mut [Output { shape: written, data: result.view_mut(), accumulate: false }],
                    scratch.view_mut(),
                );
                device.reals(result.view())
            });
            let [full, half] = results;
            assert_eq!(half, rounded(&full), "{inputs} to {outputs}, {pass:?}");
        }
    }
}

/// The same in fp32 from the rounded operands.
fn exact() -> Vec<f32> {
    let mut dw = vec![0.0; 21];
    let (x, dy) = (rounded(&values(35, 1)), rounded(&values(15, 2)));
    let layout = WeightLayout::InputsByOutputs;
    let shape = Linear { rows: 5, inputs: 7, outputs: 3, layout };
    matmul::linear_weight_grad(shape, &x, &dy, &mut dw, false);
    dw
}

#[test]
fn a_kernel_of_bfloat16_computes_in_fp32_and_rounds_once() {
    assert_eq!(weight_gradient(Format::F32, None), exact());
    assert_eq!(weight_gradient(Format::Bf16, None), rounded(&exact()));
}

#[test]
fn what_is_added_to_bfloat16_is_rounded_before_and_after_and_what_is_added_to_fp32_is_not() {
    let before = rounded(&values(21, 3));
    let sum = |part: Vec<f32>| -> Vec<f32> {
        before.iter().zip(part).map(|(before, part)| before + part).collect()
    };
    let found = weight_gradient(Format::Bf16, Some(&before));
    assert_eq!(found, rounded(&sum(rounded(&exact()))));
    let found = weight_gradient(Format::F32, Some(&before));
    for (found, expected) in found.iter().zip(sum(exact())) {
        assert!((found - expected).abs() < 1e-5, "{found}, {expected}");
    }
}

#[test]
fn sums_and_maxima_are_of_widened_numbers_and_are_rounded() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let (a, b) = (rounded(&values(100, 1)), rounded(&values(100, 2)));
    for format in [Format::F32, Format::Bf16, Format::F16] {
        let (mut to, part) = (buffer(&memory, format, &a), buffer(&memory, format, &b));
        device.combine(to.view_mut(), part.view(), Combine::Max);
        let larger: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a.max(*b)).collect();
        assert_eq!(device.reals(to.view()), larger, "{format}");
        device.set_reals(&a, to.view_mut());
        device.combine(to.view_mut(), part.view(), Combine::Sum);
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let expected = buffer(&memory, format, &sum);
        assert_eq!(device.reals(to.view()), device.reals(expected.view()), "{format}");
        device.set_reals(&a, to.view_mut());
        device.scale_and_add(to.view_mut(), 0.3, part.view(), -2.0);
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| 0.3 * a + -2.0 * b).collect();
        let expected = buffer(&memory, format, &sum);
        assert_eq!(device.reals(to.view()), device.reals(expected.view()), "{format}");
    }
}

#[test]
fn the_squared_norm_of_bfloat16_is_that_of_the_widened_numbers() {
    let memory = Memory::new(processor());
    let all = rounded(&values(3000, 1));
    let of_bf16 = processor().squared_norm(buffer(&memory, Format::Bf16, &all).view());
    let expected = reduce::squared_norm(&all);
    assert!((of_bf16 - expected).abs() < 1e-12 * expected, "{of_bf16}, {expected}");
}

#[test]
fn a_box_is_copied_in_every_format() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let whole: Vec<f32> = (0..12).map(|i| i as f32).collect();
    for format in [Format::F32, Format::Bf16, Format::F16] {
        let from = buffer(&memory, format, &whole);
        let mut to = buffer(&memory, format, &[-1.0; 6]);
        device.copy_box(
            BoxOf { elements: from.view(), shape: &[3, 4], start: &[1, 2] },
            BoxOf { elements: to.view_mut(), shape: &[2, 3], start: &[0, 1] },
            &[2, 2],
        );
        assert_eq!(device.reals(to.view()), [-1.0, 6.0, 7.0, -1.0, 10.0, 11.0], "{format}");
    }
}

#[test]
fn casts_widen_exactly_and_round_to_nearest_even() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let all = [1.0, 1.0 + 2.0_f32.powi(-8), 1.0 + 3.0 * 2.0_f32.powi(-8), -2.71, 65504.0];
    for (format, expected) in [
        (Format::Bf16, all.map(|value| bf16::from_f32(value).to_f32())),
        (Format::F16, all.map(|value| half::f16::from_f32(value).to_f32())),
    ] {
        let from = buffer(&memory, Format::F32, &all);
        let mut narrow = memory.alloc(format, all.len());
        device.cast(from.view(), narrow.view_mut());
        let mut wide = memory.alloc(Format::F32, all.len());
        device.cast(narrow.view(), wide.view_mut());
        assert_eq!(device.reals(wide.view()), expected, "{format}");
    }
}

/// 65504 is the largest number of fp16, to which the next would be 32 more, and 2^-24 is the least above 0.
#[test]
fn what_is_too_large_for_fp16_becomes_infinite_and_what_is_too_small_becomes_zero() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let numbers = [65519.0, 65520.0, -65520.0, 2.0_f32.powi(-24), 2.0_f32.powi(-25)];
    let expected = [65504.0, f32::INFINITY, f32::NEG_INFINITY, 2.0_f32.powi(-24), 0.0];
    let set = buffer(&memory, Format::F16, &numbers);
    let wide = buffer(&memory, Format::F32, &numbers);
    let mut cast = memory.alloc(Format::F16, numbers.len());
    device.cast(wide.view(), cast.view_mut());
    for narrow in [set, cast] {
        assert_eq!(device.reals(narrow.view()), expected);
    }
}

/// Shape and elements of a tensor.
type Tensor<'a> = (&'a [usize], HostSlice<'a>);

/// An operator's pass, what it reads, and the shapes of what it writes.
type Case<'a> = (&'a OpKind, Pass, &'a [Tensor<'a>], &'a [&'a [usize]]);

/// What a pass of an operator writes, with each of `before` added to where there is one.
fn results(
    kind: &OpKind,
    pass: Pass,
    reads: &[Tensor<'_>],
    writes: &[&[usize]],
    before: &[Option<f32>],
) -> Vec<Vec<f32>> {
    let (device, memory) = (processor(), Memory::new(processor()));
    let held: Vec<Buffer> = reads
        .iter()
        .map(|&(shape, values)| {
            let format = match values {
                HostSlice::F32(_) => Format::F32,
                HostSlice::U32(_) => Format::U32,
                HostSlice::U8(_) => Format::U8,
                _ => panic!("not of another format here"),
            };
            let mut buffer = memory.alloc(format, shape.iter().product());
            device.upload(values, buffer.view_mut());
            buffer
        })
        .collect();
    let of_f32 = |shape| OperandSize { shape, format: Format::F32 };
    let read_sizes: Vec<_> = reads
        .iter()
        .zip(&held)
        .map(|(&(shape, _), held)| OperandSize { shape, format: held.format() })
        .collect();
    let write_sizes: Vec<_> = writes.iter().map(|&shape| of_f32(shape)).collect();
    let elements = device.scratch_elements(kind, pass, &read_sizes, &write_sizes);
    let mut scratch = memory.alloc(Format::F32, elements);
    let mut made: Vec<Buffer> = writes
        .iter()
        .zip(before)
        .map(|(shape, before)| {
            let count = shape.iter().product();
            buffer(&memory, Format::F32, &vec![before.unwrap_or(1e6); count])
        })
        .collect();
    let inputs: Vec<_> = reads
        .iter()
        .zip(&held)
        .map(|(&(shape, _), held)| Input { shape, data: held.view() })
        .collect();
    let mut outputs: Vec<_> = writes
        .iter()
        .zip(&mut made)
        .zip(before)
        .map(|((&shape, made), before)| Output {
            shape,
            data: made.view_mut(),
            accumulate: before.is_some(),
        })
        .collect();
    device.run(Kernel { kind, pass, setting: &SETTING }, &inputs, &mut outputs, scratch.view_mut());
    made.iter().map(|made| device.reals(made.view())).collect()
}

#[test]
fn each_gradient_of_an_operator_is_added_where_that_is_asked_and_only_there() {
    use HostSlice::{F32, U8, U32};
    let numbers = values(64, 5);
    let real = |count: usize| F32(&numbers[..count]);
    let first_two = [1.0, 1.0];
    let context = OpKind::AttentionContext { visibility: Visibility::All, probability: 0.0 };
    let route = OpKind::Route { slots: 2, overflow: Overflow::Drop };
    let dropout = OpKind::BiasDropoutAdd { probability: 0.5 };
    let cases: [Case<'_>; 5] = [
        (
            &OpKind::Contract { transposed: false },
            Pass::Weight,
            &[(&[5, 4], real(20)), (&[5, 3], real(15))],
            &[&[4, 3], &[3]],
        ),
        (
            &context,
            Pass::Input,
            &[(&[1, 1, 2, 3], real(6)), (&[1, 3, 1, 4], real(12)), (&[1, 2, 1, 4], real(8))],
            &[&[1, 1, 2, 3], &[1, 3, 1, 4]],
        ),
        // Two rows of two experts, one each.
        (
            &route,
            Pass::Input,
            &[
                (&[1, 2, 2], F32(&[1.0, 0.0, 0.0, 1.0])),
                (&[1, 2], F32(&[0.75, 0.75])),
                (&[1, 2], U32(&[0, 1])),
                (&[1, 2], F32(&[1.0, -1.0])),
            ],
            &[&[1, 2, 2]],
        ),
        (
            &OpKind::ExpertContract,
            Pass::Weight,
            &[(&[2, 3], real(6)), (&[2, 1], F32(&first_two)), (&[2, 4], real(8))],
            &[&[2, 3, 4]],
        ),
        (
            &dropout,
            Pass::Weight,
            &[(&[2, 3], U8(&[1, 0, 1, 1, 1, 0])), (&[2, 3], real(6))],
            &[&[3]],
        ),
    ];
    for (kind, pass, reads, writes) in cases {
        let alone = results(kind, pass, reads, writes, &vec![None; writes.len()]);
        for (which, gradient) in alone.iter().enumerate() {
            let largest = gradient.iter().fold(0.0_f32, |most, it| most.max(it.abs()));
            assert!(largest > 0.0 && largest < 100.0, "{} {which}: {largest}", kind.name());
            let mut before = vec![None; writes.len()];
            before[which] = Some(2.0);
            let found = results(kind, pass, reads, writes, &before);
            for (other, (found, alone)) in found.iter().zip(&alone).enumerate() {
                let add = if other == which { 2.0 } else { 0.0 };
                for (found, alone) in found.iter().zip(alone) {
                    let close = (found - (alone + add)).abs() < 1e-5;
                    assert!(close, "{} {which}, {other}: {found}, {alone} + {add}", kind.name());
                }
            }
        }
    }
}

/// Whole numbers, whose products and sums are exact in every format and order.
fn integers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 31 + seed * 17) % 7) as f32 - 3.0).collect()
}

/// What a pass writes to fp32 that reads these tensors: their shapes, numbers and formats.
fn written(
    kind: &OpKind,
    pass: Pass,
    reads: &[(&[usize], &[f32], Format)],
    writes: &[&[usize]],
) -> Vec<Vec<f32>> {
    let (device, memory) = (processor(), Memory::new(processor()));
    let inputs: Vec<Buffer> =
        reads.iter().map(|(_, values, format)| buffer(&memory, *format, values)).collect();
    let elements = |shape: &[usize]| shape.iter().product();
    let mut outputs: Vec<Buffer> =
        writes.iter().map(|shape| memory.alloc(Format::F32, elements(shape))).collect();
    let read_sizes: Vec<OperandSize<'_>> =
        reads.iter().map(|&(shape, _, format)| OperandSize { shape, format }).collect();
    let write_sizes: Vec<OperandSize<'_>> =
        writes.iter().map(|&shape| OperandSize { shape, format: Format::F32 }).collect();
    let scratch = device.scratch_elements(kind, pass, &read_sizes, &write_sizes);
    let mut scratch = memory.alloc(Format::F32, scratch);
    let inputs: Vec<Input<'_>> = inputs
        .iter()
        .zip(reads)
        .map(|(it, &(shape, ..))| Input { shape, data: it.view() })
        .collect();
    let mut results: Vec<Output<'_>> = outputs
        .iter_mut()
        .zip(writes)
        .map(|(it, &shape)| Output { shape, data: it.view_mut(), accumulate: false })
        .collect();
    device.run(Kernel { kind, pass, setting: &SETTING }, &inputs, &mut results, scratch.view_mut());
    outputs.iter().map(|it| device.reals(it.view())).collect()
}

/// By definition, in whole numbers, so that every order of additions comes to the same.
#[test]
fn a_layer_s_passes_are_sums_of_products_whichever_way_its_weights_lie() {
    let (rows, inputs, outputs) = (3, 5, 4);
    let sizes = [(rows * inputs, 1), (inputs * outputs, 2), (rows * outputs, 3)];
    let [x, w, dy] = sizes.map(|(count, seed)| integers(count, seed));
    for transposed in [false, true] {
        let of_w = if transposed { [outputs, inputs] } else { [inputs, outputs] };
        let place = |input: usize, output: usize| match transposed {
            true => output * inputs + input,
            false => input * outputs + output,
        };
        let mut expected =
            [vec![0.0; rows * outputs], vec![0.0; rows * inputs], vec![0.0; inputs * outputs]];
        for row in 0..rows {
            for input in 0..inputs {
                for output in 0..outputs {
                    let (of_x, of_w) = (row * inputs + input, place(input, output));
                    let of_y = row * outputs + output;
                    expected[0][of_y] += x[of_x] * w[of_w];
                    expected[1][of_x] += dy[of_y] * w[of_w];
                    expected[2][of_w] += dy[of_y] * x[of_x];
                }
            }
        }
        let layer = OpKind::Contract { transposed };
        let (of_x, of_y) = ([rows, inputs], [rows, outputs]);
        let [x, w, dy] = [(&of_x[..], &x), (&of_w[..], &w), (&of_y[..], &dy)]
            .map(|(shape, numbers)| (shape, &numbers[..], Format::F32));
        let found = [
            written(&layer, Pass::Forward, &[x, w], &[&of_y]),
            written(&layer, Pass::Input, &[w, dy], &[&of_x]),
            written(&layer, Pass::Weight, &[x, dy], &[&of_w]),
        ];
        assert_eq!(found.concat(), expected, "transposed: {transposed}");
    }
}

#[test]
fn layers_and_experts_come_to_the_same_of_bfloat16_as_of_fp32_where_sums_are_exact() {
    let (rows, inputs, outputs, experts) = (13, 37, 21, 3);
    let [x, w, dy] = [rows * inputs, experts * inputs * outputs, rows * outputs];
    let [x, w, dy] = [(x, 1), (w, 2), (dy, 3)].map(|(count, seed)| integers(count, seed));
    let bias = integers(outputs, 4);
    // Four rows of the first expert, none of the second and nine of the third.
    let counts = [4.0, 0.0, 9.0];
    let (of_x, of_y, of_counts) = ([rows, inputs], [rows, outputs], [experts, 1]);
    let of_experts = [experts, inputs, outputs];
    for transposed in [false, true] {
        let layer = OpKind::Contract { transposed };
        let of_w = if transposed { [outputs, inputs] } else { [inputs, outputs] };
        let one = &w[..inputs * outputs];
        let come_to = |format: Format| {
            let of_bias = [outputs];
            let [x, w, dy, bias] = [
                (&of_x[..], &x[..], format),
                (&of_w[..], one, format),
                (&of_y[..], &dy[..], format),
                (&of_bias[..], &bias[..], format),
            ];
            [
                written(&layer, Pass::Forward, &[x, w], &[&of_y]),
                written(&layer, Pass::Forward, &[x, w, bias], &[&of_y]),
                written(&layer, Pass::Input, &[w, dy], &[&of_x]),
                written(&layer, Pass::Weight, &[x, dy], &[&of_w]),
                written(&layer, Pass::Weight, &[x, dy], &[&of_w, &of_bias]),
            ]
        };
        assert_eq!(come_to(Format::Bf16), come_to(Format::F32));
    }
    let come_to = |format: Format| {
        let [x, w, dy, counts] = [
            (&of_x[..], &x[..], format),
            (&of_experts[..], &w[..], format),
            (&of_y[..], &dy[..], format),
            (&of_counts[..], &counts[..], Format::F32),
        ];
        let kind = OpKind::ExpertContract;
        [
            written(&kind, Pass::Forward, &[x, counts, w], &[&of_y]),
            written(&kind, Pass::Input, &[counts, w, dy], &[&of_x]),
            written(&kind, Pass::Weight, &[x, counts, dy], &[&of_experts]),
        ]
    };
    let found = come_to(Format::Bf16);
    assert_eq!(found, come_to(Format::F32));
    assert!(found.iter().flatten().flatten().any(|it| *it != 0.0));
}

/// With as many queries as make several tiles, more keys than a register has, and groups of queries.
#[test]
fn attention_comes_to_the_same_of_bfloat16_as_of_fp32_where_sums_are_exact() {
    let (batch, count, heads, group, width) = (2, 70, 2, 3, 24);
    let of_q = [batch, count, heads, group, width];
    let of_k = [batch, count, heads, width];
    let of_p = [batch, heads, group, count, count];
    let numbers = |shape: &[usize], seed| integers(shape.iter().product(), seed);
    let [q, k, v, p, d_o] = [
        numbers(&of_q, 1),
        numbers(&of_k, 2),
        numbers(&of_k, 3),
        numbers(&of_p, 4),
        numbers(&of_q, 5),
    ];
    for visibility in [Visibility::All, Visibility::Causal, Visibility::Window { positions: 33 }] {
        let probs = |soft_cap| OpKind::AttentionProbs { visibility, scale: 0.125, soft_cap };
        let context = |probability| OpKind::AttentionContext { visibility, probability };
        let come_to = |format: Format| {
            let [q, k, v, p, d_o] = [
                (&of_q[..], &q[..], format),
                (&of_k[..], &k[..], format),
                (&of_k[..], &v[..], format),
                (&of_p[..], &p[..], format),
                (&of_q[..], &d_o[..], format),
            ];
            [
                written(&probs(None), Pass::Forward, &[q, k], &[&of_p]),
                written(&probs(Some(2.0)), Pass::Forward, &[q, k], &[&of_p]),
                written(&context(0.0), Pass::Forward, &[p, v], &[&of_q]),
                written(&context(0.0), Pass::Input, &[p, v, d_o], &[&of_p, &of_k]),
            ]
        };
        let found = come_to(Format::Bf16);
        assert_eq!(found, come_to(Format::F32));
        assert!(found.iter().all(|it| it[0].iter().any(|it| *it != 0.0)));
    }
}

#[test]
fn tokens_outside_of_a_rank_s_rows_of_a_table_embed_to_zeros_in_every_format() {
    let (device, memory) = (processor(), Memory::new(processor()));
    // Rows 4 to 6 of a vocabulary.
    let numbers = rounded(&values(6, 4));
    let mut tokens = memory.alloc(Format::U32, 4);
    device.upload(HostSlice::U32(&[4, 1, 6, 7]), tokens.view_mut());
    let expected = [&numbers[..2], &[0.0; 2], &numbers[4..], &[0.0; 2]].concat();
    let setting = Setting { first_index: 4, ..SETTING };
    for (of_table, of_result) in [
        (Format::F32, Format::F32),
        (Format::Bf16, Format::Bf16),
        (Format::Bf16, Format::F32),
        (Format::F16, Format::F16),
    ] {
        // What fp16 holds of these numbers it holds exactly.
        let table = buffer(&memory, of_table, &numbers);
        let mut embedded = memory.alloc(of_result, 8);
        let size = |shape, format| OperandSize { shape, format };
        let reads = [size(&[4][..], Format::U32), size(&[3, 2][..], of_table)];
        let writes = [size(&[4, 2][..], of_result)];
        let elements = device.scratch_elements(&OpKind::Embed, Pass::Forward, &reads, &writes);
        let mut scratch = memory.alloc(Format::F32, elements);
        device.run(
            Kernel { kind: &OpKind::Embed, pass: Pass::Forward, setting: &setting },
            &[
                Input { shape: &[4], data: tokens.view() },
                Input { shape: &[3, 2], data: table.view() },
            ],
            &mut [Output { shape: &[4, 2], data: embedded.view_mut(), accumulate: false }],
            scratch.view_mut(),
        );
        assert_eq!(device.reals(embedded.view()), expected, "{of_table} to {of_result}");
    }
}
