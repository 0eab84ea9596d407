//! One binary tree, pipelined.
//!
//! The tree is the in-order one NCCL builds: role 0 is the root with one child, the
//! largest power of two below the group's size; every other role is the parent of
//! the middles of its two halves. Odd roles are leaves. Its depth is the logarithm
//! of the size, rounded up.
//!
//! The buffer is cut into segments that follow each other up or down the tree, four
//! per level: the pipeline is filled for at most a fifth of the time and the number
//! of steps stays logarithmic.

use std::ops::Range;

use crate::{
    Combine, Kind, Transfer,
    chunk::chunk_of,
    step_list::{Step, overlay},
};

const SEGMENTS_PER_LEVEL: u32 = 4;

/// Levels below the root of a tree over `members`.
pub(crate) fn depth(members: u32) -> u32 {
    members.next_power_of_two().ilog2()
}

/// Pieces the buffer is cut into to keep every level busy.
pub(crate) fn segments(members: u32) -> u32 {
    SEGMENTS_PER_LEVEL * depth(members)
}

pub(crate) fn steps(kind: Kind, members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let root = kind.root().map_or(0, |root| root.0);
    let tree = Tree::new(members, |role| (root + role) % members, 0..elements);
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

/// A tree that carries one range of the buffer.
pub(crate) struct Tree {
    edges: Vec<Edge>,
    depth: u32,
    segments: u32,
    range: Range<usize>,
}

struct Edge {
    child: u32,
    parent: u32,
    parent_level: u32,
}

impl Tree {
    /// The tree over `members` roles, role i played by `member_of(i)`.
    pub(crate) fn new(members: u32, member_of: impl Fn(u32) -> u32, range: Range<usize>) -> Self {
        let edges = (1..members)
            .map(|role| {
                let parent = parent(role, members);
                let ancestors = std::iter::successors(Some(parent), |&role| {
                    (role > 0).then(|| self::parent(role, members))
                });
                Edge {
                    child: member_of(role),
                    parent: member_of(parent),
                    parent_level: ancestors.count() as u32 - 1,
                }
            })
            .collect();
        Self { edges, depth: depth(members), segments: segments(members), range }
    }

    /// Reduces to the root. An edge below level l takes segment s in step
    /// `depth - 1 - l + s`, when the child has it from all its own children.
    pub(crate) fn up(&self) -> Vec<Step> {
        self.phase(Combine::Reduce, |edge| self.depth - 1 - edge.parent_level)
    }

    /// Copies from the root. An edge below level l takes segment s in step `l + s`.
    pub(crate) fn down(&self) -> Vec<Step> {
        self.phase(Combine::Overwrite, |edge| edge.parent_level)
    }

    fn phase(&self, combine: Combine, first_step: impl Fn(&Edge) -> u32) -> Vec<Step> {
        (0..self.depth + self.segments - 1)
            .map(|index| {
                let mut step = Step::default();
                for edge in &self.edges {
                    let segment = index.checked_sub(first_step(edge));
                    if let Some(segment) = segment.filter(|&segment| segment < self.segments) {
                        let range = chunk_of(&self.range, self.segments as usize, segment as usize);
                        let (from, to) = match combine {
                            Combine::Reduce => (edge.child, edge.parent),
                            Combine::Overwrite => (edge.parent, edge.child),
                        };
                        step.send(from, to, range, combine);
                    }
                }
                step
            })
            .collect()
    }
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
