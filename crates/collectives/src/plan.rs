use crate::{
    Algorithm, CollectiveError, Kind, Member, StepList, binary_tree, direct, double_binary_tree,
    halving_doubling, hierarchical, ring,
};

/// The step list of a collective over `members` members, each holding a buffer of
/// `elements`.
///
/// # Errors
///
/// When the pair does not exist ([`Kind::has`]), the group is empty, the root is
/// outside it, an all-to-all buffer is not divisible by the group, or `inner` does
/// not divide the group.
pub fn plan(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    elements: usize,
) -> Result<StepList, CollectiveError> {
    check_sized(kind, algorithm, members, elements)?;
    let steps = if members == 1 {
        Vec::new()
    } else {
        match algorithm {
            Algorithm::Direct => direct::steps(kind, members, elements),
            Algorithm::Ring => ring::steps(kind, members, elements),
            Algorithm::HalvingDoubling => halving_doubling::steps(kind, members, elements),
            Algorithm::BinaryTree => binary_tree::steps(kind, members, elements),
            Algorithm::DoubleBinaryTree => double_binary_tree::steps(members, elements),
            Algorithm::Hierarchical { inner } => {
                hierarchical::steps(kind, inner, members / inner, elements)
            }
            Algorithm::Star
            | Algorithm::TwoLevelStar { .. }
            | Algorithm::MultiStar { .. }
            | Algorithm::BinaryTreeStar { .. }
            | Algorithm::MultiBinaryTreeStar { .. } => {
                let trees = algorithm.star_tree(members);
                trees.expect("`check` wants whole inner groups").steps(elements)
            }
        }
    };
    Ok(StepList { members, elements, steps })
}

/// Every kind with every algorithm that [`plan`] has for it among `members`; `root` is that of kinds
/// that have one.
pub fn pairs(members: u32, root: Member) -> Vec<(Kind, Algorithm)> {
    let kinds = [
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::AllToAll,
        Kind::Broadcast { root },
        Kind::Reduce { root },
    ];
    let mut algorithms = Algorithm::FLAT.to_vec();
    for of_inner in Algorithm::NESTED {
        algorithms.extend((1..=members).map(of_inner));
    }
    let all = kinds.iter().flat_map(|&kind| algorithms.iter().map(move |&by| (kind, by)));
    all.filter(|&(kind, algorithm)| check(kind, algorithm, members).is_ok()).collect()
}

/// Refuses what there is no step list of.
pub(crate) fn check_sized(
    kind: Kind,
    algorithm: Algorithm,
    members: u32,
    elements: usize,
) -> Result<(), CollectiveError> {
    check(kind, algorithm, members)?;
    match kind == Kind::AllToAll && !elements.is_multiple_of(members as usize) {
        true => Err(CollectiveError::UnequalChunks { elements, members }),
        false => Ok(()),
    }
}

/// Refuses whatever no buffer length could make right.
pub(crate) fn check(kind: Kind, algorithm: Algorithm, members: u32) -> Result<(), CollectiveError> {
    if !kind.has(algorithm) {
        return Err(CollectiveError::Unsupported { kind, algorithm });
    }
    if members == 0 {
        return Err(CollectiveError::NoMembers);
    }
    if let Some(root) = kind.root().filter(|root| root.0 >= members) {
        return Err(CollectiveError::RootOutside { root, members });
    }
    match algorithm.among(members) == algorithm {
        true => Ok(()),
        false => Err(CollectiveError::InnerDoesNotDivide { algorithm, members }),
    }
}
