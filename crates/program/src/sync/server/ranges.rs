//! Which ranges of buckets which servers hold.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_collectives::chunk;
use shardloom_plan::{Mesh, Push, Servers};

use crate::Format;
use crate::class::{Bucket, BucketId, ClassId, ServedRange};
use crate::lower::{Parameters, RangeUse};
use crate::ring::Ring;

/// Deals ranges of all buckets to servers, the first of which that is left is the class `first`. Who owns what
/// is said by the ring of all; for a server that is lost, those that follow it stand in.
pub(super) fn deal(parameters: &mut Parameters<'_>, first: ClassId, servers: Servers) {
    let pieces: Vec<(usize, Range<usize>)> = pieces(parameters).collect();
    let sizes: Vec<usize> = pieces.iter().map(|(_, range)| range.len()).collect();
    let ring = Ring::of(0..servers.count);
    let owners = ring.owners(&sizes);
    let left: Vec<u32> = servers.left().collect();
    for (number, ((bucket, range), owner)) in pieces.into_iter().zip(owners).enumerate() {
        let all = std::iter::once(owner).chain(ring.successors(number, owner));
        let places = all.filter_map(|server| left.binary_search(&server).ok());
        let mut holders = places.map(|place| ClassId(first.0 + place as u32));
        let server = holders.next().expect("some server is left");
        let replicas: Vec<ClassId> = holders.take(servers.replicas as usize).collect();
        let served = &mut parameters.buckets[bucket].served;
        let is_same =
            |last: &&mut ServedRange| (last.server, &last.replicas) == (server, &replicas);
        match served.last_mut().filter(is_same) {
            Some(last) => last.range.end = range.end,
            None => served.push(ServedRange { range, server, replicas }),
        }
    }
}

/// Ranges of buckets that servers hold whole, each with the number of its bucket, as large as the plan lets
/// buckets be. Parameters are cut between two, unless the optimizer looks at more than an element at a
/// time.
pub(super) fn pieces(parameters: &Parameters<'_>) -> impl Iterator<Item = (usize, Range<usize>)> {
    parameters.buckets.iter().enumerate().flat_map(|(index, bucket)| {
        let most = (parameters.plan.sync.bucket_bytes / Format::F32.bytes()).max(1);
        let pieces: Vec<Range<usize>> = match parameters.plan.optimizer.updates_by_element() {
            true => {
                let count = bucket.elements.div_ceil(most);
                (0..count).map(|piece| chunk(bucket.elements, count, piece)).collect()
            }
            false => runs_of_params(parameters, bucket, most),
        };
        pieces.into_iter().map(move |range| (index, range))
    })
}

/// Ranges of whole parameters, of at most so many elements where there are several in one.
fn runs_of_params(parameters: &Parameters<'_>, bucket: &Bucket, most: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for param in &bucket.params {
        let range = parameters.params[param.0 as usize].range();
        match runs.last_mut().filter(|run| range.end - run.start <= most) {
            Some(run) => run.end = range.end,
            None => runs.push(range),
        }
    }
    runs
}

/// The parameters of a server, which owns ranges of these buckets, alone and by itself, and has replicas of others.
pub(super) fn of_server<'a>(
    worker: &Parameters<'a>,
    server: ClassId,
    pushed: Push,
) -> Parameters<'a> {
    let owned = match pushed {
        Push::Gradients => RangeUse::Updated,
        Push::Deltas => RangeUse::AddedTo,
    };
    let mut parts = Parameters::none(worker.plan, worker.ways, Mesh::SINGLE);
    for (index, bucket) in worker.buckets.iter().enumerate() {
        for ServedRange { range, .. } in bucket.served.iter().filter(|it| it.server == server) {
            parts.hold_range(worker, index, range, owned);
        }
    }
    // Replicas come behind what it owns, and so do those of others: its number there is that of the range.
    let mut owned: BTreeMap<ClassId, u32> = BTreeMap::new();
    for (index, bucket) in worker.buckets.iter().enumerate() {
        for served in &bucket.served {
            let number = owned.entry(served.server).or_default();
            if served.replicas.contains(&server) {
                let owner = (served.server, BucketId(*number));
                parts.hold_range(worker, index, &served.range, RangeUse::Replica(owner));
            }
            *number += 1;
        }
    }
    parts
}
