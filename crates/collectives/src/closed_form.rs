//! The counts of the step lists without building them.

use crate::{
    Algorithm, CollectiveError, Kind,
    binary_tree::{depth, segments},
    halving_doubling::fold,
    plan::check,
    star_tree::StarTree,
};

/// Number of steps of the list [`plan`](crate::plan) would give.
///
/// With N members, D = ceil(log2 N), k = floor(log2 N), f = 1 where N is no power
/// of two and 0 where it is:
///
/// | | all-reduce | reduce-scatter, all-gather | broadcast, reduce | all-to-all |
/// |---|---|---|---|---|
/// | direct | 2 | 1 | 1 | 1 |
/// | ring | 2(N-1) | N-1 | 2(N-1) | |
/// | halving-doubling | 2k + 2f | k + 2f | | |
/// | binary-tree | 2(5D-1) | | 5D-1 | |
/// | double-binary-tree | 2(5D-1) | | | |
/// | hierarchical, I x O = N | 2(I-1) + 2(O-1) | I-1 + O-1 | | 1 per level over 1 |
/// | star | 2 | | | |
/// | two-level-star, multi-star | 18; 2 if I or O is 1 | | | |
/// | binary-tree-star, multi-binary-tree-star | 2(5d-1); 2 if d is 1 | | | |
///
/// with d = floor(log2 O), and 1 more if I > 1. A group of one needs none.
///
/// # Errors
///
/// As [`plan`](crate::plan), save for what depends on the buffer's length.
pub fn rounds(kind: Kind, algorithm: Algorithm, members: u32) -> Result<u32, CollectiveError> {
    check(kind, algorithm, members)?;
    if members == 1 {
        return Ok(0);
    }
    let both_ways = if kind == Kind::AllReduce { 2 } else { 1 };
    Ok(match algorithm {
        Algorithm::Direct => both_ways,
        Algorithm::Ring => match kind {
            Kind::ReduceScatter | Kind::AllGather => members - 1,
            _ => 2 * (members - 1),
        },
        Algorithm::HalvingDoubling => {
            both_ways * members.ilog2() + if members.is_power_of_two() { 0 } else { 2 }
        }
        Algorithm::BinaryTree | Algorithm::DoubleBinaryTree => {
            both_ways * (depth(members) + segments(members) - 1)
        }
        Algorithm::Hierarchical { inner } => {
            let outer = members / inner;
            match kind {
                Kind::AllToAll => u32::from(inner > 1) + u32::from(outer > 1),
                _ => both_ways * (inner - 1 + outer - 1),
            }
        }
        Algorithm::Star
        | Algorithm::TwoLevelStar { .. }
        | Algorithm::MultiStar { .. }
        | Algorithm::BinaryTreeStar { .. }
        | Algorithm::MultiBinaryTreeStar { .. } => {
            both_ways * star_tree(algorithm, members).steps_per_phase()
        }
    })
}

/// Bytes the busiest member sends, for a buffer of `bytes` per member.
///
/// Exact where the buffer is divisible by what the algorithm cuts it into, else
/// within one element per step. With M = `bytes` and N members:
///
/// | | all-reduce | reduce-scatter | all-gather | broadcast | reduce | all-to-all |
/// |---|---|---|---|---|---|---|
/// | direct | 2(N-1)/N M | (N-1)/N M | (N-1)/N M | (N-1) M | M | (N-1)/N M |
/// | ring | 2(N-1)/N M | (N-1)/N M | (N-1)/N M | M | M | |
/// | halving-doubling, N = 2^k | 2(N-1)/N M | (N-1)/N M | (N-1)/N M | | | |
/// | binary-tree | (1 + c) M | | | c M | M | |
/// | double-binary-tree | 2 M | | | | | |
/// | hierarchical, I x O = N | 2(N-1)/N M | (N-1)/N M | (N-1)/N M | | | (I-1)/I M + (O-1)/O M |
/// | star | (N-1) M | | | | | |
/// | two-level-star | (I+O-2) M | | | | | |
/// | binary-tree-star | (I + h) M; (I-1) M for O = 1 | | | | | |
/// | multi-star, multi-binary-tree-star | (I-1) M + 2(O-1)/O M | | | | | |
///
/// h is 0 for O = 2, 1 for 3 and 4, and 2 from 5 on.
///
/// c is 2, the most children of a node, from 4 members on. Smaller trees: c is 1,
/// an all-reduce of one tree sends 2M (N = 3) or M (N = 2), of two trees 1.5M or M.
/// For other N, halving-doubling folds N - P members into the P = 2^k others: an
/// all-reduce adds M, a reduce-scatter sends M, and an all-gather
/// sends M - M/N plus, over spans s = 1, 2, ... P/2, (s + min(N-P, s)) M/N.
///
/// # Errors
///
/// As [`rounds`].
pub fn bytes_sent_per_member(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    bytes: f64,
) -> Result<f64, CollectiveError> {
    check(kind, algorithm, members)?;
    if members == 1 {
        return Ok(0.0);
    }
    let buffers = match algorithm {
        Algorithm::Direct => match kind {
            Kind::Broadcast { .. } => f64::from(members - 1),
            Kind::Reduce { .. } => 1.0,
            _ => scattered(kind, members),
        },
        Algorithm::Ring => match kind {
            Kind::Broadcast { .. } | Kind::Reduce { .. } => 1.0,
            _ => scattered(kind, members),
        },
        Algorithm::HalvingDoubling => match (kind, fold(members)) {
            (_, (_, 0)) => scattered(kind, members),
            (Kind::AllReduce, (survivors, _)) => scattered(kind, survivors) + 1.0,
            (Kind::ReduceScatter, _) => 1.0,
            _ => folded_spans(members) + rest(members),
        },
        Algorithm::BinaryTree => match (kind, members) {
            (Kind::Reduce { .. }, _) | (_, 2) => 1.0,
            (Kind::Broadcast { .. }, 3) => 1.0,
            (Kind::Broadcast { .. }, _) | (_, 3) => 2.0,
            _ => 3.0,
        },
        Algorithm::DoubleBinaryTree => match members {
            2 => 1.0,
            3 => 1.5,
            _ => 2.0,
        },
        Algorithm::Hierarchical { inner } => match kind {
            Kind::AllToAll => rest(inner) + rest(members / inner),
            _ => scattered(kind, members),
        },
        Algorithm::Star
        | Algorithm::TwoLevelStar { .. }
        | Algorithm::MultiStar { .. }
        | Algorithm::BinaryTreeStar { .. }
        | Algorithm::MultiBinaryTreeStar { .. } => busiest_head(&star_tree(algorithm, members)),
    };
    Ok(buffers * bytes)
}

/// Bytes on the critical path: the sum over steps of the most bytes any one member
/// sends, or receives, in that step.
///
/// On equal full-duplex ports of `b` bytes per second with latency `a`, the list
/// takes `rounds * a + bottleneck_bytes / b` seconds. Exactness as for
/// [`bytes_sent_per_member`], from which it differs where the busiest member
/// changes from step to step: folded halving-doubling, pipelined chains and trees,
/// and a direct reduce or a star, whose root receives from all.
///
/// # Errors
///
/// As [`rounds`].
pub fn bottleneck_bytes(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    bytes: f64,
) -> Result<f64, CollectiveError> {
    let sent = bytes_sent_per_member(kind, algorithm, members, bytes)?;
    if members == 1 {
        return Ok(0.0);
    }
    let both_ways = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
    Ok(match (algorithm, kind) {
        (Algorithm::Direct, Kind::Reduce { .. }) => f64::from(members - 1) * bytes,
        (Algorithm::Ring, Kind::Broadcast { .. } | Kind::Reduce { .. }) => {
            2.0 * rest(members) * bytes
        }
        (Algorithm::HalvingDoubling, _) => match (kind, fold(members)) {
            (_, (_, 0)) => sent,
            (Kind::AllReduce, (survivors, _)) => (2.0 + scattered(kind, survivors)) * bytes,
            (Kind::ReduceScatter, _) => {
                (1.0 + folded_spans(members) + 1.0 / f64::from(members)) * bytes
            }
            _ => (1.0 + folded_spans(members)) * bytes,
        },
        (Algorithm::BinaryTree, _) => {
            let (depth, segments) = (depth(members), segments(members));
            let steps = depth + segments - 1;
            // Two segments meet in a parent, save where the only busy parents have
            // one child: the root, and below it a level that is a lone left half.
            let segments_moved = match members {
                2 | 3 => steps,
                _ if (members - 1).is_power_of_two() => 2 * steps - 2,
                _ => 2 * steps - 1,
            };
            both_ways * f64::from(segments_moved) / f64::from(segments) * bytes
        }
        (Algorithm::DoubleBinaryTree, _) => {
            let (depth, segments) = (depth(members), segments(members));
            let steps = depth + segments - 1;
            let half_segments_moved = match members {
                2 => steps,
                3 => 2 * steps - 2,
                _ => 2 * steps - 1,
            };
            both_ways * f64::from(half_segments_moved) / f64::from(2 * segments) * bytes
        }
        (
            Algorithm::Star
            | Algorithm::TwoLevelStar { .. }
            | Algorithm::MultiStar { .. }
            | Algorithm::BinaryTreeStar { .. }
            | Algorithm::MultiBinaryTreeStar { .. },
            _,
        ) => both_ways * received_in_a_phase(&star_tree(algorithm, members)) * bytes,
        _ => sent,
    })
}

/// The part of a buffer that is not a member's own chunk.
fn rest(members: u32) -> f64 {
    f64::from(members - 1) / f64::from(members)
}

/// Buffers sent by a member that scatters, gathers, or does both.
fn scattered(kind: Kind, members: u32) -> f64 {
    match kind {
        Kind::AllReduce => 2.0 * rest(members),
        _ => rest(members),
    }
}

/// The largest halves swapped at each level of a folded group, in buffers: the
/// first survivors own two chunks each.
fn folded_spans(members: u32) -> f64 {
    let (survivors, extra) = fold(members);
    let chunks: u32 = (0..survivors.ilog2()).map(|bit| (1 << bit) + extra.min(1 << bit)).sum();
    f64::from(chunks) / f64::from(members)
}

fn star_tree(algorithm: Algorithm, members: u32) -> StarTree {
    algorithm.star_tree(members).expect("`check` wants whole inner groups")
}

/// Buffers that the head with the most to do sends: up to its parent, and down to its children.
fn busiest_head(trees: &StarTree) -> f64 {
    let others = f64::from(trees.inner - 1);
    if trees.trees > 1 {
        // Every head has each role once.
        return others + 2.0 * rest(trees.outer);
    }
    let root = others + f64::from(trees.most_children(0));
    let below = others + f64::from(trees.most_children(1)) + 1.0;
    if trees.outer > 1 { root.max(below) } else { root }
}

/// Buffers on the critical path of a reduction: heads receive more than anyone sends.
fn received_in_a_phase(trees: &StarTree) -> f64 {
    let others = f64::from(trees.inner - 1);
    if trees.trees > 1 {
        return others + rest(trees.outer);
    }
    let received = |level| others + f64::from(trees.most_children(level));
    // Those nearest the root have the most to do; while the pipeline fills, they wait.
    let filling: f64 = (1..trees.depth()).map(received).sum();
    received(0) + filling / f64::from(trees.segments())
}
