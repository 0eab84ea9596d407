use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;
use shardloom_kernels::device::{HostSlice, HostSliceMut, Input, Kernel, Output, Setting};
use shardloom_kernels::embedding::*;
use shardloom_kernels::random::Key;
use shardloom_kernels::reduce::sum_into;
use shardloom_kernels::{Format, Memory, processor};

use crate::oracle::{check_destination, numbers};

const TOKENS: [u32; 6] = [4, 0, 4, 9, 2, 4];
const VOCABULARY: usize = 10;

#[test]
fn vocabulary_ranges_add_up_to_the_whole_lookup_and_split_its_gradient() {
    for columns in [1, 3, 17] {
        let table = numbers(1, VOCABULARY * columns);
        let mut whole = vec![f32::NAN; TOKENS.len() * columns];
        gather(&TOKENS, &table, columns, 0, &mut whole);
        for (row, &token) in whole.chunks(columns).zip(&TOKENS) {
            assert_eq!(row, &table[token as usize * columns..][..columns]);
        }

        let mut sum = vec![0.0; whole.len()];
        for (from, to) in [(0, 3), (3, 5), (5, 10)] {
            let mut part = vec![f32::NAN; whole.len()];
            gather(&TOKENS, &table[from * columns..to * columns], columns, from, &mut part);
            sum_into(&mut sum, &part);
        }
        assert_eq!(sum, whole);

        let dy = numbers(2, whole.len());
        let mut want = vec![0.0; table.len()];
        for (dy, &token) in dy.chunks(columns).zip(&TOKENS) {
            for (c, &dy) in dy.iter().enumerate() {
                want[token as usize * columns + c] += f64::from(dy);
            }
        }
        for (from, to) in [(0, 10), (0, 3), (3, 5), (5, 10)] {
            check_destination(&want[from * columns..to * columns], 1e-6, |dtable, accumulate| {
                gather_weight_grad(&TOKENS, &dy, columns, from, dtable, accumulate);
            });
        }
    }
}

/// Of a device that has a part of the vocabulary: added up by row they are the gradient of its table.
#[test]
fn gradients_as_rows_are_those_of_the_part_of_the_table() {
    let (device, memory) = (processor(), Memory::new(processor()));
    let (columns, count) = (3, TOKENS.len());
    let dy = numbers(2, count * columns);
    for (from, to) in [(0, VOCABULARY), (0, 3), (2, 5), (4, VOCABULARY)] {
        let [mut tokens, mut of] = [(); 2].map(|()| memory.alloc(Format::U32, count));
        device.upload(HostSlice::U32(&TOKENS), tokens.view_mut());
        let [mut gradient, mut values] =
            [(); 2].map(|()| memory.alloc(Format::F32, count * columns));
        device.set_reals(&dy, gradient.view_mut());
        let setting = Setting {
            mask: None,
            first_position: 0,
            first_index: from,
            loss_scale: 1.0,
            key: Key { seed: 0, stream: 0, step: 0 },
        };
        let kernel = Kernel { kind: &OpKind::Embed, pass: Pass::Weight, setting: &setting };
        let shape = [count, columns];
        let reads = [
            Input { shape: &shape[..1], data: tokens.view() },
            Input { shape: &shape, data: gradient.view() },
        ];
        let mut writes = [
            Output { shape: &shape[..1], data: of.view_mut(), accumulate: false },
            Output { shape: &shape, data: values.view_mut(), accumulate: false },
        ];
        let mut scratch = memory.alloc(Format::F32, 0);
        device.run(kernel, &reads, &mut writes, scratch.view_mut());

        let mut rows = [0; TOKENS.len()];
        device.download(of.view(), HostSliceMut::U32(&mut rows));
        let mut found = vec![0.0; (to - from) * columns];
        for (row, values) in rows.into_iter().zip(device.reals(values.view()).chunks(columns)) {
            if let Some(sum) = found.chunks_mut(columns).nth(row as usize) {
                sum_into(sum, values);
            }
        }
        let mut expected = vec![0.0; found.len()];
        gather_weight_grad(&TOKENS, &dy, columns, from, &mut expected, false);
        assert_eq!(found, expected, "entries {from} to {to}");
    }
}
