//! What reductions between ranks come to.

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};
use shardloom_collectives::Reduction;
use shardloom_fabric::{Reduce, View, ViewMut};

use crate::combine::combine;
use crate::device::Combine;

/// The arithmetic of collectives: that of [`Device::combine`](crate::Device::combine) on the processor, and
/// for integers, which wrap around.
pub struct Arithmetic;

impl Reduce for Arithmetic {
    fn reduce(&self, reduction: Reduction, into: ViewMut<'_>, part: View<'_>) {
        let how = match reduction {
            Reduction::Sum => Combine::Sum,
            Reduction::Max => Combine::Max,
        };
        match (into, part) {
            (ViewMut::F32(into), View::F32(part)) => combine(into, part, how),
            (ViewMut::F64(into), View::F64(part)) => combine(into, part, how),
            (ViewMut::Bf16(into), View::Bf16(part)) => {
                combine(into.reinterpret_cast_mut::<bf16>(), part.reinterpret_cast(), how);
            }
            (ViewMut::F16(into), View::F16(part)) => {
                combine(into.reinterpret_cast_mut::<f16>(), part.reinterpret_cast(), how);
            }
            (ViewMut::U32(into), View::U32(part)) => combine(into, part, how),
            (ViewMut::U8(into), View::U8(part)) => combine(into, part, how),
            (into, part) => unreachable!("{into:?} and {part:?} have one format"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: Copy>(
        reduction: Reduction,
        (mut into, part): (T, T),
        view: impl for<'a> Fn(&'a [T]) -> View<'a>,
        view_mut: impl for<'a> Fn(&'a mut [T]) -> ViewMut<'a>,
    ) -> T {
        let into_view = view_mut(std::slice::from_mut(&mut into));
        Arithmetic.reduce(reduction, into_view, view(std::slice::from_ref(&part)));
        into
    }

    #[test]
    fn numbers_of_sixteen_bits_round_to_nearest_even() {
        let sum = |a: f32, b: f32| {
            let words = (bf16::from_f32(a).to_bits(), bf16::from_f32(b).to_bits());
            let sum = reduced(Reduction::Sum, words, |it| View::Bf16(it), |it| ViewMut::Bf16(it));
            bf16::from_bits(sum).to_f32()
        };
        // Eight bits of a number: 256 + 1 lies between two, and goes to the even one; 256 + 3 too.
        assert_eq!([sum(256.0, 1.0), sum(256.0, 3.0), sum(1.5, 2.25)], [256.0, 260.0, 3.75]);
        let sum = |a: f32, b: f32| {
            let words = (f16::from_f32(a).to_bits(), f16::from_f32(b).to_bits());
            let sum = reduced(Reduction::Sum, words, |it| View::F16(it), |it| ViewMut::F16(it));
            f16::from_bits(sum).to_f32()
        };
        // Eleven bits.
        assert_eq!([sum(2048.0, 1.0), sum(2048.0, 3.0), sum(1.5, 2.25)], [2048.0, 2052.0, 3.75]);
        let halves = (f16::from_f32(-3.0).to_bits(), f16::from_f32(2.5).to_bits());
        let most = reduced(Reduction::Max, halves, |it| View::F16(it), |it| ViewMut::F16(it));
        assert_eq!(f16::from_bits(most).to_f32(), 2.5);
    }

    #[test]
    fn real_numbers_are_added_in_their_own_precision() {
        for (a, b) in [(0.1, 0.2), (1e8, 1.0), (-3.0, 2.5)] {
            let (single, double) = ((a as f32, b as f32), (a, b));
            let f32s =
                |reduction| reduced(reduction, single, |it| View::F32(it), |it| ViewMut::F32(it));
            assert_eq!(f32s(Reduction::Sum), single.0 + single.1);
            assert_eq!(f32s(Reduction::Max), single.0.max(single.1));
            let f64s =
                |reduction| reduced(reduction, double, |it| View::F64(it), |it| ViewMut::F64(it));
            assert_eq!(f64s(Reduction::Sum), a + b);
            assert_eq!(f64s(Reduction::Max), a.max(b));
        }
    }

    #[test]
    fn integers_wrap_around() {
        let u32s =
            |reduction, pair| reduced(reduction, pair, |it| View::U32(it), |it| ViewMut::U32(it));
        assert_eq!(u32s(Reduction::Sum, (u32::MAX, 3)), 2);
        assert_eq!(u32s(Reduction::Max, (u32::MAX, 3)), u32::MAX);
        let u8s =
            |reduction, pair| reduced(reduction, pair, |it| View::U8(it), |it| ViewMut::U8(it));
        assert_eq!([u8s(Reduction::Sum, (250, 10)), u8s(Reduction::Max, (2, 9))], [4, 9]);
    }
}
