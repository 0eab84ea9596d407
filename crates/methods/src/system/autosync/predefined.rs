//! The cost model before there are trials: bytes over bandwidths.

use std::collections::BTreeMap;

use super::features::sent_bytes;
use super::problem::Problem;
use super::strategy::{By, Strategy};

/// Seconds that a step would take: what workers compute, and either what the busiest server's link takes for all
/// that comes and goes, or the workers' all-reduces one after another, whichever is longer.
pub(super) fn seconds(problem: &Problem, strategy: &Strategy) -> f64 {
    let shape = &problem.shapes[strategy.shape];
    let workers = f64::from(shape.workers);
    let mut servers: BTreeMap<u32, f64> = BTreeMap::new();
    let mut groups: BTreeMap<u32, f64> = BTreeMap::new();
    let variables = problem.variables.iter().zip(&strategy.synchronisers);
    let shards = variables.flat_map(|(variable, by)| {
        let share = shape.share(variable);
        by.shards(variable).into_iter().map(move |shard| (shard, share))
    });
    for (shard, share) in shards {
        let bytes = |each: usize| (shard.elements * each) as f64;
        match shard.by {
            By::Server(server) => {
                // As much comes from each worker as goes back to it, at the same time in both directions.
                let bandwidth = shape.server_bandwidths.get(server as usize).copied();
                let takes =
                    share * bytes(problem.gradient_bytes) / bandwidth.unwrap_or(f64::INFINITY);
                *servers.entry(server).or_default() += workers * (takes + shape.latency_seconds);
            }
            By::Group(group, compression) => {
                let each = sent_bytes(compression, problem.gradient_bytes);
                *groups.entry(group).or_default() += bytes(each);
            }
        }
    }
    let busiest = servers.into_values().fold(0.0, f64::max);
    let reduce = |bytes: f64| {
        let hops = 2.0 * (workers - 1.0);
        let takes = |bandwidth: f64| hops * (bytes / workers / bandwidth + shape.latency_seconds);
        shape.ring_bandwidth.map_or(0.0, takes)
    };
    let reduced: f64 = groups.into_values().map(reduce).sum();
    shape.compute_seconds + busiest.max(reduced)
}
