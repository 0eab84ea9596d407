//! The elements of the largest magnitude (Aji and Heafield 2017, arXiv 1704.05021; Lin et al. 2018, arXiv
//! 1712.01887), of equal magnitudes the first.
//!
//! They are sent as words of 32 bits: the places of all, in ascending order, and then their values.

use super::finite;

/// Bits of a magnitude that are looked at at a time: most significant first.
const DIGITS: [u32; 3] = [11, 11, 9];

/// Magnitudes in the order of their size, as words; what is no number is the largest.
fn magnitude(value: f32) -> u32 {
    value.abs().to_bits()
}

/// The `count`-th largest magnitude, and how many of that very magnitude are among the `count` largest.
fn threshold(values: &[f32], count: usize) -> (u32, usize) {
    let (mut prefix, mut shift, mut left) = (0, 31, count);
    for bits in DIGITS {
        let mut counts = [0_usize; 1 << 11];
        let (above, mask) = (shift, (1 << bits) - 1);
        shift -= bits;
        let of_prefix = values.iter().map(|&value| magnitude(value));
        for word in of_prefix.filter(|word| u64::from(*word) >> above == u64::from(prefix)) {
            counts[(word >> shift & mask) as usize] += 1;
        }
        let mut digit = (1_usize << bits) - 1;
        while counts[digit] < left {
            left -= counts[digit];
            digit -= 1;
        }
        prefix = prefix << bits | digit as u32;
    }
    (prefix, left)
}

/// [`Step::Largest`](super::Step::Largest): half as many elements as there are words.
pub fn largest(gradients: &[f32], words: &mut [u32], residual: &mut [f32]) {
    assert_eq!(gradients.len(), residual.len(), "a residual for each gradient");
    for (left, gradient) in residual.iter_mut().zip(gradients) {
        *left += gradient;
    }
    let (places, values) = words.split_at_mut(words.len() / 2);
    let (least, mut equal) = threshold(residual, places.len());
    let mut sent = places.iter_mut().zip(values);
    for (place, left) in residual.iter_mut().enumerate() {
        let own = magnitude(*left);
        let is_equal = own == least && equal > 0;
        equal -= usize::from(is_equal);
        if own > least || is_equal {
            let (to, value) = sent.next().expect("as many are sent as there is room for");
            (*to, *value) = (place as u32, left.to_bits());
            *left = 0.0;
        }
        *left = finite(*left);
    }
}

/// [`Step::FromLargest`](super::Step::FromLargest): the sums are formed in the order of members.
pub fn from_largest(words: &[u32], members: usize, gradients: &mut [f32]) {
    gradients.fill(0.0);
    for own in words.chunks_exact(words.len() / members) {
        let (places, values) = own.split_at(own.len() / 2);
        for (&place, &value) in places.iter().zip(values) {
            gradients[place as usize] += f32::from_bits(value);
        }
    }
}
