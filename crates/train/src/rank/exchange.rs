//! What a rank brings into a collective and what it does with the result.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use shardloom_fabric::{Lent, ViewMut};
use shardloom_kernels::{Buffer, Combine};
use shardloom_program::{Action, Collective, Content, Instruction, Issued, Mode, View, Window};

use super::Rank;
use super::arena::Now;
use super::rows::RowExchange;

/// A rank's part in a collective: before it what the rank brings, after it the result, in place. It is
/// what training lends to an engine.
pub struct Contribution {
    pub(crate) part: Part,
    /// From when to when the engine worked on it, once it has.
    pub(crate) worked: Option<(Instant, Instant)>,
}

/// What a rank brings into a collective.
pub(crate) enum Part {
    /// The elements of a buffer that take part.
    Elements(Buffer, Range<usize>),
    /// A number in double precision.
    Scalar(f64),
    /// Rows, as many as have turned out.
    Rows(Box<RowExchange>),
}

/// A collective that a rank has come to: what it needs to go on with it when it has ended.
pub(crate) struct Begun {
    /// The instruction.
    pub issued: Issued,
    /// Where the result goes, if not where the contribution is.
    place: Option<Buffer>,
    at: Now,
}

impl Lent for Contribution {
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
        let start = Instant::now();
        match &mut self.part {
            Part::Elements(buffer, range) => {
                let device = Arc::clone(buffer.device());
                device.lend(buffer.view_mut().slice(range.clone()), work);
            }
            Part::Scalar(number) => work(ViewMut::F64(std::slice::from_mut(number))),
            Part::Rows(rows) => {
                let device = Arc::clone(rows.buffer.device());
                let filled = rows.filled();
                device.lend(rows.buffer.view_mut().slice(filled), work);
            }
        }
        self.worked = Some((start, Instant::now()));
    }
}

impl Rank {
    /// What this rank brings into the collective of `instruction`, which it is at. All that the collective
    /// allocates is allocated here.
    pub fn contribute(
        &mut self,
        instruction: &Instruction,
        microbatch: Option<u32>,
    ) -> (Contribution, Begun) {
        let (body, index) = self.instruction();
        let part = self.bring_part(instruction, microbatch.unwrap_or(0));
        let place = self.result_place(instruction);
        let issued = Issued { body, index, microbatch };
        (Contribution { part, worked: None }, Begun { issued, place, at: self.arena.now() })
    }

    fn bring_part(&mut self, instruction: &Instruction, microbatch: u32) -> Part {
        let Action::Collective { kind, .. } = instruction.action else {
            unreachable!("{:?} is no collective", instruction.action)
        };
        if instruction.moves_rows(self.class()) {
            return self.bring_rows(instruction, microbatch);
        }
        let (read, write) = (instruction.reads[0], instruction.writes[0].to);
        let content = self.class().tensor(read.tensor).content;
        if content == Content::Norm {
            return Part::Scalar(self.squared_norm().expect("its own share is known"));
        }
        self.clear_unwritten(read);
        let flat = content != Content::Activation;
        let buffer = match kind {
            _ if !flat => self.bring(kind, instruction, microbatch),
            // Shares are gathered into what they are shares of.
            Collective::AllGather { .. } if !instruction.is_in_place() => {
                let elements = self.class().elements(write.tensor, self.position);
                let mut whole = self.arena.take(write.tensor, elements);
                let own = self.class().bucket_range(read, self.position);
                let shard = self.store.get(read.tensor, microbatch);
                self.device().copy(shard.view(), whole.view_mut().slice(own));
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
        Part::Elements(buffer, range)
    }

    /// Takes the result of a collective that has ended, wherever the rank is by now.
    pub fn conclude(&mut self, begun: Begun, result: Contribution) {
        let Begun { issued, place, at } = begun;
        let shared = Arc::clone(&self.shared);
        let instruction = issued.instruction(shared.program.class(self.class));
        let microbatch = issued.microbatch.unwrap_or(0);
        let now = self.arena.now();
        self.arena.go_back(at);
        let Action::Collective { kind, .. } = instruction.action else {
            unreachable!("{:?} is no collective", instruction.action)
        };
        let (read, write) = (instruction.reads[0], instruction.writes[0]);
        let flat = self.class().tensor(read.tensor).content != Content::Activation;
        match (result.part, kind) {
            (Part::Scalar(squared), _) => self.set_squared_norm(squared),
            (Part::Rows(rows), _) => self.settle_rows(instruction, microbatch, (*rows, place)),
            (Part::Elements(buffer, _), _) if !flat => {
                self.settle(kind, instruction, microbatch, (buffer, place));
            }
            (Part::Elements(buffer, _), Collective::ReduceScatter { .. })
                if !instruction.is_in_place() =>
            {
                self.add_to_shard(write.to, write.mode, &buffer);
                self.store.put(read.tensor, microbatch, buffer);
            }
            (Part::Elements(buffer, _), _) => {
                self.store.put(write.to.tensor, microbatch, buffer);
            }
        }
        self.free(instruction, microbatch);
        self.arena.go_back(now);
    }

    /// Adds this rank's part of a reduced sum to its shard, or begins a new sum there.
    fn add_to_shard(&mut self, shard: View, mode: Mode, reduced: &Buffer) {
        let own = self.class().bucket_range(shard, self.position);
        let begins = match mode {
            Mode::Set => true,
            Mode::Add => false,
            Mode::AddUnlessFirst => self.parameters.sums.begin_tensor(shard.tensor),
        };
        let part = reduced.view().slice(own);
        let Rank { shared, store, .. } = self;
        let target = store.newest_mut(shard.tensor).view_mut();
        match begins {
            true => shared.device.copy(part, target),
            false => shared.device.combine(target, part, Combine::Sum),
        }
    }

    /// Makes gradients zero to which nothing was added: another stage of the class uses the parameter.
    pub(super) fn clear_unwritten(&mut self, read: View) {
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
                let unwritten = gradients.view_mut().slice(class.param(param).range());
                shared.device.fill(unwritten, 0.0);
                store.put(read.tensor, 0, gradients);
            }
        }
    }
}
