//! Neighbours on a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", 2009).

use std::ops::Range;

use crate::{
    Combine, Kind, Transfer,
    chunk::chunk,
    step_list::{Step, overlay},
};

pub(crate) fn steps(kind: Kind, members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let order: Vec<u32> = (0..members).collect();
    let blocks: Vec<Vec<Range<usize>>> =
        (0..members as usize).map(|index| vec![chunk(elements, members as usize, index)]).collect();
    let phase = match kind {
        Kind::ReduceScatter => reduce_scatter(&order, &blocks),
        Kind::AllGather => all_gather(&order, &blocks),
        Kind::Broadcast { root } => broadcast(root.0, members, elements),
        Kind::Reduce { root } => reduce(root.0, members, elements),
        Kind::AllReduce => {
            let mut phase = reduce_scatter(&order, &blocks);
            phase.extend(all_gather(&order, &blocks));
            phase
        }
        Kind::AllToAll => unreachable!("plan refuses a ring all-to-all"),
    };
    let mut steps = Vec::new();
    overlay(&mut steps, 0, phase);
    steps
}

/// Elements that `member` sends: of what is reduced all blocks but its own, of what is gathered all but its
/// successor's.
pub(crate) fn sent(kind: Kind, members: u32, elements: usize, member: u32) -> usize {
    let next = (member + 1) % members;
    let but = |block: u32| elements - chunk(elements, members as usize, block as usize).len();
    // A chain passes everything on but for its last member.
    let chain = |last: u32| if member == last { 0 } else { elements };
    match kind {
        Kind::AllReduce => but(member) + but(next),
        Kind::ReduceScatter => but(member),
        Kind::AllGather => but(next),
        Kind::Broadcast { root } => chain((root.0 + members - 1) % members),
        Kind::Reduce { root } => chain(root.0),
        Kind::AllToAll => unreachable!("plan refuses a ring all-to-all"),
    }
}

/// Leaves the reduction of `blocks[i]` on `order[i]`, in `order.len() - 1` steps.
///
/// The textbook's indices are shifted by one, so that the last block a member adds
/// to is its own and not its successor's.
pub(crate) fn reduce_scatter(order: &[u32], blocks: &[Vec<Range<usize>>]) -> Vec<Step> {
    around(order, blocks, 1, Combine::Reduce)
}

/// Brings `blocks[i]` from `order[i]` to all, in `order.len() - 1` steps.
pub(crate) fn all_gather(order: &[u32], blocks: &[Vec<Range<usize>>]) -> Vec<Step> {
    around(order, blocks, 0, Combine::Overwrite)
}

/// In step j, position r sends block r - shift - j to position r + 1.
fn around(
    order: &[u32],
    blocks: &[Vec<Range<usize>>],
    shift: usize,
    combine: Combine,
) -> Vec<Step> {
    let size = order.len();
    (0..size - 1)
        .map(|index| {
            let mut step = Step::default();
            for (position, &from) in order.iter().enumerate() {
                let to = order[(position + 1) % size];
                for range in &blocks[(position + 2 * size - shift - index) % size] {
                    step.send(from, to, range.clone(), combine);
                }
            }
            step
        })
        .collect()
}

/// A chain from the root, pipelined: one chunk per member follows the other.
fn broadcast(root: u32, members: u32, elements: usize) -> Vec<Step> {
    chain(members, elements, |hop| ((root + hop) % members, (root + hop + 1) % members))
        .map(|sends| step_of(sends, Combine::Overwrite))
        .collect()
}

/// The same chain towards the root.
fn reduce(root: u32, members: u32, elements: usize) -> Vec<Step> {
    let hops = members - 1;
    chain(members, elements, |hop| {
        ((root + hops - hop) % members, (root + hops - hop - 1) % members)
    })
    .map(|sends| step_of(sends, Combine::Reduce))
    .collect()
}

fn step_of(sends: Vec<(u32, u32, Range<usize>)>, combine: Combine) -> Step {
    let mut step = Step::default();
    for (from, to, range) in sends {
        step.send(from, to, range, combine);
    }
    step
}

/// Chunk c takes hop h (of `members - 1`) in step c + h.
fn chain(
    members: u32,
    elements: usize,
    hop_ends: impl Fn(u32) -> (u32, u32),
) -> impl Iterator<Item = Vec<(u32, u32, Range<usize>)>> {
    let chunks = members as usize;
    (0..2 * (chunks - 1)).map(move |index| {
        (0..members - 1)
            .filter_map(|hop| {
                let chunk_index = index.checked_sub(hop as usize).filter(|&c| c < chunks)?;
                let (from, to) = hop_ends(hop);
                Some((from, to, chunk(elements, chunks, chunk_index)))
            })
            .collect()
    })
}
