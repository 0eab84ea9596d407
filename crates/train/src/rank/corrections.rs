//! What makes up for delayed gradients where every pass runs with the newest weights: PipeMare's rescaled
//! learning rates and discrepancy correction (Yang et al. 2021, arXiv 1910.05124, section 3), spike
//! compensation and linear weight prediction (Kosson et al. 2021, arXiv 2003.11666, section 3).
//!
//! None of it acts in the first synchronous steps, whose gradients are not delayed.

use std::sync::Arc;

use shardloom_kernels::optimizer::Optimizer;
use shardloom_kernels::{Buffer, View};
use shardloom_plan::Corrections as Rules;
use shardloom_program::{BucketId, Content, Instruction, TensorId};

use super::Rank;

impl Rank {
    /// The plan's rules, if they act in the current step on what is `delay` updates late.
    fn rules(&self, delay: f64) -> Option<Rules> {
        let rules = self.program().corrections;
        (delay > 0.0 && self.now.step >= rules.synchronous_steps).then_some(rules)
    }

    /// How many updates late a bucket's gradients are.
    fn update_delay(&self, bucket: BucketId) -> f64 {
        self.program().update_delay(self.class(), bucket)
    }

    /// The decay of the mean velocity, if an update of a bucket in the current step counts for it.
    fn velocity_decay(&self, bucket: BucketId) -> Option<f32> {
        let delay = self.update_delay(bucket);
        let share = self.rules(delay)?.discrepancy?;
        Some(share.powf(1.0 / delay) as f32)
    }

    /// What the learning rate of the current step is multiplied by for a bucket (PipeMare's T1). What is
    /// less than an update late is not rescaled.
    pub(super) fn learning_rate_share(&self, bucket: BucketId) -> f64 {
        let delay = self.update_delay(bucket);
        let Some(rules) = self.rules(delay) else { return 1.0 };
        let Some(steps) = rules.anneal_steps else { return 1.0 };
        let passed = (self.now.step - rules.synchronous_steps) as f64;
        let exponent = 1.0 - (passed / steps as f64).min(1.0);
        delay.max(1.0).powf(-exponent)
    }

    /// The optimizer of a bucket in the current step, with spike compensation where the plan has it.
    pub(super) fn compensated(&self, optimizer: Optimizer, bucket: BucketId) -> Optimizer {
        let delay = self.update_delay(bucket);
        match (optimizer, self.rules(delay).and_then(|rules| rules.spike)) {
            (Optimizer::Sgd(sgd), Some(times)) => {
                Optimizer::Sgd(sgd.spike_compensated(times * delay))
            }
            (other, _) => other,
        }
    }

    /// The tensor of some content that an update writes.
    fn written(&self, update: &Instruction, content: Content) -> Option<TensorId> {
        let mut written = update.writes.iter().map(|write| write.to.tensor);
        written.find(|&it| self.class().tensor(it).content == content)
    }

    /// The mean velocity that an update counts for, and its decay.
    fn mean_velocity(
        &mut self,
        update: &Instruction,
        bucket: BucketId,
    ) -> Option<(&mut Buffer, f32)> {
        let decay = self.velocity_decay(bucket)?;
        let velocity = self.written(update, Content::WeightVelocity)?;
        Some((self.store.newest_mut(velocity), decay))
    }

    /// Notes the weights of a bucket before an update.
    pub(super) fn note_before_update(
        &mut self,
        update: &Instruction,
        bucket: BucketId,
        weights: View<'_>,
    ) {
        let device = Arc::clone(self.device());
        if let Some((mean, decay)) = self.mean_velocity(update, bucket) {
            device.scale_and_add(mean.view_mut(), decay, weights, -(1.0 - decay));
        }
        if let Some(previous) = self.written(update, Content::PreviousWeight) {
            device.copy(weights, self.store.newest_mut(previous).view_mut());
        }
    }

    /// Notes the weights of a bucket after that update.
    pub(super) fn note_after_update(
        &mut self,
        update: &Instruction,
        bucket: BucketId,
        weights: View<'_>,
    ) {
        let device = Arc::clone(self.device());
        if let Some((mean, decay)) = self.mean_velocity(update, bucket) {
            device.scale_and_add(mean.view_mut(), 1.0, weights, 1.0 - decay);
        }
    }

    /// Moves a weight along its velocity: forward to where it is expected to be after the delay, or back to
    /// where it was before it (PipeMare's T2).
    pub(super) fn extrapolate(&mut self, instruction: &Instruction, forward: bool) {
        let (weight, along) = (instruction.reads[0], instruction.reads[1]);
        let moved = instruction.writes[0].to.tensor;
        let class = self.class();
        let delay = class.delay as f32;
        let range = class.view_range(weight, self.position);
        let content = class.tensor(along.tensor).content;
        let weights = self.store.get(weight.tensor, 0).view().slice(range.clone());
        let along_values = self.store.get(along.tensor, 0).view().slice(range);
        let mut result = self.arena.take(moved, weights.len());
        let device = self.device();
        let mut to = result.view_mut();
        device.copy(weights, to.reborrow());
        match content {
            _ if self.rules(self.class().delay).is_none() => {}
            Content::PreviousWeight => {
                // weight + delay (weight - previous)
                device.scale_and_add(to.reborrow(), 1.0, along_values, -1.0);
                device.scale_and_add(to, delay, weights, 1.0);
            }
            Content::OptimizerState(_) => {
                let bucket = self.class().tensor(along.tensor).bucket.expect("state is a bucket's");
                let rate = self.learning_rate(bucket) * delay;
                device.scale_and_add(to, 1.0, along_values, -rate);
            }
            _ => {
                debug_assert!(!forward, "forward passes are predicted");
                device.scale_and_add(to, 1.0, along_values, -delay);
            }
        }
        self.store.put(moved, 0, result);
    }
}
