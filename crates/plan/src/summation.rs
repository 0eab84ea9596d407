//! Servers that sum gradients and send the sums back.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Servers that sum (the Summation Service of Jiang et al. 2020, OSDI, BytePS; the servers of Thangakrishnan et
/// al. 2020, SC, Herring): every pipeline is one stage with the whole model, a worker, which holds weights and
/// optimizer state and updates them. It sends pieces of its gradients to the servers as they become whole; each
/// server sums a piece over all workers and sends them the sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summation {
    /// How many there are on machines of their own: the devices after those of the pipelines.
    pub servers: u32,
    /// Whether each worker's device has a server besides. These sum what the others leave, instead of the workers
    /// themselves; they come after the others, in the order of workers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub colocated: bool,
    /// How buckets are cut into pieces, and whose each is.
    #[serde(default, skip_serializing_if = "Ranges::is_default")]
    pub ranges: Ranges,
    /// How much of each bucket those on machines of their own sum. The workers sum the rest among themselves, by a
    /// direct all-reduce, unless there are colocated servers.
    #[serde(default, skip_serializing_if = "Share::is_default")]
    pub share: Share,
    /// In which order workers send pieces and servers their sums, and when workers update.
    #[serde(default, skip_serializing_if = "SendOrder::is_default")]
    pub order: SendOrder,
    /// With `order = "next-use"`, how many pieces and sums of a process, one of its worker and its server, may be under
    /// way to others at a time, the rest waiting for their turn; 4 unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<NonZeroU32>,
}

/// How buckets are cut into pieces for servers that sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranges {
    /// Pieces of at most a bucket's bytes, which consistent hashing deals to the servers.
    #[default]
    Hashed,
    /// As many pieces of each bucket as there are servers, equal but for one element: the first is the first
    /// server's, and so on.
    Equal,
}

/// In which order workers send pieces of gradients to servers that sum, and when they update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendOrder {
    /// As they become whole, which is that of the backward pass. A step ends with all updates.
    #[default]
    Backward,
    /// Of those that are whole, first those of what the next forward pass uses first; and that pass waits for the
    /// update of a bucket only where it first uses it, unless updates depend on the norm of all gradients (Peng et al.
    /// 2019, SOSP, ByteScheduler; Jiang et al. 2020, OSDI).
    NextUse,
}

/// How much of each bucket servers sum. In text a number above 0 and up to 1, or `balanced`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// So much of it.
    Part(f64),
    /// As much as makes all links equally busy, see [`Share::part`].
    Balanced,
}

const BALANCED: &str = "balanced";

/// How many pieces may be under way where a plan does not say.
const CREDITS: u32 = 4;

impl Summation {
    /// So many servers, which sum all.
    pub fn of(servers: u32) -> Summation {
        let (ranges, share) = (Ranges::default(), Share::default());
        let order = SendOrder::default();
        Summation { servers, colocated: false, ranges, share, order, credits: None }
    }

    /// How many there are for so many workers, colocated ones included.
    pub fn of_workers(&self, workers: usize) -> u32 {
        with_colocated(self.servers, self.colocated, workers)
    }

    /// How much of a bucket servers on machines of their own sum for so many workers, from 0 to 1.
    pub fn own_part(&self, workers: usize) -> f64 {
        if self.servers == 0 { 0.0 } else { self.share.part(workers, self.servers) }
    }

    /// How many pieces and sums of a process may be under way to others at a time; none if all may.
    pub fn most_under_way(&self) -> Option<u32> {
        let by_priority = self.order == SendOrder::NextUse;
        by_priority.then(|| self.credits.map_or(CREDITS, NonZeroU32::get))
    }
}

/// So many servers, and one for each worker if they are colocated.
pub(crate) fn with_colocated(own: u32, colocated: bool, workers: usize) -> u32 {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    own.saturating_add(if colocated { workers } else { 0 })
}

impl SendOrder {
    /// All of them.
    pub const ALL: [SendOrder; 2] = [SendOrder::Backward, SendOrder::NextUse];

    fn is_default(&self) -> bool {
        *self == SendOrder::default()
    }

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SendOrder::Backward => "backward",
            SendOrder::NextUse => "next-use",
        }
    }
}

impl FromStr for SendOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<SendOrder, String> {
        let found = SendOrder::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text} is neither backward nor next-use"))
    }
}

impl fmt::Display for SendOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Ranges {
    /// All of them.
    pub const ALL: [Ranges; 2] = [Ranges::Hashed, Ranges::Equal];

    fn is_default(&self) -> bool {
        *self == Ranges::default()
    }

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Ranges::Hashed => "hashed",
            Ranges::Equal => "equal",
        }
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Ranges, String> {
        let found = Ranges::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text} is neither hashed nor equal"))
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Default for Share {
    fn default() -> Share {
        Share::Part(1.0)
    }
}

impl Share {
    fn is_default(&self) -> bool {
        *self == Share::default()
    }

    /// How much of a bucket so many servers sum for so many workers, from 0 to 1.
    ///
    /// Balanced, with n workers, k servers and links of equal bandwidth in both directions: a server that sums
    /// M<sub>c</sub> of M bytes receives and sends n M<sub>c</sub>; a worker that sums M<sub>g</sub> sends (and
    /// receives) k M<sub>c</sub> to servers, (n - 1) M<sub>g</sub> for others to sum, and (n - 1) M<sub>g</sub>
    /// of sums. With k M<sub>c</sub> + n M<sub>g</sub> = M these are equal at
    /// M<sub>c</sub> = 2 (n - 1) M / (n<sup>2</sup> + k n - 2 k) (Jiang et al. 2020, OSDI, section 3.2).
    /// From as many servers as workers on, servers sum all.
    pub fn part(self, workers: usize, servers: u32) -> f64 {
        let (n, k) = (workers as f64, f64::from(servers));
        match self {
            Share::Part(part) => part,
            Share::Balanced if k >= n => 1.0,
            Share::Balanced => 2.0 * k * (n - 1.0) / (n * n + k * n - 2.0 * k),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Part(part) => write!(f, "{part}"),
            Share::Balanced => f.write_str(BALANCED),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        match text.parse::<f64>() {
            Ok(part) if part.is_finite() => Ok(Share::Part(part)),
            Err(_) if text == BALANCED => Ok(Share::Balanced),
            _ => Err(format!("{text} is neither a number nor {BALANCED}")),
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Share::Part(part) => serializer.serialize_f64(*part),
            Share::Balanced => serializer.serialize_str(BALANCED),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        deserializer.deserialize_any(Read)
    }
}

/// Reads a number or a word.
struct Read;

impl Visitor<'_> for Read {
    type Value = Share;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number above 0 and up to 1, or \"{BALANCED}\"")
    }

    fn visit_i64<E: Error>(self, part: i64) -> Result<Share, E> {
        Ok(Share::Part(part as f64))
    }

    fn visit_u64<E: Error>(self, part: u64) -> Result<Share, E> {
        Ok(Share::Part(part as f64))
    }

    fn visit_f64<E: Error>(self, part: f64) -> Result<Share, E> {
        Ok(Share::Part(part))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Share, E> {
        match word {
            BALANCED => Ok(Share::Balanced),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share at which the busiest link takes least, of 100,000.
    #[test]
    fn the_balanced_share_is_the_one_with_which_the_busiest_link_takes_least() {
        for workers in 2..=9_u32 {
            for servers in 1..=workers {
                let (n, k) = (f64::from(workers), f64::from(servers));
                let busiest = |share: f64| {
                    let (of_server, of_worker) = (share / k, (1.0 - share) / n);
                    let worker = k * of_server + 2.0 * (n - 1.0) * of_worker;
                    worker.max(n * of_server)
                };
                let all = (0..=100_000).map(|it| f64::from(it) / 100_000.0);
                let best = all.min_by(|a, b| busiest(*a).total_cmp(&busiest(*b))).expect("shares");
                let found = Share::Balanced.part(workers as usize, servers);
                assert!(busiest(found) <= busiest(best) + 1e-12);
                // Of two workers' gradients servers may sum less, too, as it makes no difference.
                let is_best = workers == 2 || (found - best).abs() < 2e-5;
                assert!(is_best, "{found} for {best}: {workers} and {servers}");
                // The published time, of a gradient of one byte at a byte a second.
                let time = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k);
                assert!((busiest(found) - time).abs() < 1e-12);
            }
            assert_eq!(Share::Balanced.part(workers as usize, workers + 1), 1.0);
        }
        assert_eq!(Share::Balanced.part(1, 1), 1.0);
    }
}
