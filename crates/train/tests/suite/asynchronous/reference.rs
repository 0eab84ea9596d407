//! Training without flush as the papers define it, in one plain loop: micro-batch after micro-batch, each
//! operator with the version of the weights that its stage's formula names. Nothing of plans, programs or
//! the trainer is in it.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_graph::{Graph, Op, Value, ValueId};
use shardloom_kernels::optimizer::{Optimizer, Piece, Step};

use super::formulas::{self, Prediction, Rule, Stage};
use super::passage::{Passage, Place, Tensors};

/// What is trained, on what, and how.
pub struct Run<'a> {
    pub graph: &'a Graph,
    /// The blocks of each stage.
    pub stages: Vec<Range<usize>>,
    /// For each stage the replicas that take micro-batches in turn.
    pub replicas: Vec<u64>,
    /// Whether each stage updates its weights after every round of its replicas, with the mean gradient of
    /// that round's micro-batches, and not once a step with the step's.
    pub in_rounds: bool,
    /// The indices of an input, by name, of the sample at a position of the whole run.
    pub sample: &'a dyn Fn(&str, u64) -> Vec<u32>,
    pub seed: u64,
    pub global_batch: usize,
    pub microbatches: usize,
    /// Whether backward passes begin by running the blocks' operators again.
    pub recompute: bool,
    pub learning_rate: f64,
    pub optimizer: Optimizer,
    /// The batch that learning rate and momentum are scaled from to what an update has.
    pub reference_batch: Option<u64>,
    pub rule: Rule,
}

/// A run and all versions of its weights.
pub struct Reference<'a> {
    run: Run<'a>,
    /// For each stage the micro-batches between two updates.
    between: Vec<u64>,
    /// Steps trained so far.
    steps: u64,
    /// Of each parameter by the number of updates before them.
    versions: BTreeMap<ValueId, Vec<Version>>,
    /// What T2 knows of each parameter's movement.
    mean_velocity: Tensors,
}

#[derive(Clone)]
struct Version {
    weights: Vec<f32>,
    state: Vec<Vec<f32>>,
}

impl<'a> Reference<'a> {
    /// A run from given weights by name.
    pub fn new(run: Run<'a>, weights: &BTreeMap<String, Vec<f32>>) -> Reference<'a> {
        let parameters = || run.graph.parameters();
        let versions = parameters().map(|(id, value)| {
            let lens = run.optimizer.state_lens(&piece(run.graph, value));
            let state = lens.into_iter().map(|len| vec![0.0; len]).collect();
            (id, vec![Version { weights: weights[&value.name].clone(), state }])
        });
        let versions = versions.collect();
        let zeros = parameters().map(|(id, value)| (id, vec![0.0; weights[&value.name].len()]));
        let mean_velocity = zeros.collect();
        let between = run.replicas.iter().map(|&replicas| match run.in_rounds {
            true => replicas,
            false => run.microbatches as u64,
        });
        let between = between.collect();
        Reference { run, between, steps: 0, versions, mean_velocity }
    }

    /// The newest weights by name.
    pub fn weights(&self) -> BTreeMap<String, Vec<f32>> {
        let name = |id: &ValueId| self.run.graph.value(*id).name.clone();
        let newest = |versions: &Vec<Version>| versions[versions.len() - 1].weights.clone();
        self.versions.iter().map(|(id, versions)| (name(id), newest(versions))).collect()
    }

    /// Trains steps in a row, from an empty pipeline to an empty one. Returns their losses.
    pub fn train(&mut self, steps: u64) -> Vec<f64> {
        let microbatches = self.run.microbatches as u64;
        let mut filled = self.steps * microbatches;
        let mut losses = vec![];
        for _ in 0..steps {
            // T3: after each synchronous step the pipeline is empty.
            if self.steps <= self.synchronous_steps() {
                filled = self.steps * microbatches;
            }
            losses.push(self.step(filled));
            self.steps += 1;
        }
        losses
    }

    fn synchronous_steps(&self) -> u64 {
        self.run.rule.corrections().synchronous_steps
    }

    /// One step, in a pipeline that was empty before micro-batch `filled`. Returns its mean loss.
    fn step(&mut self, filled: u64) -> f64 {
        let Run { graph, global_batch, microbatches, .. } = self.run;
        let (mut loss, mut sums) = (0.0, Tensors::new());
        for microbatch in 0..microbatches {
            let number = self.steps * microbatches as u64 + microbatch as u64;
            let (own_loss, gradients) = self.gradients(microbatch, number, filled);
            loss += own_loss;
            for (id, gradient) in gradients {
                let sum = sums.entry(id).or_insert_with(|| vec![0.0; gradient.len()]);
                for (sum, gradient) in sum.iter_mut().zip(gradient) {
                    *sum += gradient;
                }
            }
            for (id, value) in graph.parameters() {
                if (number + 1).is_multiple_of(self.between[self.holder(value)])
                    && let Some(sum) = sums.remove(&id)
                {
                    self.update(id, value, &sum);
                }
            }
        }
        assert!(sums.is_empty(), "a step is whole rounds");
        loss / (global_batch * graph.targets_per_sample()) as f64
    }

    /// The loss of a step's micro-batch, `number` of the whole run, and its gradients.
    fn gradients(&self, microbatch: usize, number: u64, filled: u64) -> (f64, Tensors) {
        let Run { graph, global_batch, microbatches, seed, .. } = self.run;
        let samples = global_batch / microbatches;
        let (step, first_sample) = (self.steps, microbatch * samples);
        let place = Place { seed, step, global_batch, samples, first_sample };
        let first = step * global_batch as u64 + first_sample as u64;
        let positions = first..first + samples as u64;
        let indices = |input: &str| -> Vec<u32> {
            positions.clone().flat_map(|position| (self.run.sample)(input, position)).collect()
        };
        let of_stages = (0..self.run.stages.len())
            .map(|stage| self.weights_of(stage, step, number, filled))
            .collect::<Vec<_>>();
        let mut passage = Passage::new(graph, place, &indices);
        let loss = passage.forward(|op: &Op, id| &of_stages[self.stage_of(op)].forward[&id][..]);
        let backward = |op: &Op, id| &of_stages[self.stage_of(op)].backward[&id][..];
        if self.run.recompute {
            passage.recompute(backward);
        }
        (loss, passage.backward(backward))
    }

    /// What a stage's two passes of a micro-batch take for its weights.
    fn weights_of(&self, index: usize, step: u64, microbatch: u64, filled: u64) -> Passes {
        let stage = self.stage(index);
        let synchronous = step < self.synchronous_steps();
        let rule = if synchronous { Rule::Flush } else { self.run.rule };
        let versions = rule.versions(stage, microbatch, filled);
        let [mut forward, mut backward] =
            [versions.forward, versions.backward].map(|version| self.version_in(index, version));
        let (corrections, delay) = (rule.corrections(), stage.delay());
        if let Some(prediction) = corrections.prediction {
            let version = versions.forward as usize;
            for (id, weights) in &mut forward {
                self.predict(prediction, version, delay, *id, weights);
            }
        }
        if corrections.discrepancy.is_some() && delay > 0.0 {
            for (id, weights) in &mut backward {
                for (w, &velocity) in weights.iter_mut().zip(&self.mean_velocity[id]) {
                    *w = formulas::moved_back(*w, delay, velocity);
                }
            }
        }
        Passes { forward, backward }
    }

    /// A stage's parameters in one version.
    fn version_in(&self, stage: usize, version: u64) -> Tensors {
        let here = |id: &ValueId| {
            let value = self.run.graph.value(*id);
            value.consumers.iter().any(|&op| self.stage_of(self.run.graph.op(op)) == stage)
        };
        let own = self.versions.iter().filter(|(id, _)| here(id));
        own.map(|(&id, versions)| (id, versions[version as usize].weights.clone())).collect()
    }

    /// Extrapolates one parameter of a version over the delay.
    fn predict(
        &self,
        prediction: Prediction,
        version: usize,
        delay: f64,
        id: ValueId,
        weights: &mut [f32],
    ) {
        match prediction {
            Prediction::Velocity => {
                assert!(matches!(self.run.optimizer, Optimizer::Sgd(_)), "only SGD has a velocity");
                // The rate of the update to come.
                let stage = self.holder(self.run.graph.value(id));
                let rate = self.rate(stage, version as u64);
                for (w, &velocity) in weights.iter_mut().zip(&self.versions[&id][version].state[0])
                {
                    *w = formulas::along_velocity(*w, rate, delay, velocity);
                }
            }
            Prediction::Weights => {
                let before = &self.versions[&id][version.saturating_sub(1)].weights;
                for (w, &before) in weights.iter_mut().zip(before) {
                    *w = formulas::along_last_update(*w, delay, before);
                }
            }
        }
    }

    /// Adds the version after an update of a parameter with gradients summed up over micro-batches.
    fn update(&mut self, id: ValueId, value: &Value, gradient: &[f32]) {
        let (graph, step) = (self.run.graph, self.steps);
        let corrections = self.run.rule.corrections();
        let stage = self.holder(value);
        let delay = match step >= self.synchronous_steps() {
            true => self.stage(stage).delay(),
            false => 0.0,
        };
        let mut optimizer = match value.parameter().is_some_and(|parameter| parameter.decays) {
            true => self.run.optimizer,
            false => self.run.optimizer.without_weight_decay(),
        };
        if let (Some(batches), Optimizer::Sgd(sgd)) =
            (self.reference_batches(stage), &mut optimizer)
        {
            sgd.momentum = formulas::scaled(f64::from(sgd.momentum), batches).0 as f32;
        }
        if let (Some(times), Optimizer::Sgd(sgd)) = (corrections.spike, &mut optimizer) {
            let (velocity, gradient) =
                formulas::spike_shares(f64::from(sgd.momentum), times * delay);
            (sgd.velocity_share, sgd.gradient_share) = (velocity as f32, gradient as f32);
        }
        let rate = self.rate(stage, step) as f32;
        let versions = self.versions.get_mut(&id).expect("one for each parameter");
        let update = Step {
            number: versions.len() as u64,
            learning_rate: rate,
            // Gradients are parts of the step's mean.
            gradient_scale: self.run.microbatches as f32 / self.between[stage] as f32,
        };
        let before = versions[versions.len() - 1].clone();
        let Version { mut weights, mut state } = before.clone();
        let mut slices: Vec<&mut [f32]> = state.iter_mut().map(|it| &mut it[..]).collect();
        let piece = piece(graph, value);
        let mut sums = vec![];
        for round in 0..optimizer.rounds() {
            let mut next = vec![0.0; optimizer.statistics_len(&piece.block, round)];
            let state = &mut slices;
            optimizer
                .statistics(update, round, &piece, &weights, gradient, state, &sums, &mut next);
            sums = next;
        }
        optimizer.apply(update, &piece, &mut weights, gradient, &mut slices, &sums);
        if let (Some(share), true) = (corrections.discrepancy, delay > 0.0) {
            let means = self.mean_velocity.get_mut(&id).expect("one for each parameter");
            for ((mean, w), before) in means.iter_mut().zip(&weights).zip(before.weights) {
                *mean = formulas::mean_velocity(*mean, w - before, delay, share);
            }
        }
        versions.push(Version { weights, state });
    }

    /// The learning rate of a stage's update after `step`.
    fn rate(&self, stage: usize, step: u64) -> f64 {
        let rate = match (self.reference_batches(stage), self.run.optimizer) {
            (Some(batches), Optimizer::Sgd(sgd)) => {
                self.run.learning_rate * formulas::scaled(f64::from(sgd.momentum), batches).1
            }
            _ => self.run.learning_rate,
        };
        let asynchronous = step.checked_sub(self.synchronous_steps());
        match (self.run.rule.corrections().anneal_steps, asynchronous) {
            (Some(anneal_steps), Some(step)) => {
                formulas::annealed(rate, self.stage(stage).delay(), step, anneal_steps)
            }
            _ => rate,
        }
    }

    /// How many times the batch of the learning rate and momentum a stage's update has.
    fn reference_batches(&self, stage: usize) -> Option<f64> {
        let samples = self.run.global_batch / self.run.microbatches * self.between[stage] as usize;
        self.run.reference_batch.map(|reference| samples as f64 / reference as f64)
    }

    fn stage(&self, index: usize) -> Stage<'_> {
        Stage { index, replicas: &self.run.replicas, microbatches: &self.between }
    }

    /// The stage of an operator.
    fn stage_of(&self, op: &Op) -> usize {
        let has = |blocks: &Range<usize>| blocks.contains(&op.block.index());
        self.run.stages.iter().position(has).expect("the stages have all blocks")
    }

    /// The stage that a parameter is updated in: of several the first, whose gradients are the latest.
    /// Where stages update after rounds of their own, there must be one only.
    fn holder(&self, value: &Value) -> usize {
        let holders = || value.consumers.iter().map(|&op| self.stage_of(self.run.graph.op(op)));
        let first = holders().min().expect("parameters are read");
        let alone = !self.run.in_rounds || holders().all(|it| it == first);
        assert!(alone, "{} is updated in several stages", value.name);
        first
    }
}

/// What the two passes of a stage take for its weights.
struct Passes {
    forward: Tensors,
    backward: Tensors,
}

/// All of a parameter, as a matrix.
fn piece(graph: &Graph, value: &Value) -> Piece {
    let shape = shardloom_graph::Extents::global(graph, 1).shape(&value.axes);
    let row_axes = value.parameter().map_or(0, |parameter| parameter.row_axes);
    let (rows, columns) = shape.split_at(row_axes);
    Piece::whole(rows.iter().product(), columns.iter().product())
}
