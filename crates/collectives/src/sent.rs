//! What members send, counted without the list.

use crate::{
    Algorithm, CollectiveError, Kind, Member, binary_tree, direct, double_binary_tree,
    halving_doubling, hierarchical, plan::check_sized, ring,
};

/// Elements that `member` sends to others, as by the list that [`plan`](crate::plan) would give: exact for every
/// length of the buffer. Whoever is outside the group sends nothing.
///
/// # Errors
///
/// As [`plan`](crate::plan).
pub fn sent_elements(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    elements: usize,
    member: Member,
) -> Result<usize, CollectiveError> {
    check_sized(kind, algorithm, members, elements)?;
    let Member(member) = member;
    if members == 1 || member >= members {
        return Ok(0);
    }
    Ok(match algorithm {
        Algorithm::Direct => direct::sent(kind, members, elements, member),
        Algorithm::Ring => ring::sent(kind, members, elements, member),
        Algorithm::HalvingDoubling => halving_doubling::sent(kind, members, elements, member),
        Algorithm::BinaryTree => binary_tree::sent(kind, members, elements, member),
        Algorithm::DoubleBinaryTree => double_binary_tree::sent(members, elements, member),
        Algorithm::Hierarchical { inner } => {
            hierarchical::sent(kind, inner, members / inner, elements, member)
        }
        Algorithm::Star
        | Algorithm::TwoLevelStar { .. }
        | Algorithm::MultiStar { .. }
        | Algorithm::BinaryTreeStar { .. }
        | Algorithm::MultiBinaryTreeStar { .. } => {
            let trees = algorithm.star_tree(members);
            trees.expect("`check_sized` wants whole inner groups").sent(elements, member)
        }
    })
}

/// Elements that all members together send to others: exact for every length of the buffer.
///
/// With N members and a buffer of M, that is (N-1) M to bring everything to or from everyone once, and 2(N-1) M
/// for an all-reduce, by whichever algorithm. Two send more: halving-doubling among a number of members that is
/// no power of two returns their chunks of a reduce-scatter to those that fold into others, and a hierarchical
/// all-to-all over nodes of I of O passes on what it has passed within them, ((I-1) O + (O-1) I) M.
///
/// # Errors
///
/// As [`plan`](crate::plan).
pub fn sent_elements_by_all(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    elements: usize,
) -> Result<usize, CollectiveError> {
    check_sized(kind, algorithm, members, elements)?;
    let once = (members - 1) as usize * elements;
    Ok(match (kind, algorithm) {
        (Kind::AllReduce, _) => 2 * once,
        (Kind::ReduceScatter, Algorithm::HalvingDoubling) => {
            once + halving_doubling::folded_elements(members, elements)
        }
        (Kind::AllToAll, Algorithm::Hierarchical { inner }) => {
            hierarchical::sent_in_all_to_all(inner, members / inner, elements)
        }
        _ => once,
    })
}
