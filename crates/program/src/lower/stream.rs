//! A class's stream: its schedule's passes as bodies, then the end of the step.

use crate::class::{BodyId, StreamItem};
use crate::schedule::{Cell, Pass, Turn};

/// Body numbers within a class of one stage.
pub(super) const FORWARD: BodyId = BodyId(0);
/// A backward pass after which more follow.
pub(super) const BACKWARD: BodyId = BodyId(1);
/// The last backward pass of a step, which completes gradients.
pub(super) const LAST_BACKWARD: BodyId = BodyId(2);
/// The end of a step.
pub(super) const EPILOGUE: BodyId = BodyId(3);
/// A forward pass that keeps nothing.
pub(super) const EVALUATION: BodyId = BodyId(4);

/// The stream of a stage that runs its passes in `order`.
pub(super) fn of(order: &[Turn]) -> Vec<StreamItem> {
    let order: Vec<Cell> = order.iter().flat_map(|turn| turn.cells()).collect();
    let last = order.iter().rposition(|cell| cell.pass == Pass::Backward);
    let passes = order.iter().enumerate().map(|(index, cell)| StreamItem {
        body: match cell.pass {
            Pass::Forward => FORWARD,
            Pass::Backward if Some(index) == last => LAST_BACKWARD,
            Pass::Backward | Pass::BackwardInput | Pass::BackwardWeight => BACKWARD,
        },
        microbatch: Some(cell.microbatch),
    });
    passes.chain([StreamItem { body: EPILOGUE, microbatch: None }]).collect()
}
