//! Commands about what a rank holds from step to step.

use super::command::{Answer, StateCommand};
use crate::Result;
use crate::rank::{OwnedPiece, Rank};

/// Carries out `command` on a rank.
///
/// # Errors
/// If a file cannot be written or read, or lacks something.
pub(super) fn carry_out(rank: &mut Rank, command: &StateCommand) -> Result<Answer> {
    match command {
        StateCommand::FindNonFinite => {
            let broken = pieces(rank).into_iter().find(|piece| !piece.is_finite());
            Ok(Answer::NonFinite(broken.map(|piece| piece.name().to_owned())))
        }
        StateCommand::ReportUpdates => Ok(Answer::Updates(rank.updates())),
        StateCommand::ReportRows => Ok(Answer::Rows(rank.row_counts())),
        StateCommand::BringWeights { of: None } => Ok(Answer::Pieces(rank.weight_pieces())),
        StateCommand::BringWeights { of: Some(name) } => {
            Ok(Answer::Pieces(rank.weight_pieces_of(name)))
        }
        StateCommand::BringAll => Ok(Answer::Pieces(pieces(rank))),
        StateCommand::Save(shards) => {
            let own = rank.class().first_rank.0 + rank.position() as u32;
            Ok(Answer::Shard(shards.write(own, pieces(rank).iter().map(OwnedPiece::piece))?))
        }
        StateCommand::Restore { from, updates } => {
            rank.set_updates(|name| updates.of(name));
            rank.restore(from.saved(), updates).map(|()| Answer::Done)
        }
        StateCommand::EndRow => Ok(Answer::RowEnd(rank.end_row())),
        StateCommand::BringGradients => Ok(Answer::Gradients(rank.gradients_for_servers())),
        StateCommand::CatchUp { step, buckets, gradients } => {
            let own = buckets.get(&rank.class_id().0).map_or(&[][..], Vec::as_slice);
            rank.catch_up(*step, own, gradients).map(|()| Answer::Done)
        }
        StateCommand::BringBuckets { of } => {
            let own = of.get(&rank.class_id().0).map_or(&[][..], Vec::as_slice);
            Ok(Answer::Pieces(rank.bucket_pieces(own)))
        }
        StateCommand::SetWeights(weights) => {
            rank.set_weights(&|name| weights.get(name).cloned()).map(|()| Answer::Done)
        }
    }
}

/// All that the rank owns.
fn pieces(rank: &Rank) -> Vec<OwnedPiece> {
    let mut pieces = rank.weight_pieces();
    pieces.extend(rank.state_pieces());
    pieces.extend(rank.own_state());
    pieces
}
