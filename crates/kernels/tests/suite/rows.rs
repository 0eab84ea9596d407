//! Gradients of tables as rows and values, against the gradients of all elements.

use std::collections::BTreeMap;

use shardloom_kernels::device::{Gradients, HostSlice, HostSliceMut, Rows, Update};
use shardloom_kernels::optimizer::{Adafactor, AdamW, Block, Lamb, Optimizer, Piece, Sgd, Step};
use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::rows::NO_ROW;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Device, Format, Memory, Processor, processor};

fn drawn(count: usize, stream: u64) -> Vec<f32> {
    let key = Key { seed: 3, stream, step: 0 };
    let mut values = vec![0.0; count];
    normal_fill(key, &Window::whole(&[count]), 0.0, 1.0, &mut values);
    values
}

/// Some rows of a table, some of them several times and some none of its.
fn looked_up(count: usize, table_rows: usize) -> Vec<u32> {
    let mut state = 17u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    let row = |at: usize| if at % 7 == 6 { table_rows + at } else { at };
    (0..count).map(|_| row(next() % (table_rows + 3)) as u32).collect()
}

fn reals(memory: &Memory, format: Format, values: &[f32]) -> Buffer {
    let mut buffer = memory.alloc(format, values.len());
    processor().set_reals(values, buffer.view_mut());
    buffer
}

fn indices(memory: &Memory, values: &[u32]) -> Buffer {
    let mut buffer = memory.alloc(Format::U32, values.len());
    Processor.upload(HostSlice::U32(values), buffer.view_mut());
    buffer
}

/// The rows with their sums, and the gradient of all elements that comes of them.
struct Summed {
    rows: Buffer,
    values: Buffer,
    dense: Vec<f32>,
}

fn summed(
    format: Format,
    (table_rows, columns): (usize, usize),
    looked_up: &[u32],
    given: usize,
) -> Summed {
    let memory = Memory::new(processor());
    let drawn = drawn(looked_up.len() * columns, 5);
    let mut values = reals(&memory, format, &drawn);
    let stored = processor().reals(values.view());
    let mut rows = indices(&memory, looked_up);
    let mut order = memory.alloc(Format::U32, looked_up.len());
    Processor.sum_rows(table_rows, given, rows.view_mut(), values.view_mut(), order.view_mut());
    let mut sums: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
    for (row, values) in looked_up[..given].iter().zip(stored.chunks(columns)) {
        if (*row as usize) < table_rows {
            let sum = sums.entry(*row).or_insert_with(|| vec![0.0; columns]);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
    let mut found = vec![0; looked_up.len()];
    Processor.download(rows.view(), HostSliceMut::U32(&mut found));
    let mut expected: Vec<u32> = sums.keys().copied().collect();
    expected.resize(found.len(), NO_ROW);
    assert_eq!(found, expected, "different rows, in ascending order");
    let of_rows = processor().reals(values.view());
    let mut dense = vec![0.0; table_rows * columns];
    for (values, (&row, sum)) in of_rows.chunks(columns).zip(&sums) {
        let sum = processor().reals(reals(&memory, format, sum).view());
        assert_eq!(values, sum, "row {row}");
        dense[row as usize * columns..][..columns].copy_from_slice(&sum);
    }
    Summed { rows, values, dense }
}

const SHAPES: [(usize, usize); 5] = [(1, 1), (9, 3), (40, 64), (300, 7), (5, 1100)];

#[test]
fn equal_rows_are_summed_in_their_order() {
    for shape in SHAPES {
        for count in [1, 2, 50, 300] {
            let looked_up = looked_up(count, shape.0);
            for given in [0, 1, count / 2, count] {
                summed(Format::F32, shape, &looked_up, given);
                summed(Format::Bf16, shape, &looked_up, given);
            }
        }
    }
    // None of the table's, all the same, and in a circle: each row belongs one further.
    summed(Format::F32, (4, 2), &[4, 5, NO_ROW], 3);
    summed(Format::F32, (4, 2), &[2; 40], 40);
    let circle: Vec<u32> = (0..200).map(|at| (at + 199) % 200).collect();
    summed(Format::F16, (200, 3), &circle, 200);
}

#[test]
fn norms_of_rows_are_those_of_all_elements() {
    let formats = [Format::F32, Format::Bf16, Format::F16];
    for (shape, format) in SHAPES.iter().flat_map(|&shape| formats.map(|format| (shape, format))) {
        let Summed { rows, values, dense } = summed(format, shape, &looked_up(50, shape.0), 50);
        let rows = Rows { rows: rows.view(), values: values.view() };
        let (memory, all) = (Memory::new(processor()), dense.len());
        let dense = reals(&memory, format, &dense);
        for range in [0..all, 0..all / 2, all / 3..all, all / 2..all / 2] {
            let expected = Processor.squared_norm(dense.view().slice(range.clone()));
            let found = Processor.squared_norm_of_rows(rows, range);
            assert_eq!(found.to_bits(), expected.to_bits(), "{shape:?} in {format:?}");
        }
    }
}

fn optimizers() -> [Optimizer; 6] {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.99, 1e-8, 0.1);
    [
        Optimizer::Sgd(Sgd::new(0.0, 0.0)),
        Optimizer::Sgd(Sgd::new(0.0, 0.1)),
        Optimizer::Sgd(Sgd::new(0.9, 0.0)),
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

/// Weights and state after two updates.
fn updated(
    optimizer: Optimizer,
    piece: &Piece,
    gradients: &Gradients<'_>,
    extra: usize,
) -> Vec<Vec<f32>> {
    let memory = Memory::new(processor());
    let mut weights = reals(&memory, Format::F32, &drawn(piece.elements(), 9));
    let mut state: Vec<Buffer> = optimizer
        .state_lens(piece)
        .into_iter()
        .map(|len| reals(&memory, Format::F32, &vec![0.0; len]))
        .collect();
    let mut scratch = memory.alloc(Format::F32, extra);
    for number in 1..=2 {
        let step = Step { number, learning_rate: 0.1, gradient_scale: 0.5 };
        let update = Update { optimizer, step, piece };
        let mut sums: Option<Buffer> = None;
        for round in 0..optimizer.rounds() {
            let len = optimizer.statistics_len(&piece.block, round);
            let mut out = reals(&memory, Format::F32, &vec![0.0; len]);
            let mut state: Vec<_> = state.iter_mut().map(Buffer::view_mut).collect();
            let previous = sums.as_ref().map(Buffer::view);
            Processor.statistics(
                update,
                round,
                weights.view(),
                *gradients,
                &mut state,
                previous,
                out.view_mut(),
                scratch.view_mut(),
            );
            sums = Some(out);
        }
        let mut state: Vec<_> = state.iter_mut().map(Buffer::view_mut).collect();
        let sums = sums.as_ref().map(Buffer::view);
        Processor.update(
            update,
            weights.view_mut(),
            *gradients,
            &mut state,
            sums,
            scratch.view_mut(),
        );
    }
    std::iter::once(&weights).chain(&state).map(|it| processor().reals(it.view())).collect()
}

#[test]
fn updates_by_rows_are_those_by_all_elements_bit_for_bit() {
    for (rows, cols) in SHAPES {
        // A part of a table of which others have further rows and columns.
        let block = Block {
            global_rows: rows + 2,
            global_cols: cols + 3,
            row_start: 1,
            col_start: 2,
            rows,
            cols,
        };
        for block in [Block::whole(rows, cols), block] {
            let piece = Piece { block, range: 0..rows * cols };
            for format in [Format::F32, Format::Bf16] {
                let Summed { rows, values, dense } =
                    summed(format, (rows, cols), &looked_up(20, rows), 20);
                let memory = Memory::new(processor());
                let dense = reals(&memory, format, &dense);
                for optimizer in optimizers() {
                    let elements = piece.elements();
                    let room = Processor.update_scratch_elements(elements, format);
                    let all = Gradients::All(dense.view());
                    let expected = updated(optimizer, &piece, &all, room);
                    let room = Processor.row_update_scratch_elements(optimizer, &piece);
                    let of = Gradients::Rows(Rows { rows: rows.view(), values: values.view() });
                    let found = updated(optimizer, &piece, &of, room);
                    let bits = |all: &[Vec<f32>]| -> Vec<Vec<u32>> {
                        all.iter().map(|it| it.iter().map(|it| it.to_bits()).collect()).collect()
                    };
                    assert_eq!(bits(&found), bits(&expected), "{optimizer:?} of {piece:?}");
                }
            }
        }
    }
}

#[test]
fn updates_without_momentum_and_decay_touch_only_rows_that_have_gradients() {
    let (table_rows, columns) = (100, 8);
    let Summed { rows, values, .. } = summed(Format::F32, (table_rows, columns), &[3, 70, 3], 3);
    let memory = Memory::new(processor());
    // What is no number stays what it is unless it is touched: x - 0 x becomes another one.
    let mut weights = reals(&memory, Format::F32, &vec![f32::INFINITY; table_rows * columns]);
    let piece = Piece::whole(table_rows, columns);
    let step = Step { number: 1, learning_rate: f32::INFINITY, gradient_scale: 1.0 };
    let optimizer = Optimizer::Sgd(Sgd::new(0.0, 0.0));
    let update = Update { optimizer, step, piece: &piece };
    let of = Gradients::Rows(Rows { rows: rows.view(), values: values.view() });
    let room = Processor.row_update_scratch_elements(optimizer, &piece);
    let mut scratch = memory.alloc(Format::F32, room);
    Processor.update(update, weights.view_mut(), of, &mut [], None, scratch.view_mut());
    // An infinite rate makes of a gradient of zero a weight that is no number.
    let changed: Vec<usize> = processor()
        .reals(weights.view())
        .chunks(columns)
        .enumerate()
        .filter(|(_, row)| row.iter().any(|it| *it != f32::INFINITY))
        .map(|(row, _)| row)
        .collect();
    assert_eq!(changed, [3, 70]);
}

#[test]
fn a_list_without_rows_stays_one() {
    let memory = Memory::new(processor());
    let (mut rows, mut order) = (indices(&memory, &[]), indices(&memory, &[]));
    for format in [Format::F32, Format::Bf16] {
        let mut values = reals(&memory, format, &[]);
        processor().sum_rows(5, 0, rows.view_mut(), values.view_mut(), order.view_mut());
        assert!(rows.is_empty() && values.is_empty());
    }
}
