//! What reductions between ranks come to.

use half::{bf16, f16};
use shardloom_collectives::Reduction;
use shardloom_fabric::{Reduce, View, ViewMut};

use crate::reduce::{max_into, sum_into};

/// The arithmetic of collectives. Numbers of 16 bits are combined in single precision and rounded to
/// nearest, ties to even; integers wrap around.
pub struct Arithmetic;

impl Reduce for Arithmetic {
    fn reduce(&self, reduction: Reduction, into: ViewMut<'_>, part: View<'_>) {
        use Reduction::{Max, Sum};
        match (into, part, reduction) {
            (ViewMut::F32(into), View::F32(part), Sum) => sum_into(into, part),
            (ViewMut::F32(into), View::F32(part), Max) => max_into(into, part),
            (ViewMut::F64(into), View::F64(part), Sum) => each(into, part, |a, b| a + b),
            (ViewMut::F64(into), View::F64(part), Max) => each(into, part, f64::max),
            (ViewMut::Bf16(into), View::Bf16(part), reduction) => each(into, part, |a, b| {
                let [a, b] = [a, b].map(|word| bf16::from_bits(word).to_f32());
                bf16::from_f32(combine(reduction, a, b)).to_bits()
            }),
            (ViewMut::F16(into), View::F16(part), reduction) => each(into, part, |a, b| {
                let [a, b] = [a, b].map(|word| f16::from_bits(word).to_f32());
                f16::from_f32(combine(reduction, a, b)).to_bits()
            }),
            (ViewMut::U32(into), View::U32(part), Sum) => each(into, part, u32::wrapping_add),
            (ViewMut::U32(into), View::U32(part), Max) => each(into, part, u32::max),
            (ViewMut::U8(into), View::U8(part), Sum) => each(into, part, u8::wrapping_add),
            (ViewMut::U8(into), View::U8(part), Max) => each(into, part, u8::max),
            (into, part, _) => unreachable!("{into:?} and {part:?} have one format"),
        }
    }
}

fn each<T: Copy>(into: &mut [T], part: &[T], combine: impl Fn(T, T) -> T) {
    into.iter_mut().zip(part).for_each(|(into, &part)| *into = combine(*into, part));
}

fn combine(reduction: Reduction, a: f32, b: f32) -> f32 {
    match reduction {
        Reduction::Sum => a + b,
        Reduction::Max => a.max(b),
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
