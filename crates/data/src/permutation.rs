//! A keyed permutation that needs no memory.

const ROUNDS: usize = 6;

/// A pseudorandom permutation of `0..len` that finds the image of any index
/// directly, so that a shuffled epoch can be entered at any position.
///
/// A balanced Feistel network permutes the smallest power of four that holds
/// `len`; an image outside `0..len` is sent through again until it falls
/// inside (cycle walking; Black and Rogaway, Ciphers with Arbitrary Finite
/// Domains, 2002, section 4), which takes fewer than four passes on average.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    len: u64,
    half_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that belongs to this seed and epoch.
    pub(crate) fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        // The seed is mixed before the epoch joins it: otherwise seed 1 epoch 0
        // and seed 0 epoch 1 could be the same order.
        let key = mix(mix(seed).wrapping_add(epoch));
        let round_keys = std::array::from_fn(|round| mix(key.wrapping_add(round as u64)));
        Self { len, half_bits, round_keys }
    }

    /// The image of `index`, which must be below `len`.
    pub(crate) fn image(&self, index: u64) -> u64 {
        debug_assert!(index < self.len, "index {index} is outside a permutation of {}", self.len);
        let mut image = self.feistel(index);
        while image >= self.len {
            image = self.feistel(image);
        }
        image
    }

    fn feistel(&self, index: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (index >> self.half_bits, index & mask);
        for key in self.round_keys {
            // The high bits of the mix are its best ones.
            let scrambled = mix(right ^ key) >> (u64::BITS - self.half_bits);
            (left, right) = (right, left ^ scrambled);
        }
        (left << self.half_bits) | right
    }
}

/// One output of SplitMix64 (Steele, Lea and Flood, Fast Splittable
/// Pseudorandom Number Generators, 2014, figure 16).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn images(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|index| permutation.image(index)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_index_has_its_own_image(len in 1_u64..3000, seed: u64, epoch: u64) {
            let mut sorted = images(len, seed, epoch);
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn the_largest_domains_are_permuted_too(len in (1_u64 << 62)..=u64::MAX, seed: u64) {
            let permutation = Permutation::new(len, seed, 0);
            let indices = [0, 1, len / 2, len - 1];
            let images = indices.map(|index| permutation.image(index));
            prop_assert!(images.iter().all(|&image| image < len));
            prop_assert!((1..4).all(|at| !images[..at].contains(&images[at])));
        }
    }

    #[test]
    fn the_network_is_over_the_smallest_power_of_four_that_holds_the_domain() {
        for len in (1..=70).chain([255, 256, 257, 1 << 20, (1 << 20) + 1, 1 << 62]) {
            let permutation = Permutation::new(len, 3, 0);
            let size = |half_bits: u32| 1_u128 << (2 * half_bits);
            let half_bits = permutation.half_bits;
            assert!(size(half_bits) >= u128::from(len), "{len}");
            assert!(half_bits == 1 || size(half_bits - 1) < u128::from(len), "{len}");
        }
    }

    #[test]
    fn seeds_and_epochs_give_different_orders() {
        let orders = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2)];
        let orders = orders.map(|(seed, epoch)| images(100, seed, epoch));
        for (at, order) in orders.iter().enumerate() {
            assert!(!orders[..at].contains(order), "order {at} occurs twice");
        }
    }

    #[test]
    fn every_index_goes_everywhere_about_equally_often() {
        // Chi-square over 10 x 10 cells with 4000 draws each row: 81 degrees of
        // freedom, so 81 is expected and 127 is exceeded once in 1000.
        const LEN: u64 = 10;
        const DRAWS: u64 = 4000;
        let mut counts = [[0_u64; LEN as usize]; LEN as usize];
        for epoch in 0..DRAWS {
            for (index, image) in images(LEN, 7, epoch).into_iter().enumerate() {
                counts[index][image as usize] += 1;
            }
        }
        let expected = DRAWS as f64 / LEN as f64;
        let chi_square: f64 = counts
            .iter()
            .flatten()
            .map(|&count| (count as f64 - expected).powi(2) / expected)
            .sum();
        assert!(chi_square < 127.0, "chi-square is {chi_square}");
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        // In a random order of 1000, an index is followed by its successor
        // once on average; 8 or more happens once in 100,000 orders.
        let order = images(1000, 3, 0);
        let kept = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(kept < 8, "{kept} neighbours stayed together");
    }
}
