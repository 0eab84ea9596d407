//! Real numbers from one format to another: widened exactly, rounded to nearest with ties to even.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::optimizer::{Piece, Segment};
use crate::random::{Key, random_halves};
use crate::simd::simd;

/// The nearest bfloat16, as bits; of two as near the one whose last bit is 0. A NaN stays one.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { quiet } else { rounded }) as u16
}

/// The same number in fp32.
#[inline(always)]
pub(crate) fn from_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Room for twice as many numbers in bfloat16.
pub(crate) fn as_bf16(room: &mut [f32]) -> &mut [bf16] {
    // SAFETY: all bits of fp32 numbers are bfloat16 numbers, and the other way round.
    let (before, room, after) = unsafe { room.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "fp32 numbers lie where bfloat16 ones may");
    room
}

simd! {
    /// Widens bfloat16.
    pub(crate) fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        for (to, &from) in to.iter_mut().zip(from) {
            *to = from_bf16(from);
        }
    }

    /// Rounds to bfloat16.
    pub(crate) fn round_to_bf16(from: &[f32], to: &mut [bf16]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        for (to, &from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(bf16_bits(from));
        }
    }

    /// Rounds `scale` times numbers to bfloat16.
    pub(crate) fn round_scaled_to_bf16(from: &[f32], scale: f32, to: &mut [bf16]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        for (to, &from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(bf16_bits(scale * from));
        }
    }

    /// Rounds to bfloat16, up where what is cut off and a random number of as many bits carry.
    fn round_with(from: &[f32], random: &[u16], to: &mut [bf16]) {
        for ((to, &from), &random) in to.iter_mut().zip(from).zip(random) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(u32::from(random)) >> 16;
            let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
            let quiet = bits >> 16 | 0x40;
            *to = bf16::from_bits((if is_nan { quiet } else { rounded }) as u16);
        }
    }

    /// Adds `part` onto `to`: widened, added in fp32, rounded.
    pub(crate) fn add_bf16(to: &mut [bf16], part: &[bf16]) {
        assert_eq!(to.len(), part.len(), "as many elements");
        for (to, &part) in to.iter_mut().zip(part) {
            *to = bf16::from_bits(bf16_bits(from_bf16(*to) + from_bf16(part)));
        }
    }

    /// Rounds `part` to bfloat16 and adds it onto `to`.
    pub(crate) fn add_rounded_to_bf16(to: &mut [bf16], part: &[f32]) {
        assert_eq!(to.len(), part.len(), "as many elements");
        for (to, &part) in to.iter_mut().zip(part) {
            let part = from_bf16(bf16::from_bits(bf16_bits(part)));
            *to = bf16::from_bits(bf16_bits(from_bf16(*to) + part));
        }
    }
}

/// Rounds a piece of a parameter to bfloat16 stochastically, by random numbers of its elements in the whole.
pub(super) fn round_stochastically(key: Key, piece: &Piece, from: &[f32], to: &mut [bf16]) {
    let sizes = (from.len(), to.len());
    assert_eq!(sizes, (piece.elements(), piece.elements()), "as many elements as the piece has");
    let mut random = [0; RANDOM];
    for Segment { row, col, elements } in piece.segments() {
        let first = row * piece.block.global_cols + col;
        for start in elements.clone().step_by(RANDOM) {
            let part = start..elements.end.min(start + RANDOM);
            let random = &mut random[..part.len()];
            random_halves(key, first + start - elements.start, random);
            round_with(&from[part.clone()], random, &mut to[part]);
        }
    }
}

/// Random numbers that are drawn at a time.
const RANDOM: usize = 1024;

/// Widens 16-bit floating point; there are as many elements.
pub(crate) fn widen_f16(from: &[f16], to: &mut [f32]) {
    from.convert_to_f32_slice(to);
}

/// Rounds to 16-bit floating point; there are as many elements.
pub(crate) fn round_to_f16(from: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bfloat16_survives_and_every_number_between_goes_to_the_nearest() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen_bf16(&all, &mut wide);
        let mut back = vec![bf16::ZERO; all.len()];
        round_to_bf16(&wide, &mut back);
        for (&before, &after) in all.iter().zip(&back) {
            match before.is_nan() {
                true => assert!(after.is_nan()),
                false => assert_eq!(before.to_bits(), after.to_bits()),
            }
        }
        // Just below, at and just above half way to the next.
        for low in [0x7fff_u32, 0x8000, 0x8001, 0x0001, 0xffff] {
            let between: Vec<f32> =
                all.iter().map(|it| f32::from_bits(u32::from(it.to_bits()) << 16 | low)).collect();
            let mut rounded = vec![bf16::ZERO; between.len()];
            round_to_bf16(&between, &mut rounded);
            for (&value, rounded) in between.iter().zip(rounded) {
                match value.is_nan() {
                    true => assert!(rounded.is_nan()),
                    false => assert_eq!(rounded, bf16::from_f32(value), "{value:e}"),
                }
            }
        }
    }

    #[test]
    fn every_half_survives_and_every_number_between_goes_to_the_nearest() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen_f16(&all, &mut wide);
        let mut back = vec![f16::ZERO; all.len()];
        round_to_f16(&wide, &mut back);
        for (&before, &after) in all.iter().zip(&back) {
            match before.is_nan() {
                true => assert!(after.is_nan()),
                false => assert_eq!(before.to_bits(), after.to_bits()),
            }
        }
        // Half way to the next, which is exact in fp32, and the numbers beside that; in lists of any length.
        let finite = all.iter().filter(|it| it.is_finite() && it.to_f32().abs() < 65504.0);
        let between = finite.flat_map(|&low| {
            let next = f16::from_bits(low.to_bits() + 1);
            let half = (low.to_f32() + next.to_f32()) / 2.0;
            let even = if low.to_bits() % 2 == 0 { low } else { next };
            let beside = |step: i32| f32::from_bits(half.to_bits().wrapping_add_signed(step));
            [(half, even), (beside(-1), low), (beside(1), next)]
        });
        let between: Vec<(f32, f16)> = between.collect();
        for length in [1, 3, 8, 13, between.len()] {
            let values: Vec<f32> = between[..length].iter().map(|it| it.0).collect();
            let mut rounded = vec![f16::ZERO; length];
            round_to_f16(&values, &mut rounded);
            for ((value, nearest), rounded) in between.iter().zip(rounded) {
                assert_eq!(rounded.to_bits(), nearest.to_bits(), "{value:e}");
            }
        }
    }
}
