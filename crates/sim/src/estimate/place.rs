//! Where the groups of a plan lie on the cluster's nodes, and over which links they talk.

use shardloom_cluster::{
    Cluster, ClusterError, Curve, DeviceId, DeviceKind, GroupShape, NodeGroup, Path, Stack,
};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_plan::Number;

use super::Candidate;
use crate::cost::copied_elements;
use crate::matmul_precision;
use crate::slowing::Slowing;

/// The cluster as estimates see it: all nodes like those of its slowest kind.
#[derive(Debug)]
pub(super) struct Place<'c> {
    group: &'c NodeGroup,
    /// The software that drives the machines.
    pub stack: &'c Stack,
    first_device: u32,
    devices: u32,
    /// The least memory of any device.
    pub memory_bytes: u64,
    /// Devices in a node.
    pub per_node: u32,
    within: Option<Path<'c>>,
    across: Option<Path<'c>>,
    /// Measured times of collectives, where computing and communicating share the cores.
    measured: Vec<Measured<'c>>,
}

impl<'c> Place<'c> {
    /// The slowest part of `cluster` at products in `precision`.
    pub fn of(cluster: &'c Cluster, number: Number) -> Result<Place<'c>, ClusterError> {
        let precision = matmul_precision(number);
        let mut slowest: Option<(f64, u32, &NodeGroup)> = None;
        let mut first_device = 0;
        let mut memory_bytes = u64::MAX;
        let mut per_node = u32::MAX;
        for group in cluster.groups() {
            let kind = &group.profile.device;
            let seconds = kind.matmul_seconds(precision, 1, 4096, 4096, 4096)?;
            if slowest.is_none_or(|(known, ..)| seconds > known) {
                slowest = Some((seconds, first_device, group));
            }
            memory_bytes = memory_bytes.min(cluster.memory_bytes(kind));
            per_node = per_node.min(group.devices_per_node);
            first_device += group.devices();
        }
        let (_, first_device, group) =
            slowest.ok_or_else(|| ClusterError::Nothing { what: "node groups".into() })?;
        let first = DeviceId(first_device);
        let within = match group.devices_per_node {
            1 => None,
            _ => cluster.link(first, DeviceId(first_device + 1))?,
        };
        let other_node = match group.nodes > 1 {
            true => Some(DeviceId(first_device + group.devices_per_node)),
            false => {
                cluster.devices().find(|it| matches!(cluster.same_node(first, *it), Ok(false)))
            }
        };
        let across = match other_node {
            Some(device) => cluster.link(first, device)?,
            None => None,
        };
        let measured = match group.profile.device.lanes_overlap {
            true => vec![],
            false => group.profile.device.rates.iter().filter_map(measured).collect(),
        };
        let devices = cluster.device_count();
        let stack = cluster.stack();
        Ok(Place {
            group,
            stack,
            first_device,
            devices,
            memory_bytes,
            per_node,
            within,
            across,
            measured,
        })
    }

    /// The device.
    pub fn device(&self) -> &'c DeviceKind {
        &self.group.profile.device
    }

    /// Time of a memory-bound operator on the device, under the software stack.
    pub fn memory_bound_seconds(&self, class: &str, elements: f64, bytes: f64) -> f64 {
        let bytes = self.stack.memory_time * self.stack.kernels(class).traffic * bytes;
        self.device().memory_bound_seconds(class, elements, bytes)
    }

    /// Time of a copy that reads and writes so many `bytes` in all.
    pub fn copy_seconds(&self, bytes: f64) -> f64 {
        self.memory_bound_seconds("copy", copied_elements(bytes), bytes)
    }

    /// The `size` devices that work on one sample, one of the slowest kind first, and how many such sets
    /// share an uplink.
    pub fn replica(&self, size: u32) -> (Vec<DeviceId>, u32) {
        let straddles = |index: u32| {
            size < self.per_node
                && (index * size) / self.per_node != (index * size + size - 1) / self.per_node
        };
        let straddling = (0..self.per_node).find(|&index| straddles(index));
        let offset = self.first_device + straddling.unwrap_or(0) * size;
        let first = offset.min(self.devices.saturating_sub(size));
        let concurrent = if straddling.is_some() { 2 } else { 1 };
        let mut devices: Vec<DeviceId> = (first..first + size).map(DeviceId).collect();
        devices.rotate_left(self.first_device.saturating_sub(first) as usize);
        (devices, concurrent)
    }

    /// Whether some stage of `candidate` exchanges messages with other nodes.
    pub fn crosses(&self, candidate: &Candidate) -> bool {
        candidate.pp > 1 && candidate.devices() > self.per_node
    }

    /// The group of `count` ranks `apart` devices from each other.
    pub fn replicas(&self, count: u32, apart: u32) -> GroupShape<'c> {
        let together = common_divisor(count * apart, self.per_node);
        let per_node = match together == count * apart {
            true => count,
            false => (together / apart).max(1),
        };
        self.group.group_shape(count, per_node, apart.min(self.per_node))
    }

    /// All `count` devices from the first on.
    pub fn world(&self, count: u32) -> GroupShape<'c> {
        self.group.group_shape(count, count.min(self.per_node), 1)
    }

    /// `count` meshes of `size` devices that hold the same parameter, the ends of a pipeline that has so many
    /// devices in all.
    pub fn holders(&self, count: u32, size: u32, devices: u32) -> GroupShape<'c> {
        if devices <= self.per_node {
            return self.group.group_shape(count, count, 1);
        }
        let concurrent = size.min(self.per_node);
        self.group.group_shape(count, 1, concurrent)
    }

    /// Whether two meshes of `size` devices are on one node, where meshes lie one behind the other and nodes hold
    /// whole ones.
    pub fn share_a_node(&self, size: u32, meshes: [u32; 2]) -> bool {
        let [one, other] = meshes.map(|mesh| mesh * size / self.per_node);
        size < self.per_node && self.per_node.is_multiple_of(size) && one == other
    }

    /// Seconds of a message of `bytes` from each device of a mesh of `size` devices to its neighbour in another one,
    /// on the same node if they are `near`.
    pub fn message_seconds(&self, bytes: f64, size: u32, near: bool) -> f64 {
        let (path, concurrent) = match (near, self.within, self.across) {
            (true, Some(path), _) | (_, Some(path), None) => (path, 1),
            (_, _, Some(path)) => (path, size.min(self.per_node)),
            (_, None, None) => return 0.0,
        };
        path.transfer_seconds(bytes, concurrent)
    }

    /// The measured times of a collective of `members`, by elements.
    pub fn measured(&self, algorithm: Algorithm, kind: Kind, members: u32) -> Option<&'c Curve> {
        let asked = (algorithm, kind, members);
        let known = self.measured.iter().find(|it| (it.algorithm, it.kind, it.members) == asked);
        known.map(|it| it.curve)
    }

    /// Whether communication runs beside computation.
    pub fn overlaps(&self) -> bool {
        self.group.profile.device.lanes_overlap
    }

    /// How much collectives slow computation down beside which they run.
    pub fn beside(&self) -> Slowing {
        Slowing(self.stack.beside_collectives)
    }
}

/// A measured collective.
#[derive(Debug)]
struct Measured<'c> {
    algorithm: Algorithm,
    kind: Kind,
    members: u32,
    curve: &'c Curve,
}

/// Reads a rate class such as `direct.all-reduce.4`; none if it is that of an operator.
fn measured<'c>((name, curve): (&String, &'c Curve)) -> Option<Measured<'c>> {
    let (rest, members) = name.rsplit_once('.')?;
    let (algorithm, kind) = rest.split_once('.')?;
    let algorithm = algorithm.parse().ok()?;
    Some(Measured { algorithm, kind: kind.parse().ok()?, members: members.parse().ok()?, curve })
}

/// The greatest number that divides both.
fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
