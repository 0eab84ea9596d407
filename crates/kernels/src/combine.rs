//! Two slices into one, element by element: what devices combine and collectives reduce by, in every format.

use half::{bf16, f16};

use crate::device::Combine;
use crate::processor::cast::add_bf16;
use crate::reduce::{max_into, sum_into};

/// Sets each element of `into` to what it and the one of `part` come to. Of two numbers neither of which is
/// larger, as beside a NaN, a maximum is the one in `into`.
///
/// # Panics
/// If the slices differ in length.
pub(crate) fn combine<T: Combined>(into: &mut [T], part: &[T], how: Combine) {
    match how {
        Combine::Sum => T::add(into, part),
        Combine::Max => T::keep_larger(into, part),
    }
}

/// Sets each element of `into` to what `combined` makes of it and the one of `part`.
///
/// # Panics
/// If the slices differ in length.
pub(crate) fn combine_each<T: Copy>(into: &mut [T], part: &[T], combined: impl Fn(T, T) -> T) {
    assert_eq!(into.len(), part.len(), "as many elements");
    into.iter_mut().zip(part).for_each(|(into, &part)| *into = combined(*into, part));
}

/// An element that can be combined with another. Numbers of 16 bits are added in single precision and rounded
/// to nearest, ties to even; integers wrap around.
pub(crate) trait Combined: Copy + PartialOrd {
    fn add(into: &mut [Self], part: &[Self]);

    fn keep_larger(into: &mut [Self], part: &[Self]) {
        combine_each(into, part, |there, part| if part > there { part } else { there });
    }
}

impl Combined for f32 {
    fn add(into: &mut [f32], part: &[f32]) {
        sum_into(into, part);
    }

    fn keep_larger(into: &mut [f32], part: &[f32]) {
        max_into(into, part);
    }
}

impl Combined for bf16 {
    fn add(into: &mut [bf16], part: &[bf16]) {
        add_bf16(into, part);
    }
}

impl Combined for f16 {
    fn add(into: &mut [f16], part: &[f16]) {
        combine_each(into, part, |there, part| f16::from_f32(there.to_f32() + part.to_f32()));
    }
}

impl Combined for f64 {
    fn add(into: &mut [f64], part: &[f64]) {
        combine_each(into, part, |there, part| there + part);
    }
}

impl Combined for u32 {
    fn add(into: &mut [u32], part: &[u32]) {
        combine_each(into, part, u32::wrapping_add);
    }
}

impl Combined for u8 {
    fn add(into: &mut [u8], part: &[u8]) {
        combine_each(into, part, u8::wrapping_add);
    }
}
