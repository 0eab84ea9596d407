//! A tree of members that carries one range of the buffer, pipelined: segments follow each other up to the
//! root or down from it.

use std::ops::Range;

use crate::{Combine, chunk::chunk_of, step_list::Step};

const SEGMENTS_PER_LEVEL: u32 = 4;

/// Pieces that a range is cut into to keep `depth` levels busy: the pipeline is filled for at most a fifth of
/// the time, and the number of steps grows with the depth only.
pub(crate) fn segments(depth: u32) -> u32 {
    SEGMENTS_PER_LEVEL * depth
}

/// A rooted tree.
pub(crate) struct Tree {
    /// Every member but the root is a child once.
    pub edges: Vec<Edge>,
    /// Levels below the root.
    pub depth: u32,
    /// Pieces that the range is cut into.
    pub segments: u32,
    /// What it carries.
    pub range: Range<usize>,
}

/// Two members that talk to each other.
pub(crate) struct Edge {
    pub child: u32,
    pub parent: u32,
    /// Levels between the parent and the root.
    pub parent_level: u32,
}

impl Tree {
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
