//! One binary tree, pipelined.
//!
//! The tree is the in-order one NCCL builds: role 0 is the root with one child, the
//! largest power of two below the group's size; every other role is the parent of
//! the middles of its two halves. Odd roles are leaves. Its depth is the logarithm
//! of the size, rounded up.

use std::ops::Range;

use crate::{
    Kind, Transfer,
    step_list::overlay,
    tree::{self, Edge, Tree},
};

/// Levels below the root of a tree over `members`.
pub(crate) fn depth(members: u32) -> u32 {
    members.next_power_of_two().ilog2()
}

/// Pieces the buffer is cut into to keep every level busy.
pub(crate) fn segments(members: u32) -> u32 {
    tree::segments(depth(members))
}

pub(crate) fn steps(kind: Kind, members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let root = kind.root().map_or(0, |root| root.0);
    let tree = tree(members, |role| (root + role) % members, 0..elements);
    let mut steps = Vec::new();
    if !matches!(kind, Kind::Broadcast { .. }) {
        overlay(&mut steps, 0, tree.up());
    }
    if !matches!(kind, Kind::Reduce { .. }) {
        let first = steps.len();
        overlay(&mut steps, first, tree.down());
    }
    steps
}

/// Elements that `member` sends.
pub(crate) fn sent(kind: Kind, members: u32, elements: usize, member: u32) -> usize {
    let root = kind.root().map_or(0, |root| root.0);
    let role = (member + members - root) % members;
    let up = !matches!(kind, Kind::Broadcast { .. }) && role > 0;
    let down = if matches!(kind, Kind::Reduce { .. }) { 0 } else { children(role, members) };
    (usize::from(up) + down) * elements
}

/// How many roles a role is the parent of. Each of these is a power of two away from it.
pub(crate) fn children(role: u32, members: u32) -> usize {
    let away = (0..members.next_power_of_two().ilog2()).map(|bit| 1 << bit);
    let near = away.flat_map(|away: u32| [role.checked_sub(away), role.checked_add(away)]);
    let others = near.flatten().filter(|&other| 0 < other && other < members);
    others.filter(|&other| parent(other, members) == role).count()
}

/// The tree over `members` roles, role i played by `member_of(i)`.
pub(crate) fn tree(members: u32, member_of: impl Fn(u32) -> u32, range: Range<usize>) -> Tree {
    let edges = (1..members)
        .map(|role| {
            let above = parent(role, members);
            let ancestors = std::iter::successors(Some(above), |&role| {
                (role > 0).then(|| parent(role, members))
            });
            Edge {
                child: member_of(role),
                parent: member_of(above),
                parent_level: ancestors.count() as u32 - 1,
            }
        })
        .collect();
    Tree { edges, depth: depth(members), segments: segments(members), range }
}

/// Parent of a role other than 0: clear its lowest set bit and set the next one,
/// unless that leaves the group.
fn parent(role: u32, members: u32) -> u32 {
    let lowest = role & role.wrapping_neg();
    let cleared = role ^ lowest;
    match lowest.checked_mul(2).map(|next| cleared | next) {
        Some(parent) if parent < members => parent,
        _ => cleared,
    }
}
