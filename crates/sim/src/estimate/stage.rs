//! A stage's costs, added up block by block from its last to its first.

use shardloom_cluster::Stack;
use shardloom_program::Format;

use super::Settings;
use super::collective::Collective;
use super::parameters::{BUCKETS, Parameters, is_of_context, is_partial, is_split};
use super::place::Place;
use super::table::{BlockTable, SplitTable};
use crate::held::copy_bytes;

/// What does not change between the stages of a candidate.
pub(super) struct Terms<'t, 'c> {
    /// The kind of each block.
    pub kinds: &'t [usize],
    pub blocks: &'t BlockTable,
    pub split: &'t SplitTable,
    pub settings: &'t Settings,
    pub place: &'t Place<'c>,
    pub zero: u8,
    pub tp: u32,
    /// The ranks that hold the same parts of the parameters, and of those that context parallelism splits.
    pub replicas: [Replicas<'c>; 2],
    /// Gradients over the tensor-parallel group.
    pub partial: Collective<'c>,
    /// The optimizer's statistics, over all owners of a split bucket and of a whole one.
    pub statistics: [Collective<'c>; 2],
    pub update_rate: &'t str,
    pub statistics_rate: &'t str,
    /// The unit asked for last. Neighbouring blocks are mostly alike.
    pub last_unit: Option<(Parameters, Synchronisation)>,
}

/// The ranks that hold the same part of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas<'c> {
    /// How many share it, where replicas do.
    pub sharers: u32,
    /// Gradients over those.
    pub reduce: Collective<'c>,
    /// Gradients of a share over those that have the same share.
    pub across: Collective<'c>,
    /// Weights over those that share.
    pub gather: Collective<'c>,
}

/// Seconds of what follows from a unit's parameters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synchronisation {
    reduce: f64,
    across: f64,
    gather: f64,
    partial: f64,
    update: f64,
    /// Elements whose optimizer state is on one device.
    owned: f64,
}

impl<'c> Terms<'_, 'c> {
    /// The replicas of a bucket.
    fn replicas(&self, bucket: usize) -> &Replicas<'c> {
        &self.replicas[usize::from(is_of_context(bucket))]
    }

    fn shards(&self) -> bool {
        self.replicas[0].sharers > 1
    }

    fn shards_state(&self) -> bool {
        self.zero >= 1 && self.shards()
    }

    fn shards_gradients(&self) -> bool {
        self.zero >= 2 && self.shards()
    }

    /// Whether weights are gathered for use (ZeRO-3).
    pub fn shards_weights(&self) -> bool {
        self.zero >= 3 && self.shards()
    }

    /// Of so many elements of a bucket those that one device updates.
    fn owned(&self, bucket: usize, elements: f64) -> f64 {
        match self.zero {
            0 => elements,
            _ => (elements / f64::from(self.replicas(bucket).sharers)).ceil(),
        }
    }

    /// Up to how many bytes of gradients share a collective.
    fn bucket_bytes(&self) -> f64 {
        self.settings.full_bucket(self.zero, self.tp)
    }

    /// In how many buckets of a kind a unit's parameters are.
    fn buckets(&self, parameters: &Parameters, kind: usize) -> f64 {
        let bytes = parameters.global_elements * self.settings.gradient_bytes();
        let splits = self.settings.plan_defaults.splits_blocks(self.zero);
        match splits && bytes > self.bucket_bytes() {
            true => parameters.buckets[kind].max(1.0),
            false => 1.0,
        }
    }

    /// Of what a device holds all the time of these parameters, gradients that are there only from the first backward
    /// pass of a step on.
    fn late_bytes(&self, parameters: &Parameters) -> f64 {
        let sharers = self.replicas.map(|replicas| replicas.sharers);
        late_bytes(self.settings, self.place.stack, self.zero, sharers, parameters)
    }

    /// What a device holds all the time of these parameters.
    pub fn persistent_bytes(&self, parameters: &Parameters) -> f64 {
        let sharers = self.replicas.map(|replicas| replicas.sharers);
        persistent_bytes(self.settings, self.place.stack, self.zero, sharers, parameters)
    }

    fn synchronisation(&mut self, parameters: &Parameters) -> Synchronisation {
        let mut sum = Synchronisation::default();
        for bucket in (0..BUCKETS).filter(|&bucket| parameters.elements[bucket] > 0.0) {
            let elements = parameters.elements[bucket];
            let replicas = self.replicas(bucket);
            let buckets = self.buckets(parameters, bucket);
            let in_all = |collective: &Collective<'_>, elements: f64| {
                buckets * collective.seconds(elements / buckets)
            };
            sum.reduce += in_all(&replicas.reduce, elements);
            sum.across += in_all(&replicas.across, self.owned(bucket, elements));
            sum.gather += in_all(&replicas.gather, elements);
            let (into_shard, out_of_shard) = self.staging_seconds(bucket, elements);
            sum.reduce += into_shard;
            sum.gather += out_of_shard;
            if is_partial(bucket) {
                sum.partial += in_all(&self.partial, elements);
            }
            sum.update += self.update_seconds(bucket, parameters);
            sum.owned += self.owned(bucket, elements);
        }
        if self.shards_weights() {
            for bucket in (0..BUCKETS).filter(|&bucket| parameters.frozen[bucket] > 0.0) {
                let elements = parameters.frozen[bucket];
                sum.gather += self.replicas(bucket).gather.seconds(elements);
                sum.gather += self.staging_seconds(bucket, elements).1;
            }
        }
        self.last_unit = Some((*parameters, sum));
        sum
    }

    /// Copies of a bucket's shard around its reduction and its gather, as
    /// [`CostModel::staging_seconds`](crate::CostModel::staging_seconds) has them.
    fn staging_seconds(&self, bucket: usize, elements: f64) -> (f64, f64) {
        let precision = self.settings.precision;
        let shard = self.owned(bucket, elements);
        let staged = !self.place.overlaps() && self.replicas(bucket).sharers > 1 && shard > 0.0;
        let gradients = shard * (3 * precision.gradients.bytes()) as f64;
        let weights = shard * (2 * precision.compute.bytes()) as f64;
        let into = match staged && self.shards_gradients() {
            true => self.place.memory_bound_seconds("add", shard, gradients),
            false => 0.0,
        };
        let out = match staged && self.shards_weights() {
            true => self.place.copy_seconds(weights),
            false => 0.0,
        };
        (into, out)
    }

    /// One update of a bucket with its statistics.
    fn update_seconds(&self, bucket: usize, parameters: &Parameters) -> f64 {
        let precision = self.settings.precision;
        let optimizer = &self.settings.optimizer;
        let updated = if precision.master { 4 } else { precision.compute.bytes() };
        let state = optimizer.state_bytes_per_parameter();
        let elements = self.owned(bucket, parameters.elements[bucket]);
        let moved = (precision.gradients.bytes() + 2 * updated + 2 * state) as f64;
        let mut seconds =
            self.place.memory_bound_seconds(self.update_rate, elements, elements * moved);
        if precision.master && elements > 0.0 {
            // The weights in use are made of those that were updated.
            let cast = elements * (updated + precision.compute.bytes()) as f64;
            seconds += self.place.copy_seconds(cast);
        }
        let rounds = optimizer.statistics_rounds() as f64;
        if rounds > 0.0 {
            let read = (precision.gradients.bytes() + state) as f64;
            let own =
                self.place.memory_bound_seconds(self.statistics_rate, elements, elements * read);
            let each = parameters.statistics_elements / rounds;
            let owners = usize::from(!is_split(bucket));
            seconds += rounds * (own + self.statistics[owners].seconds(each));
        }
        seconds
    }
}

/// What a device holds all the time: weights, gradients with their copies, and optimizer state, or its
/// shards, where so many `sharers` share, and so many what context parallelism splits.
pub(super) fn persistent_bytes(
    settings: &Settings,
    stack: &Stack,
    zero: u8,
    sharers: [u32; 2],
    parameters: &Parameters,
) -> f64 {
    let precision = settings.precision;
    let master = if precision.master { 4 } else { 0 };
    let state = settings.optimizer.state_bytes_per_parameter() + master;
    let split = |total: f64, of_context: f64| [total - of_context, of_context];
    let elements = split(parameters.total(), parameters.of_context());
    let frozen = split(parameters.total_frozen(), parameters.frozen_of_context());
    let mut bytes = 0.0;
    for (index, count) in sharers.into_iter().enumerate() {
        let held = |from: u8| if zero >= from { 1.0 / f64::from(count) } else { 1.0 };
        let weight = held(3) * precision.compute.bytes() as f64;
        let each = weight
            + held(2) * precision.gradients.bytes() as f64
            + held(1) * state as f64
            + copy_bytes(stack, precision, count > 1) as f64;
        let factored = if index == 0 { parameters.factored_elements } else { 0.0 };
        bytes += elements[index] * each + frozen[index] * weight + 4.0 * factored * held(1);
    }
    bytes
}

/// Of [`persistent_bytes`], gradients that are there only from the first backward pass of a step on.
pub(super) fn late_bytes(
    settings: &Settings,
    stack: &Stack,
    zero: u8,
    sharers: [u32; 2],
    parameters: &Parameters,
) -> f64 {
    if !stack.memory.late_gradients {
        return 0.0;
    }
    let of_context = parameters.of_context();
    let elements = [parameters.total() - of_context, of_context];
    let held = |count: u32| if zero >= 2 { 1.0 / f64::from(count) } else { 1.0 };
    let shares = elements.into_iter().zip(sharers);
    let all: f64 = shares.map(|(elements, count)| elements * held(count)).sum();
    all * settings.precision.gradients.bytes() as f64
}

/// The costs of some blocks on one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageCost {
    /// A forward pass.
    pub forward_seconds: f64,
    /// A backward pass; of one in halves the first.
    pub backward_seconds: f64,
    /// The second half of a backward pass, if it is in halves.
    pub weight_seconds: f64,
    /// Of the forward and the backward pass what another pass's computation could hide.
    pub exposed_seconds: [f64; 2],
    /// How long the backward pass, or its first half, runs before it needs what it receives.
    pub early_seconds: f64,
    /// How long synchronisation goes on after the last backward pass.
    pub tail_seconds: f64,
    /// What the last backward pass has to do besides.
    pub once_seconds: f64,
    /// Reductions over replicas, all added.
    pub reduce_seconds: f64,
    /// Gathers of updated weights, all added.
    pub gather_seconds: f64,
    /// All updates.
    pub update_seconds: f64,
    /// The update of the first bucket.
    pub first_update_seconds: f64,
    /// By how much gathers of updated weights would hold up the first forward pass.
    pub lead_seconds: f64,
    /// Bytes held all the time.
    pub persistent_bytes: f64,
    /// Of these, gradients that are there only from the first backward pass of a step on.
    pub late_bytes: f64,
    /// Bytes kept for each micro-batch in flight.
    pub kept_bytes: f64,
    /// Bytes kept for each micro-batch that waits for its weight gradients.
    pub waiting_bytes: f64,
    /// Gradients that are there as long as any micro-batch waits: some input gradients begin them.
    pub begun_bytes: f64,
    /// The most that the passes of one micro-batch hold, what the pass before left for them included.
    pub peak_bytes: Peaks,
    /// Elements whose optimizer state is here.
    pub owned_elements: f64,
    /// The blocks, from the first to the one after the last.
    blocks: (usize, usize),
}

/// The costs of a stage as its blocks are added, the last first.
#[derive(Clone, Copy, Debug, Default)]
struct Addition {
    cost: StageCost,
    /// How long sums over those that have the same shares go on after the last backward pass, or what they add to
    /// that where lanes do not overlap.
    across_tail_seconds: f64,
    pending: Unit,
    front: Front,
}

/// The most that a pass holds, by its kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peaks {
    pub forward: f64,
    /// A whole backward pass.
    pub backward: f64,
    /// Likewise or input gradients, of the first in a step, with the gradients that it allocates.
    pub first_backward: f64,
    /// Input gradients by themselves.
    pub input: f64,
    /// Those where another micro-batch's have begun gradients of parameters that are not reduced yet.
    pub later_input: f64,
    /// Weight gradients by themselves, where input gradients have begun some.
    pub weight: f64,
    /// Those where what was begun was reduced with another micro-batch's.
    pub later_weight: f64,
}

/// Consecutive blocks that share buckets.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    blocks: u32,
    parameters: Parameters,
    forward_seconds: f64,
    backward_seconds: f64,
    weight_seconds: f64,
    kept_bytes: f64,
    waiting_bytes: f64,
    begun_bytes: f64,
    forward_peak_bytes: f64,
    backward_peak_bytes: f64,
    /// Likewise of the first in a step, with the gradients that it has allocated by then.
    first_peak_bytes: f64,
    /// Gradients that the first backward pass of a step allocates.
    late_bytes: f64,
    /// The most while gradients of its parameters are around, without them.
    late_peak_bytes: f64,
    /// The most that the backward pass of its last block alone holds, gradients included.
    scattered_peak_bytes: f64,
    /// The most during the backward pass without gradients of parameters.
    later_peak_bytes: f64,
    /// The most during weight gradients of its own, where backward passes are split, without gradients of
    /// parameters, and that of its last block alone with them.
    weight_peak_bytes: f64,
    scattered_weight_peak_bytes: f64,
}

/// The foremost unit so far, as far as it concerns the one before it (ZeRO-3).
#[derive(Clone, Copy, Debug, Default)]
struct Front {
    gather_seconds: f64,
    reduce_seconds: f64,
    /// Its backward pass, and what is reduced meanwhile of the unit behind it.
    backward_seconds: f64,
    weight_seconds: f64,
    behind_reduce_seconds: f64,
    weight_bytes: f64,
    /// The most that its backward pass holds, without the weights gathered meanwhile for the unit before,
    /// and that without gradients.
    backward_peak_bytes: f64,
    later_peak_bytes: f64,
    /// The most of the first in a step, with the gradients that it and those behind have allocated by then.
    first_peak_bytes: f64,
}

impl StageCost {
    /// The costs of blocks `first..end`.
    pub fn of(first: usize, end: usize, terms: &mut Terms<'_, '_>) -> StageCost {
        let norm_bytes = if terms.settings.norm { Format::F64.bytes() } else { 0 };
        let mut stage = Addition::default();
        stage.cost.blocks = (end, end);
        stage.cost.persistent_bytes = norm_bytes as f64;
        for block in (first..end).rev() {
            stage.push_front(block, terms);
        }
        stage.close_unit(terms);
        let Addition { mut cost, across_tail_seconds, front, .. } = stage;
        cost.tail_seconds = match terms.place.overlaps() {
            true => cost.tail_seconds.max(across_tail_seconds),
            false => cost.tail_seconds + across_tail_seconds,
        };
        let peaks = &mut cost.peak_bytes;
        peaks.input = peaks.input.max(front.backward_peak_bytes);
        peaks.later_input = peaks.later_input.max(front.later_peak_bytes) + cost.begun_bytes;
        peaks.backward = peaks.input;
        peaks.first_backward = peaks.first_backward.max(front.first_peak_bytes);
        if terms.shards_weights() && terms.place.overlaps() {
            // A pass cannot begin before its first weights are there, which wait for what the pass before
            // had left to reduce.
            cost.forward_seconds += front.gather_seconds + front.reduce_seconds;
            match terms.blocks.halves {
                true => {
                    cost.backward_seconds += front.backward_seconds;
                    cost.weight_seconds += front.weight_seconds.max(front.behind_reduce_seconds);
                }
                false => {
                    let backward = front.backward_seconds.max(front.behind_reduce_seconds);
                    cost.backward_seconds += backward;
                }
            }
        }
        cost
    }

    /// Whether it has backward passes: below all that is trained a stage has none.
    pub fn has_backward(&self) -> bool {
        self.backward_seconds + self.weight_seconds > 0.0
    }

    /// Whether one of these blocks is among the stage's.
    pub fn has_one_of(&self, blocks: &[usize]) -> bool {
        blocks.iter().any(|block| (self.blocks.0..self.blocks.1).contains(block))
    }
}

impl Addition {
    fn push_front(&mut self, block: usize, terms: &mut Terms<'_, '_>) {
        let kind = terms.kinds[block];
        let cost = &terms.blocks.blocks[kind];
        let mut parameters = terms.split.parameters.own[kind];
        for shared in &terms.split.parameters.shared {
            let here = |&other: &usize| other > block && other < self.cost.blocks.1;
            if shared.blocks.contains(&block) && !shared.blocks.iter().any(here) {
                parameters.add(&shared.parameters);
            }
        }
        let filled = self.pending.parameters.global_elements;
        let bytes = (filled + parameters.global_elements) * terms.settings.gradient_bytes();
        let full = terms.shards_weights() || bytes > terms.bucket_bytes();
        let has_any = parameters.global_elements > 0.0
            || (terms.shards_weights() && parameters.total_frozen() > 0.0);
        if self.pending.blocks > 0 && has_any && full {
            self.close_unit(terms);
        }
        let (held, held_later) = match terms.shards_weights() {
            true => (&cost.gathered, &cost.gathered_weights),
            false => (&cost.whole, &cost.whole),
        };
        if block + 1 == self.cost.blocks.1 {
            self.cost.early_seconds = cost.early_seconds;
        }
        let unit = &mut self.pending;
        unit.parameters.add(&parameters);
        unit.forward_seconds += cost.forward_seconds;
        unit.backward_seconds += cost.backward_seconds;
        unit.weight_seconds += cost.weight_seconds;
        let exposed = self.cost.exposed_seconds.iter_mut().zip(cost.exposed_seconds);
        exposed.for_each(|(sum, seconds)| *sum += seconds);
        // Of the unit's last block, with which its backward pass begins, only the later part has the
        // unit's gradients around.
        let late = match unit.blocks {
            0 => held.late_backward_peak_bytes,
            _ => held.backward_peak_bytes,
        };
        // What the blocks behind have left for their weight gradients.
        let waiting = unit.waiting_bytes;
        if unit.blocks == 0 {
            unit.scattered_peak_bytes = cost.scattered.backward_peak_bytes;
            unit.scattered_weight_peak_bytes = cost.scattered.weight_peak_bytes;
        }
        unit.blocks += 1;
        unit.late_bytes += terms.late_bytes(&parameters);
        let behind = held.kept_bytes;
        let first = held.backward_peak_bytes + waiting + unit.late_bytes;
        unit.first_peak_bytes = first.max(behind + unit.first_peak_bytes);
        unit.forward_peak_bytes = held.forward_peak_bytes.max(behind + unit.forward_peak_bytes);
        unit.backward_peak_bytes =
            (held.backward_peak_bytes + waiting).max(behind + unit.backward_peak_bytes);
        unit.later_peak_bytes =
            (held_later.backward_peak_bytes + waiting).max(behind + unit.later_peak_bytes);
        unit.late_peak_bytes = (late + waiting).max(behind + unit.late_peak_bytes);
        // Weight gradients are computed from the last block to the first too.
        unit.weight_peak_bytes =
            held.weight_peak_bytes.max(cost.whole.waiting_bytes + unit.weight_peak_bytes);
        unit.kept_bytes += held.kept_bytes;
        unit.waiting_bytes += cost.whole.waiting_bytes;
        if terms.shards_gradients() {
            unit.begun_bytes += cost.scattered.waiting_bytes - cost.whole.waiting_bytes;
        }
        self.cost.blocks.0 = block;
    }

    fn close_unit(&mut self, terms: &mut Terms<'_, '_>) {
        let unit = std::mem::take(&mut self.pending);
        let overlaps = terms.place.overlaps();
        let beside = terms.place.beside();
        let Synchronisation { reduce, across, gather, partial, update, owned } =
            match terms.last_unit {
                Some((parameters, known)) if parameters == unit.parameters => known,
                _ => terms.synchronisation(&unit.parameters),
            };
        self.cost.owned_elements += owned;
        let (mut forward, mut backward) = (unit.forward_seconds, unit.backward_seconds);
        let mut weight = unit.weight_seconds;
        // Below all that is trained no backward pass uses weights.
        let gather_again = if backward + weight > 0.0 { gather } else { 0.0 };
        let halves = terms.blocks.halves;
        // The pass after which gradients are whole.
        let last = if halves { &mut weight } else { &mut backward };
        // Whether gradients are reduced in every backward pass, not only in the last.
        match terms.shards_gradients() {
            true => *last += partial,
            false => self.cost.once_seconds += partial,
        }
        match (terms.shards_weights(), overlaps) {
            (true, true) => {
                // While a block computes, the next one's weights come and the last one's gradients go.
                forward = beside.both(forward, self.front.gather_seconds);
                let Front { behind_reduce_seconds, backward_seconds, weight_seconds, .. } =
                    self.front;
                match halves {
                    true => {
                        self.cost.backward_seconds += beside.both(backward_seconds, gather_again);
                        self.cost.weight_seconds +=
                            beside.both(weight_seconds, behind_reduce_seconds);
                    }
                    false => {
                        let behind = gather_again + behind_reduce_seconds;
                        self.cost.backward_seconds += beside.both(backward_seconds, behind);
                    }
                }
                self.cost.tail_seconds = reduce;
            }
            (true, false) => {
                forward += gather;
                *last += reduce;
                backward += gather_again;
            }
            (false, true) => {
                let takes = beside.computation(*last, self.cost.tail_seconds);
                match terms.shards_gradients() {
                    true => *last = takes,
                    false => self.cost.once_seconds += takes - *last,
                }
                self.cost.tail_seconds = reduce.max(self.cost.tail_seconds + reduce - takes);
            }
            (false, false) if terms.shards_gradients() => *last += reduce,
            (false, false) => self.cost.tail_seconds += reduce,
        }
        // Where lanes overlap, shares of one unit go across while the next is scattered.
        let across_seconds = match overlaps {
            true => (self.across_tail_seconds - backward).max(self.cost.tail_seconds) + across,
            false => self.across_tail_seconds + across,
        };
        self.across_tail_seconds = if across > 0.0 { across_seconds } else { 0.0 };
        if terms.shards_state() && !terms.shards_weights() {
            self.cost.lead_seconds = match overlaps {
                true => {
                    let takes = beside.computation(forward, self.cost.gather_seconds);
                    gather.max(self.cost.lead_seconds + gather - takes) + takes - forward
                }
                false => self.cost.lead_seconds + gather,
            };
            self.cost.gather_seconds += gather;
        }
        self.cost.reduce_seconds += reduce;
        self.cost.update_seconds += update;
        self.cost.first_update_seconds = update;
        self.cost.forward_seconds += forward;
        let streams_weights = terms.shards_weights() && overlaps;
        self.cost.backward_seconds += if streams_weights { 0.0 } else { backward };
        self.cost.weight_seconds += if streams_weights { 0.0 } else { weight };
        let [backward_peak_bytes, weight_peak_bytes] = match terms.zero {
            2 if terms.shards_gradients() && unit.blocks == 1 => {
                [unit.scattered_peak_bytes, unit.scattered_weight_peak_bytes]
            }
            2 if terms.shards_gradients() => {
                // Those that context parallelism splits lie in a bucket of their own, which is there for
                // its own operator only.
                let of_context = unit.parameters.of_context();
                let gradient_bytes =
                    (unit.parameters.total() - of_context) * terms.settings.gradient_bytes();
                let late = unit.late_peak_bytes + gradient_bytes;
                [unit.backward_peak_bytes.max(late), unit.weight_peak_bytes + gradient_bytes]
            }
            // With gathered weights a unit is one block with parameters, whose costs know its gradients.
            _ => [unit.backward_peak_bytes, unit.weight_peak_bytes],
        };
        // Of shares little is allocated: all of the unit's as if at its begin.
        let first_peak_bytes = match terms.shards_gradients() {
            true => backward_peak_bytes + unit.late_bytes,
            false => unit.first_peak_bytes,
        };
        let held_behind = self.cost.waiting_bytes + self.cost.begun_bytes;
        let first_peak_bytes = first_peak_bytes + held_behind + self.cost.late_bytes;
        let backward_peak_bytes = backward_peak_bytes + held_behind;
        let later_peak_bytes = unit.later_peak_bytes + self.cost.waiting_bytes;
        let weight_bytes = match terms.shards_weights() {
            true => {
                let elements = unit.parameters.total() + unit.parameters.total_frozen();
                elements * terms.settings.precision.compute.bytes() as f64
            }
            false => 0.0,
        };
        let forward_peak_bytes = unit.forward_peak_bytes + self.front.weight_bytes;
        // Those behind run after this unit's forward pass and before its backward pass; of weight gradients
        // they run before it, and what it left is there meanwhile.
        let behind = self.cost.peak_bytes;
        let front = self.front;
        let input = behind.input.max(front.backward_peak_bytes + weight_bytes);
        let first_backward = behind.first_backward.max(front.first_peak_bytes + weight_bytes);
        let later_input = behind.later_input.max(front.later_peak_bytes + weight_bytes);
        let waiting = unit.waiting_bytes;
        self.cost.peak_bytes = Peaks {
            forward: forward_peak_bytes.max(unit.kept_bytes + behind.forward),
            input: unit.kept_bytes + input,
            first_backward: unit.kept_bytes + first_backward,
            later_input: unit.kept_bytes + later_input,
            weight: weight_peak_bytes.max(waiting + unit.begun_bytes + behind.weight),
            later_weight: weight_peak_bytes.max(waiting + behind.later_weight),
            ..behind
        };
        self.front = Front {
            gather_seconds: gather,
            behind_reduce_seconds: self.front.reduce_seconds,
            reduce_seconds: reduce,
            backward_seconds: backward,
            weight_seconds: weight,
            weight_bytes,
            backward_peak_bytes,
            later_peak_bytes,
            first_peak_bytes,
        };
        self.cost.late_bytes += unit.late_bytes;
        self.cost.kept_bytes += unit.kept_bytes;
        self.cost.waiting_bytes += unit.waiting_bytes;
        self.cost.begun_bytes += unit.begun_bytes;
        self.cost.persistent_bytes += terms.persistent_bytes(&unit.parameters);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shardloom_cluster::PlanDefaults;
    use shardloom_collectives::Algorithm;
    use shardloom_plan::{Optimizer, Precision};

    use super::*;

    #[test]
    fn replicas_that_share_optimizer_state_share_its_row_and_column_sums() {
        let optimizer = Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.0,
        };
        let settings = Settings {
            precision: Precision::MIXED,
            optimizer,
            norm: false,
            algorithm: Algorithm::Ring,
            bucket_bytes: 1,
            plan_defaults: PlanDefaults::NONE,
            frozen: vec![],
            own_cuts: BTreeMap::new(),
        };
        let sums = Parameters { factored_elements: 100.0, ..Parameters::default() };
        let held = |zero| persistent_bytes(&settings, &Stack::default(), zero, [4, 1], &sums);
        assert_eq!([0, 1, 2, 3].map(held), [400.0, 100.0, 100.0, 100.0]);
    }
}
