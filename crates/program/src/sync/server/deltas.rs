//! Workers that update by themselves, and servers that add what that changes: a worker keeps an optimizer's state of
//! its own, and sends by how much an update with its own gradients has changed the weights that it got (Jiang et al.
//! 2020, OSDI, and BytePS's code with `BYTEPS_ENABLE_ASYNC`).

use crate::class::{Bucket, BucketId};
use crate::lower::{Parameters, epilogue};
use crate::sync::{Replicated, Synchronisation, Unheld, add};
use crate::{
    Action, Content, Extent, Format, Instruction, Keep, Mode, RouteId, Tensor, TensorId, View,
};

/// Weights that a server holds, and to which it adds what updates of workers have changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddedTo;

impl Synchronisation for AddedTo {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let weights = add(tensors, bucket.weights(Extent::Exactly(bucket.elements)));
        Replicated {
            weights,
            used: weights,
            gradients: None,
            looked_up: None,
            updated: View::whole(weights),
            own: vec![add_delta(bucket, tensors)],
        }
    }
}

/// Adds by how much a worker's update changes a bucket.
pub(super) fn add_delta(bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> TensorId {
    let whole = Extent::Exactly(bucket.elements);
    let format = Format::of_number(bucket.precision.compute);
    let delta =
        bucket.flat("delta of weights", whole, format, Keep::Transient, Content::WeightDelta);
    add(tensors, delta)
}

/// By how much an update changes a bucket.
pub(super) fn delta(bucket: &Bucket) -> TensorId {
    bucket.held.replicated.own[0]
}

/// What a worker does with a bucket at the end of a step: it updates, and sends by these routes how much that changed.
pub(super) fn update_and_send(
    parameters: &Parameters<'_>,
    id: BucketId,
    routes: &[RouteId],
) -> Vec<Instruction> {
    let bucket = &parameters.buckets[id.0 as usize];
    let weights = bucket.held.replicated.updated;
    let to = View::whole(delta(bucket));
    let mut instructions = vec![Instruction::new(Action::Copy, [weights], [to])];
    instructions.extend(epilogue::update(parameters, id));
    let difference = Instruction::new(Action::Difference, [weights], [to]);
    instructions.push(difference.with_mode(Mode::Add));
    let last = routes.len() - 1;
    instructions.extend(routes.iter().enumerate().map(|(index, &route)| {
        let send = Instruction::new(Action::Send { route }, [to], []);
        send.freeing((index == last).then_some(to.tensor))
    }));
    instructions
}

/// What a server does with what comes of a worker's bucket by a route: it adds it to its weights.
pub(super) fn receive_and_add(bucket: &Bucket, route: RouteId) -> [Instruction; 2] {
    let arrived = View::whole(delta(bucket));
    let weights = bucket.held.replicated.updated;
    let sum = Instruction::new(Action::Add, [arrived], [weights]);
    [
        Instruction::new(Action::Receive { route }, [], [arrived]),
        sum.with_mode(Mode::Add).freeing([arrived.tensor]),
    ]
}
