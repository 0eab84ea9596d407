//! Which classes are placed on nodes alike: times of messages between two classes, and of groups of one, hold for all
//! others with the same placement.

use shardloom_cluster::{Cluster, NodeId};
use shardloom_program::{Class, ClassId};

use crate::SimError;

/// For each rank of a class in order the kind of its node, by its group in the cluster, and how many nodes it is from
/// the first.
type Pattern = Vec<(usize, u32)>;

/// The patterns of a program's classes.
#[derive(Debug)]
pub(crate) struct NodePatterns {
    of_class: Vec<ClassNodes>,
}

/// The nodes of a class.
#[derive(Clone, Copy, Debug)]
struct ClassNodes {
    /// The number of its pattern.
    pattern: u32,
    first: NodeId,
    last: NodeId,
}

/// How two classes are placed: equal for pairs whose ranks, number by number, are on nodes of equal kinds and share them
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Relation {
    patterns: [u32; 2],
    /// How many nodes the second class is behind the first; nothing where they cannot have a node in common.
    behind: Option<i64>,
}

impl NodePatterns {
    /// Those of `classes`.
    ///
    /// # Errors
    /// If the cluster lacks a device.
    pub fn of(classes: &[Class], cluster: &Cluster) -> Result<NodePatterns, SimError> {
        let mut different: Vec<Pattern> = vec![];
        let mut of_class = vec![];
        for class in classes {
            let mut sites = vec![];
            for &device in &class.devices {
                sites.push((cluster.group_of(device)?, cluster.node_of(device)?));
            }
            let nodes = || sites.iter().map(|(_, node)| *node);
            let first = nodes().min().unwrap_or(NodeId(0));
            let last = nodes().max().unwrap_or(first);
            let pattern = sites.iter().map(|(group, node)| (*group, node.0 - first.0)).collect();
            let known = different.iter().position(|it| *it == pattern);
            let number = known.unwrap_or_else(|| {
                different.push(pattern);
                different.len() - 1
            });
            of_class.push(ClassNodes { pattern: number as u32, first, last });
        }
        Ok(NodePatterns { of_class })
    }

    /// The number of a class's pattern.
    pub fn pattern(&self, class: ClassId) -> u32 {
        self.of_class[class.0 as usize].pattern
    }

    /// How two classes are placed.
    pub fn relation(&self, classes: [ClassId; 2]) -> Relation {
        let [one, other] = classes.map(|class| self.of_class[class.0 as usize]);
        let apart = one.last < other.first || other.last < one.first;
        let behind = i64::from(other.first.0) - i64::from(one.first.0);
        Relation { patterns: [one.pattern, other.pattern], behind: (!apart).then_some(behind) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use shardloom_graph::{Graph, ModelSpec};
    use shardloom_plan::{DeviceList, Mesh, ScheduleKind, Sync, Uniform};
    use shardloom_program::{Program, lower};

    use super::*;

    pub(crate) fn graph() -> Graph {
        let spec = ModelSpec::parse("gpt:layers=4,hidden=16,heads=4,seq=8,vocab=16").unwrap();
        spec.graph().unwrap()
    }

    /// Six stages of dp 2 x tp 2 on these devices, all of which have a share of the weights.
    pub(crate) fn program(graph: &Graph, devices: &[u32]) -> Program {
        let plan = Uniform {
            pp: 6,
            mesh: Mesh::of(2, 1, 2),
            global_batch: 4,
            microbatches: 2,
            schedule: ScheduleKind::OneForwardOneBackward,
            sync: Sync { zero: 1, ..Sync::default() },
            ..Uniform::default()
        };
        let mut plan = plan.plan(graph, "gpt", "c");
        for (stage, devices) in plan.pipeline[0].stage.iter_mut().zip(devices.chunks(4)) {
            stage.devices = DeviceList(devices.to_vec());
        }
        lower(graph, &plan, 64).unwrap()
    }

    fn relations(devices: &[u32], cluster: &str) -> Vec<Relation> {
        let program = program(&graph(), devices);
        let cluster = Cluster::parse(cluster).unwrap();
        let patterns = NodePatterns::of(&program.classes, &cluster).unwrap();
        (0..5).map(|it| patterns.relation([ClassId(it), ClassId(it + 1)])).collect()
    }

    #[test]
    fn relations_are_equal_where_classes_share_nodes_alike() {
        let all: Vec<u32> = (0..24).collect();
        // Each has a node: all are alike.
        let each = relations(&all, "h100-80g:6x4");
        assert!(each.iter().all(|it| *it == each[0]));
        // Two on a node: within, and from one to the next.
        let two = relations(&all, "h100-80g:3x8");
        assert!(two[0] == two[2] && two[1] == two[3] && two[0] != two[1]);
        // On nodes of six every second begins in the middle of one.
        let six = relations(&all, "h100-80g:4x6");
        assert!(six[0] != six[1] && six[1] != six[2] && six[0] == six[3]);
        // The last two classes are on nodes of another kind.
        let kinds = relations(&all, "h100-80g:4x4+a100-80g:2x4");
        assert!(kinds[0] == kinds[1] && kinds[2] == kinds[0] && kinds[3] != kinds[0]);
        assert!(kinds[4] != kinds[3] && kinds[4] != kinds[0]);
    }
}
