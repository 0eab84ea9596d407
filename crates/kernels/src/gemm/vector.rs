//! What a product needs of a processor's vector registers, and what its sums are of.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::bf16;

/// A vector register of fp32 numbers.
///
/// Everything here needs the instructions that the type is named for: it is called, and inlined, only where
/// they are enabled.
///
/// # Safety
/// What reads and writes memory does so for [`Vector::LANES`] elements or those of a mask, and a mask of so many
/// lanes is of these.
pub(super) unsafe trait Vector: Copy {
    /// Elements.
    const LANES: usize;
    /// Rows of a tile of two vectors a row: their sums leave registers for a row of the right operand and an
    /// element of the left one.
    const ROWS: usize;
    /// Which elements are meant.
    type Mask: Copy;

    /// The first `lanes` elements.
    unsafe fn mask(lanes: usize) -> Self::Mask;
    /// `value` in all elements.
    unsafe fn splat(value: f32) -> Self;
    /// All elements from memory.
    unsafe fn load(from: *const f32) -> Self;
    /// Some elements from memory, the others 0. Reads only where the mask says so.
    unsafe fn load_some(from: *const f32, mask: Self::Mask) -> Self;
    /// All elements to memory.
    unsafe fn store(self, to: *mut f32);
    /// Some elements to memory. Writes only where the mask says so.
    unsafe fn store_some(self, to: *mut f32, mask: Self::Mask);
    /// `self * by`.
    unsafe fn times(self, by: Self) -> Self;
    /// `self * by + to`, rounded once where the instructions do that.
    unsafe fn times_plus(self, by: Self, to: Self) -> Self;
    /// Writes the square of [`Vector::LANES`] rows, `stride` apart, at `from` to rows `to_stride` apart at
    /// `to`, with rows and columns exchanged.
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize);
    /// Writes [`Vector::LANES`] pairs of bfloat16, as elements: of each the first from `low`, the second from `high`.
    unsafe fn pair(low: *const bf16, high: *const bf16, to: *mut f32);
    /// Fetches the cache line at an address, which need not be readable.
    unsafe fn prefetch(at: *const f32);
}

/// The bits of two numbers, the first in the lower half.
#[inline(always)]
pub(super) fn pair(low: bf16, high: bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

/// What [`Vector::pair`] does, one after the other.
///
/// # Safety
/// Both are readable, and `to` writable, for so many elements.
#[inline(always)]
unsafe fn pair_each(lanes: usize, low: *const bf16, high: *const bf16, to: *mut f32) {
    for lane in 0..lanes {
        // SAFETY: as the caller promises.
        unsafe { *to.add(lane) = pair(*low.add(lane), *high.add(lane)) };
    }
}

/// What a step of a product's sums does with an element of either operand.
///
/// # Safety
/// As of [`Vector`].
pub(super) unsafe trait Step<V: Vector> {
    /// `to` and the product of `a` and `b`.
    unsafe fn add(a: V, b: V, to: V) -> V;
}

/// Elements are fp32 numbers.
pub(super) struct Numbers;

// SAFETY: it needs nothing but what the vector does.
unsafe impl<V: Vector> Step<V> for Numbers {
    #[inline(always)]
    unsafe fn add(a: V, b: V, to: V) -> V {
        // SAFETY: as of the trait.
        unsafe { a.times_plus(b, to) }
    }
}

/// Elements are pairs of bfloat16, whose products are both added, in fp32.
pub(super) struct PairsOfBf16;

// SAFETY: called only where AVX512-BF16 is enabled.
#[cfg(target_arch = "x86_64")]
unsafe impl Step<__m512> for PairsOfBf16 {
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512, to: __m512) -> __m512 {
        // SAFETY: as of the trait; all bits are pairs of bfloat16.
        unsafe {
            let [a, b] = [a, b].map(|it| std::mem::transmute::<__m512, __m512bh>(it));
            _mm512_dpbf16_ps(to, a, b)
        }
    }
}

// SAFETY: it needs no instructions that are not enabled.
unsafe impl Step<Four> for PairsOfBf16 {
    #[inline(always)]
    unsafe fn add(a: Four, b: Four, to: Four) -> Four {
        let halves = |pair: f32| {
            let bits = pair.to_bits();
            [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
        };
        Four::of(|lane| {
            let ([a0, a1], [b0, b1]) = (halves(a.0[lane]), halves(b.0[lane]));
            to.0[lane] + a0 * b0 + a1 * b1
        })
    }
}

// SAFETY: registers of 16 elements, and masks of a bit for each.
#[cfg(target_arch = "x86_64")]
unsafe impl Vector for __m512 {
    const LANES: usize = 16;
    const ROWS: usize = 12;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __mmask16 {
        ((1_u32 << lanes) - 1) as __mmask16
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: as of the trait; so are those below.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, mask: __mmask16) {
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(to, mask, self) }
    }

    #[inline(always)]
    unsafe fn times(self, by: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(self, by) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, by: __m512, to: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(self, by, to) }
    }

    /// First within pairs and fours of rows, then among quarters of vectors.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: rows are those that the caller promises.
        unsafe {
            let mut lines = [_mm512_setzero_ps(); 16];
            for (i, line) in lines.iter_mut().enumerate() {
                *line = Self::load(from.add(i * stride));
            }
            let mut pairs = lines;
            for i in (0..16).step_by(2) {
                pairs[i] = _mm512_unpacklo_ps(lines[i], lines[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_ps(lines[i], lines[i + 1]);
            }
            let mut fours = pairs;
            for i in (0..16).step_by(4) {
                let (a, b) = (_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[i + 1]));
                let (c, d) = (_mm512_castps_pd(pairs[i + 2]), _mm512_castps_pd(pairs[i + 3]));
                fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            // Of `fours[4 q + j]`, quarter p holds rows 4 q .. 4 q + 4 of column 4 p + j.
            for j in 0..4 {
                let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                let columns = [
                    _mm512_shuffle_f32x4::<0x88>(even[0], even[1]),
                    _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]),
                    _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]),
                    _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]),
                ];
                for (p, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((4 * p + j) * to_stride), column);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pair(low: *const bf16, high: *const bf16, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            let [low, high] = [low, high].map(|it| _mm256_loadu_si256(it.cast()));
            let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
            let pairs = _mm512_or_si512(_mm512_cvtepu16_epi32(low), high);
            _mm512_storeu_si512(to.cast(), pairs);
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

// SAFETY: registers of 8 elements, and masks of the highest bit of each.
#[cfg(target_arch = "x86_64")]
unsafe impl Vector for __m256 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __m256i {
        // SAFETY: as of the trait; so are those below.
        unsafe {
            let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), index)
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, mask: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_maskload_ps(from, mask) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, mask: __m256i) {
        // SAFETY: as above.
        unsafe { _mm256_maskstore_ps(to, mask, self) }
    }

    #[inline(always)]
    unsafe fn times(self, by: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(self, by) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, by: __m256, to: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(self, by, to) }
    }

    /// First within pairs and fours of rows, then among halves of vectors.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: rows are those that the caller promises.
        unsafe {
            let mut lines = [_mm256_setzero_ps(); 8];
            for (i, line) in lines.iter_mut().enumerate() {
                *line = Self::load(from.add(i * stride));
            }
            let mut pairs = lines;
            for i in (0..8).step_by(2) {
                pairs[i] = _mm256_unpacklo_ps(lines[i], lines[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_ps(lines[i], lines[i + 1]);
            }
            let mut fours = pairs;
            for i in (0..8).step_by(4) {
                let (a, b) = (_mm256_castps_pd(pairs[i]), _mm256_castps_pd(pairs[i + 1]));
                let (c, d) = (_mm256_castps_pd(pairs[i + 2]), _mm256_castps_pd(pairs[i + 3]));
                fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
                fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
                fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
                fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
            }
            // Of `fours[4 q + j]`, half p holds rows 4 q .. 4 q + 4 of column 4 p + j.
            for j in 0..4 {
                let (low, high) = (fours[j], fours[4 + j]);
                let columns = [
                    _mm256_permute2f128_ps::<0x20>(low, high),
                    _mm256_permute2f128_ps::<0x31>(low, high),
                ];
                for (p, column) in columns.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((4 * p + j) * to_stride), column);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pair(low: *const bf16, high: *const bf16, to: *mut f32) {
        // SAFETY: as above.
        unsafe { pair_each(Self::LANES, low, high, to) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// What every processor's registers hold; the compiler uses those that its target has for sure.
#[derive(Clone, Copy)]
pub(super) struct Four([f32; 4]);

/// Whether the target multiplies and adds with one rounding. Elsewhere that would be a slow function call.
const FUSES: bool = cfg!(target_feature = "fma");

impl Four {
    #[inline(always)]
    fn of(element: impl FnMut(usize) -> f32) -> Four {
        Four(std::array::from_fn(element))
    }
}

// SAFETY: four elements, and masks that count them.
unsafe impl Vector for Four {
    const LANES: usize = 4;
    const ROWS: usize = 6;
    type Mask = usize;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> usize {
        lanes
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Four {
        Four([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Four {
        // SAFETY: as of the trait; so are those below.
        Four(unsafe { from.cast::<[f32; 4]>().read() })
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, lanes: usize) -> Four {
        // SAFETY: as above.
        Four::of(|lane| if lane < lanes { unsafe { *from.add(lane) } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<[f32; 4]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, lanes: usize) {
        for (lane, value) in self.0.into_iter().enumerate().take(lanes) {
            // SAFETY: as above.
            unsafe { *to.add(lane) = value };
        }
    }

    #[inline(always)]
    unsafe fn times(self, by: Four) -> Four {
        Four::of(|lane| self.0[lane] * by.0[lane])
    }

    #[inline(always)]
    unsafe fn times_plus(self, by: Four, to: Four) -> Four {
        match FUSES {
            true => Four::of(|lane| self.0[lane].mul_add(by.0[lane], to.0[lane])),
            false => Four::of(|lane| self.0[lane] * by.0[lane] + to.0[lane]),
        }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..4 {
            for column in 0..4 {
                // SAFETY: rows are those that the caller promises.
                unsafe {
                    *to.add(column * to_stride + row) = *from.add(row * stride + column);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pair(low: *const bf16, high: *const bf16, to: *mut f32) {
        // SAFETY: as above.
        unsafe { pair_each(Self::LANES, low, high, to) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
}
