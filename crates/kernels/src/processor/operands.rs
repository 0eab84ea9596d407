//! Operands of kernels, which compute in fp32: those of 16 bits are widened into scratch before, but for what is
//! multiplied in bfloat16, and rounded out of it afterwards.

use half::{bf16, f16};

use super::cast;
use crate::device::{Input, Output};
use crate::dispatch::{self, Data, DataMut};
use crate::{Format, View, ViewMut};

/// fp32 elements of scratch that a widened operand of so many elements takes; none where `format` needs no
/// widening. Each begins a cache line.
pub(super) fn widened_elements(elements: usize, format: Format) -> usize {
    match format {
        Format::Bf16 | Format::F16 => elements.next_multiple_of(16),
        Format::F32 | Format::F64 | Format::U32 | Format::U8 => 0,
    }
}

/// Cuts the room for a widened operand off `scratch`.
fn room<'a>(scratch: &mut &'a mut [f32], view: View<'_>) -> &'a mut [f32] {
    let count = widened_elements(view.len(), view.format());
    let whole = scratch.split_off_mut(..count).expect("scratch is as long as was asked for");
    &mut whole[..view.len()]
}

/// Real numbers in fp32: where they are, or widened into `scratch`, which then is what is left of it.
pub(super) fn widened<'a>(view: View<'a>, scratch: &mut &'a mut [f32]) -> &'a [f32] {
    if view.format() == Format::F32 {
        return view.elements();
    }
    let wide = room(scratch, view);
    match view.format() {
        Format::Bf16 => cast::widen_bf16(view.elements(), wide),
        Format::F16 => cast::widen_f16(view.elements(), wide),
        other => panic!("{other} is no format of real numbers"),
    }
    wide
}

/// A number in `format`, widened.
pub(super) fn in_format(number: f32, format: Format) -> f32 {
    match format {
        Format::Bf16 => bf16::from_f32(number).to_f32(),
        Format::F16 => f16::from_f32(number).to_f32(),
        Format::F32 | Format::F64 | Format::U32 | Format::U8 => number,
    }
}

/// A tensor that a kernel reads, which may take it as it is.
pub(super) fn read<'a>(
    input: &Input<'a>,
    as_it_is: bool,
    scratch: &mut &'a mut [f32],
) -> dispatch::Input<'a> {
    let data = match input.data.format() {
        Format::Bf16 if as_it_is => Data::Bf16(input.data.elements()),
        Format::U8 => Data::U8(input.data.elements()),
        Format::U32 => Data::U32(input.data.elements()),
        _ => Data::F32(widened(input.data, scratch)),
    };
    dispatch::Input { shape: input.shape, data }
}

/// Where a kernel writes a tensor: where it belongs, or to `scratch`, which then is what is left of it. The kernel may
/// write bfloat16 as it is.
pub(super) fn written<'a>(
    output: &'a mut Output<'_>,
    as_it_is: bool,
    scratch: &mut &'a mut [f32],
) -> (dispatch::Output<'a>, Rest<'a>) {
    let Output { shape, data, accumulate } = output;
    match data.format() {
        Format::U8 => {
            let data = DataMut::U8(data.reborrow().elements_mut());
            (dispatch::Output { shape, data, accumulate: *accumulate }, None)
        }
        Format::U32 => {
            let data = DataMut::U32(data.reborrow().elements_mut());
            (dispatch::Output { shape, data, accumulate: *accumulate }, None)
        }
        Format::F32 => {
            let data = DataMut::F32(data.reborrow().elements_mut());
            (dispatch::Output { shape, data, accumulate: *accumulate }, None)
        }
        Format::Bf16 if as_it_is => {
            let data = DataMut::Bf16(data.reborrow().elements_mut());
            (dispatch::Output { shape, data, accumulate: *accumulate }, None)
        }
        _ => {
            let wide = DataMut::F32(room(scratch, data.as_view()));
            let rest = Some((data.reborrow(), *accumulate));
            (dispatch::Output { shape, data: wide, accumulate: false }, rest)
        }
    }
}

/// What is left to do once a kernel has written to scratch: where the result belongs, and whether it is added
/// to what is there.
pub(super) type Rest<'a> = Option<(ViewMut<'a>, bool)>;

/// Rounds a result to where it belongs. What is added to is widened, added to in fp32 and rounded again.
pub(super) fn settle(wide: &[f32], (to, accumulate): (ViewMut<'_>, bool)) {
    match (to.format(), accumulate) {
        (Format::Bf16, false) => cast::round_to_bf16(wide, to.elements_mut()),
        (Format::Bf16, true) => cast::add_rounded_to_bf16(to.elements_mut(), wide),
        (Format::F16, false) => cast::round_to_f16(wide, to.elements_mut()),
        (Format::F16, true) => {
            let to: &mut [f16] = to.elements_mut();
            for (to, &part) in to.iter_mut().zip(wide) {
                *to = f16::from_f32(to.to_f32() + f16::from_f32(part).to_f32());
            }
        }
        (other, _) => panic!("{other} is no format of real numbers"),
    }
}
