//! The plainest arithmetic there is, for engines to reduce with.

use shardloom_collectives::Reduction;
use shardloom_fabric::{Reduce, View, ViewMut};

/// Exact for integers that a format holds.
pub struct Plain;

/// The single-precision number of which a bf16 is the upper half.
pub fn from_bf16(word: u16) -> f32 {
    f32::from_bits(u32::from(word) << 16)
}

/// The upper half of a number that needs no more.
pub fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// A non-negative integer below 2048 in half precision.
pub fn f16(value: f32) -> u16 {
    if value == 0.0 {
        return 0;
    }
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 23) as u16 - 127 + 15, (bits >> 13) as u16 & 0x3ff);
    exponent << 10 | fraction
}

/// Likewise, back.
pub fn from_f16(word: u16) -> f32 {
    if word == 0 {
        return 0.0;
    }
    let (exponent, fraction) = (u32::from(word >> 10) + 127 - 15, u32::from(word & 0x3ff));
    f32::from_bits(exponent << 23 | fraction << 13)
}

fn each<T: Copy>(into: &mut [T], part: &[T], combine: impl Fn(T, T) -> T) {
    into.iter_mut().zip(part).for_each(|(into, &part)| *into = combine(*into, part));
}

impl Reduce for Plain {
    fn reduce(&self, reduction: Reduction, into: ViewMut<'_>, part: View<'_>) {
        let sum = reduction == Reduction::Sum;
        let real = |a: f32, b: f32| if sum { a + b } else { a.max(b) };
        match (into, part) {
            (ViewMut::F32(into), View::F32(part)) => each(into, part, real),
            (ViewMut::F64(into), View::F64(part)) => {
                each(into, part, |a, b| if sum { a + b } else { a.max(b) });
            }
            (ViewMut::Bf16(into), View::Bf16(part)) => {
                each(into, part, |a, b| bf16(real(from_bf16(a), from_bf16(b))));
            }
            (ViewMut::F16(into), View::F16(part)) => {
                each(into, part, |a, b| f16(real(from_f16(a), from_f16(b))));
            }
            (ViewMut::U32(into), View::U32(part)) => {
                each(into, part, |a, b| if sum { a + b } else { a.max(b) });
            }
            (ViewMut::U8(into), View::U8(part)) => {
                each(into, part, |a, b| if sum { a + b } else { a.max(b) });
            }
            (into, part) => panic!("{into:?} and {part:?} have different formats"),
        }
    }
}
