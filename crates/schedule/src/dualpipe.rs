//! DualPipe: two pipelines in opposite directions, forward of one overlapped with backward of the other
//! (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; its eight steps from DeepSeek's published code).
//!
//! Device `d` of `p` holds stage `d` of the pipeline down and stage `p - 1 - d` of the one up, so
//! parameters twice. With `B` for a whole backward pass and `F&B` for a forward and a backward pass
//! overlapped the bubble is `(p / 2 - 1)(F&B + B - 3W)`, exactly so where a forward takes as long as
//! input gradients and weight gradients no longer; longer ones leave it at `(p / 2 - 1) 2F`. At most `p + 1` micro-batches are in flight on each device, weight gradients
//! included. One message on a way is enough.

use std::collections::VecDeque;

use super::{Action, Instance, Pass, PassKind, StageMap};
use crate::ScheduleError;

/// The orders on a map of two pipelines in opposite directions.
///
/// # Errors
/// If there are more pipelines, or too few micro-batches to fill them.
pub(super) fn orders(map: &StageMap) -> Result<Vec<Vec<Action>>, ScheduleError> {
    let devices = map.devices();
    let pipelines = map.chains().len();
    let (microbatches, least) = (map.microbatches() as usize, 2 * devices);
    if pipelines != 2 {
        let message = format!(
            "dualpipe wants one pipeline in each direction, 2 stages on each device; these are \
             {pipelines} pipelines"
        );
        return Err(ScheduleError::Rule(message));
    }
    if microbatches < least {
        let rule = format!(
            "dualpipe wants at least {least} micro-batches on {devices} devices, and these are \
             {microbatches}"
        );
        return Err(ScheduleError::microbatches(microbatches, rule));
    }
    let order = |device: usize| {
        let stages: Vec<Instance> = map.instances_on(device).collect();
        // From both ends towards the middle the pipeline that begins nearer comes first.
        let (depth, ways) = match device < devices / 2 {
            true => (device, [stages[0], stages[1]]),
            false => (devices - 1 - device, [stages[1], stages[0]]),
        };
        steps(map, ways, depth, devices / 2)
    };
    Ok((0..devices).map(order).collect())
}

/// The eight steps of a device `depth` devices from the end of its half, which is `half` devices long.
/// Of its two stages, the one that forwards reach first comes first.
pub(super) fn steps(map: &StageMap, ways: [Instance; 2], depth: usize, half: usize) -> Vec<Action> {
    let inner = half - 1 - depth;
    let microbatches = ways.map(|way| map.microbatches_of(way).to_vec());
    let main = microbatches[NEAR].len() - 2 * half + depth + 1;
    let mut passes = Passes {
        ways,
        microbatches,
        forwards: [0; 2],
        backwards: [0; 2],
        weights: VecDeque::new(),
        order: vec![],
    };
    for _ in 0..2 * inner {
        passes.forward(NEAR);
    }
    for _ in 0..=depth {
        passes.forward(NEAR);
        passes.forward(FAR);
    }
    for _ in 0..inner {
        passes.input(FAR);
        passes.weight();
        passes.forward(FAR);
    }
    for round in 0..main {
        // In the middle, where the two directions meet, the first gradient is awaited here: overlapping
        // would hold up the forward.
        if round == 0 && inner == 0 {
            passes.forward(NEAR);
            passes.backward(FAR);
        } else {
            passes.overlapped(NEAR, FAR);
        }
        passes.overlapped(FAR, NEAR);
    }
    for _ in 0..inner {
        passes.backward(FAR);
        passes.overlapped(FAR, NEAR);
    }
    // Of the backwards that are left half are whole; the others leave weight gradients for step 7.
    for index in 0..2 * (depth + 1) {
        let way = if index % 2 == 0 { FAR } else { NEAR };
        match index <= depth {
            true => passes.backward(way),
            false => passes.input(way),
        }
    }
    for _ in 0..inner {
        passes.weight();
        passes.input(NEAR);
    }
    for _ in 0..=depth {
        passes.weight();
    }
    passes.order
}

/// The stage that forwards reach first.
const NEAR: usize = 0;
/// The other.
const FAR: usize = 1;

/// The passes that a device has run so far of its two stages.
struct Passes {
    ways: [Instance; 2],
    microbatches: [Vec<u32>; 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// Weight gradients that are left, oldest first.
    weights: VecDeque<Pass>,
    order: Vec<Action>,
}

impl Passes {
    fn next_forward(&mut self, way: usize) -> Pass {
        let microbatch = self.microbatches[way][self.forwards[way]];
        self.forwards[way] += 1;
        Pass { kind: PassKind::Forward, instance: self.ways[way], microbatch }
    }

    fn next_backward(&mut self, kind: PassKind, way: usize) -> Pass {
        let microbatch = self.microbatches[way][self.backwards[way]];
        self.backwards[way] += 1;
        Pass { kind, instance: self.ways[way], microbatch }
    }

    fn forward(&mut self, way: usize) {
        let pass = self.next_forward(way);
        self.order.push(Action::Alone(pass));
    }

    fn backward(&mut self, way: usize) {
        let pass = self.next_backward(PassKind::Backward, way);
        self.order.push(Action::Alone(pass));
    }

    fn overlapped(&mut self, forward: usize, backward: usize) {
        let forward = self.next_forward(forward);
        let backward = self.next_backward(PassKind::Backward, backward);
        self.order.push(Action::Overlapped(forward, backward));
    }

    /// Input gradients, whose weight gradients are left for later.
    fn input(&mut self, way: usize) {
        let pass = self.next_backward(PassKind::BackwardInput, way);
        self.order.push(Action::Alone(pass));
        self.weights.push_back(Pass { kind: PassKind::BackwardWeight, ..pass });
    }

    /// The oldest weight gradients that are left.
    fn weight(&mut self) {
        let pass = self.weights.pop_front().expect("as many weight as input gradients alone");
        self.order.push(Action::Alone(pass));
    }
}
