//! Stars within inner groups, and a tree across these: the graphs of KungFu (Mai et al., "KungFu: Making
//! Training in Distributed Machine Learning Adaptive", OSDI 2020; `srcs/go/plan/topology.go` in its code).
//!
//! Inner groups are runs of consecutive members, such as those in one node. The first member of each is its
//! head, to which the others are connected. Heads form a star, or a binary tree in which those below role i
//! have the roles 2i + 1 and 2i + 2. A tree reduces to its root and copies from it; of several, each is rooted
//! at another head, its roles dealt from there on, and carries its chunk of the buffer.
//!
//! KungFu cuts buffers into pieces of 1 MiB, of which the i-th goes through graph i modulo their number, or
//! through that which the buffer's name is hashed to. Chunks here are as large for every tree, whatever the
//! buffer's length, so that none carries more than the others.

use crate::{
    Algorithm, Transfer,
    chunk::chunk,
    step_list::overlay,
    tree::{self, Edge, Tree},
};

/// What connects the heads of inner groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Across {
    /// All to the root.
    Star,
    /// Each to two at most.
    BinaryTree,
}

/// The trees of an all-reduce over inner groups, all of one shape.
///
/// An edge is at the level of its parent, which is 0 for the root. Reducing to the root, every edge passes each
/// [segment](StarTree::segments) once, as copying from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StarTree {
    /// Members of each inner group.
    pub inner: u32,
    /// Inner groups.
    pub outer: u32,
    /// How many trees there are: one, or one for each inner group.
    pub trees: u32,
    across: Across,
}

impl Algorithm {
    /// The trees of this algorithm over `members`; none if it is of another kind, or `members` are not a whole
    /// number of inner groups.
    pub fn star_tree(self, members: u32) -> Option<StarTree> {
        let (inner, across, several) = match self {
            Algorithm::Star => (members, Across::Star, false),
            Algorithm::TwoLevelStar { inner } => (inner, Across::Star, false),
            Algorithm::MultiStar { inner } => (inner, Across::Star, true),
            Algorithm::BinaryTreeStar { inner } => (inner, Across::BinaryTree, false),
            Algorithm::MultiBinaryTreeStar { inner } => (inner, Across::BinaryTree, true),
            _ => return None,
        };
        let whole = inner > 0 && members > 0 && members.is_multiple_of(inner);
        whole.then(|| {
            let outer = members / inner;
            StarTree { inner, outer, trees: if several { outer } else { 1 }, across }
        })
    }
}

impl StarTree {
    /// Levels of edges between heads.
    fn depth_across(&self) -> u32 {
        match self.across {
            Across::Star => u32::from(self.outer > 1),
            Across::BinaryTree => self.outer.ilog2(),
        }
    }

    /// Levels of edges.
    pub fn depth(&self) -> u32 {
        self.depth_across() + u32::from(self.inner > 1)
    }

    /// Pieces that what a tree carries is cut into; one, where a single level has no pipeline.
    pub fn segments(&self) -> u32 {
        match self.depth() {
            0 | 1 => 1,
            depth => tree::segments(depth),
        }
    }

    /// Heads above `level` in each tree.
    pub fn heads_above(&self, level: u32) -> u32 {
        let full = match (self.across, level) {
            (_, 0) => 0,
            (Across::Star, 1) => 1,
            (Across::Star, _) => self.outer,
            (Across::BinaryTree, _) => 1_u32.checked_shl(level).map_or(u32::MAX, |it| it - 1),
        };
        full.min(self.outer)
    }

    /// The most heads that one at `level` is the parent of.
    pub fn most_children(&self, level: u32) -> u32 {
        let below = self.heads_above(level + 2) - self.heads_above(level + 1);
        match self.across {
            Across::Star => below,
            Across::BinaryTree => below.min(2),
        }
    }

    /// The levels whose edges pass something in step `index` of a reduction: from the first number to before
    /// the second. A copy has these steps in reverse.
    pub fn busy(&self, index: u32) -> (u32, u32) {
        let (depth, segments) = (self.depth(), self.segments());
        ((depth - 1).saturating_sub(index), (segments + depth - 1 - index).min(depth))
    }

    /// Steps of a reduction, and of a copy.
    pub(crate) fn steps_per_phase(&self) -> u32 {
        self.depth() + self.segments() - 1
    }

    fn parent(&self, role: u32) -> u32 {
        match self.across {
            Across::Star => 0,
            Across::BinaryTree => (role - 1) / 2,
        }
    }

    fn level(&self, role: u32) -> u32 {
        match self.across {
            Across::Star => u32::from(role > 0),
            Across::BinaryTree => (role + 1).ilog2(),
        }
    }

    /// The tree whose root is the head of group `root`, with chunk `root` of the buffer.
    fn tree(&self, root: u32, elements: usize) -> Tree {
        let head = |role: u32| (root + role) % self.outer * self.inner;
        let among_heads = (1..self.outer).map(|role| {
            let parent = self.parent(role);
            Edge { child: head(role), parent: head(parent), parent_level: self.level(parent) }
        });
        let within = (0..self.outer).flat_map(|role| {
            let (parent, parent_level) = (head(role), self.level(role));
            (1..self.inner).map(move |other| Edge { child: parent + other, parent, parent_level })
        });
        Tree {
            edges: within.chain(among_heads).collect(),
            depth: self.depth(),
            segments: self.segments(),
            range: chunk(elements, self.trees as usize, root as usize),
        }
    }

    /// How many heads a role is the parent of.
    fn children(&self, role: u32) -> u32 {
        match self.across {
            Across::Star => {
                if role == 0 {
                    self.outer - 1
                } else {
                    0
                }
            }
            Across::BinaryTree => self.outer.saturating_sub(2 * role + 1).min(2),
        }
    }

    /// Elements that `member` sends in an all-reduce.
    pub(crate) fn sent(&self, elements: usize, member: u32) -> usize {
        let (group, is_head) = (member / self.inner, member.is_multiple_of(self.inner));
        if !is_head {
            return elements;
        }
        let in_tree = |root: u32| {
            let role = (group + self.outer - root) % self.outer;
            let others = self.inner - 1 + self.children(role) + u32::from(role > 0);
            others as usize * chunk(elements, self.trees as usize, root as usize).len()
        };
        (0..self.trees).map(in_tree).sum()
    }

    pub(crate) fn steps(&self, elements: usize) -> Vec<Vec<Transfer>> {
        let mut steps = Vec::new();
        for root in 0..self.trees {
            let tree = self.tree(root, elements);
            overlay(&mut steps, 0, tree.up());
            overlay(&mut steps, self.steps_per_phase() as usize, tree.down());
        }
        steps
    }
}
