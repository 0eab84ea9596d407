//! What the memory tracker counts of any program, against plain sets of what there is.

use std::collections::BTreeSet;

use crate::every_kind;
use shardloom_program::{
    Action, Class, Collective, Copies, Instruction, Keep, MemoryTracker, Tensor, TensorId,
};

/// What a rank holds, as a set of copies: of which tensor, and of which micro-batch if each has its own.
struct Plain<'a> {
    class: &'a Class,
    position: usize,
    /// Which tensors count.
    counts: fn(&Tensor) -> bool,
    /// Bytes of what lasts, in all of its versions.
    lasting: u64,
    there: BTreeSet<(TensorId, Option<u32>)>,
    most: u64,
    /// Activations when there was the most for the first time.
    activations_then: u64,
}

impl<'a> Plain<'a> {
    fn new(class: &'a Class, position: usize, counts: fn(&Tensor) -> bool) -> Plain<'a> {
        let lasting = class.tensors().filter(|(_, tensor)| tensor.keep != Keep::Transient);
        let lasting = lasting.map(|(id, tensor)| match tensor.copies {
            Copies::Versions(count) => u64::from(count) * class.tensor_bytes(id, position),
            _ => class.tensor_bytes(id, position),
        });
        let lasting = lasting.sum();
        let there = BTreeSet::new();
        Plain { class, position, counts, lasting, there, most: lasting, activations_then: 0 }
    }

    fn sum(&self, counts: impl Fn(&Tensor) -> bool) -> u64 {
        let counted = self.there.iter().filter(|copy| counts(self.class.tensor(copy.0)));
        counted.map(|copy| self.class.tensor_bytes(copy.0, self.position)).sum()
    }

    /// What lasts, and what has come and not gone.
    fn held(&self) -> u64 {
        self.lasting + self.sum(|_| true)
    }

    fn copy(&self, tensor: TensorId, microbatch: Option<u32>) -> (TensorId, Option<u32>) {
        match self.class.tensor(tensor).copies {
            Copies::PerMicrobatch => (tensor, microbatch),
            _ => (tensor, None),
        }
    }

    fn begin(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        let comes = |it: &TensorId| self.class.tensor(*it).keep == Keep::Transient;
        let written = instruction.writes.iter().map(|write| write.to.tensor);
        let written: Vec<TensorId> = written.filter(comes).collect();
        // What is summed or copied into another tensor for the last time becomes that one.
        let becomes = match instruction.action {
            Action::Copy => instruction.reads.len() == 1,
            Action::Collective { kind: Collective::AllReduce(_), .. } => {
                instruction.reads[0].tensor != instruction.writes[0].to.tensor
            }
            _ => false,
        };
        if becomes
            && !written.is_empty()
            && instruction.frees.contains(&instruction.reads[0].tensor)
        {
            let gone = self.copy(instruction.reads[0].tensor, microbatch);
            self.there.remove(&gone);
        }
        for tensor in written {
            if (self.counts)(self.class.tensor(tensor)) {
                let copy = self.copy(tensor, microbatch);
                self.there.insert(copy);
            }
        }
        self.note(0);
    }

    /// Takes note of what is there with so many bytes besides.
    fn note(&mut self, besides: u64) {
        if self.held() + besides > self.most {
            self.most = self.held() + besides;
            self.activations_then = self.sum(Tensor::is_activation);
        }
    }

    fn end(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        for &tensor in &instruction.frees {
            let gone = self.copy(tensor, microbatch);
            self.there.remove(&gone);
        }
    }
}

/// Follows both through some steps of a class, with bytes of a kernel besides now and then.
fn assert_alike(
    example: &every_kind::Example,
    class: &Class,
    position: usize,
    counts: fn(&Tensor) -> bool,
) -> u64 {
    let every_kind::Example { name, program, .. } = example;
    let mut tracker = MemoryTracker::new(class, position);
    let mut plain = Plain::new(class, position, counts);
    let mut number = 0;
    for run in program.cursor(class, program.ahead + 2).runs(true) {
        for instruction in &class.body_of(&run.entry).instructions {
            number += 1;
            tracker.begin_counting(instruction, run.microbatch, counts);
            plain.begin(instruction, run.microbatch);
            if number % 7 == 0 {
                tracker.pass(number % 1000);
                plain.note(number % 1000);
            }
            let found =
                (tracker.live_bytes(), tracker.peak_bytes(), tracker.peak_activation_bytes());
            let expected = (plain.held(), plain.most, plain.activations_then);
            assert_eq!(found, expected, "{name}, {}: {instruction:?}", class.place());
            tracker.end(instruction, run.microbatch);
            plain.end(instruction, run.microbatch);
            assert_eq!(tracker.live_bytes(), plain.held(), "{name}: {instruction:?}");
        }
    }
    tracker.peak_bytes()
}

#[test]
fn what_is_held_after_each_instruction_is_what_has_come_and_not_gone() {
    for example in every_kind::all() {
        for class in &example.program.classes {
            for position in BTreeSet::from([0, class.mesh.size() - 1]) {
                assert_alike(&example, class, position, |_| true);
            }
        }
    }
}

#[test]
fn tensors_that_do_not_count_take_nothing() {
    let mut differ = 0;
    for example in every_kind::all() {
        for class in &example.program.classes {
            let none = assert_alike(&example, class, 0, |_| false);
            let lasting = class.persistent_bytes(0).total();
            assert!((lasting..lasting + 1000).contains(&none), "{}", example.name);
            let of = [
                assert_alike(&example, class, 0, Tensor::is_activation),
                assert_alike(&example, class, 0, |tensor| !tensor.is_activation()),
                assert_alike(&example, class, 0, |_| true),
            ];
            differ += usize::from(of[0] != of[1] && of[0] < of[2] && of[1] < of[2]);
        }
    }
    assert!(differ > 20, "{differ}");
}
