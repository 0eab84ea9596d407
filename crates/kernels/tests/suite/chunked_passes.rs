//! Passes whose operands of 16 bits are widened chunk by chunk come to what they come to of fp32, rounded once, though
//! the last chunk is smaller than the others.

use half::{bf16, f16};
use shardloom_graph::OpKind;
use shardloom_graph::op::{Activation, Gate, Visibility};
use shardloom_graph::work::Pass;
use shardloom_kernels::device::{HostSlice, Input, Kernel, OperandSize, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Format, Memory, processor};

/// What a tensor is of.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// Real numbers in the format that is tried.
    Reals,
    /// Real numbers in fp32 whatever is tried.
    Fp32,
    /// Zeros and ones.
    Mask,
    /// Numbers below five.
    Indices,
}
use Of::{Fp32, Indices, Mask, Reals};

type Tensor<'a> = (&'a [usize], Of);

/// An operator's pass, what it reads and what it writes.
type Case<'a> = (&'a OpKind, Pass, &'a [Tensor<'a>], &'a [Tensor<'a>]);

fn rounded(value: f32, format: Format) -> f32 {
    match format {
        Format::Bf16 => bf16::from_f32(value).to_f32(),
        Format::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// What the results hold before, where these are added to.
const BEFORE: f32 = 0.5;

/// The real numbers that a pass writes of operands in `format`, and how much scratch it takes. What it reads was
/// rounded to `rounded_to` before.
fn results(
    case: Case<'_>,
    format: Format,
    rounded_to: Format,
    accumulate: bool,
) -> (Vec<Vec<f32>>, usize) {
    let (kind, pass, reads, writes) = case;
    let (device, memory) = (processor(), Memory::new(processor()));
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let stored = |of: Of| match of {
        Reals => format,
        Fp32 => Format::F32,
        Mask => Format::U8,
        Indices => Format::U32,
    };
    let inputs: Vec<Buffer> = (reads.iter().enumerate())
        .map(|(number, &(shape, of))| {
            let mut buffer = memory.alloc(stored(of), elements(shape));
            let each = |index: usize| (index * 37 + number * 11) % 61;
            let all = 0..elements(shape);
            match of {
                Reals => {
                    let value = |index| rounded(each(index) as f32 / 23.0 - 1.3, rounded_to);
                    device.set_reals(&all.map(value).collect::<Vec<_>>(), buffer.view_mut());
                }
                Fp32 => {
                    let value = |index| each(index) as f32 / 40.0 + 0.5;
                    device.set_reals(&all.map(value).collect::<Vec<_>>(), buffer.view_mut());
                }
                Mask => {
                    let mask: Vec<u8> = all.map(|index| u8::from(each(index) > 20)).collect();
                    device.upload(HostSlice::U8(&mask), buffer.view_mut());
                }
                Indices => {
                    let indices: Vec<u32> = all.map(|index| each(index) as u32 % 5).collect();
                    device.upload(HostSlice::U32(&indices), buffer.view_mut());
                }
            }
            buffer
        })
        .collect();
    let mut outputs: Vec<Buffer> =
        writes.iter().map(|&(shape, of)| memory.alloc(stored(of), elements(shape))).collect();
    for (output, &(shape, of)) in outputs.iter_mut().zip(writes) {
        if of != Mask {
            device.set_reals(&vec![BEFORE; elements(shape)], output.view_mut());
        }
    }
    let size = |&(shape, of)| OperandSize { shape, format: stored(of) };
    let sizes = [reads, writes].map(|all| all.iter().map(size).collect::<Vec<_>>());
    let scratch_elements = device.scratch_elements(kind, pass, &sizes[0], &sizes[1]);
    let mut scratch = memory.alloc(Format::F32, scratch_elements);
    device.set_reals(&vec![f32::NAN; scratch_elements], scratch.view_mut());
    let reads: Vec<Input<'_>> = (inputs.iter().zip(reads))
        .map(|(it, &(shape, _))| Input { shape, data: it.view() })
        .collect();
    let mut written: Vec<Output<'_>> = (outputs.iter_mut().zip(writes))
        .map(|(it, &(shape, _))| Output { shape, data: it.view_mut(), accumulate })
        .collect();
    let setting = Setting {
        mask: kind.dropout().map(|_| Window::whole(&[9 * 2 * 40 * 40])),
        first_position: 0,
        first_index: 0,
        loss_scale: 0.125,
        key: Key { seed: 3, stream: 4, step: 5 },
    };
    let setting = match writes.iter().find(|(_, of)| *of == Mask) {
        Some((shape, _)) => Setting { mask: Some(Window::whole(shape)), ..setting },
        None => setting,
    };
    device.run(Kernel { kind, pass, setting: &setting }, &reads, &mut written, scratch.view_mut());
    let reals = outputs.iter().zip(writes).filter(|(_, (_, of))| *of != Mask);
    (reals.map(|(it, _)| device.reals(it.view())).collect(), scratch_elements)
}

fn assert_chunks_come_to_the_whole(case: Case<'_>, format: Format) {
    let (kind, pass, reads, writes) = case;
    let name = format!("{} {pass:?} {format}", kind.name());
    for accumulate in if pass == Pass::Forward { vec![false] } else { vec![false, true] } {
        let (found, scratch) = results(case, format, format, accumulate);
        let (expected, of_full) = results(case, Format::F32, format, false);
        let widened = reads.iter().chain(writes).filter(|(_, of)| *of == Reals);
        let widened: usize = widened.map(|(shape, _)| shape.iter().product::<usize>()).sum();
        assert!(scratch - of_full.min(scratch) < widened, "{name} is not taken in chunks");
        let kinds = writes.iter().filter(|(_, of)| *of != Mask).map(|(_, of)| *of);
        for ((found, expected), of) in found.iter().zip(&expected).zip(kinds) {
            for (&found, &expected) in found.iter().zip(expected) {
                let before = if accumulate { BEFORE } else { 0.0 };
                let (want, tolerance) = match of {
                    Reals => (rounded(before + rounded(expected, format), format), 0.0),
                    _ => (before + expected, 1e-4 * expected.abs().max(1.0)),
                };
                assert!((found - want).abs() <= tolerance, "{name}: {found}, {want}");
            }
        }
    }
}

#[test]
fn passes_by_rows_come_to_what_they_come_to_of_fp32() {
    let x: Tensor<'_> = (&[3, 37, 700], Reals);
    let (vector, stats, scale): (Tensor<'_>, Tensor<'_>, Tensor<'_>) =
        ((&[700], Reals), (&[3, 37, 2], Fp32), (&[3, 37], Fp32));
    let sum: Tensor<'_> = (&[700], Fp32);
    let mask: Tensor<'_> = (&[3, 37, 700], Mask);
    let (row, targets): (Tensor<'_>, Tensor<'_>) = ((&[3, 37], Fp32), (&[3, 37], Indices));
    let gelu = OpKind::Pointwise(Activation::Gelu);
    let gate = OpKind::Glu(Gate::Silu);
    let half = OpKind::Scale { factor: 0.5 };
    let bounded = OpKind::SoftCap { cap: 2.0 };
    let drop = OpKind::Dropout { probability: 0.25 };
    let biased = OpKind::BiasDropoutAdd { probability: 0.25 };
    let layer_norm = OpKind::LayerNorm { epsilon: 1e-5 };
    let rms_norm = OpKind::RmsNorm { epsilon: 1e-5, offset: 0.0 };
    let cases: [Case<'_>; 23] = [
        (&gelu, Pass::Forward, &[x], &[x]),
        (&gelu, Pass::Input, &[x, x], &[x]),
        (&OpKind::Add, Pass::Forward, &[x, x], &[x]),
        (&gate, Pass::Forward, &[x, x], &[x]),
        (&gate, Pass::Input, &[x, x, x], &[x, x]),
        (&half, Pass::Forward, &[x], &[x]),
        (&half, Pass::Input, &[x], &[x]),
        (&bounded, Pass::Forward, &[x], &[x]),
        (&bounded, Pass::Input, &[x, x], &[x]),
        (&drop, Pass::Forward, &[x], &[x, mask]),
        (&drop, Pass::Input, &[mask, x], &[x]),
        (&biased, Pass::Forward, &[x, vector, x], &[x, mask]),
        (&biased, Pass::Input, &[mask, x], &[x]),
        (&biased, Pass::Weight, &[mask, x], &[sum]),
        (&layer_norm, Pass::Forward, &[x, vector, vector], &[x, stats]),
        (&layer_norm, Pass::Input, &[x, vector, stats, x], &[x]),
        (&layer_norm, Pass::Weight, &[x, stats, x], &[sum, sum]),
        (&rms_norm, Pass::Forward, &[x, vector], &[x, scale]),
        (&rms_norm, Pass::Input, &[x, vector, scale, x], &[x]),
        (&rms_norm, Pass::Weight, &[x, scale, x], &[sum]),
        (&OpKind::LogitMax { classes: None }, Pass::Forward, &[x], &[row]),
        (&OpKind::LogitSum { classes: None }, Pass::Forward, &[x, row, targets], &[row, row]),
        (&OpKind::CrossEntropy { classes: None }, Pass::Input, &[x, row, row, targets], &[x]),
    ];
    for case in cases {
        for format in [Format::Bf16, Format::F16] {
            assert_chunks_come_to_the_whole(case, format);
        }
    }
}

/// In fp16, which no processor multiplies as it is.
#[test]
fn passes_by_samples_come_to_what_they_come_to_of_fp32() {
    let x: Tensor<'_> = (&[9, 40, 2, 16], Reals);
    let (p, mask): (Tensor<'_>, Tensor<'_>) = ((&[9, 2, 40, 40], Reals), (&[9, 2, 40, 40], Mask));
    let wide: Tensor<'_> = (&[9, 40, 4, 32], Reals);
    let visibility = Visibility::Causal;
    let rotary = OpKind::Rotary { width: 16, theta: 1e4, scaling: None };
    let probs = OpKind::AttentionProbs { visibility, scale: 0.25, soft_cap: None };
    let context = OpKind::AttentionContext { visibility, probability: 0.5 };
    let fused =
        OpKind::FusedAttention { visibility, scale: 0.25, soft_cap: None, probability: 0.0 };
    let cases: [Case<'_>; 8] = [
        (&rotary, Pass::Forward, &[wide], &[wide]),
        (&rotary, Pass::Input, &[wide], &[wide]),
        (&probs, Pass::Forward, &[x, x], &[p]),
        (&probs, Pass::Input, &[x, x, p, p], &[x, x]),
        (&context, Pass::Forward, &[p, x], &[x, mask]),
        (&context, Pass::Input, &[mask, p, x, x], &[p, x]),
        (&fused, Pass::Forward, &[x, x, x], &[x]),
        (&fused, Pass::Input, &[x, x, x, x], &[x, x, x]),
    ];
    for case in cases {
        assert_chunks_come_to_the_whole(case, Format::F16);
    }
}

#[test]
fn rows_of_a_table_of_bfloat16_are_copied_and_logits_are_not_widened_for_the_mean_of_losses() {
    let (tokens, table): (Tensor<'_>, Tensor<'_>) = ((&[2, 7], Indices), (&[5, 30], Reals));
    let embedded: Tensor<'_> = (&[2, 7, 30], Reals);
    let embed: Case<'_> = (&OpKind::Embed, Pass::Forward, &[tokens, table], &[embedded]);
    let [found, expected] =
        [Format::Bf16, Format::F32].map(|format| results(embed, format, Format::Bf16, false));
    assert_eq!(found, expected);
    assert_eq!(found.1, 0);

    let (logits, row): (Tensor<'_>, Tensor<'_>) = ((&[2, 7, 30], Reals), (&[2, 7], Fp32));
    let (targets, loss): (Tensor<'_>, Tensor<'_>) = ((&[2, 7], Indices), (&[], Fp32));
    let reads = [logits, row, row, row, targets];
    let mean: Case<'_> = (&OpKind::CrossEntropy { classes: None }, Pass::Forward, &reads, &[loss]);
    let [found, expected] =
        [Format::Bf16, Format::F32].map(|format| results(mean, format, format, false));
    assert_eq!(found, expected);
    assert_eq!(found.1, 0);
}

/// A row alone is more than what is widened of several at a time.
#[test]
fn passes_over_rows_of_any_length_are_taken_row_by_row_at_least() {
    for columns in [10_000, 16_384, 40_000] {
        let shape = [3, columns];
        let x: Tensor<'_> = (&shape, Reals);
        let bounded = OpKind::SoftCap { cap: 2.0 };
        let cases: [Case<'_>; 3] = [
            (&OpKind::Add, Pass::Forward, &[x, x], &[x]),
            (&bounded, Pass::Forward, &[x], &[x]),
            (&bounded, Pass::Input, &[x, x], &[x]),
        ];
        for case in cases {
            assert_chunks_come_to_the_whole(case, Format::Bf16);
        }
    }
}
