//! The algorithms with which a plan's collectives are fastest.

use std::collections::BTreeSet;

use shardloom_cluster::{Algorithms, Cluster, ClusterError, DeviceId};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::quantity::{counted, percent};
use shardloom_sim::collective_rate_name;

use crate::{Faster, Judgement, SearchError, judge};

/// The share of a step that another algorithm must save to be taken.
const WORTH: f64 = 0.0005;

/// Where a plan names an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// `sync.algorithm`.
    Sync,
    /// That of the parameter group of this index.
    Group(usize),
}

impl Key {
    /// Those of `plan`, but of frozen groups that have no collectives.
    fn of(plan: &Plan) -> Vec<Key> {
        let groups = plan.parameters.iter().enumerate();
        let have = groups.filter(|(_, group)| !group.frozen || group.sync(plan.sync).zero >= 3);
        std::iter::once(Key::Sync).chain(have.map(|(index, _)| Key::Group(index))).collect()
    }

    fn name(self) -> String {
        match self {
            Key::Sync => "sync.algorithm".into(),
            Key::Group(index) => format!("parameters[{index}].algorithm"),
        }
    }

    fn algorithm(self, plan: &Plan) -> Algorithm {
        match self {
            Key::Sync => plan.sync.algorithm,
            Key::Group(index) => plan.parameters[index].sync(plan.sync).algorithm,
        }
    }

    fn with(self, plan: &Plan, algorithm: Algorithm) -> Plan {
        let mut other = plan.clone();
        match self {
            Key::Sync => other.sync.algorithm = algorithm,
            Key::Group(index) => other.parameters[index].algorithm = Some(algorithm),
        }
        other
    }
}

/// How the devices of a plan's groups lie.
struct Groups {
    /// Whether every stage is on one node.
    within_nodes: bool,
    /// How many replicas of a stage there are in each node, where there are several and more in other nodes.
    inner: BTreeSet<u32>,
    /// Members of groups along mesh axes, and of all replicas.
    sizes: BTreeSet<usize>,
}

impl Groups {
    fn of(graph: &Graph, cluster: &Cluster, plan: &Plan) -> Result<Groups, ClusterError> {
        let axes = plan.replica_axes(graph);
        let mut found =
            Groups { within_nodes: true, inner: BTreeSet::new(), sizes: BTreeSet::new() };
        for (_, stage) in plan.stages() {
            let node = |position: usize| cluster.node_of(DeviceId(stage.devices.0[position]));
            let first = node(0)?;
            for position in 1..stage.devices.0.len() {
                found.within_nodes &= node(position)? == first;
            }
            let replicas = stage.mesh.members_along(0, &axes);
            let nodes = replicas.iter().map(|&it| node(it)).collect::<Result<Vec<_>, _>>()?;
            let together: BTreeSet<usize> = nodes.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
            match together.first() {
                Some(&inner) if together.len() == 1 && (2..replicas.len()).contains(&inner) => {
                    found.inner.insert(inner as u32);
                }
                _ => {}
            }
            found.sizes.extend(stage.mesh.axes().map(|axis| stage.mesh.width(axis)));
            found.sizes.insert(replicas.len());
        }
        Ok(found)
    }

    /// Algorithms other than `present` that exist for these groups and that the cost model can compare with it.
    ///
    /// It takes messages of many nodes to one at a time as if they did not get into each other's way, so
    /// algorithms with such steps are left out across nodes. Where `present` was measured over these groups,
    /// so must others have been.
    fn algorithms(
        &self,
        cluster: &Cluster,
        plan: &Plan,
        present: Algorithm,
    ) -> Result<Vec<Algorithm>, ClusterError> {
        let Some((_, stage)) = plan.stages().next() else { return Ok(vec![]) };
        let device = cluster.kind_of(DeviceId(stage.devices.0[0]))?;
        let measured = |algorithm: Algorithm, members: usize| {
            let name = collective_rate_name(algorithm, Kind::AllReduce, members);
            !device.lanes_overlap && device.rates.contains_key(&name)
        };
        let comparable = |algorithm: Algorithm| {
            self.sizes.iter().all(|&it| measured(algorithm, it) || !measured(present, it))
        };
        let from_many_to_one = |algorithm: Algorithm| {
            matches!(
                algorithm,
                Algorithm::Direct
                    | Algorithm::Star
                    | Algorithm::TwoLevelStar { .. }
                    | Algorithm::MultiStar { .. }
                    | Algorithm::MultiBinaryTreeStar { .. }
            )
        };
        let nested = self.inner.iter().flat_map(|&inner| Algorithm::NESTED.map(|of| of(inner)));
        let all = Algorithm::FLAT.into_iter().chain(nested);
        let others = all.filter(|&it| it != present && comparable(it));
        Ok(others.filter(|&it| self.within_nodes || !from_many_to_one(it)).collect())
    }
}

/// What other algorithms at `key` make of `plan`, simulated. Nothing where the stack chooses the algorithms,
/// whatever plans say, or there are servers.
fn others(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    key: Key,
) -> Result<Vec<(Algorithm, Judgement)>, SearchError> {
    if cluster.stack().algorithms != Algorithms::Planned || plan.sync.has_servers() {
        return Ok(vec![]);
    }
    let groups = Groups::of(graph, cluster, plan)?;
    let mut found = vec![];
    for algorithm in groups.algorithms(cluster, plan, key.algorithm(plan))? {
        match judge(graph, cluster, &key.with(plan, algorithm)) {
            // It does not scatter and gather, which ZeRO does.
            Err(SearchError::Program(_)) => {}
            judgement => found.push((algorithm, judgement?)),
        }
    }
    Ok(found)
}

fn least(found: &[(Algorithm, Judgement)]) -> Option<&(Algorithm, Judgement)> {
    found.iter().min_by(|(_, a), (_, b)| a.step_seconds.total_cmp(&b.step_seconds))
}

/// `plan` with the algorithm for `sync`, and then for each of its parameter groups, with which a step takes
/// least of those that fit into this share of memory. What it has stays where another saves less than a
/// two-thousandth.
///
/// Under a stack that chooses algorithms by size, and with servers, nothing is tried.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn with_fastest_algorithms(
    graph: &Graph,
    cluster: &Cluster,
    plan: Plan,
    judgement: Judgement,
    memory_share: f64,
) -> Result<Faster, SearchError> {
    let (before, before_seconds) = (plan.clone(), judgement.step_seconds);
    let mut found = Faster::unchanged(plan, judgement);
    for key in Key::of(&found.plan) {
        let mut others = others(graph, cluster, &found.plan, key)?;
        found.simulated += others.len();
        others.retain(|(_, judgement)| judgement.fits(memory_share));
        if let Some((algorithm, judgement)) = least(&others)
            && judgement.step_seconds < (1.0 - WORTH) * found.judgement.step_seconds
        {
            found.plan = key.with(&found.plan, *algorithm);
            found.judgement = judgement.clone();
        }
    }
    let others = Key::of(&before)
        .into_iter()
        .filter(|key| key.algorithm(&before) != key.algorithm(&found.plan));
    let replaced: Vec<String> =
        others.map(|key| format!("{} = \"{}\"", key.name(), key.algorithm(&before))).collect();
    if !replaced.is_empty() {
        let chosen: Vec<String> =
            Key::of(&before).iter().map(|key| key.algorithm(&found.plan).to_string()).collect();
        found.notes.push(format!(
            "collectives are {}: with {} a step would take {} more",
            chosen.join(" and "),
            replaced.join(" and "),
            percent(before_seconds / found.judgement.step_seconds - 1.0)
        ));
    }
    Ok(found)
}

/// How the algorithms of `plan`, whose step takes so long, compare with others: for each place where it names
/// one a sentence, and the share of a step that the best of the others saves.
///
/// # Errors
/// As [`with_fastest_algorithms`].
pub(crate) fn compared(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Vec<(String, f64)>, SearchError> {
    let mut sentences = vec![];
    for key in Key::of(plan) {
        if plan.device_count() == 1 {
            // There is nobody to reduce with.
            continue;
        }
        let others = others(graph, cluster, plan, key)?;
        let Some((algorithm, judgement)) = least(&others) else { continue };
        let saved = 1.0 - judgement.step_seconds / step_seconds;
        let time = match saved {
            saved if saved >= WORTH => format!("{} less", percent(saved)),
            saved if saved <= -WORTH => format!("{} more", percent(-saved)),
            _ => "as long".to_owned(),
        };
        let present = key.algorithm(plan);
        sentences.push((
            format!(
                "{} is \"{present}\"; with \"{algorithm}\", the best of {}, a step would take {time}",
                key.name(),
                counted(others.len(), "other")
            ),
            saved,
        ));
    }
    Ok(sentences)
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Uniform};

    use super::*;

    /// How replicas of two stages lie that are on these devices, on nodes of three.
    fn groups(stages: &[&[u32]]) -> Groups {
        let text = "gpt:layers=4,hidden=64,heads=4,seq=32,vocab=64";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse("h100-80g:4x3").expect("a preset");
        let dp = stages[0].len() as u32;
        let uniform = Uniform {
            pp: stages.len(),
            mesh: Mesh::of(dp, 1, 1),
            global_batch: 12,
            microbatches: 1,
            ..Uniform::default()
        };
        let mut plan = uniform.plan(&graph, text, "c");
        for (stage, devices) in plan.pipeline[0].stage.iter_mut().zip(stages) {
            stage.devices.0 = devices.to_vec();
        }
        Groups::of(&graph, &cluster, &plan).expect("devices of the cluster")
    }

    #[test]
    fn a_plan_is_within_nodes_if_every_stage_is_on_one() {
        for (stages, within) in [
            (&[&[0][..]][..], true),
            (&[&[0, 1, 2]], true),
            (&[&[3, 5]], true),
            (&[&[0, 3]], false),
            (&[&[2, 3]], false),
            // Whichever of them is elsewhere.
            (&[&[0, 3, 1]], false),
            (&[&[3, 0, 1]], false),
            (&[&[0, 1], &[3, 4]], true),
            (&[&[0, 3], &[1, 2]], false),
            (&[&[1, 2], &[0, 3]], false),
        ] {
            assert_eq!(groups(stages).within_nodes, within, "{stages:?}");
        }
    }

    #[test]
    fn replicas_are_nested_where_each_of_several_nodes_has_as_many_of_them_and_more_than_one() {
        for (stages, inner) in [
            (&[&[0, 1, 2, 3, 4, 5][..]][..], &[3][..]),
            (&[&[0, 1, 3, 4]], &[2]),
            (&[&[0, 1, 3, 4, 6, 7]], &[2]),
            // All on one node, one on each, or more on some than on others.
            (&[&[0, 1, 2]], &[]),
            (&[&[0, 3, 6]], &[]),
            (&[&[0, 1, 2, 3]], &[]),
            (&[&[0, 1, 3, 4], &[2, 5, 6, 9]], &[2]),
        ] {
            let found = groups(stages);
            assert_eq!(found.inner.into_iter().collect::<Vec<u32>>(), inner, "{stages:?}");
            assert!(found.sizes.contains(&stages[0].len()), "{stages:?}");
        }
    }
}
