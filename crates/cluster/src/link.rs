use serde::{Deserialize, Serialize};

use crate::{Curve, checked};

/// One way of moving bytes, in one direction, by one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Time before the first byte arrives.
    #[serde(deserialize_with = "checked::non_negative")]
    pub latency_seconds: f64,
    /// Nominal bandwidth of one direction.
    #[serde(deserialize_with = "checked::transfer_rate")]
    pub bytes_per_second: f64,
    /// Fraction of the nominal bandwidth that large messages reach.
    #[serde(deserialize_with = "checked::fraction", default = "whole")]
    pub reachable: f64,
    /// Measured `(bytes, seconds)` points; where present, they replace the fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<Curve>,
}

fn whole() -> f64 {
    1.0
}

impl Link {
    /// Time one message of `bytes` takes with the link to itself. Nothing takes no
    /// time.
    ///
    /// `latency + bytes / (bandwidth * reachable)`, or the measured curve, which
    /// starts at the latency for small messages.
    pub fn transfer_seconds(&self, bytes: f64) -> f64 {
        match &self.curve {
            _ if bytes <= 0.0 => 0.0,
            Some(curve) => curve.seconds(bytes, self.latency_seconds),
            None => self.latency_seconds + bytes / self.reachable_bytes_per_second(),
        }
    }

    /// Bandwidth that large messages reach, going by the fraction.
    pub fn reachable_bytes_per_second(&self) -> f64 {
        self.bytes_per_second * self.reachable
    }

    /// Time of `bytes` where only `bytes_per_second` are to be had.
    pub(crate) fn throttled_seconds(&self, bytes: f64, bytes_per_second: f64) -> f64 {
        self.transfer_seconds(bytes * self.reachable_bytes_per_second() / bytes_per_second)
    }
}

/// What lies between two devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path<'a> {
    /// The slowest link a message between the two goes through.
    pub link: &'a Link,
    /// What all messages that leave (or enter) the slower of the two nodes share;
    /// none where the two devices sit in one node.
    pub shared_bytes_per_second: Option<f64>,
}

impl Path<'_> {
    /// Time of one message of `bytes` while `concurrent` messages, this one
    /// included, leave the node.
    pub fn transfer_seconds(&self, bytes: f64, concurrent: u32) -> f64 {
        let own = self.link.reachable_bytes_per_second();
        let share = self
            .shared_bytes_per_second
            .map_or(own, |shared| own.min(shared / f64::from(concurrent.max(1))));
        self.link.throttled_seconds(bytes, share)
    }
}
