//! What makes up for delayed gradients where every pass runs with the newest weights: PipeMare's rescaled
//! learning rates and discrepancy correction (Yang et al. 2021, arXiv 1910.05124, section 3), spike
//! compensation and linear weight prediction (Kosson et al. 2021, arXiv 2003.11666, section 3).
//!
//! None of it acts in the first synchronous steps, whose gradients are not delayed.

use std::ops::Range;
use std::sync::Arc;

use shardloom_kernels::optimizer::Optimizer;
use shardloom_kernels::{Buffer, View};
use shardloom_plan::Corrections as Rules;
use shardloom_program::{BucketId, Content, Instruction};

use super::arena::Room;
use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// What an update of a bucket is corrected by.
pub(super) struct Corrected {
    /// How many updates late the bucket's gradients are.
    pub delay: f64,
    /// Where its mean velocity is.
    velocity: Option<Slot>,
    /// Where its weights before the update go.
    previous: Option<Slot>,
}

/// A weight that is moved along its velocity: forward to where it is expected to be after the delay, or back to
/// where it was before it (PipeMare's T2).
pub(crate) struct Extrapolation {
    weight: Slot,
    along: Slot,
    range: Range<usize>,
    velocity: Velocity,
    to: Room,
    /// How many updates late the gradients of the class are.
    delay: f64,
}

/// What the velocity of a weight follows from.
#[derive(Clone, Copy)]
enum Velocity {
    /// Its change at the last update, from the weight before that.
    LastChange,
    /// The optimizer's momentum, of gradients so late.
    Momentum { delay: f64 },
    /// The mean of its changes.
    MeanChange,
}

impl Corrected {
    /// Links the corrections of an update.
    pub fn link(linker: &Linker<'_>, bucket: BucketId, instruction: &Instruction) -> Corrected {
        let class = linker.class;
        let written = |content: Content| {
            let mut written = instruction.writes.iter().map(|write| write.to);
            let found = written.find(|view| class.tensor(view.tensor).content == content);
            found.map(|view| linker.slot(view))
        };
        Corrected {
            delay: linker.shared.program.update_delay(class, bucket),
            velocity: written(Content::WeightVelocity),
            previous: written(Content::PreviousWeight),
        }
    }
}

impl Extrapolation {
    /// Links a weight's move.
    pub(super) fn link(
        linker: &Linker<'_>,
        forward: bool,
        instruction: &Instruction,
    ) -> Extrapolation {
        let Linker { class, position, shared, .. } = *linker;
        let (weight, along) = (instruction.reads[0], instruction.reads[1]);
        let tensor = class.tensor(along.tensor);
        let velocity = match tensor.content {
            Content::PreviousWeight => Velocity::LastChange,
            Content::OptimizerState(_) => {
                let bucket = tensor.bucket.expect("state is a bucket's");
                Velocity::Momentum { delay: shared.program.update_delay(class, bucket) }
            }
            _ => {
                debug_assert!(!forward, "forward passes are predicted");
                Velocity::MeanChange
            }
        };
        Extrapolation {
            weight: linker.slot(weight),
            along: linker.slot(along),
            range: class.view_range(weight, position),
            velocity,
            to: linker.room(instruction.writes[0].to.tensor),
            delay: class.delay,
        }
    }
}

impl Rank {
    /// The plan's rules, if they act in the current step on what is `delay` updates late.
    fn rules(&self, delay: f64) -> Option<Rules> {
        let rules = self.program().corrections;
        (delay > 0.0 && self.now.step >= rules.synchronous_steps).then_some(rules)
    }

    /// The decay of the mean velocity, if an update in the current step with gradients so late counts for it.
    fn velocity_decay(&self, delay: f64) -> Option<f32> {
        let share = self.rules(delay)?.discrepancy?;
        Some(share.powf(1.0 / delay) as f32)
    }

    /// What the learning rate of the current step is multiplied by where gradients are so late (PipeMare's
    /// T1). What is less than an update late is not rescaled.
    pub(super) fn learning_rate_share(&self, delay: f64) -> f64 {
        let Some(rules) = self.rules(delay) else { return 1.0 };
        let Some(steps) = rules.anneal_steps else { return 1.0 };
        let passed = (self.now.step - rules.synchronous_steps) as f64;
        let exponent = 1.0 - (passed / steps as f64).min(1.0);
        delay.max(1.0).powf(-exponent)
    }

    /// The optimizer of gradients so late in the current step, with spike compensation where the plan has it.
    pub(super) fn compensated(&self, optimizer: Optimizer, delay: f64) -> Optimizer {
        match (optimizer, self.rules(delay).and_then(|rules| rules.spike)) {
            (Optimizer::Sgd(sgd), Some(times)) => {
                Optimizer::Sgd(sgd.spike_compensated(times * delay))
            }
            (other, _) => other,
        }
    }

    /// The mean velocity that an update counts for, and its decay.
    fn mean_velocity(&mut self, corrected: &Corrected) -> Option<(&mut Buffer, f32)> {
        let decay = self.velocity_decay(corrected.delay)?;
        Some((self.store.newest_mut(corrected.velocity?), decay))
    }

    /// Notes the weights of a bucket before an update.
    pub(super) fn note_before_update(&mut self, corrected: &Corrected, weights: View<'_>) {
        let device = Arc::clone(self.device());
        if let Some((mean, decay)) = self.mean_velocity(corrected) {
            device.scale_and_add(mean.view_mut(), decay, weights, -(1.0 - decay));
        }
        if let Some(previous) = corrected.previous {
            device.copy(weights, self.store.newest_mut(previous).view_mut());
        }
    }

    /// Notes the weights of a bucket after that update.
    pub(super) fn note_after_update(&mut self, corrected: &Corrected, weights: View<'_>) {
        let device = Arc::clone(self.device());
        if let Some((mean, decay)) = self.mean_velocity(corrected) {
            device.scale_and_add(mean.view_mut(), 1.0, weights, 1.0 - decay);
        }
    }

    /// Moves a weight along its velocity.
    pub(super) fn extrapolate(&mut self, of: &Extrapolation, at: At) {
        let delay = of.delay as f32;
        let weights = self.store.get(of.weight, at).view().slice(of.range.clone());
        let along = self.store.get(of.along, at).view().slice(of.range.clone());
        let mut result = self.arena.take(&of.to, at);
        let device = self.device();
        let mut to = result.view_mut();
        device.copy(weights, to.reborrow());
        if self.rules(of.delay).is_some() {
            match of.velocity {
                Velocity::LastChange => {
                    // weight + delay (weight - previous)
                    device.scale_and_add(to.reborrow(), 1.0, along, -1.0);
                    device.scale_and_add(to, delay, weights, 1.0);
                }
                Velocity::Momentum { delay: of_bucket } => {
                    let rate = self.learning_rate(of_bucket) * delay;
                    device.scale_and_add(to, 1.0, along, -rate);
                }
                Velocity::MeanChange => device.scale_and_add(to, 1.0, along, -delay),
            }
        }
        self.store.put(of.to.slot, at, result);
    }
}
