//! What the learned cost models know of a strategy.

use shardloom_plan::Compression;

use super::problem::Problem;
use super::sampler::{COMPRESSIONS, MOST_GROUPS};
use super::strategy::{By, Strategy};

/// Servers that are told apart; further ones count as the last.
const SERVERS: usize = 16;

/// Numbers of a shard: which server, which group, which compression, whether a server or the workers, then its part
/// of all gradients (of a table whose rows go to servers, of what is sent), the bandwidth of the one who sums it as a
/// part of the largest, the workers as a part of the most, and what they compute as a part of the longest.
pub(super) const NUMBERS: usize = SERVERS + MOST_GROUPS + COMPRESSIONS.len() + 2 + 4;

/// Those of one shard that are not zero, each with its place.
pub(super) type Features = Vec<(usize, f64)>;

/// Those of a strategy, by variable and shard.
pub(super) type OfStrategy = Vec<Vec<Features>>;

/// The features of a strategy's shards, by variable.
pub(super) fn features(problem: &Problem, strategy: &Strategy) -> OfStrategy {
    let shape = &problem.shapes[strategy.shape];
    let bandwidths = problem
        .shapes
        .iter()
        .flat_map(|shape| shape.server_bandwidths.iter().copied().chain(shape.ring_bandwidth));
    let largest = bandwidths.filter(|it| it.is_finite()).fold(0.0, f64::max).max(1.0);
    let workers = problem.shapes.iter().map(|it| it.workers).max().unwrap_or(1);
    let longest = problem.shapes.iter().map(|it| it.compute_seconds).fold(0.0, f64::max);
    let whole: usize = problem.variables.iter().map(|it| it.elements()).sum();
    let of_shape = [
        f64::from(shape.workers) / f64::from(workers),
        if longest > 0.0 { shape.compute_seconds / longest } else { 0.0 },
    ];
    let of_shard = |elements: f64, by: By| {
        let groups = SERVERS;
        let compressions = groups + MOST_GROUPS;
        let kinds = compressions + COMPRESSIONS.len();
        let numbers = kinds + 2;
        let (mut features, bandwidth) = match by {
            By::Server(server) => {
                let server = server as usize;
                let bandwidth = shape.server_bandwidths.get(server).copied().unwrap_or(largest);
                (vec![(server.min(SERVERS - 1), 1.0), (kinds, 1.0)], bandwidth)
            }
            By::Group(group, compression) => {
                let of_group = groups + (group as usize).min(MOST_GROUPS - 1);
                let known = COMPRESSIONS.iter().position(|it| *it == compression);
                let compression = compressions + known.unwrap_or(0);
                let features = vec![(of_group, 1.0), (compression, 1.0), (kinds + 1, 1.0)];
                (features, shape.ring_bandwidth.unwrap_or(largest))
            }
        };
        let own = [elements / whole.max(1) as f64, (bandwidth / largest).min(1.0)];
        features.extend((numbers..).zip(own.into_iter().chain(of_shape)));
        features
    };
    let variables = problem.variables.iter().zip(&strategy.synchronisers);
    let of_variable =
        |(variable, synchroniser): (&super::strategy::Variable, &super::strategy::Synchroniser)| {
            let shards = synchroniser.shards(variable).into_iter();
            let sent = |shard: &super::strategy::Shard| match shard.by {
                By::Server(_) => shape.share(variable) * shard.elements as f64,
                By::Group(..) => shard.elements as f64,
            };
            shards.map(|shard| of_shard(sent(&shard), shard.by)).collect()
        };
    variables.map(of_variable).collect()
}

/// The bytes of an element as it is sent, where it has `plain` in memory.
pub(super) fn sent_bytes(compression: Compression, plain: usize) -> usize {
    match compression {
        Compression::Rounded { to, .. } => to.bytes(),
        _ => plain,
    }
}
