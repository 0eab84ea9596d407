//! Which groups and messages share the way out of a node.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use shardloom_cluster::{Cluster, DeviceId, NodeId};
use shardloom_program::{ClassId, Group, Message, Program, Route};

use crate::SimError;

/// Ranks of a program that run one collective at the same time, each in its own group.
pub(crate) struct Siblings {
    /// The devices of each group.
    pub groups: Vec<Vec<DeviceId>>,
    /// The group of each position of the mesh; empty where all ranks are in the one group.
    pub group_of: Vec<usize>,
}

impl Siblings {
    /// All groups like `group` of `class`.
    pub fn of(program: &Program, class: ClassId, group: &Group) -> Siblings {
        let size = program.class(class).mesh.size();
        let devices = |position: usize| {
            let members = program.members(class, position, group).into_iter();
            members.map(|rank| device_of(program, rank)).collect()
        };
        match group {
            Group::World => Siblings { groups: vec![devices(0)], group_of: vec![] },
            Group::Classes(_) => {
                Siblings { groups: (0..size).map(devices).collect(), group_of: (0..size).collect() }
            }
            Group::Mesh(axes) => {
                let mesh = &program.class(class).mesh;
                let mut siblings = Siblings { groups: vec![], group_of: vec![usize::MAX; size] };
                for position in 0..size {
                    if siblings.group_of[position] != usize::MAX {
                        continue;
                    }
                    for member in mesh.members_along(position, axes) {
                        siblings.group_of[member] = siblings.groups.len();
                    }
                    siblings.groups.push(devices(position));
                }
                siblings
            }
        }
    }

    /// For each group: how many, itself included, have members in one of its nodes and elsewhere.
    pub fn concurrent(&self, cluster: &Cluster) -> Result<Vec<u32>, SimError> {
        let mut leaving: FxHashMap<NodeId, u32> = FxHashMap::default();
        let mut nodes_of = vec![];
        for group in &self.groups {
            let nodes: BTreeSet<NodeId> =
                group.iter().map(|&device| cluster.node_of(device)).collect::<Result<_, _>>()?;
            if nodes.len() > 1 {
                nodes.iter().for_each(|&node| *leaving.entry(node).or_default() += 1);
            }
            nodes_of.push(nodes);
        }
        let most = |nodes: &BTreeSet<NodeId>| {
            nodes.iter().filter_map(|node| leaving.get(node).copied()).max().unwrap_or(1)
        };
        Ok(nodes_of.iter().map(most).collect())
    }
}

fn device_of(program: &Program, rank: shardloom_program::Rank) -> DeviceId {
    let (class, position) = program.locate(rank);
    program.class(class).devices[position]
}

/// For each message of `route`: how many of its senders, or receivers, share the way out of (into) one
/// of the two nodes with it, itself included. One sender's messages go one after another.
pub(crate) fn concurrent_messages(
    program: &Program,
    cluster: &Cluster,
    route: &Route,
) -> Result<Vec<u32>, SimError> {
    let nodes = |class: ClassId| -> Result<Vec<NodeId>, SimError> {
        let devices = program.class(class).devices.iter();
        Ok(devices.map(|&device| cluster.node_of(device)).collect::<Result<_, _>>()?)
    };
    let (mut leaving, mut entering) = (Way::of(nodes(route.from)?), Way::of(nodes(route.to)?));
    let crosses = |message: &Message| leaving.nodes[message.from] != entering.nodes[message.to];
    let crosses: Vec<bool> = route.messages.iter().map(crosses).collect();
    for (message, _) in route.messages.iter().zip(&crosses).filter(|(_, crosses)| **crosses) {
        leaving.take(message.from);
        entering.take(message.to);
    }
    let concurrent = |(message, crosses): (&Message, &bool)| match crosses {
        true => leaving.takers(message.from).max(entering.takers(message.to)),
        false => 1,
    };
    Ok(route.messages.iter().zip(&crosses).map(concurrent).collect())
}

/// The ways out of, or into, the nodes of a class's positions, and who takes them.
struct Way {
    /// Of each position.
    nodes: Vec<NodeId>,
    /// Whether a position takes the way of its node.
    taken: Vec<bool>,
    /// How many positions take the way of a node.
    takers: FxHashMap<NodeId, u32>,
}

impl Way {
    fn of(nodes: Vec<NodeId>) -> Way {
        Way { taken: vec![false; nodes.len()], nodes, takers: FxHashMap::default() }
    }

    fn take(&mut self, position: usize) {
        if !std::mem::replace(&mut self.taken[position], true) {
            *self.takers.entry(self.nodes[position]).or_default() += 1;
        }
    }

    /// How many take the way that `position` takes.
    fn takers(&self, position: usize) -> u32 {
        self.takers.get(&self.nodes[position]).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use shardloom_collectives::Algorithm;
    use shardloom_graph::families::GptConfig;
    use shardloom_plan::{Axis, DeviceList, Mesh, ScheduleKind, Sync, Uniform};

    use super::*;

    /// Two stages of dp 2 x tp 4 on the first 16 of a cluster's devices.
    fn program() -> Program {
        program_on([0..8, 8..16].map(|it| it.collect()))
    }

    /// Two stages of dp 2 x tp 4 on these devices.
    fn program_on(devices: [Vec<u32>; 2]) -> Program {
        let config = GptConfig {
            layers: 2,
            hidden: 16,
            heads: 4,
            seq: 8,
            vocab: 16,
            padded_vocab: None,
            ffn: None,
            dropout: 0.0,
            attention_dropout: None,
            embedding_dropout: None,
            rotary: None,
            rope_theta: None,
            parallel: false,
            head_bias: false,
            tied: true,
            separate_loss: false,
            norm_epsilon: 1e-5,
            init_std: 0.02,
        };
        let graph = config.graph("gpt").unwrap();
        let plan = Uniform {
            pp: 2,
            mesh: Mesh::of(2, 1, 4),
            global_batch: 4,
            microbatches: 2,
            schedule: ScheduleKind::Afab,
            sync: Sync { algorithm: Algorithm::Ring, zero: 0, bucket_bytes: 1, ..Sync::default() },
            ..Uniform::default()
        };
        let mut plan = plan.plan(&graph, "gpt", "c");
        for (stage, devices) in plan.pipeline[0].stage.iter_mut().zip(devices) {
            stage.devices = DeviceList(devices);
        }
        shardloom_program::lower(&graph, &plan, 64).unwrap()
    }

    fn concurrent(cluster: &str, group: &Group) -> Vec<u32> {
        let cluster = Cluster::parse(cluster).unwrap();
        Siblings::of(&program(), ClassId(0), group).concurrent(&cluster).unwrap()
    }

    #[test]
    fn groups_within_a_node_have_its_links_to_themselves() {
        assert_eq!(concurrent("h100-80g:2x8", &Group::Mesh(vec![Axis::DP])), [1; 4]);
        assert_eq!(concurrent("h100-80g:4x4", &Group::Mesh(vec![Axis::TP])), [1; 2]);
        assert_eq!(concurrent("h100-80g:2x8", &Group::World), [1]);
    }

    #[test]
    fn groups_that_leave_a_node_share_its_uplink() {
        // Four data-parallel groups, each with a member in both of the stage's nodes.
        assert_eq!(concurrent("h100-80g:4x4", &Group::Mesh(vec![Axis::DP])), [4; 4]);
        assert_eq!(concurrent("h100-80g:8x2", &Group::Mesh(vec![Axis::DP])), [2; 4]);
        // All eight positions add up their tied weights with the other stage's.
        let both = Group::Classes(vec![ClassId(0), ClassId(1)]);
        assert_eq!(concurrent("h100-80g:2x8", &both), [8; 8]);
        assert_eq!(concurrent("h100-80g:4x4", &both), [4; 8]);
    }

    #[test]
    fn messages_that_leave_a_node_share_its_uplink() {
        let program = program();
        let route = &program.routes[0];
        for (cluster, expected) in [("h100-80g:2x8", 8), ("h100-80g:4x4", 4), ("h100-80g:8x2", 2)] {
            let cluster = Cluster::parse(cluster).unwrap();
            let found = concurrent_messages(&program, &cluster, route).unwrap();
            assert_eq!(found, [expected; 8]);
        }
    }

    #[test]
    fn messages_share_the_way_out_of_one_node_or_into_the_other_whichever_has_more() {
        let of = |ranges: &[std::ops::Range<u32>]| ranges.iter().cloned().flatten().collect();
        let one: Vec<u32> = (32..40).collect();
        let halves = of(&[0..4, 8..12]);
        let pairs: Vec<u32> = of(&[0..2, 8..10, 16..18, 24..26]);
        let others = of(&[2..6, 10..14]);
        let uneven = of(&[16..22, 24..26]);
        let near = of(&[4..6, 16..22]);
        for (from, to, expected) in [
            (&pairs, &one, [8; 8]),
            (&one, &pairs, [8; 8]),
            (&pairs, &others, [1, 1, 2, 2, 4, 4, 4, 4]),
            (&halves, &uneven, [6, 6, 6, 6, 6, 6, 4, 4]),
            // Two messages stay in a node. The others that leave it are fewer than those that enter the next.
            (&halves, &near, [1, 1, 6, 6, 6, 6, 6, 6]),
        ] {
            let program = program_on([from.clone(), to.clone()]);
            let cluster = Cluster::parse("h100-80g:5x8").unwrap();
            let found = concurrent_messages(&program, &cluster, &program.routes[0]).unwrap();
            assert_eq!(found, expected, "{from:?} to {to:?}");
        }
    }
}
