//! What a rank brings into a collective and what it does with the result.

use std::ops::Range;

use shardloom_kernels::{Buffer, reduce};
use shardloom_program::{Action, Collective, Content, Instruction, Mode, View, Window};

use super::Rank;
use super::store::storage;

/// A rank's part in a collective: before it what the rank brings, after it the result, in place.
pub(crate) enum Contribution {
    /// The elements of a buffer that take part.
    Reals(Buffer, Range<usize>),
    /// A number in double precision.
    Scalar(f64),
}

impl Rank {
    /// What this rank brings into the collective of `instruction`.
    pub fn contribute(&mut self, instruction: &Instruction, microbatch: u32) -> Contribution {
        let Action::Collective { kind, .. } = instruction.action else {
            unreachable!("{:?} is no collective", instruction.action)
        };
        let (read, write) = (instruction.reads[0], instruction.writes[0].to);
        let content = self.class().tensor(read.tensor).content;
        if content == Content::Norm {
            return Contribution::Scalar(self.squared_norm().expect("its own share is known"));
        }
        self.clear_unwritten(read);
        let flat = content != Content::Activation;
        let buffer = match kind {
            _ if !flat => self.bring(kind, instruction, microbatch),
            // Shares are gathered into what they are shares of.
            Collective::AllGather { .. } if !instruction.is_in_place() => {
                let elements = self.class().elements(write.tensor, self.position);
                let (dtype, _) = storage(self.class().tensor(write.tensor).format);
                let mut whole = self.arena.take(write.tensor, dtype, elements);
                let own = self.class().bucket_range(read, self.position);
                let shard = self.store.get(read.tensor, microbatch);
                whole.as_f32_mut()[own].copy_from_slice(shard.as_f32());
                whole
            }
            _ => {
                let held = self.store.take(read.tensor, microbatch);
                held.expect("what is reduced or gathered in place is held")
            }
        };
        let range = match kind {
            Collective::AllReduce(_) if flat => self.class().view_range(read, self.position),
            _ => 0..buffer.len(),
        };
        Contribution::Reals(buffer, range)
    }

    /// Takes the result of the collective of `instruction`.
    pub fn conclude(&mut self, instruction: &Instruction, microbatch: u32, result: Contribution) {
        let Action::Collective { kind, .. } = instruction.action else {
            unreachable!("{:?} is no collective", instruction.action)
        };
        let (read, write) = (instruction.reads[0], instruction.writes[0]);
        let flat = self.class().tensor(read.tensor).content != Content::Activation;
        match (result, kind) {
            (Contribution::Scalar(squared), _) => self.set_squared_norm(squared),
            (Contribution::Reals(buffer, _), _) if !flat => {
                self.settle(kind, instruction, microbatch, buffer);
            }
            (Contribution::Reals(buffer, _), Collective::ReduceScatter { .. })
                if !instruction.is_in_place() =>
            {
                self.add_to_shard(write.to, write.mode, &buffer);
                self.store.put(read.tensor, microbatch, buffer);
            }
            (Contribution::Reals(buffer, _), _) => {
                self.store.put(write.to.tensor, microbatch, buffer);
            }
        }
        self.free(instruction, microbatch);
    }

    /// Adds this rank's part of a reduced sum to its shard, or begins a new sum there.
    fn add_to_shard(&mut self, shard: View, mode: Mode, reduced: &Buffer) {
        let own = self.class().bucket_range(shard, self.position);
        let begins = match mode {
            Mode::Set => true,
            Mode::Add => false,
            Mode::AddUnlessFirst => self.parameters.sums.begin_tensor(shard.tensor),
        };
        let target = self.store.newest_mut(shard.tensor).as_f32_mut();
        match begins {
            true => target.copy_from_slice(&reduced.as_f32()[own]),
            false => reduce::sum_into(target, &reduced.as_f32()[own]),
        }
    }

    /// Makes gradients zero to which nothing was added: another stage of the class uses the parameter.
    pub fn clear_unwritten(&mut self, read: View) {
        let Rank { shared, class, store, parameters, .. } = self;
        let class = shared.program.class(*class);
        let Some(bucket) = class.tensor(read.tensor).bucket.map(|id| class.bucket(id)) else {
            return;
        };
        if read.tensor != bucket.held.replicated.written || read.window != Window::Whole {
            return;
        }
        for &param in bucket.params.iter().filter(|&&param| parameters.sums.is_empty(param)) {
            if let Some(mut gradients) = store.take(read.tensor, 0) {
                gradients.as_f32_mut()[class.param(param).range()].fill(0.0);
                store.put(read.tensor, 0, gradients);
            }
        }
    }
}
