//! What becomes of sums when they leave the tile registers.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::{MOST_STEPS, SIDE, TILE};

/// Numbers of a result.
pub trait Target: Copy {
    /// The most pairs of steps in a block.
    const DEPTH: usize;

    /// Where whole registers are stored, if that is all.
    fn registers(c: &mut [Self]) -> Option<*mut f32>;

    /// Writes sums, and a bias, or adds them. Of 32 sums there is one for each element.
    ///
    /// # Safety
    /// The processor has the instructions that [`multiply`](super::multiply) needs.
    unsafe fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [Self], accumulate: bool);
}

impl Target for f32 {
    /// A tile's rows of both operands stay in the first-level cache.
    const DEPTH: usize = 256;

    fn registers(c: &mut [f32]) -> Option<*mut f32> {
        Some(c.as_mut_ptr())
    }

    #[inline(always)]
    unsafe fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [f32], accumulate: bool) {
        debug_assert!(bias.is_none(), "a bias is in what is added to");
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if accumulate { *to + sum } else { *sum };
        }
    }
}

impl Target for bf16 {
    /// All of them: sums are rounded once.
    const DEPTH: usize = MOST_STEPS / 2;

    fn registers(_: &mut [bf16]) -> Option<*mut f32> {
        None
    }

    #[inline(always)]
    unsafe fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [bf16], accumulate: bool) {
        assert!((1..=TILE).contains(&to.len()), "{} elements of {TILE}", to.len());
        let mask = u32::MAX >> (TILE - to.len());
        let [low, high] = [mask as u16, (mask >> SIDE) as u16];
        // SAFETY: the caller promises the instructions; masks keep to the elements.
        unsafe {
            let mut first = _mm512_loadu_ps(sums.as_ptr());
            let mut second = _mm512_loadu_ps(sums[SIDE..].as_ptr());
            if let Some(bias) = bias {
                assert_eq!(bias.len(), to.len(), "a bias for each element");
                first = _mm512_add_ps(first, _mm512_maskz_loadu_ps(low, bias.as_ptr()));
                let bias = bias.as_ptr().wrapping_add(SIDE);
                second = _mm512_add_ps(second, _mm512_maskz_loadu_ps(high, bias));
            }
            let mut rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            if accumulate {
                let before = _mm512_maskz_loadu_epi16(mask, to.as_ptr().cast());
                first = _mm512_add_ps(first_wide(before), first_wide(rounded));
                second = _mm512_add_ps(second_wide(before), second_wide(rounded));
                rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            }
            _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), mask, rounded);
        }
    }
}

/// The first 16 of 32 numbers in bfloat16, in fp32.
///
/// # Safety
/// The processor has AVX-512; so below.
#[inline(always)]
unsafe fn first_wide(numbers: __m512i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { wide(_mm512_castsi512_si256(numbers)) }
}

/// The others.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn second_wide(numbers: __m512i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { wide(_mm512_extracti64x4_epi64::<1>(numbers)) }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn wide(numbers: __m256i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(numbers))) }
}
