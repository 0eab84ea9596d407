//! Commands about what a rank holds from step to step.

use super::command::{Answer, OwnedPiece, StateCommand};
use crate::Result;
use crate::rank::Rank;
use shardloom_checkpoint::Piece;

/// Carries out `command` on a rank.
///
/// # Errors
/// If a file cannot be written or read, or lacks something.
pub(super) fn carry_out(rank: &mut Rank, command: &StateCommand) -> Result<Answer> {
    match command {
        StateCommand::FindNonFinite => {
            let finite = |piece: &Piece<'_>| piece.data.iter().all(|value| value.is_finite());
            let broken = pieces(rank).find(|piece| !finite(piece));
            Ok(Answer::NonFinite(broken.map(|piece| piece.name)))
        }
        StateCommand::ReportUpdates => Ok(Answer::Updates(rank.updates())),
        StateCommand::BringWeights => {
            let pieces = rank.weight_pieces().into_iter();
            Ok(Answer::Pieces(pieces.map(OwnedPiece::from).collect()))
        }
        StateCommand::BringAll => Ok(Answer::Pieces(pieces(rank).map(OwnedPiece::from).collect())),
        StateCommand::Save(shards) => {
            let own = rank.class().first_rank.0 + rank.position() as u32;
            Ok(Answer::Shard(shards.write(own, pieces(rank))?))
        }
        StateCommand::Restore { from, updates } => {
            rank.set_updates(|name| updates.of(name));
            rank.restore(from.saved()).map(|()| Answer::Done)
        }
        StateCommand::SetWeights(weights) => {
            rank.set_weights(&|name| weights.get(name).cloned()).map(|()| Answer::Done)
        }
    }
}

/// All that the rank owns.
fn pieces(rank: &Rank) -> impl Iterator<Item = Piece<'_>> {
    rank.weight_pieces().into_iter().chain(rank.state_pieces())
}
