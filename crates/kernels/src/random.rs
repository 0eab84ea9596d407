//! Random numbers that belong to an element, not to an order of drawing: the number of an element
//! is a function of a [`Key`] and its index in the *global* tensor. So dropout and initialisation
//! are the same however a tensor is split.
//!
//! The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy
//! as 1, 2, 3", SC 2011, section 3.3). A counter yields four words; elements are numbered in groups
//! of 64, of which element `16 w + c` takes word `w` of the group's counter `c`, so that a group is
//! filled with four vectors and no shuffling.

use crate::elementary::{ln, sin_cos_turn};
use crate::simd::simd;
use crate::window::Window;

/// Counters computed side by side.
const COUNTERS: usize = 16;
/// Elements served by one set of counters.
const GROUP: usize = 4 * COUNTERS;

/// What a stream of random numbers is keyed by, besides the element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The seed of the whole run.
    pub seed: u64,
    /// Which operator or parameter draws.
    pub stream: u64,
    /// The training step.
    pub step: u64,
}

/// One Philox generator: its key and the upper half of its counters.
#[derive(Clone, Copy)]
struct Generator {
    key: [u32; 2],
    high: [u32; 2],
}

impl Key {
    /// Stream and step are hashed into the key and the upper counter words by Philox itself, as
    /// seed, stream, step and element index together are wider than its input.
    fn generator(self) -> Generator {
        let split = |x: u64| [x as u32, (x >> 32) as u32];
        let ([s0, s1], [t0, t1]) = (split(self.stream), split(self.step));
        let out = philox([[s0], [s1], [t0], [t1]], split(self.seed));
        Generator { key: [out[0][0], out[1][0]], high: [out[2][0], out[3][0]] }
    }
}

/// Ten rounds on `N` counters at once; `counter[word][n]`.
#[inline(always)]
fn philox<const N: usize>(counter: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for n in 0..N {
            let p0 = u64::from(c0[n]) * 0xD251_1F53;
            let p1 = u64::from(c2[n]) * 0xCD9E_8D57;
            let (old1, old3) = (c1[n], c3[n]);
            c0[n] = (p1 >> 32) as u32 ^ old1 ^ k0;
            c1[n] = p1 as u32;
            c2[n] = (p0 >> 32) as u32 ^ old3 ^ k1;
            c3[n] = p0 as u32;
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

impl Generator {
    /// The words of the elements `64 group .. 64 group + 64`.
    #[inline(always)]
    fn group(self, group: u64) -> [[u32; COUNTERS]; 4] {
        let first = group * COUNTERS as u64;
        let low = std::array::from_fn(|c| (first as u32) | c as u32);
        let [h0, h1] = self.high;
        philox([low, [(first >> 32) as u32; COUNTERS], [h0; COUNTERS], [h1; COUNTERS]], self.key)
    }

    /// Fills `out`, the elements from global index `start`, with their groups' words as converted.
    #[inline(always)]
    fn fill_run<C: Convert>(self, start: usize, out: &mut [C::Number], conversion: C) {
        let mut at = start;
        let mut rest = out;
        while !rest.is_empty() {
            let values = conversion.convert(self.group((at / GROUP) as u64));
            let skipped = at % GROUP;
            let (run, after) = rest.split_at_mut(rest.len().min(GROUP - skipped));
            match <&mut [C::Number; GROUP]>::try_from(&mut *run) {
                Ok(run) => run.copy_from_slice(values.as_flattened()),
                Err(_) => run.copy_from_slice(&values.as_flattened()[skipped..][..run.len()]),
            }
            at += run.len();
            rest = after;
        }
    }
}

/// What the words of a group become. A trait rather than a closure, as closures of this size are
/// not inlined and would be compiled without the wider instructions.
trait Convert {
    type Number: Copy;

    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[Self::Number; COUNTERS]; 4];
}

struct Keep {
    threshold: u32,
}

impl Convert for Keep {
    type Number = u8;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[u8; COUNTERS]; 4] {
        words.map(|words| words.map(|word| u8::from(word >= self.threshold)))
    }
}

/// As [`Keep`], as the factor on an element.
struct Factor {
    threshold: u32,
    kept: f32,
}

impl Convert for Factor {
    type Number = f32;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[f32; COUNTERS]; 4] {
        words.map(|words| words.map(|word| if word >= self.threshold { self.kept } else { 0.0 }))
    }
}

/// The upper half of a word.
struct Halves;

impl Convert for Halves {
    type Number = u16;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[u16; COUNTERS]; 4] {
        words.map(|words| words.map(|word| (word >> 16) as u16))
    }
}

/// The word itself.
struct Words;

impl Convert for Words {
    type Number = u32;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[u32; COUNTERS]; 4] {
        words
    }
}

struct Uniform {
    low: f32,
    width: f32,
}

impl Convert for Uniform {
    type Number = f32;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[f32; COUNTERS]; 4] {
        words.map(|words| words.map(|word| self.width.mul_add(fraction(word), self.low)))
    }
}

struct Normal {
    mean: f32,
    std: f32,
}

impl Convert for Normal {
    type Number = f32;

    #[inline(always)]
    fn convert(&self, words: [[u32; COUNTERS]; 4]) -> [[f32; COUNTERS]; 4] {
        let mut values = [[0.0; COUNTERS]; 4];
        for half in 0..2 {
            for n in 0..COUNTERS {
                let (x, y) = normal_pair(words[2 * half][n], words[2 * half + 1][n]);
                values[2 * half][n] = self.std.mul_add(x, self.mean);
                values[2 * half + 1][n] = self.std.mul_add(y, self.mean);
            }
        }
        values
    }
}

fn fill<T>(window: &Window, out: &mut [T], mut fill_run: impl FnMut(usize, &mut [T])) {
    assert_eq!(out.len(), window.elements(), "the output holds the window's elements");
    let mut rest = out;
    window.for_each_run(|start, len| {
        let (run, after) = std::mem::take(&mut rest).split_at_mut(len);
        fill_run(start, run);
        rest = after;
    });
}

/// The upper 24 bits as a fraction in [0, 1).
#[inline(always)]
fn fraction(word: u32) -> f32 {
    (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// Box and Muller's two normal numbers from two words.
#[inline(always)]
fn normal_pair(first: u32, second: u32) -> (f32, f32) {
    // 1 - fraction is in (0, 1], where the logarithm is finite.
    let radius = (-2.0 * ln(1.0 - fraction(first))).sqrt();
    let (sin, cos) = sin_cos_turn(fraction(second));
    (radius * cos, radius * sin)
}

simd! {
    fn halves_run(generator: Generator, start: usize, out: &mut [u16]) {
        generator.fill_run(start, out, Halves);
    }

    fn words_run(generator: Generator, start: usize, out: &mut [u32]) {
        generator.fill_run(start, out, Words);
    }

    fn mask_run(generator: Generator, start: usize, threshold: u32, mask: &mut [u8]) {
        generator.fill_run(start, mask, Keep { threshold });
    }

    fn factors_run(generator: Generator, start: usize, factor: (u32, f32), out: &mut [f32]) {
        let (threshold, kept) = factor;
        generator.fill_run(start, out, Factor { threshold, kept });
    }

    fn uniform_run(generator: Generator, start: usize, low: f32, width: f32, out: &mut [f32]) {
        generator.fill_run(start, out, Uniform { low, width });
    }

    fn normal_run(generator: Generator, start: usize, mean: f32, std: f32, out: &mut [f32]) {
        generator.fill_run(start, out, Normal { mean, std });
    }
}

/// Fills the window's elements of a dropout mask: 1 keeps an element, 0 drops it, each dropped
/// with `drop_probability` in `[0, 1]`.
pub fn dropout_mask(key: Key, window: &Window, drop_probability: f32, mask: &mut [u8]) {
    assert!(
        (0.0..=1.0).contains(&drop_probability),
        "a dropout probability of {drop_probability} is not in [0, 1]"
    );
    if drop_probability == 1.0 {
        mask.fill(0);
        return;
    }
    let (generator, threshold) = (key.generator(), threshold(drop_probability));
    fill(window, mask, |start, run| mask_run(generator, start, threshold, run));
}

/// Fills the window's elements with the factors of [`dropout_mask`]'s elements, with `drop_probability` in
/// `[0, 1)`: 1 / (1 - drop probability) keeps an element, 0 drops it.
pub fn dropout_factors(key: Key, window: &Window, drop_probability: f32, factors: &mut [f32]) {
    assert!(
        (0.0..1.0).contains(&drop_probability),
        "a dropout probability of {drop_probability} is not in [0, 1)"
    );
    let generator = key.generator();
    let factor = (threshold(drop_probability), 1.0 / (1.0 - drop_probability));
    fill(window, factors, |start, run| factors_run(generator, start, factor, run));
}

/// Below which word an element is dropped.
fn threshold(drop_probability: f32) -> u32 {
    (f64::from(drop_probability) * 2f64.powi(32)) as u32
}

/// Fills the window's elements with uniform numbers in [low, high).
pub fn uniform_fill(key: Key, window: &Window, low: f32, high: f32, out: &mut [f32]) {
    let generator = key.generator();
    fill(window, out, |start, run| uniform_run(generator, start, low, high - low, run));
}

/// Fills the window's elements with normal numbers of the given mean and standard deviation (Box
/// and Muller 1958, on the words of the element's own group).
pub fn normal_fill(key: Key, window: &Window, mean: f32, std: f32, out: &mut [f32]) {
    let generator = key.generator();
    fill(window, out, |start, run| normal_run(generator, start, mean, std, run));
}

/// Random bits of the elements from global index `start` on, 16 of each.
pub(crate) fn random_halves(key: Key, start: usize, out: &mut [u16]) {
    halves_run(key.generator(), start, out);
}

/// Random bits of the elements from global index `start` on, 32 of each.
pub(crate) fn random_words(key: Key, start: usize, out: &mut [u32]) {
    words_run(key.generator(), start, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As far from zero as the least fraction of 24 bits allows, and no further.
    #[test]
    fn normal_numbers_are_finite_whatever_the_words_are() {
        let most = (48.0 * std::f64::consts::LN_2).sqrt();
        let squared = |word: u32| {
            let (one, other) = normal_pair(word, 0x1234_5678);
            f64::from(one).powi(2) + f64::from(other).powi(2)
        };
        assert_eq!(squared(0), 0.0);
        let mut before = 0.0;
        for word in [1 << 8, 1 << 20, 1 << 31, !0 << 20, !0] {
            let found = squared(word);
            assert!(before < found && found <= 1.00001 * most.powi(2), "{word}: {found}");
            before = found;
        }
        assert!(before > 0.99999 * most.powi(2), "{before}");
    }

    #[test]
    fn philox_gives_the_published_test_vectors() {
        // From the known-answer file of the authors' Random123 library.
        let zero = philox([[0], [0], [0], [0]], [0, 0]);
        assert_eq!(zero.as_flattened(), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([[!0]; 4], [!0; 2]);
        assert_eq!(ones.as_flattened(), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox(
            [[0x243f_6a88], [0x85a3_08d3], [0x1319_8a2e], [0x0370_7344]],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(pi.as_flattened(), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
