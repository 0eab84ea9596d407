//! The processor as a device: what it does with views is what the optimizers and compressors do with slices.

use half::{bf16, f16};
use shardloom_kernels::compression::{Factors, Matrix, Step as Compression};
use shardloom_kernels::device::{Gradients, Update};
use shardloom_kernels::optimizer::{Adafactor, AdamW, Lamb, Optimizer, Piece, Sgd, Step};
use shardloom_kernels::{Buffer, Format, Memory, processor};

use crate::oracle::numbers;

fn buffer(memory: &Memory, format: Format, numbers: &[f32]) -> Buffer {
    let mut buffer = memory.alloc(format, numbers.len());
    processor().set_reals(numbers, buffer.view_mut());
    buffer
}

fn optimizers() -> [Optimizer; 4] {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-8, 0.1);
    [
        Optimizer::Sgd(Sgd::new(0.9, 0.1)),
        Optimizer::AdamW(AdamW { beta1, beta2, epsilon, weight_decay }),
        Optimizer::Lamb(Lamb { beta1, beta2, epsilon, weight_decay }),
        Optimizer::Adafactor(Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay,
        }),
    ]
}

/// Weights and state of a matrix after some steps on gradients as they are held in a format: on the device, and by the
/// optimizer itself on their values.
#[test]
fn updates_on_the_device_are_the_optimizer_s_with_all_rounds_of_statistics() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let (rows, columns) = (3, 5);
    let piece = Piece::whole(rows, columns);
    for optimizer in optimizers() {
        for format in [Format::F32, Format::Bf16, Format::F16] {
            let held = |number: f32| match format {
                Format::Bf16 => bf16::from_f32(number).to_f32(),
                Format::F16 => f16::from_f32(number).to_f32(),
                _ => number,
            };
            let mut weights = numbers(1, 15);
            let mut state: Vec<Vec<f32>> =
                optimizer.state_lens(&piece).iter().map(|&len| vec![0.0; len]).collect();
            let mut on_device = buffer(&memory, Format::F32, &weights);
            let mut state_on_device: Vec<Buffer> =
                state.iter().map(|it| buffer(&memory, Format::F32, it)).collect();
            for number in 1..=3 {
                let step = Step { number, learning_rate: 0.1, gradient_scale: 0.5 };
                let gradient: Vec<f32> = numbers(100 + number, 15).into_iter().map(held).collect();
                let of_device = buffer(&memory, format, &gradient);
                let update = Update { optimizer, step, piece: &piece };
                let scratch = device.update_scratch_elements(15, format);
                let mut scratch = memory.alloc(Format::F32, scratch);
                let mut sums: Vec<f32> = vec![];
                let mut sums_on_device: Option<Buffer> = None;
                for round in 0..optimizer.rounds() {
                    let len = optimizer.statistics_len(&piece.block, round);
                    let mut out = vec![f32::NAN; len];
                    let slices = &mut state.iter_mut().map(|it| &mut it[..]).collect::<Vec<_>>();
                    let (w, g) = (&weights, &gradient);
                    optimizer.statistics(step, round, &piece, w, g, slices, &sums, &mut out);
                    sums = out;
                    let mut out = buffer(&memory, Format::F32, &vec![f32::NAN; len]);
                    let views =
                        &mut state_on_device.iter_mut().map(Buffer::view_mut).collect::<Vec<_>>();
                    device.statistics(
                        update,
                        round,
                        on_device.view(),
                        Gradients::All(of_device.view()),
                        views,
                        sums_on_device.as_ref().map(Buffer::view),
                        out.view_mut(),
                        scratch.view_mut(),
                    );
                    assert_eq!(device.reals(out.view()), sums, "{optimizer:?}, round {round}");
                    sums_on_device = Some(out);
                }
                let slices = &mut state.iter_mut().map(|it| &mut it[..]).collect::<Vec<_>>();
                optimizer.apply(step, &piece, &mut weights, &gradient, slices, &sums);
                let views =
                    &mut state_on_device.iter_mut().map(Buffer::view_mut).collect::<Vec<_>>();
                device.update(
                    update,
                    on_device.view_mut(),
                    Gradients::All(of_device.view()),
                    views,
                    sums_on_device.as_ref().map(Buffer::view),
                    scratch.view_mut(),
                );
            }
            assert_eq!(device.reals(on_device.view()), weights, "{optimizer:?} of {format}");
            let found: Vec<Vec<f32>> =
                state_on_device.iter().map(|it| device.reals(it.view())).collect();
            assert_eq!(found, state, "{optimizer:?} of {format}");
        }
    }
}

fn add(sum: &mut [f32], part: &[f32]) {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
}

/// Matrices whose sum over members has rank 1, and a vector: the factors come to the sum, and each member keeps how far
/// its part is from an equal share of it.
#[test]
fn members_exchange_factors_on_the_device_and_keep_what_is_left_of_their_part() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let (rows, columns, plain) = (4, 3, 5);
    let elements = rows * columns + plain;
    let factors = Factors {
        rank: 1,
        factored: [Matrix { offset: 0, rows, columns }].into(),
        plain: [Matrix { offset: rows * columns, rows: 1, columns: plain }].into(),
    };
    for members in [1_u8, 2, 3] {
        let (left, right) = (numbers(1, rows), numbers(2, columns));
        let mut sum: Vec<f32> =
            left.iter().flat_map(|one| right.iter().map(move |other| one * other)).collect();
        sum.extend(numbers(3, plain));
        let count = f32::from(members);
        // Parts differ by what adds up to nothing.
        let mut parts: Vec<Vec<f32>> = vec![];
        for member in 0..members {
            let apart = f32::from(member) - (count - 1.0) / 2.0;
            let own = numbers(4, elements);
            parts.push(sum.iter().zip(own).map(|(sum, own)| sum / count + apart * own).collect());
        }
        let held: Vec<Buffer> = parts.iter().map(|it| buffer(&memory, Format::F32, it)).collect();
        let zeros = |len: usize| buffer(&memory, Format::F32, &vec![0.0; len]);
        let mut residuals: Vec<Buffer> = parts.iter().map(|_| zeros(elements)).collect();
        let mut rights: Vec<Buffer> = parts.iter().map(|_| zeros(columns)).collect();
        let mut sum_of_left = vec![0.0; rows + plain];
        for ((part, residual), right) in held.iter().zip(&mut residuals).zip(&mut rights) {
            let mut left = zeros(rows + plain);
            let writes = &mut [left.view_mut(), residual.view_mut(), right.view_mut()];
            device.compress(&Compression::Left(factors.clone()), &[part.view()], writes);
            add(&mut sum_of_left, &device.reals(left.view()));
        }
        let mut lefts: Vec<Buffer> =
            parts.iter().map(|_| buffer(&memory, Format::F32, &sum_of_left)).collect();
        let mut sum_of_right = vec![0.0; columns];
        for ((residual, right), left) in residuals.iter().zip(&mut rights).zip(&mut lefts) {
            let writes = &mut [right.view_mut(), left.view_mut()];
            device.compress(&Compression::Right(factors.clone()), &[residual.view()], writes);
            add(&mut sum_of_right, &device.reals(right.view()));
        }
        let step =
            Compression::FromFactors { factors: factors.clone(), members: usize::from(members) };
        for ((left, residual), part) in lefts.iter().zip(&mut residuals).zip(&parts) {
            let mut right = buffer(&memory, Format::F32, &sum_of_right);
            let mut found = zeros(elements);
            let writes = &mut [found.view_mut(), residual.view_mut(), right.view_mut()];
            device.compress(&step, &[left.view()], writes);
            let (found, kept) = (device.reals(found.view()), device.reals(residual.view()));
            for at in 0..elements {
                assert!((found[at] - sum[at]).abs() < 1e-5, "{} for {}", found[at], sum[at]);
                let left = if at < rows * columns { part[at] - sum[at] / count } else { 0.0 };
                assert!((kept[at] - left).abs() < 1e-5, "{} of {members} for {left}", kept[at]);
            }
        }
    }
}

#[test]
fn every_format_is_filled_with_the_number() {
    let (device, memory) = (processor(), Memory::new(processor()));
    for number in [0.0_f32, 1.0, 7.0, 200.0] {
        for format in [Format::F32, Format::Bf16, Format::F16] {
            let mut filled = memory.alloc(format, 5);
            device.fill(filled.view_mut(), number);
            assert_eq!(device.reals(filled.view()), [number; 5], "{format}");
        }
        let mut doubles = memory.alloc(Format::F64, 5);
        device.fill(doubles.view_mut(), number);
        device.lend(doubles.view_mut(), &mut |elements| {
            let shardloom_kernels::device::HostSliceMut::F64(held) = elements else {
                panic!("of another format")
            };
            assert_eq!(held, [f64::from(number); 5]);
        });
        let mut indices = memory.alloc(Format::U32, 5);
        device.fill(indices.view_mut(), number);
        device.lend(indices.view_mut(), &mut |elements| {
            let shardloom_kernels::device::HostSliceMut::U32(held) = elements else {
                panic!("of another format")
            };
            assert!(held.iter().all(|&it| f64::from(it) == f64::from(number)), "{held:?}");
        });
        let mut bytes = memory.alloc(Format::U8, 5);
        device.fill(bytes.view_mut(), number);
        device.lend(bytes.view_mut(), &mut |elements| {
            let shardloom_kernels::device::HostSliceMut::U8(held) = elements else {
                panic!("of another format")
            };
            assert!(held.iter().all(|&it| f32::from(it) == number), "{held:?}");
        });
    }
}
