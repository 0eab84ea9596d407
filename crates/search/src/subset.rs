//! Some of a cluster's machines: fewer may train faster than all.

use shardloom_cluster::{Cluster, DeviceId, DeviceKind, NodeGroup, Precision};
use shardloom_plan::Plan;

use crate::SearchError;

/// Devices of a cluster as a cluster of their own.
#[derive(Clone, Debug)]
pub(crate) struct Subset {
    /// The machines.
    pub cluster: Cluster,
    /// The device of the whole cluster that each device is.
    devices: Vec<u32>,
}

impl Subset {
    /// All of `cluster`.
    pub fn all(cluster: &Cluster) -> Subset {
        let devices = cluster.devices().map(|DeviceId(device)| device).collect();
        Subset { cluster: cluster.clone(), devices }
    }

    /// The machines of some kinds of device: of each kind, and of the two, three and so on that are fastest in
    /// `precision`, but not of all.
    ///
    /// # Errors
    /// If a device does not compute in that precision.
    pub fn of_kinds(cluster: &Cluster, precision: Precision) -> Result<Vec<Subset>, SearchError> {
        let mut kinds: Vec<(&DeviceKind, f64)> = vec![];
        for group in cluster.groups() {
            let kind = &group.profile.device;
            if kinds.iter().all(|(known, _)| *known != kind) {
                kinds.push((kind, kind.peak_flops(precision)?));
            }
        }
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kinds: Vec<&DeviceKind> = kinds.into_iter().map(|(kind, _)| kind).collect();
        if kinds.len() < 2 {
            return Ok(vec![]);
        }
        let alone = kinds.chunks(1);
        let fastest = (2..kinds.len()).map(|count| &kinds[..count]);
        alone.chain(fastest).map(|kinds| Subset::with_kinds(cluster, kinds)).collect()
    }

    fn with_kinds(cluster: &Cluster, kinds: &[&DeviceKind]) -> Result<Subset, SearchError> {
        let (mut groups, mut devices, mut first) = (vec![], vec![], 0);
        for group in cluster.groups() {
            let end = first + group.devices();
            if kinds.contains(&&group.profile.device) {
                groups.push(group.clone());
                devices.extend(first..end);
            }
            first = end;
        }
        Ok(Subset { cluster: cluster.with_groups(groups)?, devices })
    }

    /// Half of its nodes, the first ones, or half of the devices of its only node; none of a single device.
    ///
    /// # Errors
    /// None: there is at least one of each.
    pub fn half(&self) -> Result<Option<Subset>, SearchError> {
        let (mut groups, mut devices, mut first) = (vec![], vec![], 0);
        let mut nodes = self.cluster.node_count() / 2;
        for group in self.cluster.groups() {
            let count = match self.cluster.node_count() {
                1 => NodeGroup { devices_per_node: group.devices_per_node / 2, ..group.clone() },
                _ => NodeGroup { nodes: group.nodes.min(nodes), ..group.clone() },
            };
            nodes -= count.nodes.min(nodes);
            devices.extend(&self.devices[first..][..count.devices() as usize]);
            first += group.devices() as usize;
            if count.devices() > 0 {
                groups.push(count);
            }
        }
        match groups.is_empty() {
            true => Ok(None),
            false => Ok(Some(Subset { cluster: self.cluster.with_groups(groups)?, devices })),
        }
    }

    /// How many devices there are.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// A plan for these machines as one for the whole cluster.
    pub fn in_whole(&self, mut plan: Plan) -> Plan {
        for stage in plan.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
            for device in &mut stage.devices.0 {
                *device = self.devices[*device as usize];
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &str) -> Cluster {
        Cluster::parse(text).expect("a cluster")
    }

    #[test]
    fn kinds_keep_the_numbers_of_their_devices() {
        let mixed = cluster("a100-80g:1x2+h100-80g:2x2+v100-32g:1x1");
        let kinds = Subset::of_kinds(&mixed, Precision::Fp16).expect("all compute in it");
        let devices: Vec<&[u32]> = kinds.iter().map(|it| &it.devices[..]).collect();
        assert_eq!(devices, [&[2, 3, 4, 5][..], &[0, 1], &[6], &[0, 1, 2, 3, 4, 5]]);
        assert_eq!(kinds[0].cluster.device_count(), 4);
        let alike = cluster("h100-80g:2x8");
        assert!(Subset::of_kinds(&alike, Precision::Bf16).expect("they do").is_empty());
    }

    #[test]
    fn halves_are_whole_nodes_and_then_devices() {
        let mut subset = Subset::all(&cluster("h100-80g:3x8+a100-80g:2x8"));
        let mut counts = vec![];
        while let Some(half) = subset.half().expect("machines") {
            counts.push((half.cluster.node_count(), half.count()));
            subset = half;
        }
        assert_eq!(counts, [(2, 16), (1, 8), (1, 4), (1, 2), (1, 1)]);
    }
}
