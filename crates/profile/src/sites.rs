//! Where ranks are.

use std::ops::Range;

use crate::{ProfileError, Result};

/// The machines of the ranks that measure together: those of one machine follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sites {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    ranks: Range<u32>,
    kind: usize,
}

/// Which ranks exchange messages in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Neighbours on one machine; one without a neighbour, with itself.
    Within,
    /// The first ranks of two machines.
    Alone,
    /// All ranks of two machines, as many as the smaller has.
    Together,
}

impl Pairs {
    /// How many messages two ranks exchange while a clock runs: one each way, or one way only.
    pub(crate) fn messages(self) -> usize {
        match self {
            Pairs::Within | Pairs::Alone => 2,
            Pairs::Together => 1,
        }
    }
}

impl Sites {
    /// So many ranks on one machine.
    pub fn one(ranks: u32) -> Sites {
        Sites { nodes: vec![Node { ranks: 0..ranks, kind: 0 }] }
    }

    /// Machines by rank, by name, and what they are: machines with as many ranks that are the same are of one
    /// kind, and measured as one.
    ///
    /// # Errors
    /// If ranks of one machine do not follow each other.
    pub fn of<T: PartialEq>(ranks: &[(&str, T)]) -> Result<Sites> {
        let (mut names, mut nodes, mut kinds) = (vec![], vec![], vec![]);
        for of_one in ranks.chunk_by(|(one, _), (other, _)| one == other) {
            let (name, what) = &of_one[0];
            if names.contains(name) {
                return Err(ProfileError::Scattered { machine: (*name).to_owned() });
            }
            names.push(*name);
            let first = nodes.last().map_or(0, |it: &Node| it.ranks.end);
            let kind = (of_one.len(), what);
            let known = kinds.iter().position(|other| *other == kind);
            let number = known.unwrap_or(kinds.len());
            if known.is_none() {
                kinds.push(kind);
            }
            nodes.push(Node { ranks: first..first + of_one.len() as u32, kind: number });
        }
        Ok(Sites { nodes })
    }

    /// All ranks.
    pub fn ranks(&self) -> u32 {
        self.nodes.last().map_or(0, |it| it.ranks.end)
    }

    /// By machine: its first rank, how many it has, and the number of its kind.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, u32, usize)> {
        self.nodes.iter().map(|it| (it.ranks.start, it.ranks.len() as u32, it.kind))
    }

    /// The most ranks of a machine.
    pub(crate) fn most(&self) -> u32 {
        self.nodes.iter().map(|it| it.ranks.len() as u32).max().unwrap_or(0)
    }

    /// Whether there are several machines.
    pub(crate) fn are_several(&self) -> bool {
        self.nodes.len() > 1
    }

    fn node_of(&self, rank: u32) -> usize {
        self.nodes.iter().position(|it| it.ranks.contains(&rank)).expect("every rank has a machine")
    }

    /// The ranks of the machine that a rank is on.
    pub(crate) fn beside(&self, rank: u32) -> Range<u32> {
        self.nodes[self.node_of(rank)].ranks.clone()
    }

    /// The ranks on machines of the kind that a rank is on.
    pub(crate) fn alike(&self, rank: u32) -> Vec<u32> {
        let kind = self.nodes[self.node_of(rank)].kind;
        let alike = self.nodes.iter().filter(|it| it.kind == kind);
        alike.flat_map(|it| it.ranks.clone()).collect()
    }

    /// The ranks of two machines of which all exchange messages with the other's at once, where a rank is one of
    /// them.
    pub(crate) fn both(&self, rank: u32) -> Vec<u32> {
        let has_partner = |&rank: &u32| self.partner(rank, Pairs::Together).is_some();
        let partner = self.partner(rank, Pairs::Together).into_iter();
        let mut first = partner.chain([rank]).map(|it| self.beside(it)).collect::<Vec<_>>();
        first.sort_by_key(|it| it.start);
        first.into_iter().flatten().filter(has_partner).collect()
    }

    /// How many ranks of a machine of a rank's kind send at once to another machine, as measured: on the clock of
    /// the first of two.
    pub(crate) fn senders(&self, rank: u32) -> usize {
        let kind = self.nodes[self.node_of(rank)].kind;
        let pairs = self.nodes.chunks_exact(2).filter(|pair| pair[0].kind == kind);
        pairs.map(|pair| pair[0].ranks.len().min(pair[1].ranks.len())).next().unwrap_or(0)
    }

    /// The rank that a rank exchanges messages with, if it does. Of machines the first two are a pair, and so
    /// on; the last of an odd number stands by.
    pub(crate) fn partner(&self, rank: u32, pairs: Pairs) -> Option<u32> {
        let node = self.node_of(rank);
        let own = &self.nodes[node].ranks;
        let place = rank - own.start;
        if pairs == Pairs::Within {
            let neighbour = own.start + (place ^ 1);
            return Some(if own.contains(&neighbour) { neighbour } else { rank });
        }
        let other = &self.nodes.get(node ^ 1)?.ranks;
        let takes_part = pairs == Pairs::Together || place == 0;
        (takes_part && place < other.len() as u32).then(|| other.start + place)
    }

    /// Whether the clock of a rank tells how long messages between it and its partner take: of two the lower one's, as
    /// the other is done as soon as it has answered; of one without a neighbour only where its machine has no other.
    pub(crate) fn tells(&self, rank: u32, partner: u32) -> bool {
        rank < partner || (rank == partner && self.beside(rank).len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_are_the_same_are_of_one_kind() {
        let sites = Sites::of(&[
            ("a", 'x'),
            ("a", 'x'),
            ("b", 'x'),
            ("b", 'x'),
            ("c", 'y'),
            ("c", 'y'),
            ("d", 'x'),
        ]);
        let sites = sites.expect("in order");
        let nodes: Vec<_> = sites.nodes().collect();
        assert_eq!(nodes, [(0, 2, 0), (2, 2, 0), (4, 2, 1), (6, 1, 2)]);
        assert_eq!((sites.ranks(), sites.most()), (7, 2));
        assert_eq!(sites.alike(3), [0, 1, 2, 3]);
        assert_eq!((sites.alike(4), sites.beside(5)), (vec![4, 5], 4..6));
    }

    #[test]
    fn ranks_are_paired_with_neighbours_or_with_those_of_the_next_machine() {
        let sites = Sites::of(&[("a", ()), ("a", ()), ("a", ()), ("b", ()), ("b", ()), ("c", ())]);
        let sites = sites.expect("in order");
        let partners = |pairs| (0..6).map(|rank| sites.partner(rank, pairs)).collect::<Vec<_>>();
        assert_eq!(partners(Pairs::Within), [1, 0, 2, 4, 3, 5].map(Some));
        assert_eq!(partners(Pairs::Alone), [Some(3), None, None, Some(0), None, None]);
        let together = [Some(3), Some(4), None, Some(0), Some(1), None];
        assert_eq!(partners(Pairs::Together), together);
        assert_eq!(Sites::one(1).partner(0, Pairs::Together), None);
        assert_eq!((sites.both(4), sites.both(1)), (vec![0, 1, 3, 4], vec![0, 1, 3, 4]));
        assert_eq!((sites.senders(0), sites.senders(5)), (2, 0));
    }

    #[test]
    fn one_of_two_ranks_tells_of_their_messages_and_one_with_itself_only_where_it_is_alone() {
        let sites = Sites::of(&[("a", ()), ("a", ()), ("a", ()), ("b", ())]).expect("in order");
        let tells = |rank| {
            let partner = sites.partner(rank, Pairs::Within).expect("on every machine");
            sites.tells(rank, partner)
        };
        // Of three on a machine the last exchanges messages with itself, which no link is between.
        assert_eq!([0, 1, 2, 3].map(tells), [true, false, false, true]);
    }

    #[test]
    fn ranks_of_a_machine_that_do_not_follow_each_other_are_refused() {
        let error = Sites::of(&[("a", ()), ("b", ()), ("a", ())]).expect_err("scattered");
        assert!(error.to_string().contains("a"), "{error}");
    }
}
