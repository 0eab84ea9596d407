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

/// What a rank keeps for its corrections, by bucket; empty where it needs nothing.
pub(super) struct Corrections {
    /// Exponential means of the weights' changes.
    velocity: Vec<Buffer>,
    /// The weights before their last update.
    previous: Vec<Buffer>,
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
        let copy = |weights: &Buffer| {
            let mut copy = memory.alloc(DType::F32, weights.len());
            copy.as_f32_mut().copy_from_slice(weights.as_f32());
            copy
        };
        let mut kept = Corrections { velocity: vec![], previous: vec![] };
        if delayed && rules.discrepancy.is_some() {
            let zeros = |weights: &Buffer| memory.alloc_zeroed(DType::F32, weights.len());
            kept.velocity = weights.iter().map(zeros).collect();
        }
        if delayed && rules.prediction == Some(Prediction::Weights) {
            kept.previous = weights.iter().map(copy).collect();
        }
        kept
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
    /// The plan's rules, if they act in the current step.
    fn rules(&self) -> Option<Rules> {
        let rules = self.program().corrections;
        (self.class().delay > 0.0 && self.now.step >= rules.synchronous_steps).then_some(rules)
    }

    /// Whether an update of the current step counts for the mean velocity, and the velocity's decay.
    pub(super) fn velocity_decay(&self) -> (bool, f32) {
        match self.rules().and_then(|rules| rules.discrepancy) {
            Some(share) => (true, share.powf(1.0 / self.class().delay) as f32),
            None => (false, 0.0),
        }
    }

    /// What the learning rate of the current step is multiplied by (PipeMare's T1). Stages whose delay
    /// is less than an update are not rescaled.
    pub(super) fn learning_rate_share(&self) -> f64 {
        let Some(rules) = self.rules() else { return 1.0 };
        let Some(steps) = rules.anneal_steps else { return 1.0 };
        let passed = (self.now.step - rules.synchronous_steps) as f64;
        let exponent = 1.0 - (passed / steps as f64).min(1.0);
        self.class().delay.max(1.0).powf(-exponent)
    }

    /// The optimizer of the current step, with spike compensation where the plan has it.
    pub(super) fn compensated(&self, optimizer: Optimizer) -> Optimizer {
        match (optimizer, self.rules().and_then(|rules| rules.spike)) {
            (Optimizer::Sgd(sgd), Some(times)) => {
                Optimizer::Sgd(sgd.spike_compensated(times * self.class().delay))
            }
            (other, _) => other,
        }
    }

    /// The weights that `instruction` must read moved along their velocity, moved.
    pub(super) fn moved_weights(&self, instruction: &Instruction) -> MovedWeights {
        let program = self.program();
        let rules = match program.extrapolates(self.class(), instruction) {
            Some(forward) => self.rules().map(|rules| (rules, forward)),
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
                let bucket = self.class().param(param).bucket.0 as usize;
                let owned = self.parameters.owned[bucket].iter().find(|it| it.param == param)?;
                let velocity = owned.state.first()?.as_f32();
                let rate = self.learning_rate() * delay;
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
