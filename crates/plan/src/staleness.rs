//! How old the weights may be that workers of parameter servers get.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many steps a worker may be ahead of the slowest. In text a whole number, or `unbounded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staleness {
    /// At most so many (Ho et al. 2013, NIPS, stale synchronous parallel); with 0 training is synchronous.
    Within(u32),
    /// Any number: no worker waits for another (asynchronous).
    Unbounded,
}

const UNBOUNDED: &str = "unbounded";

impl Staleness {
    /// Workers that wait for each other at every step.
    pub const SYNCHRONOUS: Staleness = Staleness::Within(0);

    /// The bound, if there is one.
    pub fn bound(self) -> Option<u32> {
        match self {
            Staleness::Within(steps) => Some(steps),
            Staleness::Unbounded => None,
        }
    }
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Staleness::Within(steps) => write!(f, "{steps}"),
            Staleness::Unbounded => f.write_str(UNBOUNDED),
        }
    }
}

impl FromStr for Staleness {
    type Err = String;

    fn from_str(text: &str) -> Result<Staleness, String> {
        match text.parse() {
            Ok(steps) => Ok(Staleness::Within(steps)),
            Err(_) if text == UNBOUNDED => Ok(Staleness::Unbounded),
            Err(_) => Err(format!("{text} is neither a whole number of steps nor {UNBOUNDED}")),
        }
    }
}

/// Bounds on staleness that one may have which follows how far apart workers are. In text the least and the most steps,
/// `1:4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessLimits {
    /// The least steps that a bound may be.
    pub least: u32,
    /// The most.
    pub most: u32,
}

impl fmt::Display for StalenessLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.least, self.most)
    }
}

impl FromStr for StalenessLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<StalenessLimits, String> {
        let limits = text.split_once(':').and_then(|(least, most)| {
            Some(StalenessLimits { least: least.parse().ok()?, most: most.parse().ok()? })
        });
        limits.ok_or_else(|| "two whole numbers of steps are needed, as in 1:4".to_owned())
    }
}

impl Serialize for Staleness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Staleness::Within(steps) => serializer.serialize_u32(*steps),
            Staleness::Unbounded => serializer.serialize_str(UNBOUNDED),
        }
    }
}

impl<'de> Deserialize<'de> for Staleness {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Staleness, D::Error> {
        deserializer.deserialize_any(Read)
    }
}

/// Reads a number or a word.
struct Read;

impl Visitor<'_> for Read {
    type Value = Staleness;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number of steps, or \"{UNBOUNDED}\"")
    }

    fn visit_i64<E: Error>(self, steps: i64) -> Result<Staleness, E> {
        let steps = u32::try_from(steps);
        let wrong = || E::custom(format!("at least 0 steps and below 2^32, or \"{UNBOUNDED}\""));
        steps.map(Staleness::Within).map_err(|_| wrong())
    }

    fn visit_u64<E: Error>(self, steps: u64) -> Result<Staleness, E> {
        self.visit_i64(i64::try_from(steps).unwrap_or(i64::MAX))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Staleness, E> {
        match word {
            UNBOUNDED => Ok(Staleness::Unbounded),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
}
