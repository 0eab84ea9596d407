//! Classes that a model tells apart, one for each sample.

use crate::op::OpKind;
use crate::{DimId, Graph, OpId, ValueId};

/// What a classifier decides by: the largest of a sample's logits, the first of equal ones; or, where there is
/// one logit for two classes, whether it is above 0, that is the second class likelier than 1/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleClasses {
    /// `[batch, .., classes]`, or `[batch, ..]` where one logit is for two classes; a row for each sample.
    pub logits: ValueId,
    /// How many classes there are.
    pub count: usize,
    /// Whether one logit is for two classes.
    pub one_logit: bool,
    /// The operator of the loss that first has all that is needed to decide: it reads the logits and, where
    /// there are several, the largest of each row.
    pub decided_at: OpId,
}

impl Graph {
    /// The dimension of what the loss tells apart: classes or a vocabulary. A loss of one logit has none.
    pub fn class_dim(&self) -> Option<DimId> {
        let loss = self.op(self.value(self.loss()).producer?);
        match loss.kind {
            OpKind::CrossEntropy { .. } => self.value(*loss.inputs.first()?).axes.last().copied(),
            OpKind::SampledCrossEntropy { .. } => {
                self.value(*loss.inputs.get(2)?).axes.first().copied()
            }
            _ => None,
        }
    }

    /// How many classes, or tokens of a vocabulary, the loss tells apart; padding does not count.
    pub fn class_count(&self) -> Option<usize> {
        let loss = self.op(self.value(self.loss()).producer?);
        match loss.kind {
            OpKind::CrossEntropy { classes: Some(classes) } => Some(classes),
            _ => self.class_dim().map(|dim| self.dim(dim).size),
        }
    }

    /// The parameters that are made for the classes or the vocabulary: those with an axis of it. Some are of the
    /// head; the others are [embeddings](Graph::is_embedding).
    pub fn class_parameters(&self) -> impl Iterator<Item = ValueId> {
        let classes = self.class_dim();
        let has = move |value: &crate::Value| value.axes.iter().any(|&dim| Some(dim) == classes);
        self.parameters().filter(move |(_, value)| has(value)).map(|(id, _)| id)
    }

    /// All parameters but those of the head: a table for the vocabulary belongs to the trunk unless it is tied to the
    /// head. None where the loss tells no classes apart, as then there is no head to tell from the rest.
    pub fn trunk_parameters(&self) -> Vec<ValueId> {
        let head = self.class_parameters().filter(|&parameter| !self.is_embedding(parameter));
        let head: Vec<ValueId> = head.collect();
        let trunk = self.parameters().map(|(id, _)| id).filter(|id| !head.contains(id));
        if head.is_empty() { vec![] } else { trunk.collect() }
    }

    /// The classes of samples that the model tells apart: those of its loss, if that has one target for each
    /// sample. A model with a target for each position of a sequence, as language models have, has none.
    pub fn sample_classes(&self) -> Option<SampleClasses> {
        let targets = &self.value(self.targets()).axes;
        let of_positions = targets.iter().any(|&dim| self.dim(dim).name == "seq");
        if of_positions || self.targets_per_sample() != 1 {
            return None;
        }
        let loss = self.value(self.loss()).producer?;
        let &logits = self.op(loss).inputs.first()?;
        match self.op(loss).kind {
            OpKind::SigmoidCrossEntropy => {
                Some(SampleClasses { logits, count: 2, one_logit: true, decided_at: loss })
            }
            OpKind::CrossEntropy { .. } => {
                let sums = |&&op: &&OpId| matches!(self.op(op).kind, OpKind::LogitSum { .. });
                let &decided_at = self.value(logits).consumers.iter().find(sums)?;
                let &classes = self.value(logits).axes.last()?;
                let count = self.dim(classes).size;
                Some(SampleClasses { logits, count, one_logit: false, decided_at })
            }
            _ => None,
        }
    }
}
