//! Deserializers that refuse numbers no machine can have, so that the error carries
//! the line and key of the document.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};

/// A finite number above zero.
pub(crate) fn positive<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "above 0", |value| value > 0.0)
}

/// [`positive`], or absent.
pub(crate) fn optional_positive<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<f64>, D::Error> {
    positive(input).map(Some)
}

/// A finite number, zero or above.
pub(crate) fn non_negative<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "0 or above", |value| value >= 0.0)
}

/// What memory or a link moves: bytes a second, of which no machine moves fewer or more, though gigabytes may be meant.
pub(crate) fn transfer_rate<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    let range = "of bytes a second, from 1e3 to 1e15";
    number(input, range, |value| (1e3..=1e15).contains(&value))
}

/// [`transfer_rate`], or absent.
pub(crate) fn optional_transfer_rate<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<f64>, D::Error> {
    transfer_rate(input).map(Some)
}

/// What a device computes at most: operations a second, though TFLOP/s may be meant. Or absent.
pub(crate) fn optional_peak<'de, D: Deserializer<'de>>(input: D) -> Result<Option<f64>, D::Error> {
    let range = "of FLOP a second, from 1e6 to 1e18";
    number(input, range, |value| (1e6..=1e18).contains(&value)).map(Some)
}

/// Seconds of one thing that a host does: an hour at most.
pub(crate) fn host_seconds<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "from 0 to 3600", |value| (0.0..=3600.0).contains(&value))
}

/// A factor above zero that costs are multiplied with.
pub(crate) fn factor<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "above 0 and at most 1000", |value| value > 0.0 && value <= 1e3)
}

/// How many times as long something takes beside something else.
pub(crate) fn slowing<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "from 1 to 1000", |value| (1.0..=1e3).contains(&value))
}

/// How often something is, in terms of what is usual; also not at all.
pub(crate) fn multiple<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "from 0 to 1000", |value| (0.0..=1e3).contains(&value))
}

/// How something grows with a number: with its third power at most.
pub(crate) fn exponent<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "from 0 to 3", |value| (0.0..=3.0).contains(&value))
}

/// A fraction above zero, at most one.
pub(crate) fn fraction<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "above 0 and at most 1", |value| value > 0.0 && value <= 1.0)
}

/// [`fraction`]s by name.
pub(crate) fn fractions<'de, D: Deserializer<'de>, K: DeserializeOwned + Ord + fmt::Display>(
    input: D,
) -> Result<BTreeMap<K, f64>, D::Error> {
    let named: BTreeMap<K, f64> = BTreeMap::deserialize(input)?;
    match named.iter().find(|(_, value)| !(**value > 0.0 && **value <= 1.0)) {
        None => Ok(named),
        Some((name, value)) => {
            let text = format!("{name} must be a number above 0 and at most 1, got {value}");
            Err(D::Error::custom(text))
        }
    }
}

/// A factor of at least one.
pub(crate) fn at_least_one<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    number(input, "1 or above", |value| value >= 1.0)
}

/// A count of at least one.
pub(crate) fn count<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    match u32::deserialize(input)? {
        0 => Err(D::Error::custom("must be at least 1, got 0")),
        count => Ok(count),
    }
}

fn number<'de, D: Deserializer<'de>>(
    input: D,
    allowed: &str,
    holds: impl Fn(f64) -> bool,
) -> Result<f64, D::Error> {
    let value = f64::deserialize(input)?;
    match value.is_finite() && holds(value) {
        true => Ok(value),
        false => Err(D::Error::custom(format!("must be a number {allowed}, got {value}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, F64Deserializer, U32Deserializer};

    use super::*;

    type Reader = fn(F64Deserializer<Error>) -> Result<f64, Error>;

    fn takes(read: Reader, value: f64) -> bool {
        let found = read(value.into_deserializer());
        assert!(found.iter().all(|&found| found == value), "{value} became {found:?}");
        found.is_ok()
    }

    #[test]
    fn ranges_begin_and_end_where_their_errors_say() {
        let ranges: [(Reader, f64, bool, f64); 11] = [
            // From where, whether that is in it, and up to where.
            (positive, 0.0, false, f64::MAX),
            (non_negative, 0.0, true, f64::MAX),
            (transfer_rate, 1e3, true, 1e15),
            (|input| optional_peak(input).map(Option::unwrap_or_default), 1e6, true, 1e18),
            (host_seconds, 0.0, true, 3600.0),
            (factor, 0.0, false, 1000.0),
            (slowing, 1.0, true, 1000.0),
            (multiple, 0.0, true, 1000.0),
            (exponent, 0.0, true, 3.0),
            (fraction, 0.0, false, 1.0),
            (at_least_one, 1.0, true, f64::MAX),
        ];
        for (index, (read, least, has_least, most)) in ranges.into_iter().enumerate() {
            assert_eq!(takes(read, least), has_least, "range {index}");
            assert!(takes(read, least.next_up()) && !takes(read, least.next_down()), "{index}");
            assert!(takes(read, most) && !takes(read, most.next_up()), "range {index}");
            assert!(takes(read, (least + most.min(least + 8.0)) / 2.0), "range {index}");
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
                assert!(!takes(read, value), "range {index}: {value}");
            }
        }
    }

    #[test]
    fn fractions_by_name_are_fractions_each() {
        for value in [-0.5, 0.0, f64::MIN_POSITIVE, 0.5, 1.0, 1.0f64.next_up(), f64::NAN] {
            let read = |other: f64| {
                let named = [("one", other), ("other", value)].into_iter();
                let input = serde::de::value::MapDeserializer::<_, Error>::new(named);
                fractions::<_, String>(input)
            };
            assert_eq!(read(1.0).is_ok(), takes(fraction, value), "{value}");
            assert!(read(2.0).is_err());
        }
    }

    #[test]
    fn counts_are_whole_and_above_none() {
        let read = |value: u32| {
            let input: U32Deserializer<Error> = value.into_deserializer();
            count(input).ok()
        };
        let all = [0, 1, u32::MAX].map(read);
        assert_eq!(all, [None, Some(1), Some(u32::MAX)]);
    }
}
