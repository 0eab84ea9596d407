//! Tables that lie on servers: workers ask them for the rows that their samples look up, and send them the gradients
//! of these rows (Kim et al. 2019, EuroSys, arXiv 1808.02621, "Parallax: Sparsity-aware Data Parallel Training of Deep
//! Neural Networks").
//!
//! A server holds pieces of consecutive rows with their optimizer's state, which no worker has. Before the passes of a
//! step a worker finds the different rows of its samples, in ascending order, and asks for them: nothing goes twice.
//! After its last pass it sums equal rows, which are those again, and sends their values in the same order. A server
//! lays what comes from workers side by side, in their order, and sums equal rows as replicas do that gather them
//! ([`Sparse`](super::Sparse)): so sums are those of the gradients of the whole batch in the same order.

mod roles;

pub(super) use roles::Tables;

use super::sparse::{Level, RowsOf};
use super::{Gradients, Holder, LookedUp, Lookups, Replicated, Rows, Synchronisation, Unheld, add};
use crate::{Content, Copies, Extent, Format, Instruction, Keep, Shape, Tensor, TensorId, View};

/// A table of which a worker has the rows that its samples look up.
#[derive(Clone, Copy, Debug)]
pub struct AskedRows;

/// A piece of a table on a server.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRows;

/// Where a server takes rows out for a worker, of what it holds of the bucket.
fn taken(held: &Replicated) -> TensorId {
    held.own[3]
}

/// Adds rows of a table's weights, as operators read them.
fn add_weights(
    bucket: &Unheld<'_>,
    (name, shape): (&str, [usize; 2]),
    keep: Keep,
    tensors: &mut Vec<Tensor>,
) -> TensorId {
    let tensor = Tensor {
        name: format!("{} {name}", bucket.name),
        shape: Shape::Local(shape.to_vec()),
        format: Format::of_number(bucket.precision.compute),
        keep,
        copies: Copies::One,
        content: Content::LookedUp,
        bucket: Some(bucket.id),
    };
    add(tensors, tensor)
}

/// What is held of a table whose gradient is in the first two tensors of its own.
fn held(weights: TensorId, own: Vec<TensorId>) -> Replicated {
    Replicated {
        weights,
        used: weights,
        gradients: Some(Gradients {
            written: own[1],
            reduced: View::whole(own[1]),
            rows: Some(Rows { written: own[0], reduced: own[0] }),
        }),
        looked_up: None,
        updated: View::whole(weights),
        own,
    }
}

fn lookups(bucket: &Unheld<'_>) -> Lookups {
    let Some(lookups) = bucket.lookups else {
        unreachable!("{} is no table: lowering keeps it otherwise", bucket.name)
    };
    lookups
}

impl Synchronisation for AskedRows {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let Lookups { rows, columns, .. } = lookups(bucket);
        let mut own = vec![];
        Level::add(bucket, RowsOf { rows, columns, whose: "" }, Keep::Transient, &mut own, tensors);
        // No more rows differ than the table has.
        let most = rows.min(bucket.elements / columns);
        let which = Tensor {
            name: format!("{} rows looked up", bucket.name),
            shape: Shape::Local(vec![most]),
            format: Format::U32,
            keep: Keep::Resident,
            copies: Copies::One,
            content: Content::Lookups,
            bucket: Some(bucket.id),
        };
        let rows = add(tensors, which);
        let name = ("weights of rows looked up", [most, columns]);
        let weights = add_weights(bucket, name, Keep::Resident, tensors);
        let looked_up = Some(LookedUp { rows, weights });
        Replicated { looked_up, ..held(weights, own) }
    }

    fn after_gradient(&self, _: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        vec![Level::of(held, 0).sum()]
    }
}

impl Synchronisation for AnsweredRows {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let Lookups { rows, columns, holder } = lookups(bucket);
        let Holder::Server { workers } = holder else {
            unreachable!("{} is on no server: lowering keeps it otherwise", bucket.name)
        };
        let weights = add(tensors, bucket.weights(Extent::Exactly(bucket.elements)));
        let mut own = vec![];
        let all = RowsOf { rows: rows * workers, columns, whose: " of all" };
        Level::add(bucket, all, Keep::Resident, &mut own, tensors);
        own.push(add_weights(
            bucket,
            ("rows taken out", [rows, columns]),
            Keep::Transient,
            tensors,
        ));
        held(weights, own)
    }

    fn before_update(&self, _: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        vec![Level::of(held, 0).sum()]
    }
}
