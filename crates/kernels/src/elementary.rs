//! Elementary functions as straight-line polynomials, so that loops calling them vectorise and
//! every machine computes the same bits (the platform's own functions differ in the last ones).
//!
//! Coefficients are those of Moshier's Cephes library (single precision).

use std::f32::consts::{FRAC_PI_2, LOG2_E};

/// The high part of ln 2, with few enough bits that small multiples of it are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
/// What remains: `LN_2_HIGH + LN_2_LOW` is ln 2 to more than single precision.
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting this rounds a small number to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// e to the power of `x`, to about 1e-7 relative; 0 below -87.7, infinite above 88.4, NaN stays.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons rather than `clamp`, in the order that lets a NaN through.
    let x = if x > 88.8 { 88.8 } else { x };
    let x = if x < -88.1 { -88.1 } else { x };
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let mantissa = (r * r).mul_add(p, r) + 1.0;
    // The low bits of `shifted` hold n in two's complement: move them to the exponent.
    mantissa * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// 1 / (1 + exp(-x)).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The logistic function of `x` and of `-x`, neither of which loses digits to cancellation.
#[inline(always)]
pub(crate) fn sigmoid_both(x: f32) -> (f32, f32) {
    // Beyond this the second factor below would overflow while the first underflows.
    let x = if x < -80.0 { -80.0 } else { x };
    let e = exp(-x);
    let s = 1.0 / (1.0 + e);
    (s, e * s)
}

/// Hyperbolic tangent, to about 1e-7 of its value; NaN stays.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    // (1 - e) / (1 + e) would lose digits of small arguments to cancellation.
    let square = x * x;
    let p = (-5.704_988_7e-3_f32).mul_add(square, 2.063_909e-2);
    let p = p.mul_add(square, -5.373_971_6e-2);
    let p = p.mul_add(square, 1.333_144_2e-1);
    let p = p.mul_add(square, -3.333_328e-1);
    let small = (p * square).mul_add(x, x);
    let e = exp(-2.0 * magnitude);
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    if magnitude < 0.625 { small } else { large }
}

/// Natural logarithm of a positive normal number, to about 1e-7 relative.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let half_to_one = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let exponent = ((bits >> 23) as i32 - 126) as f32;
    let low = half_to_one < std::f32::consts::FRAC_1_SQRT_2;
    let m = if low { half_to_one + half_to_one - 1.0 } else { half_to_one - 1.0 };
    let e = if low { exponent - 1.0 } else { exponent };
    let p = 7.037_683_6e-2_f32;
    let p = p.mul_add(m, -1.151_461e-1);
    let p = p.mul_add(m, 1.167_699_9e-1);
    let p = p.mul_add(m, -1.242_014_1e-1);
    let p = p.mul_add(m, 1.424_932_3e-1);
    let p = p.mul_add(m, -1.666_805_8e-1);
    let p = p.mul_add(m, 2.000_071_5e-1);
    let p = p.mul_add(m, -2.499_999_4e-1);
    let p = p.mul_add(m, 3.333_333e-1);
    let square = m * m;
    let small = e.mul_add(LN_2_LOW, m * square * p) - 0.5 * square;
    e.mul_add(LN_2_HIGH, m + small)
}

/// Sine and cosine of `turn` whole turns (`2 pi turn` radians), for `turn` in [0, 1).
#[inline(always)]
pub(crate) fn sin_cos_turn(turn: f32) -> (f32, f32) {
    let shifted = turn.mul_add(4.0, ROUND);
    let quarter = shifted.to_bits();
    let x = turn.mul_add(4.0, ROUND - shifted) * FRAC_PI_2;
    let z = x * x;
    let p = (-1.951_529_6e-4_f32).mul_add(z, 8.332_161e-3).mul_add(z, -1.666_665_5e-1);
    let sin = (p * z).mul_add(x, x);
    let p = 2.443_315_7e-5_f32.mul_add(z, -1.388_731_6e-3).mul_add(z, 4.166_664_6e-2);
    let cos = (p * z).mul_add(z, 1.0 - 0.5 * z);
    let odd = quarter & 1 == 1;
    let (sin, cos) = if odd { (cos, sin) } else { (sin, cos) };
    let sin_sign = (quarter & 2) << 30;
    let cos_sign = (quarter.wrapping_add(1) & 2) << 30;
    (f32::from_bits(sin.to_bits() ^ sin_sign), f32::from_bits(cos.to_bits() ^ cos_sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments tried.
    const STEPS: usize = if cfg!(miri) { 500 } else { 200_000 };

    fn relative(got: f32, want: f64) -> f64 {
        (f64::from(got) - want).abs() / want.abs().max(1e-30)
    }

    #[test]
    fn exp_is_accurate_over_its_range_and_saturates_outside() {
        for i in 0..STEPS {
            let x = -87.0 + i as f32 * (175.0 / STEPS as f32);
            assert!(relative(exp(x), f64::from(x).exp()) < 2e-7, "exp({x}) = {}", exp(x));
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_accurate_and_saturates() {
        for i in 0..=STEPS {
            let x = -12.0 + i as f32 * (24.0 / STEPS as f32);
            assert!(relative(tanh(x), f64::from(x).tanh()) < 3e-7, "tanh({x}) = {}", tanh(x));
        }
        assert_eq!([0.0, 1e-20, 100.0, -100.0].map(tanh), [0.0, 1e-20, 1.0, -1.0]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(tanh), [1.0, -1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_accurate_from_tiny_to_one() {
        for i in 1..STEPS {
            let x = i as f32 / STEPS as f32;
            assert!(
                (f64::from(ln(x)) - f64::from(x).ln()).abs() < 2e-7 * (1.0 - f64::from(x).ln())
            );
        }
        assert!(relative(ln(2f32.powi(-25)), -25.0 * std::f64::consts::LN_2) < 2e-7);
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn sin_cos_turn_is_accurate_over_a_whole_turn() {
        for i in 0..STEPS {
            let turn = i as f32 / STEPS as f32;
            let angle = f64::from(turn) * std::f64::consts::TAU;
            let (sin, cos) = sin_cos_turn(turn);
            assert!((f64::from(sin) - angle.sin()).abs() < 3e-7, "sin of turn {turn} = {sin}");
            assert!((f64::from(cos) - angle.cos()).abs() < 3e-7, "cos of turn {turn} = {cos}");
        }
    }
}
