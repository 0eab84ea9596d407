use serde::{Deserialize, Serialize};

use crate::{Call, FabricError, Format};

/// What a packet is. Ranks and groups are those of a connection, by its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Frame {
    /// The n-th that its process made.
    pub connection: u32,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum What {
    /// A message; the body has its elements. Of one that is sent by priority the sender hears when it has arrived.
    Message { from: u32, to: u32, pool: u32, tag: u64, format: Format, by_priority: bool },
    /// A message that a rank has sent by priority has arrived.
    Arrived { sender: u32 },
    /// The receiver of a message has dropped it: the sender's pool may send one more.
    Credit { to: u32, pool: u32 },
    /// A rank is gone, and why.
    Gone { rank: u32, reason: String },
    /// A member calls a collective.
    Called { from: u32, at: MemberId, call: Call },
    /// Elements of a collective, in the body.
    Part { from: u32, at: MemberId },
    /// A rank asks for what another publishes, once that has a number of at least `least`.
    Fetch { from: u32, of: u32, ask: u64, least: u64 },
    /// One of so many parts of what a rank published under a number, for the ask of another; its elements are in the
    /// body.
    Published { of: u32, to: u32, ask: u64, number: u64, parts: u32, format: Format },
    /// A member gives a group up, and asks for one reason for all.
    Complaint { at: MemberId, members: Vec<u32>, error: FabricError },
    /// A group is broken, and why.
    Broken { at: MemberId, error: FabricError },
    /// The process is gone, with all its ranks.
    Left { reason: String },
}

/// A rank's part of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct MemberId {
    pub rank: u32,
    /// Made of the list of members and of how many groups of that list there were before.
    pub group: u64,
}

impl What {
    /// Whether its ranks are there, in a connection of so many with these in the receiving process.
    pub(super) fn fits(&self, ranks: u32, own: &[u32]) -> bool {
        let is_rank = |rank: &u32| *rank < ranks;
        match self {
            What::Message { from, to, .. } => is_rank(from) && own.contains(to),
            What::Credit { to, .. } => own.contains(to),
            What::Arrived { sender } => own.contains(sender),
            What::Gone { rank, .. } => is_rank(rank),
            What::Called { from, at, .. } | What::Part { from, at } => {
                is_rank(from) && own.contains(&at.rank)
            }
            What::Fetch { from, of, .. } => is_rank(from) && own.contains(of),
            What::Published { of, to, .. } => is_rank(of) && own.contains(to),
            What::Complaint { at, members, .. } => {
                own.contains(&at.rank) && members.iter().all(is_rank)
            }
            What::Broken { at, .. } => own.contains(&at.rank),
            What::Left { .. } => true,
        }
    }
}

impl What {
    /// The rank that it is for; none if all are to hear of it.
    pub(super) fn whose(&self) -> Option<u32> {
        match self {
            What::Message { to, .. } | What::Credit { to, .. } | What::Published { to, .. } => {
                Some(*to)
            }
            What::Arrived { sender } => Some(*sender),
            What::Called { at, .. }
            | What::Part { at, .. }
            | What::Complaint { at, .. }
            | What::Broken { at, .. } => Some(at.rank),
            What::Fetch { of, .. } => Some(*of),
            What::Gone { .. } | What::Left { .. } => None,
        }
    }
}

impl Frame {
    pub(super) fn header(&self) -> Vec<u8> {
        rmp_serde::to_vec(self).expect("a frame is plain data")
    }

    /// What a header says, if it is one.
    pub(super) fn parse(header: &[u8]) -> Option<Frame> {
        rmp_serde::from_slice(header).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shardloom_collectives::{Algorithm, Kind, Member, Reduction};

    use super::*;
    use crate::Operation;

    #[test]
    fn every_frame_is_read_as_it_was_written() {
        let at = MemberId { rank: 3, group: u64::MAX };
        let kind = Kind::Broadcast { root: Member(1) };
        let algorithm = Algorithm::Hierarchical { inner: 2 };
        let call = Call::exchange(kind, algorithm, Reduction::Max, (7, Format::Bf16));
        let operation = Operation::Collective { call, members: vec![3, 1] };
        let (rank, waiting_for) = (3, vec![1, 2]);
        let after = Duration::from_micros(1_500);
        let late = FabricError::Timeout { rank, operation: operation.clone(), waiting_for, after };
        let reason = "loss is NaN".to_owned();
        let gone = FabricError::PeerGone { rank, operation, peer: 1, reason: reason.clone() };
        let counts = FabricError::Counts { members: vec![3], rank, reason: reason.clone() };
        let all = [
            What::Message {
                from: 1,
                to: 2,
                pool: 3,
                tag: u64::MAX,
                format: Format::F64,
                by_priority: true,
            },
            What::Arrived { sender: 2 },
            What::Credit { to: 2, pool: 9 },
            What::Gone { rank: 4, reason: reason.clone() },
            What::Called { from: 1, at, call: Call::Barrier },
            What::Called { from: 1, at, call },
            What::Called { from: 1, at, call: Call::AllToAllV { format: Format::U8 } },
            What::Part { from: 1, at },
            What::Fetch { from: 1, of: 2, ask: 7, least: u64::MAX },
            What::Published {
                of: 1,
                to: 2,
                ask: 7,
                number: u64::MAX,
                parts: 3,
                format: Format::F16,
            },
            What::Complaint { at, members: vec![3, 1], error: late },
            What::Broken { at, error: gone },
            What::Broken { at, error: counts },
            What::Left { reason },
        ];
        for what in all {
            let frame = Frame { connection: 5, what };
            assert_eq!(Frame::parse(&frame.header()), Some(frame.clone()));
            assert!(frame.what.fits(10, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "{frame:?}");
            let names_ranks = !matches!(frame.what, What::Left { .. });
            assert_eq!(frame.what.fits(1, &[0]), !names_ranks, "{frame:?}");
            let is_for_a_rank = names_ranks && !matches!(frame.what, What::Gone { .. });
            assert_eq!(frame.what.fits(10, &[5, 6, 7, 8, 9]), !is_for_a_rank, "{frame:?}");
        }
        assert_eq!(Frame::parse(b"something else"), None);
    }

    #[test]
    fn a_frame_fits_if_its_sender_is_a_rank_and_its_receiver_lives_here() {
        let (ranks, own) = (4, [1, 3]);
        let (is_rank, is_own) = (|rank: u32| rank < 4, |rank: u32| rank == 1 || rank == 3);
        let at = |rank| MemberId { rank, group: 7 };
        let error = || FabricError::NoSuchRank { rank: 9, ranks };
        let (tag, format, reason) = (0, Format::F32, String::new);
        for (one, other) in (0..6).flat_map(|one| (0..6).map(move |other| (one, other))) {
            let both = is_rank(one) && is_own(other);
            let (number, parts) = (2, 3);
            let all = [
                (
                    What::Message {
                        from: one,
                        to: other,
                        pool: 0,
                        tag,
                        format,
                        by_priority: false,
                    },
                    both,
                ),
                (What::Arrived { sender: other }, is_own(other)),
                (What::Credit { to: other, pool: 9 }, is_own(other)),
                (What::Gone { rank: one, reason: reason() }, is_rank(one)),
                (What::Called { from: one, at: at(other), call: Call::Barrier }, both),
                (What::Part { from: one, at: at(other) }, both),
                (What::Fetch { from: one, of: other, ask: 9, least: 9 }, both),
                (What::Published { of: one, to: other, ask: 9, number, parts, format }, both),
                (What::Complaint { at: at(other), members: vec![0, one], error: error() }, both),
                (What::Complaint { at: at(other), members: vec![one, 3], error: error() }, both),
                (What::Broken { at: at(other), error: error() }, is_own(other)),
                (What::Left { reason: reason() }, true),
            ];
            for (what, fits) in all {
                assert_eq!(what.fits(ranks, &own), fits, "{what:?}");
            }
        }
    }
}
