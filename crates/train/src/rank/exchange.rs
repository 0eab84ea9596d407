//! What a rank brings into a collective and what it does with the result.

use shardloom_kernels::{Buffer, DType, reduce};
use shardloom_program::{Action, BucketId, Group, Instruction, Tenant};

use super::Rank;
use super::parameters::shards;

/// A rank's part in a collective: before it what the rank brings, after it the result, in place.
pub(crate) enum Contribution {
    /// A buffer of the collective's elements.
    Reals(Buffer),
    /// A number in double precision.
    Scalar(f64),
}

impl Contribution {
    fn reals(self) -> Buffer {
        match self {
            Contribution::Reals(buffer) => buffer,
            Contribution::Scalar(_) => unreachable!("only a norm is a scalar"),
        }
    }
}

impl Rank {
    /// What this rank brings into the collective of `instruction`.
    pub fn contribute(&mut self, instruction: &Instruction, microbatch: u32) -> Contribution {
        Contribution::Reals(match &instruction.action {
            Action::Redistribute { change, axis } => {
                self.bring(*change, *axis, instruction, microbatch)
            }
            Action::Gather { bucket } => self.bring_weights(*bucket),
            Action::Reduce { bucket, group, .. } => self.bring_gradient(*bucket, group),
            Action::Norm { .. } => return Contribution::Scalar(self.own_squared_norm()),
            Action::Statistics { bucket, round, .. } => self.own_statistics(*bucket, *round),
            other => unreachable!("{other:?} is no collective"),
        })
    }

    /// Takes the result of the collective of `instruction`.
    pub fn conclude(&mut self, instruction: &Instruction, microbatch: u32, result: Contribution) {
        match &instruction.action {
            Action::Redistribute { change, axis } => {
                self.settle(*change, *axis, instruction, microbatch, result.reals());
                self.slots.free(instruction, microbatch);
            }
            Action::Gather { bucket } => self.settle_weights(*bucket, result.reals()),
            Action::Reduce { bucket, group, scatter } => {
                self.settle_gradient(*bucket, group, *scatter, result.reals());
            }
            Action::Norm { .. } => match result {
                Contribution::Scalar(squared) => self.settle_norm(squared),
                Contribution::Reals(_) => unreachable!("a norm is a scalar"),
            },
            Action::Statistics { bucket, round, .. } => {
                self.settle_statistics(*bucket, *round, result.reals());
            }
            other => unreachable!("{other:?} is no collective"),
        }
    }

    fn bring_weights(&mut self, bucket: BucketId) -> Buffer {
        let index = bucket.0 as usize;
        let elements = self.class().bucket(bucket).elements;
        let weights = &mut self.parameters.weights;
        if weights.ranges[index] == (0..elements) {
            // Whole buckets are gathered in place, after the update of shards.
            return std::mem::replace(
                &mut weights.resident[index],
                self.memory.alloc(DType::F32, 0),
            );
        }
        let mut buffer = self.arena.take(Tenant::Weights(bucket), DType::F32, elements);
        let own = weights.ranges[index].clone();
        buffer.as_f32_mut()[own].copy_from_slice(weights.held(index).as_f32());
        buffer
    }

    fn settle_weights(&mut self, bucket: BucketId, gathered: Buffer) {
        let index = bucket.0 as usize;
        let elements = self.class().bucket(bucket).elements;
        let weights = &mut self.parameters.weights;
        match weights.ranges[index] == (0..elements) {
            true => weights.resident[index] = gathered,
            false => weights.gathered[index] = Some(gathered),
        }
    }

    fn bring_gradient(&mut self, bucket: BucketId, group: &Group) -> Buffer {
        let index = bucket.0 as usize;
        let own = self.class().shard_range(self.class().bucket(bucket), self.position);
        let program = self.program();
        let homes = matches!(group, Group::Homes(_));
        let scattered = shards(self.class(), bucket, |by| by.state(), program.shard);
        self.parameters.clear_unwritten(self.shared.program.class(self.class), bucket);
        let gradients = &mut self.parameters.gradients;
        if homes && scattered && gradients.shards[index].is_none() {
            // ZeRO-1 leaves the reduced shard in place.
            let full = gradients.full[index].as_ref().expect("gradients are whole under ZeRO-1");
            let mut part = self.arena.take(Tenant::Share(bucket), DType::F32, own.len());
            part.as_f32_mut().copy_from_slice(&full.as_f32()[own]);
            return part;
        }
        let home = match homes && scattered {
            true => &mut gradients.shards[index],
            false => &mut gradients.full[index],
        };
        home.take().expect("a gradient is written before it is reduced")
    }

    fn settle_gradient(&mut self, bucket: BucketId, group: &Group, scatter: bool, reduced: Buffer) {
        let index = bucket.0 as usize;
        let own = self.class().shard_range(self.class().bucket(bucket), self.position);
        let shard = self.program().shard;
        let scattered = shards(self.class(), bucket, |by| by.state(), shard);
        let kept = shards(self.class(), bucket, |by| by.gradients(), shard);
        let class = self.shared.program.class(self.class);
        let gradients = &mut self.parameters.gradients;
        if matches!(group, Group::Homes(_)) {
            match (scattered, kept) {
                (false, _) => gradients.full[index] = Some(reduced),
                (true, true) => gradients.shards[index] = Some(reduced),
                (true, false) => {
                    let full = gradients.full[index].as_mut().expect("put back after scattering");
                    full.as_f32_mut()[own].copy_from_slice(reduced.as_f32());
                }
            }
        } else if scatter && kept {
            let shard = gradients.shards[index].as_mut().expect("sharded gradients have a shard");
            let arrived = &reduced.as_f32()[own];
            match std::mem::replace(&mut gradients.shard_fresh[index], false) {
                true => shard.as_f32_mut().copy_from_slice(arrived),
                false => reduce::sum_into(shard.as_f32_mut(), arrived),
            }
            self.parameters.retire_gradient(class, bucket);
        } else {
            gradients.full[index] = Some(reduced);
        }
    }
}
