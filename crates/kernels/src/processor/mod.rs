//! The processor as a device: buffers lie on the heap, and kernels are this crate's, on the thread that asks.

pub(crate) mod cast;
mod chunked_pass;
mod compress;
mod operands;
mod region;
mod rows;

use std::ops::Range;
use std::sync::Arc;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;
use smallvec::SmallVec;

use crate::combine::{combine, combine_each};
use crate::compression::Step;
use crate::device::{
    BoxOf, Combine, Device, Gradients, HostSlice, HostSliceMut, Input, Kernel, OperandSize, Output,
    Region, Rows, Update,
};
use crate::optimizer::{Optimizer, Piece};
use crate::random::{Key, dropout_mask};
use crate::window::{copy_box, cut_box, place_box};
use crate::{Format, View, ViewMut, reduce};
use chunked_pass::ChunkedPass;
use compress::compress;
use operands::{in_format, widened};
use region::Lines;

/// The processor that this program runs on.
#[derive(Clone, Copy, Debug)]
pub struct Processor;

/// The processor, to be shared by ranks.
pub fn processor() -> Arc<dyn Device> {
    Arc::new(Processor)
}

/// Calls `$body` with `$one` and `$other` as the elements of two views of one format.
macro_rules! of_one_format {
    ($from:ident, $to:ident, $body:expr) => {{
        let (from, to) = ($from, $to);
        assert_eq!(from.format(), to.format(), "operands are of one format");
        match from.format() {
            Format::F32 => $body(from.elements::<f32>(), to.elements_mut::<f32>()),
            Format::Bf16 => $body(from.elements::<bf16>(), to.elements_mut::<bf16>()),
            Format::F16 => $body(from.elements::<f16>(), to.elements_mut::<f16>()),
            Format::F64 => $body(from.elements::<f64>(), to.elements_mut::<f64>()),
            Format::U32 => $body(from.elements::<u32>(), to.elements_mut::<u32>()),
            Format::U8 => $body(from.elements::<u8>(), to.elements_mut::<u8>()),
        }
    }};
}

/// Calls `$body` with the elements of a slice of the host, those of 16 bits as the numbers that they are.
macro_rules! of_host {
    ($slice:ident, $kind:ident, $numbers:ident, |$elements:ident| $body:expr) => {
        match $slice {
            $kind::F32($elements) => $body,
            $kind::Bf16(words) => {
                let $elements = words.$numbers::<bf16>();
                $body
            }
            $kind::F16(words) => {
                let $elements = words.$numbers::<f16>();
                $body
            }
            $kind::F64($elements) => $body,
            $kind::U32($elements) => $body,
            $kind::U8($elements) => $body,
        }
    };
}

fn copied<T: Copy>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(from);
}

/// Numbers that are widened at a time where all are only looked at once.
const CHUNK: usize = 1024;

impl Device for Processor {
    fn name(&self) -> &str {
        "processor"
    }

    fn region(&self, bytes: usize) -> Box<dyn Region> {
        Box::new(Lines::new(bytes))
    }

    fn upload(&self, from: HostSlice<'_>, to: ViewMut<'_>) {
        of_host!(from, HostSlice, reinterpret_cast, |from| copied(from, to.elements_mut()));
    }

    fn download(&self, from: View<'_>, to: HostSliceMut<'_>) {
        of_host!(to, HostSliceMut, reinterpret_cast_mut, |to| copied(from.elements(), to));
    }

    fn upload_box(&self, from: HostSlice<'_>, extent: &[usize], to: BoxOf<'_, ViewMut<'_>>) {
        let BoxOf { elements, shape, start } = to;
        of_host!(from, HostSlice, reinterpret_cast, |from| {
            place_box(from, extent, elements.elements_mut(), shape, start)
        });
    }

    fn download_box(&self, from: BoxOf<'_, View<'_>>, extent: &[usize], to: HostSliceMut<'_>) {
        let BoxOf { elements, shape, start } = from;
        of_host!(to, HostSliceMut, reinterpret_cast_mut, |to| {
            cut_box(elements.elements(), shape, start, to, extent)
        });
    }

    fn lend(&self, elements: ViewMut<'_>, user: &mut dyn FnMut(HostSliceMut<'_>)) {
        user(match elements.format() {
            Format::F32 => HostSliceMut::F32(elements.elements_mut()),
            Format::Bf16 => {
                HostSliceMut::Bf16(elements.elements_mut::<bf16>().reinterpret_cast_mut())
            }
            Format::F16 => HostSliceMut::F16(elements.elements_mut::<f16>().reinterpret_cast_mut()),
            Format::F64 => HostSliceMut::F64(elements.elements_mut()),
            Format::U32 => HostSliceMut::U32(elements.elements_mut()),
            Format::U8 => HostSliceMut::U8(elements.elements_mut()),
        });
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        of_one_format!(from, to, copied);
    }

    fn cast(&self, from: View<'_>, to: ViewMut<'_>) {
        match (from.format(), to.format()) {
            (one, other) if one == other => self.copy(from, to),
            (Format::Bf16, Format::F32) => cast::widen_bf16(from.elements(), to.elements_mut()),
            (Format::F16, Format::F32) => cast::widen_f16(from.elements(), to.elements_mut()),
            (Format::F32, Format::Bf16) => cast::round_to_bf16(from.elements(), to.elements_mut()),
            (Format::F32, Format::F16) => cast::round_to_f16(from.elements(), to.elements_mut()),
            (one, other) => panic!("there is no cast from {one} to {other}"),
        }
    }

    fn copy_box(&self, from: BoxOf<'_, View<'_>>, to: BoxOf<'_, ViewMut<'_>>, extent: &[usize]) {
        fn boxes<T: Copy>(
            (from, from_shape, from_start): (&[T], &[usize], &[usize]),
            (to, to_shape, to_start): (&mut [T], &[usize], &[usize]),
            extent: &[usize],
        ) {
            copy_box(from, from_shape, from_start, to, to_shape, to_start, extent);
        }
        let BoxOf { elements: source, shape: from_shape, start: from_start } = from;
        let BoxOf { elements: target, shape: to_shape, start: to_start } = to;
        of_one_format!(source, target, |from, to| {
            boxes((from, from_shape, from_start), (to, to_shape, to_start), extent)
        });
    }

    fn fill(&self, elements: ViewMut<'_>, value: f32) {
        match elements.format() {
            Format::F32 => elements.elements_mut::<f32>().fill(value),
            Format::Bf16 => elements.elements_mut().fill(bf16::from_f32(value)),
            Format::F16 => elements.elements_mut().fill(f16::from_f32(value)),
            Format::F64 => elements.elements_mut().fill(f64::from(value)),
            Format::U32 => elements.elements_mut().fill(value as u32),
            Format::U8 => elements.elements_mut().fill(value as u8),
        }
    }

    fn combine(&self, to: ViewMut<'_>, part: View<'_>, how: Combine) {
        match to.format() {
            Format::F32 => combine::<f32>(to.elements_mut(), part.elements(), how),
            Format::Bf16 => combine::<bf16>(to.elements_mut(), part.elements(), how),
            Format::F16 => combine::<f16>(to.elements_mut(), part.elements(), how),
            Format::F64 => combine::<f64>(to.elements_mut(), part.elements(), how),
            other => panic!("{other} is no format of numbers that are combined"),
        }
    }

    fn scale_and_add(&self, to: ViewMut<'_>, scale: f32, with: View<'_>, factor: f32) {
        match to.format() {
            Format::F32 => {
                combine_each(to.elements_mut(), with.elements(), |to: f32, with: f32| {
                    scale * to + factor * with
                });
            }
            Format::Bf16 => {
                combine_each(to.elements_mut(), with.elements(), |to: bf16, with: bf16| {
                    bf16::from_f32(scale * to.to_f32() + factor * with.to_f32())
                });
            }
            Format::F16 => {
                combine_each(to.elements_mut(), with.elements(), |to: f16, with: f16| {
                    f16::from_f32(scale * to.to_f32() + factor * with.to_f32())
                });
            }
            other => panic!("{other} is no format of real numbers"),
        }
    }

    fn squared_norm(&self, elements: View<'_>) -> f64 {
        if elements.format() == Format::F32 {
            return reduce::squared_norm(elements.elements());
        }
        let mut wide = [0.0; CHUNK];
        let chunk = |start: usize| {
            let end = elements.len().min(start + CHUNK);
            let mut room = wide.as_mut_slice();
            reduce::squared_norm(widened(elements.slice(start..end), &mut room))
        };
        // Not `sum()`, which of nothing is -0.
        (0..elements.len()).step_by(CHUNK).map(chunk).fold(0.0, |sum, part| sum + part)
    }

    fn squared_norm_of_rows(&self, rows: Rows<'_>, of: Range<usize>) -> f64 {
        rows::squared_norm(rows, &of)
    }

    fn sum_rows(
        &self,
        table_rows: usize,
        count: usize,
        rows: ViewMut<'_>,
        values: ViewMut<'_>,
        order: ViewMut<'_>,
    ) {
        rows::sum_equal((table_rows, count), rows, values, order);
    }

    fn scratch_elements(
        &self,
        kind: &OpKind,
        pass: Pass,
        reads: &[OperandSize<'_>],
        writes: &[OperandSize<'_>],
    ) -> usize {
        ChunkedPass::new(kind, pass, reads, writes).scratch_elements(reads, writes)
    }

    fn run(
        &self,
        kernel: Kernel<'_>,
        reads: &[Input<'_>],
        writes: &mut [Output<'_>],
        scratch: ViewMut<'_>,
    ) {
        let Kernel { kind, pass, setting } = kernel;
        let kind = match *kind {
            OpKind::Scale { factor } => {
                OpKind::Scale { factor: in_format(factor, reads[0].data.format()) }
            }
            other => other,
        };
        let of = |shape, format| OperandSize { shape, format };
        let read_sizes: SmallVec<[OperandSize<'_>; 8]> =
            reads.iter().map(|it| of(it.shape, it.data.format())).collect();
        let write_sizes: SmallVec<[OperandSize<'_>; 4]> =
            writes.iter().map(|it| of(it.shape, it.data.format())).collect();
        let chunked = ChunkedPass::new(&kind, pass, &read_sizes, &write_sizes);
        if let (Pass::Forward, Some(probability), [_, mask]) = (pass, kind.dropout(), &mut *writes)
        {
            let window = setting.mask.as_ref().expect("an operator with dropout has a mask");
            dropout_mask(setting.key, window, probability, mask.data.reborrow().elements_mut());
        }
        chunked.run(reads, writes, setting, scratch.elements_mut());
    }

    fn round_stochastically(&self, from: View<'_>, to: ViewMut<'_>, key: Key, piece: &Piece) {
        cast::round_stochastically(key, piece, from.elements(), to.elements_mut());
    }

    fn update_scratch_elements(&self, elements: usize, gradients: Format) -> usize {
        operands::widened_elements(elements, gradients)
    }

    fn row_update_scratch_elements(&self, optimizer: Optimizer, piece: &Piece) -> usize {
        optimizer.row_buffer_len(piece)
    }

    fn statistics(
        &self,
        update: Update<'_>,
        round: usize,
        weights: View<'_>,
        gradients: Gradients<'_>,
        state: &mut [ViewMut<'_>],
        previous: Option<View<'_>>,
        out: ViewMut<'_>,
        scratch: ViewMut<'_>,
    ) {
        let mut scratch: &mut [f32] = scratch.elements_mut();
        let state = &mut slices(state);
        let Update { optimizer, step, piece } = update;
        let (weights, out) = (weights.elements(), out.elements_mut());
        let previous = previous.map_or(&[][..], View::elements);
        match gradients {
            Gradients::All(all) => {
                let gradient = widened(all, &mut scratch);
                optimizer.statistics(step, round, piece, weights, gradient, state, previous, out);
            }
            Gradients::Rows(of) => rows::with(of, &mut |rows| {
                let scratch = &mut *scratch;
                optimizer.row_statistics(
                    step, round, piece, weights, rows, state, previous, out, scratch,
                );
            }),
        }
    }

    fn compress(&self, step: &Step, reads: &[View<'_>], writes: &mut [ViewMut<'_>]) {
        compress(step, reads, writes);
    }

    fn update(
        &self,
        update: Update<'_>,
        weights: ViewMut<'_>,
        gradients: Gradients<'_>,
        state: &mut [ViewMut<'_>],
        sums: Option<View<'_>>,
        scratch: ViewMut<'_>,
    ) {
        let mut scratch: &mut [f32] = scratch.elements_mut();
        let state = &mut slices(state);
        let Update { optimizer, step, piece } = update;
        let (weights, sums) = (weights.elements_mut(), sums.map_or(&[][..], View::elements));
        match gradients {
            Gradients::All(all) => {
                let gradient = widened(all, &mut scratch);
                optimizer.apply(step, piece, weights, gradient, state, sums);
            }
            Gradients::Rows(of) => rows::with(of, &mut |rows| {
                optimizer.apply_rows(step, piece, weights, rows, state, sums, scratch);
            }),
        }
    }
}

/// An optimizer's state, of which none has more than two tensors.
fn slices<'a>(state: &'a mut [ViewMut<'_>]) -> SmallVec<[&'a mut [f32]; 2]> {
    state.iter_mut().map(|view| view.reborrow().elements_mut()).collect()
}
