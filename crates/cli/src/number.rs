//! Numbers as people type them.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

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

/// Parses a number that may have decimals and a power of ten; whoever uses it says which range makes
/// sense.
///
/// # Errors
/// What would be right.
pub fn decimal(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "a number is needed, such as 0.1 or 1e-3".into())
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
}
