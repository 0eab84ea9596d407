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
