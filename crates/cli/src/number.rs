//! Numbers as people type them.

use std::num::{IntErrorKind, NonZeroU32, NonZeroUsize, ParseIntError};
use std::str::FromStr;

/// The largest size of a model.
const LARGEST_SIZE: usize = 1 << 40;

/// Parses a whole number of whatever size its option holds.
///
/// # Errors
/// What would be right.
pub fn whole<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "it is too large".into(),
        IntErrorKind::Zero => "at least 1 is needed".into(),
        _ => "a whole number is needed, without sign or point".into(),
    })
}

/// Parses a count of which there is at least one.
///
/// # Errors
/// What would be right.
pub fn at_least_one(text: &str) -> Result<u32, String> {
    whole(text).map(NonZeroU32::get)
}

/// Parses a size of a model.
///
/// # Errors
/// What would be right.
pub fn size(text: &str) -> Result<usize, String> {
    match whole::<NonZeroUsize>(text)?.get() {
        size if size <= LARGEST_SIZE => Ok(size),
        _ => Err("it is too large".into()),
    }
}

/// Parses a stage of ZeRO.
///
/// # Errors
/// What would be right.
pub fn zero_stage(text: &str) -> Result<u8, String> {
    match whole(text) {
        Ok(stage) if stage <= 3 => Ok(stage),
        _ => Err("a stage of ZeRO is 0, 1, 2 or 3".into()),
    }
}

/// Parses a share of which something is left.
///
/// # Errors
/// What would be right.
pub fn share_below_one(text: &str) -> Result<f64, String> {
    match decimal(text)? {
        share if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("a share is at least 0 and below 1".into()),
    }
}

/// Parses a finite number that is at least 0.
///
/// # Errors
/// What would be right.
pub fn not_negative(text: &str) -> Result<f64, String> {
    match decimal(text)? {
        number if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("it is finite and at least 0".into()),
    }
}

/// Parses a finite number.
///
/// # Errors
/// What would be right.
pub fn finite(text: &str) -> Result<f64, String> {
    match decimal(text)? {
        number if number.is_finite() => Ok(number),
        _ => Err("a finite number is needed".into()),
    }
}

/// Parses a number that may have decimals and a power of ten; whoever uses it says which range makes
/// sense.
///
/// # Errors
/// What would be right.
pub fn decimal(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "a number is needed, such as 0.1 or 1e-3".into())
}

/// Parses a number of tokens, which may be in millions, billions or trillions: `300B`, `15T`, `15e12`.
///
/// # Errors
/// What would be right.
pub fn tokens(text: &str) -> Result<f64, String> {
    let unit = match text.chars().last() {
        Some('K' | 'k') => 1e3,
        Some('M') => 1e6,
        Some('B' | 'G') => 1e9,
        Some('T') => 1e12,
        _ => 1.0,
    };
    let number = if unit > 1.0 { &text[..text.len() - 1] } else { text };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(tokens) if tokens > 0.0 && tokens <= 1e18 => Ok(tokens),
        _ => Err("a number above 0 and at most 1e18 is needed, such as 15T or 15e12".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use super::*;

    #[test]
    fn whole_numbers_are_parsed_or_told_what_is_right() {
        assert_eq!(whole::<u8>("255"), Ok(255));
        for text in ["-1", "1.5", "1e3", "", "many", " 1"] {
            let error = whole::<u8>(text).expect_err(text);
            assert!(error.contains("whole number"), "{text}: {error}");
        }
        assert!(whole::<u8>("256").is_err_and(|error| error.contains("too large")));
        assert!(whole::<NonZeroU8>("0").is_err_and(|error| error.contains("at least 1")));
    }

    #[test]
    fn decimals_are_parsed_or_told_what_is_right() {
        assert_eq!(decimal("-1e-3"), Ok(-0.001));
        assert!(decimal("fast").is_err_and(|error| error.contains("0.1")));
    }

    #[test]
    fn tokens_are_counted_in_any_unit() {
        for (text, count) in
            [("15T", 15e12), ("300B", 3e11), ("0.5M", 5e5), ("2k", 2e3), ("1e18", 1e18)]
        {
            assert_eq!(tokens(text), Ok(count), "{text}");
        }
        for text in ["0", "-1", "0T", "", "T", "15X", "1e7T", "nan", "inf", "15 T", "15Ä"] {
            assert!(tokens(text).is_err_and(|error| error.contains("such as 15T")), "{text}");
        }
    }

    #[test]
    fn ranges_are_held() {
        assert_eq!(size("1"), Ok(1));
        assert!(size("0").is_err_and(|error| error.contains("at least 1")));
        assert_eq!(size("1099511627776"), Ok(1 << 40));
        assert!(size("1099511627777").is_err_and(|error| error.contains("too large")));
        assert_eq!(zero_stage("3"), Ok(3));
        for text in ["4", "-1", "1e300", "", "256"] {
            assert!(zero_stage(text).is_err_and(|error| error.contains("0, 1, 2 or 3")), "{text}");
        }
        assert_eq!(share_below_one("0"), Ok(0.0));
        assert_eq!(share_below_one("0.99"), Ok(0.99));
        for text in ["1", "2", "-0.1", "nan", "inf"] {
            let error = share_below_one(text).expect_err(text);
            assert!(error.contains("below 1"), "{text}: {error}");
        }
        assert_eq!(finite("-1"), Ok(-1.0));
        assert!(finite("nan").is_err_and(|error| error.contains("finite")));
        assert_eq!(not_negative("0"), Ok(0.0));
        for text in ["-1", "nan", "inf"] {
            let error = not_negative(text).expect_err(text);
            assert!(error.contains("at least 0"), "{text}: {error}");
        }
    }
}
