use serde::{Deserialize, Serialize};

use crate::{Link, checked};

/// What a node of one kind has besides its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeKind {
    /// Devices in one node.
    #[serde(deserialize_with = "checked::count")]
    pub devices: u32,
    /// All that a node's devices together can send out of it, per direction.
    #[serde(deserialize_with = "checked::transfer_rate")]
    pub uplink_bytes_per_second: f64,
    /// How many times less than the nodes' uplinks the network above them carries,
    /// when all talk; 1 for a non-blocking network.
    #[serde(deserialize_with = "checked::at_least_one", default = "non_blocking")]
    pub oversubscription: f64,
    /// From one device to another in the node. On a torus, one direction of one of
    /// the device's links.
    pub intra: Link,
    /// From one device out of the node, if it is the only one.
    pub inter: Link,
    /// Present where devices of all nodes are wired to each other directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torus: Option<Torus>,
}

fn non_blocking() -> f64 {
    1.0
}

impl NodeKind {
    /// Has all devices of a node together send out `bytes_per_second`. One alone sends what it did, or its
    /// equal share of that where this is more.
    pub fn send_out(&mut self, bytes_per_second: f64) {
        let share = bytes_per_second / f64::from(self.devices);
        self.uplink_bytes_per_second = bytes_per_second;
        self.inter.bytes_per_second = self.inter.bytes_per_second.max(share);
    }

    /// What leaves a node per second when all its traffic crosses the network.
    pub(crate) fn reachable_uplink(&self) -> f64 {
        self.uplink_bytes_per_second * self.inter.reachable / self.oversubscription
    }
}

/// Devices on a torus, every one linked to two neighbours per axis.
///
/// Approximation: all devices of a node group form one torus with equal sides, and
/// groups lie along its axes. A collective of n devices spans the least number of
/// axes whose sides multiply to n, runs rings along all of them in both directions
/// at once, and so has `2 * axes` links of bandwidth; groups do not disturb each
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Torus {
    /// Number of axes.
    #[serde(deserialize_with = "checked::count")]
    pub axes: u32,
}

impl Torus {
    /// Links one device uses at once in a collective of `members` out of `devices`.
    pub(crate) fn links(self, members: u32, devices: u32) -> f64 {
        if members <= 2 {
            return 1.0;
        }
        let side = f64::from(devices).powf(1.0 / f64::from(self.axes));
        // Rounding must not push a full plane onto a further axis.
        let spanned = (f64::from(members).ln() / side.ln() - 1e-9).ceil();
        2.0 * spanned.clamp(1.0, f64::from(self.axes))
    }
}
