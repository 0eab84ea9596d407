//! The tensors that ranks hold of buckets: what keeps replicas equal decides on weights and gradients, the
//! plan's optimizer, corrections and validation on the rest.

use shardloom_graph::Graph;
use shardloom_plan::{Axis, Kept, Partners, Prediction};

use super::buckets::Parameters;
use crate::class::{Bucket, BucketId, ClassId, ParamId, WeightParam};
use crate::sync::{
    AddedTo, Held, Lookups, ParameterGroupId, Replicated, Synchronisation, Unheld, UseBy, add,
};
use crate::{
    Content, Copies, Extent, Format, Initial, Instruction, Keep, Matrix, Shape, Tensor, TensorId,
    View, Window,
};

/// Whose a bucket's parameters are.
#[derive(Clone, Copy)]
pub(super) struct Whose<'k> {
    pub group: ParameterGroupId,
    /// The mesh axes over which they have replicas, and further ones over which their gradients are partial.
    pub replicas: &'k [Axis],
    pub partial: &'k [Axis],
    /// All classes that hold them, if several do.
    pub classes: &'k [ClassId],
    /// What is read of a table whose gradient is rows and values.
    pub lookups: Option<Lookups>,
    /// Whether a server adds to them what updates of workers have changed.
    pub is_added_to: bool,
}

impl Whose<'_> {
    /// One rank's alone.
    pub fn alone(group: ParameterGroupId) -> Whose<'static> {
        Whose {
            group,
            replicas: &[],
            partial: &[],
            classes: &[],
            lookups: None,
            is_added_to: false,
        }
    }
}

/// What a class keeps besides parameters and gradients.
#[derive(Clone, Copy)]
pub(super) struct Keeps {
    /// Whether its gradients are applied later than the updates after their forward passes.
    pub is_delayed: bool,
    /// Whether updates are made before they are known to be right.
    pub backs_up: bool,
    /// Whether its weights are averaged over replicas that have their own.
    pub averages: bool,
    /// Whether it updates what it holds.
    pub updates: bool,
}

impl<'a> Parameters<'a> {
    /// Adds the tensors of a bucket.
    pub(super) fn hold(
        &mut self,
        id: BucketId,
        name: &str,
        elements: usize,
        params: &[ParamId],
        whose: Whose<'_>,
        keeps: Keeps,
    ) -> Held {
        let plan = self.plan;
        let Whose { group, replicas, partial, classes, lookups, is_added_to } = whose;
        let precision = self.ways.precision(group);
        let shards = self.ways.shards(group, replicas);
        let second_shards = self.ways.second_shards(group, replicas);
        let matrices = self.matrices(params);
        let bucket = Unheld {
            id,
            name,
            elements,
            matrices,
            replicas,
            mesh: self.mesh,
            shards: &shards,
            second_shards: &second_shards,
            partial,
            classes,
            lookups,
            precision,
        };
        let way: &dyn Synchronisation = match is_added_to {
            true => &AddedTo,
            false => self.ways.of(group, replicas, lookups),
        };
        let replicated = way.tensors(&bucket, &mut self.tensors);
        if !keeps.updates || replicated.gradients.is_none() {
            let (state, statistics, backups) = (vec![], vec![], vec![]);
            let (summed, published) = (None, None);
            return Held { replicated, state, statistics, summed, published, backups };
        }
        // What an update changes has as many elements as the weights that it updates.
        let extent = self.updated_extent(&replicated);
        let fp32 = |name: &str, extent, keep, content| {
            bucket.flat(name, extent, Format::F32, keep, content)
        };
        let mut state = vec![];
        if precision.master {
            let master =
                fp32("master weights", extent, Keep::State(Initial::Drawn), Content::MasterWeight);
            state.push(add(&mut self.tensors, master));
        }
        let corrections = plan.weights.corrections();
        let like_weights = |name: &str, initial, content| {
            let format = Format::of_number(precision.compute);
            bucket.flat(name, extent, format, Keep::State(initial), content)
        };
        if keeps.is_delayed && corrections.discrepancy.is_some() {
            let velocity = like_weights("mean velocity", Initial::Zero, Content::WeightVelocity);
            state.push(add(&mut self.tensors, velocity));
        }
        if keeps.is_delayed && corrections.prediction == Some(Prediction::Weights) {
            let previous =
                like_weights("previous weights", Initial::Weights, Content::PreviousWeight);
            state.push(add(&mut self.tensors, previous));
        }
        self.keep_state(&bucket, params, extent, &mut state);
        let mut statistics = vec![];
        for round in 0..plan.optimizer.statistics_rounds() {
            let of = |&param: &ParamId| {
                let WeightParam { rows, columns, .. } = self.params[param.0 as usize];
                plan.optimizer.statistics_elements(rows, columns, round)
            };
            let elements: usize = params.iter().map(of).sum();
            let (extent, content) = (Extent::Exactly(elements), Content::Statistics);
            let sums = fp32("statistics", extent, Keep::Transient, content);
            statistics.push(add(&mut self.tensors, sums));
        }
        let (summed, published, backups) = (None, None, vec![]);
        let mut held = Held { replicated, state, statistics, summed, published, backups };
        if keeps.averages {
            let master = self.master(&held).map(View::whole);
            let format = self.tensor(master.unwrap_or(held.replicated.updated)).format;
            let mut others = |name: &str, keep, content| {
                Some(add(&mut self.tensors, bucket.flat(name, extent, format, keep, content)))
            };
            let summed = Content::SummedWeight;
            match plan.sync.averaging.map(|it| it.partners) {
                Some(Partners::One) => {
                    held.published =
                        others("published weights", Keep::Resident, Content::PublishedWeight);
                    held.summed = others("fetched weights", Keep::Transient, summed);
                }
                Some(Partners::All) | None => {
                    held.summed = others("summed weights", Keep::Transient, summed);
                }
            }
        }
        if keeps.backs_up {
            for view in self.undone(&held) {
                let original = self.tensor(view).clone();
                let shape = match view.window {
                    Window::Share => Shape::Flat(Extent::Share),
                    Window::Whole
                    | Window::SecondShare
                    | Window::Param(_)
                    | Window::Elements { .. }
                    | Window::Next { .. } => original.shape,
                };
                let copy = Tensor {
                    name: format!("{} before their update", original.name),
                    shape,
                    keep: Keep::Transient,
                    copies: Copies::One,
                    content: Content::Backup,
                    ..original
                };
                held.backups.push(add(&mut self.tensors, copy));
            }
        }
        held
    }

    /// What has to be put back where an update is undone. Weights with a master copy are rebuilt from it.
    fn undone(&self, held: &Held) -> Vec<View> {
        let weights = self.master(held).is_none().then_some(held.replicated.updated);
        weights.into_iter().chain(held.state.iter().map(|&it| View::whole(it))).collect()
    }

    /// What the backups of a bucket are copies of, in their order.
    pub fn backed_up(&self, bucket: &Bucket) -> Vec<View> {
        self.undone(&bucket.held)
    }

    /// Adds what the optimizer keeps: one tensor for the bucket where every parameter has so many numbers
    /// an element, and one for each parameter otherwise.
    fn keep_state(
        &mut self,
        bucket: &Unheld<'_>,
        params: &[ParamId],
        extent: Extent,
        state: &mut Vec<TensorId>,
    ) {
        let optimizer = self.plan.optimizer;
        let of = |&param: &ParamId| {
            let WeightParam { rows, columns, .. } = self.params[param.0 as usize];
            (param, optimizer.keeps(rows, columns))
        };
        let kept: Vec<(ParamId, Vec<Kept>)> = params.iter().map(of).collect();
        let alike = kept.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let numbers =
            |index: usize| (Keep::State(Initial::Zero), Content::OptimizerState(index as u8));
        let flat = kept.first().map_or(&[][..], |(_, kept)| kept);
        if alike && flat.iter().all(|it| *it == Kept::PerElement) {
            for index in 0..flat.len() {
                let (keep, content) = numbers(index);
                let name = format!("optimizer state {index}");
                let tensor = bucket.flat(&name, extent, Format::F32, keep, content);
                state.push(add(&mut self.tensors, tensor));
            }
            return;
        }
        for (param, kept) in kept {
            for (index, kept) in kept.into_iter().enumerate() {
                let shared = extent == Extent::Share;
                let extent = Extent::OfParam { param, kept, shared };
                let (keep, content) = numbers(index);
                let name = format!("optimizer state {index}");
                let tensor = bucket.flat(&name, extent, Format::F32, keep, content);
                state.push(add(&mut self.tensors, tensor));
            }
        }
    }

    /// Adds room for each weight moved along its velocity.
    pub(super) fn add_moved(&mut self, graph: &Graph) {
        for (id, param) in (0u32..).map(ParamId).zip(&self.params) {
            if self.buckets[param.bucket.0 as usize].is_frozen {
                continue;
            }
            let moved = Tensor {
                name: format!("{} moved", graph.value(param.value).name),
                shape: Shape::Local(param.shape.clone()),
                format: Format::of_number(self.plan.precision.compute),
                keep: Keep::Transient,
                copies: Copies::One,
                content: Content::ExtrapolatedWeight,
                bucket: Some(param.bucket),
            };
            self.moved.insert(id, add(&mut self.tensors, moved));
        }
    }

    /// Where a weight stands that is moved for a forward pass (or back, for a backward pass), and what it is
    /// moved along; none if it is read as it is.
    pub fn extrapolated(&self, param: ParamId, forward: bool) -> Option<(TensorId, View)> {
        let moved = *self.moved.get(&param)?;
        let corrections = self.plan.weights.corrections();
        let along = match (forward, corrections.prediction) {
            (true, Some(Prediction::Weights)) => Content::PreviousWeight,
            (true, Some(Prediction::Velocity)) => Content::OptimizerState(0),
            (true, None) => return None,
            (false, _) => corrections.discrepancy.map(|_| Content::WeightVelocity)?,
        };
        let held = &self.buckets[self.params[param.0 as usize].bucket.0 as usize].held;
        let is_it = |it: &&TensorId| self.tensors[it.0 as usize].content == along;
        let tensor = *held.state.iter().find(is_it)?;
        Some((moved, View { tensor, window: Window::Param(param) }))
    }

    pub(crate) fn tensor(&self, view: View) -> &Tensor {
        &self.tensors[view.tensor.0 as usize]
    }

    pub(crate) fn unheld(&self, id: BucketId) -> Unheld<'_> {
        let bucket = &self.buckets[id.0 as usize];
        let Bucket { name, elements, params, replicas, shards, second_shards, .. } = bucket;
        let Bucket { partial, classes, .. } = bucket;
        Unheld {
            id,
            name,
            elements: *elements,
            matrices: self.matrices(params),
            replicas,
            mesh: self.mesh,
            shards,
            second_shards,
            partial,
            classes,
            lookups: self.lookups[id.0 as usize],
            precision: self.ways.precision(self.groups[id.0 as usize]),
        }
    }

    /// Parameters as matrices.
    fn matrices(&self, params: &[ParamId]) -> Vec<Matrix> {
        params.iter().map(|param| Matrix::of(&self.params[param.0 as usize])).collect()
    }

    /// The weights in full precision that are updated in the place of those that operators read.
    pub(crate) fn master(&self, held: &Held) -> Option<TensorId> {
        let is_master =
            |it: &&TensorId| self.tensor(View::whole(**it)).content == Content::MasterWeight;
        held.state.iter().find(is_master).copied()
    }

    pub(crate) fn replicated(&self, id: BucketId) -> &Replicated {
        &self.buckets[id.0 as usize].held.replicated
    }

    /// Whether each replica updates a share of a bucket.
    pub fn updates_shares(&self, bucket: &Bucket) -> bool {
        self.updated_extent(&bucket.held.replicated) == Extent::Share
    }

    /// How many elements of a bucket a rank updates.
    fn updated_extent(&self, held: &Replicated) -> Extent {
        match (held.updated.window, &self.tensor(held.updated).shape) {
            (Window::Share, _) => Extent::Share,
            (_, Shape::Flat(extent)) => *extent,
            (_, Shape::Local(_) | Shape::AtMost { .. }) => {
                unreachable!("weights of a bucket are flat")
            }
        }
    }

    /// The way in which a bucket's replicas are kept equal.
    pub fn way(&self, id: BucketId) -> &dyn Synchronisation {
        let index = id.0 as usize;
        self.ways.of(self.groups[index], &self.buckets[index].replicas, self.lookups[index])
    }

    /// What makes the weights of a bucket that operators of such a pass read.
    pub fn before_use(&self, id: BucketId, by: UseBy) -> Option<Instruction> {
        self.way(id).before_use(&self.unheld(id), self.replicated(id), by)
    }

    /// What is kept of these.
    pub fn at_first_use(&self, id: BucketId, by: UseBy) -> Option<Instruction> {
        self.way(id).at_first_use(&self.unheld(id), self.replicated(id), by)
    }

    /// What sums the gradients of a bucket over mesh axes that are no replicas.
    pub fn over_partial(&self, id: BucketId) -> Vec<Instruction> {
        let (bucket, held) = (self.unheld(id), self.replicated(id));
        self.way(id).over_partial(&bucket, held, self.algorithm(id))
    }

    /// What sums the gradients of a bucket over its classes.
    pub fn over_classes(&self, id: BucketId) -> Vec<Instruction> {
        let (bucket, held) = (self.unheld(id), self.replicated(id));
        self.way(id).over_classes(&bucket, held, self.algorithm(id))
    }

    /// What reduces the gradients of a bucket over its replicas.
    pub fn after_gradient(&self, id: BucketId) -> Vec<Instruction> {
        self.way(id).after_gradient(&self.unheld(id), self.replicated(id))
    }

    /// What of that is done once, after the last.
    pub fn after_last_gradient(&self, id: BucketId) -> Vec<Instruction> {
        let mut after = self.way(id).after_last_gradient(&self.unheld(id), self.replicated(id));
        after.extend(self.exchanged.get(id.0 as usize).into_iter().flatten().cloned());
        after
    }

    /// What makes the reduced gradients of a bucket of what was exchanged for them.
    pub fn before_update(&self, id: BucketId) -> Vec<Instruction> {
        self.way(id).before_update(&self.unheld(id), self.replicated(id))
    }

    /// Whether that is done at the end of a step, so that computation goes on meanwhile, and not as soon as may
    /// be: nobody but the update waits for the gradients.
    pub fn settles_late(&self, id: BucketId) -> bool {
        !self.plan.post_validation && self.buckets[id.0 as usize].classes.is_empty()
    }

    /// What makes all weights of a bucket those that were updated.
    pub fn after_update(&self, id: BucketId) -> Vec<Instruction> {
        self.way(id).after_update(&self.unheld(id), self.replicated(id))
    }
}
