//! Which ranges of buckets which servers hold.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_collectives::chunk;
use shardloom_plan::{Mesh, Push, Servers};

use crate::Format;
use crate::class::{Bucket, BucketId, ClassId, ServedRange};
use crate::lower::{Parameters, RangeUse};
use crate::ring::Ring;

/// Deals ranges of all buckets to servers, the first of which that is left is the class `first`, also the number of
/// workers. Who owns what is said by the ring of all; for a server that is lost, those that follow it stand in.
pub(super) fn deal(parameters: &mut Parameters<'_>, first: ClassId, servers: Servers) {
    let workers = first.0 as usize;
    let pieces: Vec<(usize, Range<usize>)> = pieces(parameters).collect();
    let sizes: Vec<usize> = pieces.iter().map(|(_, range)| range.len()).collect();
    let rings = [Ring::of(0..servers.count), Ring::of(servers.count..servers.of_workers(workers))];
    let owners = owners(&rings, &sizes, servers, workers);
    let left: Vec<u32> = servers.left(workers).collect();
    for (number, ((bucket, range), owner)) in pieces.into_iter().zip(owners).enumerate() {
        // Only those on machines of their own have replicas, and are lost.
        let all = std::iter::once(owner).chain(rings[0].successors(number, owner));
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

/// The server of each of some ranges, of which these are the sizes: one on a machine of its own for the part that such
/// servers hold, dealt as evenly as can be, of the others one on a worker's device.
fn owners(rings: &[Ring; 2], sizes: &[usize], servers: Servers, workers: usize) -> Vec<u32> {
    let part = match servers.colocated {
        true => servers.own_part(workers),
        false => 1.0,
    };
    let (mut all, mut own) = (0, 0);
    let is_own: Vec<bool> = sizes
        .iter()
        .map(|&size| {
            all += size;
            let is_own = (own + size) as f64 <= part * all as f64 + 0.5 * size as f64;
            own += if is_own { size } else { 0 };
            is_own
        })
        .collect();
    let of = |which: bool| -> Vec<usize> {
        sizes.iter().zip(&is_own).filter(|it| *it.1 == which).map(|it| *it.0).collect()
    };
    let mut dealt =
        [true, false].map(|which| rings[usize::from(!which)].owners(&of(which)).into_iter());
    let owner = |is_own: bool| dealt[usize::from(!is_own)].next().expect("an owner of each range");
    is_own.into_iter().map(owner).collect()
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
