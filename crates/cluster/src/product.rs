use serde::{Deserialize, Serialize};

use crate::checked;

/// How long an operator takes that is in the main a matrix product `[m, k] x [k, n]`: a sum of what
/// grows with the product's arithmetic, with each of its three matrices, and with nothing.
///
/// The coefficients are fitted to products timed on the device. They hold all of the operator, not
/// only its arithmetic: packing of the operands and writing of the result, a bias, a softmax over the
/// result. Five numbers hold between and beyond the shapes measured, where a table has to guess.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductSeconds {
    /// Of any product.
    #[serde(deserialize_with = "checked::non_negative")]
    pub fixed: f64,
    /// For each of the `m k` elements of the left operand.
    #[serde(deserialize_with = "checked::non_negative")]
    pub per_left: f64,
    /// For each of the `k n` elements of the right operand.
    #[serde(deserialize_with = "checked::non_negative")]
    pub per_right: f64,
    /// For each of the `m n` elements of the result.
    #[serde(deserialize_with = "checked::non_negative")]
    pub per_result: f64,
    /// For each of the `m n k` multiplications and additions.
    #[serde(deserialize_with = "checked::non_negative")]
    pub per_multiply_add: f64,
}

impl ProductSeconds {
    /// What the coefficients stand before, in the order of the fields.
    pub fn terms(m: u64, n: u64, k: u64) -> [f64; 5] {
        let [m, n, k] = [m, n, k].map(|size| size as f64);
        [1.0, m * k, k * n, m * n, m * n * k]
    }

    /// Time of one product `[m, k] x [k, n]`; an empty one takes none.
    pub fn seconds(&self, m: u64, n: u64, k: u64) -> f64 {
        if m == 0 || n == 0 || k == 0 {
            return 0.0;
        }
        let coefficients = <[f64; 5]>::from(*self);
        coefficients.iter().zip(Self::terms(m, n, k)).map(|(each, term)| each * term).sum()
    }
}

impl From<ProductSeconds> for [f64; 5] {
    fn from(product: ProductSeconds) -> Self {
        let ProductSeconds { fixed, per_left, per_right, per_result, per_multiply_add } = product;
        [fixed, per_left, per_right, per_result, per_multiply_add]
    }
}

impl From<[f64; 5]> for ProductSeconds {
    fn from([fixed, per_left, per_right, per_result, per_multiply_add]: [f64; 5]) -> Self {
        ProductSeconds { fixed, per_left, per_right, per_result, per_multiply_add }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coefficient_counts_its_own_elements() {
        // m, n, k = 2, 3, 5: 10 on the left, 15 on the right, 6 in the result, 30 multiplications.
        let expected = [1.0, 10.0, 15.0, 6.0, 30.0];
        for (term, expected) in expected.into_iter().enumerate() {
            let mut coefficients = [0.0; 5];
            coefficients[term] = 0.5;
            let product = ProductSeconds::from(coefficients);
            assert_eq!(product.seconds(2, 3, 5), 0.5 * expected, "term {term}");
            assert_eq!(product.seconds(0, 3, 5), 0.0);
        }
    }

    #[test]
    fn a_negative_coefficient_is_refused_by_name() {
        let text = "fixed = 0.0\nper_left = -1e-9\nper_right = 0.0\nper_result = 0.0\n\
                    per_multiply_add = 1e-11\n";
        let error = toml::from_str::<ProductSeconds>(text).unwrap_err().to_string();
        assert!(error.contains("per_left") && error.contains("0 or above"), "{error}");
    }
}
