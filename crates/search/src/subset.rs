//! Some of a cluster's machines: fewer may train faster than all.

use shardloom_cluster::{Cluster, DeviceId, NodeGroup, Precision};
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

    /// The machines of some kinds, which are devices in nodes of so many: of each kind, and of the two, three and
    /// so on that are fastest in `precision`, but not of all.
    ///
    /// # Errors
    /// If a device does not compute in that precision.
    pub fn of_kinds(cluster: &Cluster, precision: Precision) -> Result<Vec<Subset>, SearchError> {
        let mut kinds: Vec<(&NodeGroup, f64)> = vec![];
        for group in cluster.groups() {
            if kinds.iter().all(|(known, _)| !is_one_kind(known, group)) {
                kinds.push((group, group.profile.device.peak_flops(precision)?));
            }
        }
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kinds: Vec<&NodeGroup> = kinds.into_iter().map(|(kind, _)| kind).collect();
        if kinds.len() < 2 {
            return Ok(vec![]);
        }
        let alone = kinds.chunks(1);
        let fastest = (2..kinds.len()).map(|count| &kinds[..count]);
        let all = Subset::all(cluster);
        let of = |kinds: &[&NodeGroup]| {
            all.with(|group| match kinds.iter().any(|kind| is_one_kind(kind, group)) {
                true => group.clone(),
                false => NodeGroup { nodes: 0, ..group.clone() },
            })
        };
        let found: Result<Vec<_>, SearchError> = alone.chain(fastest).map(of).collect();
        Ok(found?.into_iter().flatten().collect())
    }

    /// The next fewer machines: as many devices of each node, fewer of the nodes, then fewer devices of the only node.
    /// Four numbers of them are tried for each halving, of up to eight all: batches and widths may divide by one that is
    /// no power of two. Devices of a node are made a power of two first.
    ///
    /// # Errors
    /// None: there is at least one of each.
    pub fn fewer(&self) -> Result<Option<Subset>, SearchError> {
        let groups = self.cluster.groups();
        let nodes = self.cluster.node_count();
        if groups.iter().any(|group| !group.devices_per_node.is_power_of_two()) {
            let devices = |group: &NodeGroup| match group.devices_per_node {
                devices if devices.is_power_of_two() => devices,
                devices => below(devices),
            };
            return self
                .with(|group| NodeGroup { devices_per_node: devices(group), ..group.clone() });
        }
        if nodes == 1 {
            return self.with(|group| NodeGroup {
                devices_per_node: below(group.devices_per_node),
                ..group.clone()
            });
        }
        let mut left = below(nodes);
        self.with(|group| {
            let nodes = group.nodes.min(left);
            left -= nodes;
            NodeGroup { nodes, ..group.clone() }
        })
    }

    /// The first nodes, and their first devices, of each group: as many as `keep` says; none if that is none.
    fn with(
        &self,
        mut keep: impl FnMut(&NodeGroup) -> NodeGroup,
    ) -> Result<Option<Subset>, SearchError> {
        let (mut groups, mut devices, mut first) = (vec![], vec![], 0);
        for group in self.cluster.groups() {
            let kept = keep(group);
            for node in 0..kept.nodes {
                let first = first + (node * group.devices_per_node) as usize;
                devices.extend(&self.devices[first..][..kept.devices_per_node as usize]);
            }
            first += group.devices() as usize;
            if kept.devices() > 0 {
                groups.push(kept);
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

    /// Whether a device of the whole cluster is one of them.
    pub fn has(&self, device: u32) -> bool {
        self.devices.contains(&device)
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

/// The largest number below, of those with at most three bits that count: 7, 6, 5 and 4 times powers of two.
fn below(number: u32) -> u32 {
    let most = number.saturating_sub(1);
    let shift = most.checked_ilog2().unwrap_or(0).saturating_sub(2);
    most >> shift << shift
}

/// Whether two groups have the same devices, in nodes of as many.
fn is_one_kind(a: &NodeGroup, b: &NodeGroup) -> bool {
    (&a.profile.device, a.devices_per_node) == (&b.profile.device, b.devices_per_node)
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Uniform};

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
    fn nodes_of_other_sizes_are_another_kind() {
        let uneven = cluster("h100-80g:1x3+h100-80g:2x8");
        let kinds = Subset::of_kinds(&uneven, Precision::Bf16).expect("all compute in it");
        let mut counts: Vec<usize> = kinds.iter().map(Subset::count).collect();
        counts.sort_unstable();
        assert_eq!(counts, [3, 16]);
    }

    #[test]
    fn four_numbers_of_machines_are_tried_for_each_halving() {
        let counts = |text: &str| {
            let mut subset = Subset::all(&cluster(text));
            let mut counts = vec![];
            while let Some(fewer) = subset.fewer().expect("machines") {
                counts.push((fewer.cluster.node_count(), fewer.count()));
                subset = fewer;
            }
            counts
        };
        let expected = [
            [(5, 36), (5, 34), (5, 32)].to_vec(),
            [(4, 28), (3, 24), (2, 16), (1, 8)].to_vec(),
            (1..8).rev().map(|devices| (1, devices)).collect(),
        ];
        assert_eq!(counts("h100-80g:3x8+a100-80g:2x7"), expected.concat());
        let nodes: Vec<u32> = counts("h100-80g:124x1").iter().map(|it| it.0).collect();
        let expected = [112, 96, 80, 64, 56, 48, 40, 32, 28, 24, 20, 16, 14, 12, 10];
        assert_eq!(nodes, [&expected[..], &[8, 7, 6, 5, 4, 3, 2, 1]].concat());
    }

    /// Each device of a plan becomes one of the same kind, together with the same others in a node, and in its place.
    #[test]
    fn a_plan_for_some_machines_has_their_devices_in_the_whole_cluster() {
        let text = "mlp:inputs=4,hidden=8,layers=2,classes=2";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let in_whole = |subset: &Subset, order: &[u32]| {
            let mesh = Mesh::of(order.len() as u32, 1, 1);
            let mut plan = Uniform { mesh, ..Uniform::default() }.plan(&graph, text, "c");
            plan.pipeline[0].stage[0].devices.0 = order.to_vec();
            subset.in_whole(plan).pipeline[0].stage[0].devices.0.clone()
        };
        let four_of_five = Subset::all(&cluster("h100-80g:2x5")).fewer().expect("machines");
        let four_of_five = four_of_five.expect("there are fewer");
        assert_eq!(in_whole(&four_of_five, &[0, 3, 4, 7]), [0, 3, 5, 8]);
        let mut subsets = 0;
        for text in
            ["h100-80g:3x6+a100-80g:2x5", "a100-80g:1x2+h100-80g:2x2+v100-32g:1x3", "h100-80g:4x1"]
        {
            let whole = cluster(text);
            let mut found = Subset::of_kinds(&whole, Precision::Fp16).expect("all compute in it");
            found.push(Subset::all(&whole));
            for mut subset in found {
                loop {
                    subsets += 1;
                    let own = &subset.cluster;
                    let order: Vec<u32> = (0..subset.count() as u32).rev().collect();
                    let devices = in_whole(&subset, &order);
                    for (&here, &there) in order.iter().zip(&devices) {
                        let kind = |cluster: &Cluster, device| {
                            cluster.kind_of(DeviceId(device)).expect("a device").name.clone()
                        };
                        assert_eq!(kind(own, here), kind(&whole, there), "{text}: {devices:?}");
                        for (&beside, &other) in order.iter().zip(&devices) {
                            let node = |cluster: &Cluster, device| {
                                cluster.node_of(DeviceId(device)).expect("a device")
                            };
                            let together = node(own, here) == node(own, beside);
                            let same = node(&whole, there) == node(&whole, other);
                            assert_eq!(together, same, "{text}: {devices:?}");
                            assert_eq!(here == beside, there == other, "{text}: {devices:?}");
                        }
                    }
                    let Some(fewer) = subset.fewer().expect("machines") else { break };
                    subset = fewer;
                }
            }
        }
        assert!(subsets > 15, "{subsets}");
    }
}
