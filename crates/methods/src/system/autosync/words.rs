//! The plan of a strategy, in words that any plan may have.

use std::collections::BTreeMap;

use shardloom_plan::{
    Compression, Mesh, ParameterGroup, Plan, Recompute, Summation, Sync, Uniform,
};

use super::problem::Problem;
use super::strategy::{Strategy, Synchroniser};
use crate::choice::Task;

/// The plan of a strategy. Where it has servers each worker is a pipeline; otherwise workers are replicas of one
/// stage. Variables with the same servers are a group of parameters with buckets of single blocks, and variables
/// that are all-reduced together one with a bucket for all. A table of which servers get rows is a group of its own.
pub(super) fn plan(task: &Task<'_>, problem: &Problem, strategy: &Strategy) -> Plan {
    let shape = &problem.shapes[strategy.shape];
    let servers = strategy.servers();
    let common = task.uniform(1, Mesh::of(shape.workers, 1, 1), shape.microbatches);
    let recompute = Recompute::None.under(task.cluster.stack());
    let summation = (servers > 0).then(|| Summation::of(servers));
    let sync = Sync { summation, ..common.sync };
    let request = task.request;
    let uniform = Uniform { sync, recompute, ..common };
    let plan = uniform.plan(task.graph, &request.model, &request.cluster);
    let parameters = groups(problem, strategy, servers > 0);
    task.completed(Plan { parameters, ..plan })
}

/// What the plans of all strategies have in common, whatever workers and servers there are.
pub(super) fn settings(task: &Task<'_>) -> String {
    task.completed(task.uniform(1, Mesh::of(1, 1, 1), 1).plan(task.graph, "", "")).to_toml()
}

/// The groups of parameters of a strategy.
fn groups(problem: &Problem, strategy: &Strategy, has_servers: bool) -> Vec<ParameterGroup> {
    let looked_up = &problem.shapes[strategy.shape].looked_up;
    let mut tables = vec![];
    let mut by_servers: BTreeMap<&[u32], Vec<&str>> = BTreeMap::new();
    let mut together: BTreeMap<u32, (Compression, usize, Vec<&str>)> = BTreeMap::new();
    for (variable, synchroniser) in problem.variables.iter().zip(&strategy.synchronisers) {
        match synchroniser {
            Synchroniser::Servers(servers) if looked_up.contains_key(&variable.name) => {
                let (sparse, servers) = (Some(true), Some(servers.clone()));
                let name = ParameterGroup::of_all(&[&variable.name]);
                tables.push(ParameterGroup { sparse, servers, ..name });
            }
            Synchroniser::Servers(servers) => {
                by_servers.entry(servers).or_default().push(&variable.name);
            }
            Synchroniser::AllReduce { group, compression } => {
                let (_, elements, names) =
                    together.entry(*group).or_insert((*compression, 0, vec![]));
                *elements += variable.elements();
                names.push(&variable.name);
            }
        }
    }
    let of_servers = by_servers.into_iter().map(|(servers, names)| ParameterGroup {
        servers: Some(servers.to_vec()),
        bucket_bytes: Some(1),
        ..ParameterGroup::of_all(&names)
    });
    let of_workers = together.into_values().map(|(compression, elements, names)| ParameterGroup {
        servers: has_servers.then(Vec::new),
        bucket_bytes: Some((elements * problem.gradient_bytes).max(1)),
        compression: (!compression.is_none()).then_some(compression),
        ..ParameterGroup::of_all(&names)
    });
    tables.into_iter().chain(of_servers).chain(of_workers).collect()
}
