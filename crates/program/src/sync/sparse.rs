//! Tables whose gradients are rows and values: replicas exchange the rows that they have read, and hold no gradient
//! as large as the table.
//!
//! Passes write one row after the other, as an embedding has read them. Once all are there a rank sums equal rows,
//! gathers those of the others that have parts of the gradient, and sums equal rows again, in the order of ranks: so
//! all have the same sums, in the order in which the gradients of all rows would have been added up.

use shardloom_collectives::Algorithm;

use super::{Gradients, Lookups, Replicated, Rows, Synchronisation, Unheld, add};
use crate::{
    Action, Collective, Content, Copies, Extent, Format, Group, Instruction, Keep, Shape, Tensor,
    TensorId, View,
};

/// Replicas that gather the rows and values of all.
#[derive(Clone, Copy, Debug)]
pub struct Sparse {
    /// The all-gathers' algorithm.
    pub algorithm: Algorithm,
}

/// Rows and values of so many ranks, and room for the order of the rows.
#[derive(Clone, Copy)]
pub(super) struct Level {
    rows: TensorId,
    values: TensorId,
    order: TensorId,
}

/// How many rows and values there is room for, and whose they are, for people.
#[derive(Clone, Copy)]
pub(super) struct RowsOf<'a> {
    pub rows: usize,
    pub columns: usize,
    pub whose: &'a str,
}

impl Level {
    /// Adds the tensors of one, in order.
    pub(super) fn add(
        bucket: &Unheld<'_>,
        RowsOf { rows, columns, whose }: RowsOf<'_>,
        keep: Keep,
        own: &mut Vec<TensorId>,
        tensors: &mut Vec<Tensor>,
    ) {
        let mut hold = |name: &str, shape: Vec<usize>, format, keep, content| {
            let tensor = Tensor {
                name: format!("{} {name}{whose}", bucket.name),
                shape: Shape::Local(shape),
                format,
                keep,
                copies: Copies::One,
                content,
                bucket: (content != Content::Staging).then_some(bucket.id),
            };
            own.push(add(tensors, tensor));
        };
        let gradients = Format::of_number(bucket.precision.gradients);
        hold("rows", vec![rows], Format::U32, keep, Content::Rows);
        hold("gradients of rows", vec![rows, columns], gradients, keep, Content::Gradient);
        hold("order of rows", vec![rows], Format::U32, Keep::Transient, Content::Staging);
    }

    /// The n-th of those that ranks hold of a bucket.
    pub(super) fn of(held: &Replicated, index: usize) -> Level {
        match held.own.get(3 * index..3 * index + 3) {
            Some(&[rows, values, order]) => Level { rows, values, order },
            _ => unreachable!("{} tensors are {} levels", held.own.len(), held.own.len() / 3),
        }
    }

    /// Sums equal rows.
    pub(super) fn sum(self) -> Instruction {
        let own = [self.rows, self.values].map(View::whole);
        let order = View::whole(self.order);
        Instruction::new(Action::SumRows, own, [own[0], own[1], order]).freeing([self.order])
    }

    /// What gathers it over a group into another.
    fn gather(self, group: &Group, into: Level, algorithm: Algorithm) -> [Instruction; 2] {
        [(self.rows, into.rows), (self.values, into.values)].map(|(own, all)| {
            let kind = Collective::AllGather { axis: 0 };
            let action = Action::Collective { kind, group: group.clone(), algorithm };
            Instruction::new(action, [View::whole(own)], [View::whole(all)]).freeing([own])
        })
    }
}

impl Synchronisation for Sparse {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let Some(Lookups { rows, columns, .. }) = bucket.lookups else {
            unreachable!("{} is no table: lowering keeps it otherwise", bucket.name)
        };
        let weights = add(tensors, bucket.weights(Extent::Exactly(bucket.elements)));
        let mut counts = vec![rows];
        let axes = bucket.partial_axes();
        if !axes.is_empty() {
            counts.push(rows * bucket.mesh.span(&axes));
        }
        if !bucket.classes.is_empty() {
            counts.push(counts[counts.len() - 1] * bucket.classes.len());
        }
        let last = counts.len() - 1;
        let mut own = vec![];
        for (level, &rows) in counts.iter().enumerate() {
            let keep = if level == last { Keep::Resident } else { Keep::Transient };
            let whose = if level == 0 { "" } else { " of all" };
            Level::add(bucket, RowsOf { rows, columns, whose }, keep, &mut own, tensors);
        }
        let (written, reduced) = (own[1], own[3 * last + 1]);
        let rows = Rows { written: own[0], reduced: own[3 * last] };
        Replicated {
            weights,
            used: weights,
            gradients: Some(Gradients { written, reduced: View::whole(reduced), rows: Some(rows) }),
            looked_up: None,
            updated: View::whole(weights),
            own,
        }
    }

    fn over_partial(&self, _: &Unheld<'_>, _: &Replicated, _: Algorithm) -> Vec<Instruction> {
        vec![]
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let own = Level::of(held, 0);
        let mut instructions = vec![own.sum()];
        let axes = bucket.partial_axes();
        if !axes.is_empty() {
            let all = Level::of(held, 1);
            instructions.extend(own.gather(&Group::Mesh(axes), all, self.algorithm));
        }
        instructions
    }

    fn before_update(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        match bucket.partial_axes().is_empty() {
            true => vec![],
            false => vec![Level::of(held, 1).sum()],
        }
    }

    fn over_classes(
        &self,
        bucket: &Unheld<'_>,
        held: &Replicated,
        _: Algorithm,
    ) -> Vec<Instruction> {
        if bucket.classes.is_empty() {
            return vec![];
        }
        let level = usize::from(!bucket.partial_axes().is_empty());
        let (own, all) = (Level::of(held, level), Level::of(held, level + 1));
        let group = Group::Classes(bucket.classes.to_vec());
        let mut instructions = own.gather(&group, all, self.algorithm).to_vec();
        instructions.push(all.sum());
        instructions
    }
}
