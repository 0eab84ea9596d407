//! PipeMare (Yang et al. 2021, arXiv 1910.05124, section 2), which is pipelined backpropagation (Kosson et
//! al. 2021, arXiv 2003.11666, section 2) if a step has one micro-batch.
//!
//! Every stage runs a forward and a backward pass in each slot, without flush. A micro-batch's backward
//! comes to stage `s` of `p` as many slots after its forward as there are stages to go to the end and
//! back, so forwards are `2 (p - 1 - s)` micro-batches ahead: that is the delay in micro-batches, and one
//! more are in flight, as a slot's forward comes first. Balanced stages are always busy once the pipeline
//! is full, even if a message takes up to half a slot each way. One message on each way is enough.

use super::{Action, StageMap, pipedream};

/// The orders on a map of one stage per device.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Action>> {
    pipedream::alternating(map, |ahead| 2 * ahead)
}
