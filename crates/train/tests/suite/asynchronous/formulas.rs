//! What the papers say: which version of the weights a pass runs with, and what makes up for delays.
//! A version is the number of updates before it; all numbers count from 0.

/// Which version of the weights a pass runs with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Every step waits for the update of the one before.
    Flush,
    /// PipeDream (Narayanan et al. 2019, arXiv 1806.03377, section 3.3).
    Stash,
    /// The same with vertical sync.
    VerticalSync,
    /// PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503, section 3.1).
    DoubleBuffer,
    /// Pipelined backpropagation (Kosson et al. 2021, arXiv 2003.11666), PipeMare (Yang et al. 2021, arXiv
    /// 1910.05124).
    Newest(Corrections),
}

/// What makes up for delayed gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Corrections {
    /// PipeMare's T1: over so many steps the learning rate comes up from what the delay divides it by.
    pub anneal_steps: Option<u64>,
    /// PipeMare's T2: the share that the mean velocity decays to over the delay.
    pub discrepancy: Option<f64>,
    /// PipeMare's T3: so many first steps have a flush.
    pub synchronous_steps: u64,
    /// Spike compensation for so many times the delay.
    pub spike: Option<f64>,
    /// Linear weight prediction.
    pub prediction: Option<Prediction>,
}

/// How forward passes extrapolate weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prediction {
    /// w - rate D v.
    Velocity,
    /// w + D (w - w before the last update).
    Weights,
}

/// One stage of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// Its number.
    pub index: usize,
    /// For each stage the replicas that take micro-batches in turn.
    pub replicas: &'a [u64],
    /// For each stage the micro-batches between two updates: whole rounds of its replicas.
    pub microbatches: &'a [u64],
}

/// The versions of one micro-batch's two passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Versions {
    pub forward: u64,
    pub backward: u64,
}

impl Rule {
    pub fn corrections(self) -> Corrections {
        match self {
            Rule::Newest(corrections) => corrections,
            _ => Corrections::default(),
        }
    }

    /// The versions for micro-batch `microbatch` of the whole run, in a pipeline that was empty before
    /// micro-batch `filled`: nothing older was ever used since.
    pub fn versions(self, stage: Stage, microbatch: u64, filled: u64) -> Versions {
        let own = stage.microbatches[stage.index];
        let newest = microbatch / own;
        let filled_version = filled / own;
        // As it was so many micro-batches ago.
        let late = |by: u64| (microbatch.saturating_sub(by) / own).max(filled_version);
        let same = |version| Versions { forward: version, backward: version };
        match self {
            Rule::Flush => same(newest),
            Rule::Stash => same(late(stage.ahead())),
            Rule::VerticalSync => {
                // The first stage has the gradients of all micro-batches before this one.
                let first = Stage { index: 0, ..stage };
                let each = stage.microbatches[0];
                let whole = microbatch.saturating_sub(first.ahead()) / each * each;
                same(whole.max(filled) / own)
            }
            Rule::DoubleBuffer => same(newest.saturating_sub(1).max(filled_version)),
            // A slot has a forward pass before the backward pass of the micro-batch 2 * after earlier,
            // and an update follows every backward pass that ends a step.
            Rule::Newest(_) => Versions { forward: late(2 * stage.ahead()), backward: newest },
        }
    }
}

impl Stage<'_> {
    /// How many micro-batches a forward pass is ahead of the backward pass that follows it on the same
    /// replica. One that goes round the later stages comes back when all that they take in meanwhile has
    /// been taken in: what the next stage's replicas are ahead, and one more for each of them; in
    /// whole rounds of the own replicas. Without replicas that is the number of stages after.
    pub fn ahead(self) -> u64 {
        let last = self.replicas.len() - 1;
        (self.index..last).rev().fold(0, |ahead, stage| {
            (ahead + self.replicas[stage + 1]).next_multiple_of(self.replicas[stage])
        })
    }

    /// Updates between a forward pass and its gradient's, on average, if passes run with the newest.
    pub fn delay(self) -> f64 {
        2.0 * self.ahead() as f64 / self.microbatches[self.index] as f64
    }
}

/// PipeMare's T1: the learning rate of the `step`-th asynchronous step.
pub fn annealed(rate: f64, delay: f64, step: u64, anneal_steps: u64) -> f64 {
    let exponent = 1.0 - (step as f64 / anneal_steps as f64).min(1.0);
    rate / delay.max(1.0).powf(exponent)
}

/// PipeMare's T2: the mean velocity after an update that moved a weight by `moved`.
pub fn mean_velocity(before: f32, moved: f32, delay: f64, share: f64) -> f32 {
    let decay = share.powf(1.0 / delay);
    (decay * f64::from(before) + (1.0 - decay) * f64::from(moved)) as f32
}

/// PipeMare's T2: what backward passes take for a weight, about as it was in the forward pass.
pub fn moved_back(weight: f32, delay: f64, mean_velocity: f32) -> f32 {
    (f64::from(weight) - delay * f64::from(mean_velocity)) as f32
}

/// Momentum for updates of `batches` times the batch that `momentum` was chosen for, and what the learning
/// rate is multiplied by (Kosson et al.).
pub fn scaled(momentum: f64, batches: f64) -> (f64, f64) {
    let scaled = momentum.powf(batches);
    (scaled, (1.0 - scaled) * batches / (1.0 - momentum))
}

/// Spike compensation (Kosson et al.): the shares of velocity and gradient in a step.
pub fn spike_shares(momentum: f64, delay: f64) -> (f64, f64) {
    let kept = momentum.powf(delay);
    (kept, (1.0 - kept) / (1.0 - momentum))
}

/// Linear weight prediction along the velocity (Kosson et al.).
pub fn along_velocity(weight: f32, rate: f64, delay: f64, velocity: f32) -> f32 {
    (f64::from(weight) - rate * delay * f64::from(velocity)) as f32
}

/// Linear weight prediction along the last update (Kosson et al.).
pub fn along_last_update(weight: f32, delay: f64, before: f32) -> f32 {
    (f64::from(weight) + delay * (f64::from(weight) - f64::from(before))) as f32
}
