//! What makes up for delayed gradients where every pass runs with the newest weights: PipeMare's rescaled
//! learning rates and discrepancy correction (Yang et al. 2021, arXiv 1910.05124, section 3), spike
//! compensation and linear weight prediction (Kosson et al. 2021, arXiv 2003.11666, section 3).
//!
//! None of it acts in the first synchronous steps, whose gradients are not delayed.

use shardloom_kernels::optimizer::Optimizer;
use shardloom_kernels::{Buffer, DType, Memory};
use shardloom_plan::{Corrections as Rules, Prediction};
use shardloom_program::{BucketId, Class, Instruction, Operand, ParamId, Program, Tenant};
use smallvec::SmallVec;

use super::Rank;

/// What a rank keeps for its corrections, by bucket; empty where it needs nothing. It lasts from step to
/// step, so checkpoints hold it.
pub(super) struct Corrections {
    /// Exponential means of the weights' changes.
    velocity: Vec<Buffer>,
    /// The weights before their last update.
    previous: Vec<Buffer>,
}

/// One of the tensors that corrections keep of each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The exponential mean of its changes; zero before the first.
    Velocity,
    /// What it was before its last update; before the first, what it is.
    Previous,
}

impl Kept {
    pub const ALL: [Kept; 2] = [Kept::Velocity, Kept::Previous];

    /// The name of such a tensor in checkpoints.
    pub fn name(self, parameter: &str) -> String {
        let kept = match self {
            Kept::Velocity => "mean-velocity",
            Kept::Previous => "previous-weights",
        };
        format!("correction.{kept}/{parameter}")
    }
}

/// Weights that an instruction reads otherwise than they are, with their places among what it reads. An
/// operator has at most a matrix and a bias.
pub(super) type MovedWeights = SmallVec<[(u32, Buffer); 2]>;

impl Corrections {
    pub fn new(
        program: &Program,
        class: &Class,
        weights: &[Buffer],
        memory: &Memory,
    ) -> Corrections {
        let rules = program.corrections;
        let delayed = class.delay > 0.0;
        let room = |needed: bool| -> Vec<Buffer> {
            let room = |weights: &Buffer| memory.alloc(DType::F32, weights.len());
            if needed { weights.iter().map(room).collect() } else { vec![] }
        };
        let mut kept = Corrections {
            velocity: room(delayed && rules.discrepancy.is_some()),
            previous: room(delayed && rules.prediction == Some(Prediction::Weights)),
        };
        kept.begin(weights);
        kept
    }

    /// Begins with `weights`, of which no update is known.
    pub fn begin(&mut self, weights: &[Buffer]) {
        for velocity in &mut self.velocity {
            velocity.as_f32_mut().fill(0.0);
        }
        for (previous, weights) in self.previous.iter_mut().zip(weights) {
            previous.as_f32_mut().copy_from_slice(weights.as_f32());
        }
    }

    /// What is kept of each bucket, if that is.
    pub fn of(&self, kept: Kept) -> &[Buffer] {
        match kept {
            Kept::Velocity => &self.velocity,
            Kept::Previous => &self.previous,
        }
    }

    /// Likewise, to be changed.
    pub fn of_mut(&mut self, kept: Kept) -> &mut Vec<Buffer> {
        match kept {
            Kept::Velocity => &mut self.velocity,
            Kept::Previous => &mut self.previous,
        }
    }

    /// Notes the weights of a bucket before an update that counts if `acts`.
    pub fn before(&mut self, bucket: usize, weights: &[f32], decay: f32, acts: bool) {
        if acts && let Some(velocity) = self.velocity.get_mut(bucket) {
            for (mean, &weight) in velocity.as_f32_mut().iter_mut().zip(weights) {
                *mean = decay * *mean - (1.0 - decay) * weight;
            }
        }
        if let Some(previous) = self.previous.get_mut(bucket) {
            previous.as_f32_mut().copy_from_slice(weights);
        }
    }

    /// Notes the weights of a bucket after that update.
    pub fn after(&mut self, bucket: usize, weights: &[f32], decay: f32, acts: bool) {
        if acts && let Some(velocity) = self.velocity.get_mut(bucket) {
            for (mean, &weight) in velocity.as_f32_mut().iter_mut().zip(weights) {
                *mean += (1.0 - decay) * weight;
            }
        }
    }
}

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

    /// Whether an update of a bucket in the current step counts for the mean velocity, and the velocity's
    /// decay.
    pub(super) fn velocity_decay(&self, bucket: BucketId) -> (bool, f32) {
        let delay = self.update_delay(bucket);
        match self.rules(delay).and_then(|rules| rules.discrepancy) {
            Some(share) => (true, share.powf(1.0 / delay) as f32),
            None => (false, 0.0),
        }
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

    /// The weights that `instruction` must read moved along their velocity, moved.
    pub(super) fn moved_weights(&self, instruction: &Instruction) -> MovedWeights {
        let program = self.program();
        let rules = match program.extrapolates(self.class(), instruction) {
            Some(forward) => self.rules(self.class().delay).map(|rules| (rules, forward)),
            None => None,
        };
        let Some((rules, forward)) = rules else { return MovedWeights::new() };
        let moved = |(index, read): (u32, &Operand)| {
            let moved = match *read {
                Operand::Weight(param) if forward => {
                    self.predicted(index, param, rules.prediction?)?
                }
                Operand::Weight(param) => self.moved_back(index, param),
                Operand::Slot(_) | Operand::Gradient(_) | Operand::Norm => return None,
            };
            Some((index, moved))
        };
        (0u32..).zip(&instruction.reads).filter_map(moved).collect()
    }

    /// A weight moved back along its mean velocity by the delay (PipeMare's T2).
    fn moved_back(&self, read: u32, param: ParamId) -> Buffer {
        let delay = self.class().delay as f32;
        let velocity = self.part(&self.parameters.corrections.velocity, param);
        self.combined(read, param, |index, weight| weight - delay * velocity[index])
    }

    /// A weight as it is expected to be after the delay.
    fn predicted(&self, read: u32, param: ParamId, prediction: Prediction) -> Option<Buffer> {
        let delay = self.class().delay as f32;
        Some(match prediction {
            Prediction::Weights => {
                let previous = self.part(&self.parameters.corrections.previous, param);
                self.combined(read, param, |index, weight| {
                    weight + delay * (weight - previous[index])
                })
            }
            Prediction::Velocity => {
                let bucket = self.class().param(param).bucket;
                let mut owned = self.parameters.owned[bucket.0 as usize].iter();
                let velocity = owned.find(|it| it.param == param)?.state.first()?.as_f32();
                let rate = self.learning_rate(bucket) * delay;
                self.combined(read, param, |index, weight| weight - rate * velocity[index])
            }
        })
    }

    fn part<'a>(&self, buckets: &'a [Buffer], param: ParamId) -> &'a [f32] {
        let spec = self.class().param(param);
        let bucket: BucketId = spec.bucket;
        &buckets[bucket.0 as usize].as_f32()[spec.offset..spec.offset + spec.elements()]
    }

    /// The weight that the current instruction reads at place `read`, each element made another.
    fn combined(&self, read: u32, param: ParamId, value: impl Fn(usize, f32) -> f32) -> Buffer {
        let weights = self.parameters.weights.of(self.class(), param);
        let mut combined = self.arena.take(Tenant::Moved(read), DType::F32, weights.len());
        for (index, (to, &weight)) in combined.as_f32_mut().iter_mut().zip(weights).enumerate() {
            *to = value(index, weight);
        }
        combined
    }
}
