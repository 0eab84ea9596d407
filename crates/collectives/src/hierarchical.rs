//! Rings within nodes, then rings across nodes (Horovod's and NCCL's hierarchical
//! all-reduce; the same two levels for all-to-all).
//!
//! Member n * inner + l has position l in node n. Its rail is the members of
//! position l in all nodes. Chunk (n, l) ends on that member, so in the node phase
//! position l collects the chunks of its whole rail.

use std::ops::Range;

use crate::{
    Combine, Kind, Transfer,
    chunk::chunk,
    ring::{all_gather, reduce_scatter},
    step_list::{Step, overlay},
};

pub(crate) fn steps(kind: Kind, inner: u32, outer: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let levels = Levels { inner, outer, elements, rail_major: kind == Kind::AllReduce };
    let mut steps = Vec::new();
    match kind {
        Kind::AllReduce => {
            levels.reduce_scatter(&mut steps);
            levels.all_gather(&mut steps);
        }
        Kind::ReduceScatter => levels.reduce_scatter(&mut steps),
        Kind::AllGather => levels.all_gather(&mut steps),
        Kind::AllToAll => levels.all_to_all(&mut steps),
        Kind::Broadcast { .. } | Kind::Reduce { .. } => {
            unreachable!("plan refuses a hierarchical {kind}")
        }
    }
    steps
}

/// Elements that `member` sends.
pub(crate) fn sent(kind: Kind, inner: u32, outer: u32, elements: usize, member: u32) -> usize {
    let levels = Levels { inner, outer, elements, rail_major: kind == Kind::AllReduce };
    let (node, position) = (member / inner, member % inner);
    let rail = |position: u32| -> usize {
        (0..outer).map(|node| levels.chunk(node, position).len()).sum()
    };
    // Rings send all blocks but their own, or but their successor's.
    let scattered = || elements - levels.chunk(node, position).len();
    let gathered = || {
        let along = rail(position) - levels.chunk((node + 1) % outer, position).len();
        along + elements - rail((position + 1) % inner)
    };
    match kind {
        Kind::AllReduce => scattered() + gathered(),
        Kind::ReduceScatter => scattered(),
        Kind::AllGather => gathered(),
        Kind::AllToAll => sent_in_all_to_all(inner, outer, elements) / (inner * outer) as usize,
        Kind::Broadcast { .. } | Kind::Reduce { .. } => {
            unreachable!("plan refuses a hierarchical {kind}")
        }
    }
}

/// Elements that all members together send in an all-to-all, whose chunks are equal.
pub(crate) fn sent_in_all_to_all(inner: u32, outer: u32, elements: usize) -> usize {
    ((inner - 1) * outer + (outer - 1) * inner) as usize * elements
}

struct Levels {
    inner: u32,
    outer: u32,
    elements: usize,
    /// Chunks of one rail lie side by side (fewer transfers), instead of chunk r
    /// being member r's. Only where nobody sees who owns what.
    rail_major: bool,
}

impl Levels {
    fn member(&self, node: u32, position: u32) -> u32 {
        node * self.inner + position
    }

    fn chunk(&self, node: u32, position: u32) -> Range<usize> {
        let index = match self.rail_major {
            true => position * self.outer + node,
            false => self.member(node, position),
        };
        chunk(self.elements, (self.inner * self.outer) as usize, index as usize)
    }

    /// What position `position` collects within its node, adjacent chunks joined.
    fn rail_chunks(&self, position: u32) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for next in (0..self.outer).map(|node| self.chunk(node, position)) {
            match ranges.last_mut() {
                Some(last) if last.end == next.start => last.end = next.end,
                _ => ranges.push(next),
            }
        }
        ranges
    }

    fn reduce_scatter(&self, steps: &mut Vec<Vec<Transfer>>) {
        self.within_nodes(steps, reduce_scatter);
        self.along_rails(steps, reduce_scatter);
    }

    fn all_gather(&self, steps: &mut Vec<Vec<Transfer>>) {
        self.along_rails(steps, all_gather);
        self.within_nodes(steps, all_gather);
    }

    fn within_nodes(&self, steps: &mut Vec<Vec<Transfer>>, ring: Ring) {
        let blocks: Vec<_> = (0..self.inner).map(|position| self.rail_chunks(position)).collect();
        let first = steps.len();
        for node in 0..self.outer {
            let order: Vec<u32> =
                (0..self.inner).map(|position| self.member(node, position)).collect();
            overlay(steps, first, ring(&order, &blocks));
        }
    }

    fn along_rails(&self, steps: &mut Vec<Vec<Transfer>>, ring: Ring) {
        let first = steps.len();
        for position in 0..self.inner {
            let order: Vec<u32> = (0..self.outer).map(|node| self.member(node, position)).collect();
            let blocks: Vec<_> =
                (0..self.outer).map(|node| vec![self.chunk(node, position)]).collect();
            overlay(steps, first, ring(&order, &blocks));
        }
    }

    /// Two exchanges. Within a node, position l hands position l' everything meant
    /// for rail l'; then along the rail, each node gets what is meant for it. Chunk
    /// (n, l) of a member holds what came from (n, l) once both are done.
    fn all_to_all(&self, steps: &mut Vec<Vec<Transfer>>) {
        let mut within = Step::default();
        let mut across = Step::default();
        for node in 0..self.outer {
            for position in 0..self.inner {
                let from = self.member(node, position);
                for peer in (0..self.inner).filter(|&peer| peer != position) {
                    for block in 0..self.outer {
                        let target = self.chunk(block, position).start;
                        let source = self.chunk(block, peer);
                        let to = self.member(node, peer);
                        within.send_to(from, to, source, target, Combine::Overwrite);
                    }
                }
                for peer in (0..self.outer).filter(|&peer| peer != node) {
                    for block in 0..self.inner {
                        let target = self.chunk(node, block).start;
                        let source = self.chunk(peer, block);
                        let to = self.member(peer, position);
                        across.send_to(from, to, source, target, Combine::Overwrite);
                    }
                }
            }
        }
        let phases = [(self.inner > 1).then_some(within), (self.outer > 1).then_some(across)];
        overlay(steps, 0, phases.into_iter().flatten());
    }
}

type Ring = fn(&[u32], &[Vec<Range<usize>>]) -> Vec<Step>;
