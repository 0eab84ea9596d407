//! Collective times by closed form, for searches that ask millions of times.

use shardloom_collectives::{Algorithm, CollectiveError, Kind, bottleneck_bytes, rounds};

use crate::Link;

/// All that a collective's time depends on: how many members, how they spread over
/// nodes, and their links.
///
/// # Model
///
/// A step takes as long as its busiest port. Ports are each device's within its
/// node, and each node's to the network; all are full duplex. What leaves a node
/// spreads over the network cards of the group's members there, as communication
/// libraries do with several rotated rings, so a ring over nodes runs at the slower
/// of the link in the node and the sum of those cards (or the group's share of the
/// uplink). Members are ordered by node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupShape<'a> {
    /// Size of the group.
    pub members: u32,
    /// Members in each node. Equal to `members` where all traffic stays off the
    /// network; a group that is uneven over nodes is taken as if it were even.
    pub members_per_node: u32,
    /// Link in the node.
    pub intra: &'a Link,
    /// Links in the node one member uses at once: 1, or several on a torus.
    pub intra_links: f64,
    /// One member's link to the network.
    pub inter: &'a Link,
    /// What the members in one node can send to the network together.
    pub outgoing_bytes_per_second: f64,
}

impl GroupShape<'_> {
    /// Time of a collective on a buffer of `bytes` per member. Allocates nothing.
    ///
    /// Equal to the step list's time on links without measured curves for every
    /// algorithm within a node, and across even nodes for direct, for the ring's
    /// all-reduce, reduce-scatter and all-gather, for halving-doubling where sizes
    /// are powers of two, for hierarchical and stars where `inner` divides the members in
    /// a node, and for trees of stars where it is their number. Elsewhere it is an estimate: folded groups and chains come out up to
    /// 2.7 times slower than their lists, as every step is taken to cross nodes;
    /// trees between a third of and twice their lists' time, as one edge each way is
    /// taken to leave a node, which libraries see to and a list in plain member
    /// order does only where nodes hold a power of two; other stars and trees of stars
    /// between 0.6 and 1.8 times their lists' time.
    ///
    /// # Errors
    ///
    /// If the collective does not exist for this group.
    pub fn seconds(
        &self,
        kind: Kind,
        algorithm: Algorithm,
        bytes: f64,
    ) -> Result<f64, CollectiveError> {
        let rounds = rounds(kind, algorithm, self.members)?;
        if rounds == 0 || bytes <= 0.0 {
            return Ok(0.0);
        }
        Ok(match algorithm {
            Algorithm::Direct => self.direct(kind, bytes),
            Algorithm::Ring | Algorithm::BinaryTree | Algorithm::DoubleBinaryTree => {
                let path = bottleneck_bytes(kind, algorithm, self.members, bytes)?;
                let each = path / f64::from(rounds);
                f64::from(rounds) * self.neighbours(each)
            }
            Algorithm::HalvingDoubling => self.halving_doubling(kind, bytes),
            Algorithm::Hierarchical { inner } => self.hierarchical(kind, inner, bytes),
            Algorithm::Star
            | Algorithm::TwoLevelStar { .. }
            | Algorithm::MultiStar { .. }
            | Algorithm::BinaryTreeStar { .. }
            | Algorithm::MultiBinaryTreeStar { .. } => {
                let trees = algorithm.star_tree(self.members);
                self.star_tree(&trees.expect("`rounds` wants whole inner groups"), bytes)
            }
        })
    }

    /// Time of an all-reduce of `bytes` per member in a double binary tree over nodes, with a chain of the members in
    /// each, as NCCL has it: pieces are so small beside the buffer that levels pass them on while more come. A byte
    /// goes up and down through all levels, each with its link's latency, and the busiest node sends the buffer twice.
    /// So NCCL itself estimates it, to choose between trees and rings (`ncclTopoTuneModel` in its `graph/tuning.cc`).
    /// On one node it is a chain up and down.
    pub fn tree_of_nodes_seconds(&self, bytes: f64) -> f64 {
        if self.members <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let nodes = self.members.div_ceil(self.members_per_node.max(1));
        let levels = f64::from(nodes.next_power_of_two().ilog2());
        let chain = f64::from(self.members_per_node.saturating_sub(1));
        let (within, across) = (self.intra.latency_seconds, self.inter.latency_seconds);
        // The last hop's latency is that of passing on the bytes.
        let before = match nodes {
            1 => (2.0 * chain - 1.0) * within,
            _ => 2.0 * chain * within + (2.0 * levels - 1.0) * across,
        };
        before + self.neighbours(2.0 * bytes)
    }

    /// A step in which some member sends `intra_bytes` within its node and some node
    /// sends `inter_bytes` to the network.
    pub(crate) fn step(&self, intra_bytes: f64, inter_bytes: f64) -> f64 {
        let intra = self.intra.transfer_seconds(intra_bytes / self.intra_links);
        let inter = self.inter.throttled_seconds(inter_bytes, self.outgoing_bytes_per_second);
        intra.max(inter)
    }

    /// A step in which members pass `bytes` to the next, so one per node crosses.
    fn neighbours(&self, bytes: f64) -> f64 {
        let intra = if self.members_per_node > 1 { bytes } else { 0.0 };
        let inter = if self.one_node() { 0.0 } else { bytes };
        self.step(intra, inter)
    }

    fn one_node(&self) -> bool {
        self.members_per_node >= self.members
    }

    fn direct(&self, kind: Kind, bytes: f64) -> f64 {
        let peers = f64::from(self.members_per_node - 1);
        let outside = f64::from(self.members - self.members_per_node);
        if kind.root().is_some() {
            return self.step(peers * bytes, outside * bytes);
        }
        let chunk = bytes / f64::from(self.members);
        let phase = self.step(peers * chunk, f64::from(self.members_per_node) * outside * chunk);
        if kind == Kind::AllReduce { 2.0 * phase } else { phase }
    }

    fn halving_doubling(&self, kind: Kind, bytes: f64) -> f64 {
        let survivors = 1 << self.members.ilog2();
        let extra = self.members - survivors;
        let per_node = f64::from(self.members_per_node);
        let aligned = extra == 0 && self.members_per_node.is_power_of_two();
        let swap = |span: u32, bytes: f64| match (self.one_node(), aligned) {
            (true, _) => self.step(bytes, 0.0),
            (false, true) if span < self.members_per_node => self.step(bytes, 0.0),
            (false, true) => self.step(0.0, per_node * bytes),
            (false, false) => self.step(bytes, per_node * bytes),
        };
        let chunk = bytes / f64::from(self.members);
        let levels: f64 = (0..survivors.ilog2())
            .map(|level| {
                let span = 1 << level;
                match kind {
                    Kind::AllReduce => {
                        2.0 * swap(span, f64::from(span) * bytes / f64::from(survivors))
                    }
                    _ => swap(span, f64::from(span + extra.min(span)) * chunk),
                }
            })
            .sum();
        if extra == 0 {
            return levels;
        }
        let folds = match kind {
            Kind::AllReduce => [bytes, bytes],
            Kind::ReduceScatter => [bytes, chunk],
            _ => [chunk, bytes - chunk],
        };
        levels + folds.map(|bytes| self.neighbours(bytes)).iter().sum::<f64>()
    }

    fn hierarchical(&self, kind: Kind, inner: u32, bytes: f64) -> f64 {
        let outer = self.members / inner;
        let [inner_size, outer_size] = [inner, outer].map(f64::from);
        let per_node = f64::from(self.members_per_node);
        let inner_stays = self.one_node() || self.members_per_node.is_multiple_of(inner);
        let groups_per_node = f64::from((self.members_per_node / inner).max(1));
        if kind == Kind::AllToAll {
            let within = (inner_size - 1.0) / inner_size * bytes;
            let within = if inner_stays {
                self.step(within, 0.0)
            } else {
                self.step(within, per_node * within)
            };
            let block = bytes / outer_size;
            let along = self.step(
                (groups_per_node - 1.0) * block,
                if self.one_node() {
                    0.0
                } else {
                    per_node * (outer_size - groups_per_node) * block
                },
            );
            return within + along;
        }
        let block = bytes / inner_size;
        let within = if inner_stays { self.step(block, 0.0) } else { self.neighbours(block) };
        let chunk = bytes / f64::from(self.members);
        let along = self.step(
            if groups_per_node > 1.0 { chunk } else { 0.0 },
            if self.one_node() { 0.0 } else { inner_size.min(per_node) * chunk },
        );
        let both_ways = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
        both_ways * ((inner_size - 1.0) * within + (outer_size - 1.0) * along)
    }
}
