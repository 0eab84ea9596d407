//! The classes that a classifier gives to the samples that it is evaluated on.
//!
//! Where classes are split over ranks, the maximum of the cross-entropy's first phase says what the largest logit of
//! a sample is, and each rank finds the first of its own classes that has it. The first of those that ranks found
//! is the class, which whoever leads works out: so nothing is exchanged for it.

use shardloom_graph::OpId;
use shardloom_program::Instruction;

use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// Where a rank sees which classes samples get.
pub(super) struct Decision {
    logits: Slot,
    /// The largest logit of each sample, wherever its class is; none where one logit is for two classes.
    largest: Option<Slot>,
    /// The first of the rank's classes.
    first_class: usize,
    /// The first of the rank's samples of a micro-batch.
    first_sample: usize,
}

impl Decision {
    /// Links what is seen at an operator of an evaluation; none if it decides nothing.
    pub fn link(
        linker: &Linker<'_>,
        op: OpId,
        instruction: &Instruction,
        (first_sample, first_class): (usize, usize),
    ) -> Option<Decision> {
        let classes = linker.shared.graph.sample_classes().filter(|it| it.decided_at == op)?;
        let slot = |index: usize| linker.slot(instruction.reads[index]);
        let largest = (!classes.one_logit).then(|| slot(1));
        Some(Decision { logits: slot(0), largest, first_class, first_sample })
    }
}

impl Rank {
    /// Notes the class that each of the rank's samples gets, as far as the rank can tell.
    pub(super) fn note_classes(&mut self, of: &Decision, at: At) {
        let Decision { logits, largest, first_class, first_sample } = *of;
        let reals = |slot: Slot| self.device().reals(self.store.get(slot, at).view());
        let first = self.now.first_sample + first_sample as u64;
        let logits = reals(logits);
        let noted: Vec<(u64, u32)> = match largest.map(reals) {
            None => {
                let likelier = |&logit: &f32| (!logit.is_nan()).then_some(u32::from(logit > 0.0));
                let class = |(sample, logit)| Some((sample, likelier(logit)?));
                (first..).zip(&logits).filter_map(class).collect()
            }
            Some(largest) => {
                let rows = logits.chunks((logits.len() / largest.len().max(1)).max(1));
                let class = |(sample, (row, most)): (u64, (&[f32], &f32))| {
                    let found = row.iter().position(|logit| logit == most)?;
                    Some((sample, (first_class + found) as u32))
                };
                (first..).zip(rows.zip(&largest)).filter_map(class).collect()
            }
        };
        self.classes.extend(noted);
    }

    /// The samples of the validation part that were evaluated since this was called last, each with the first of
    /// the rank's classes that may be its class.
    pub fn take_classes(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.classes)
    }
}
