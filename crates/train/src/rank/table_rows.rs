//! Gradients of tables as rows and values: equal rows are summed, and what an update or a norm reads of them.

use shardloom_kernels::Buffer;
use shardloom_kernels::device::{Gradients, Rows};
use shardloom_program::{Content, Instruction, TensorId, Window, Write};

use super::arena::Room;
use super::link::Linker;
use super::store::{Slot, Store};
use super::{At, Rank};

/// Equal rows that are summed.
pub(crate) struct SumRows {
    /// Rows of the table on this rank.
    table_rows: usize,
    rows: Slot,
    values: Slot,
    order: Room,
    /// The tensors in which operators write one behind the other, if it is these.
    written: Option<[TensorId; 2]>,
}

impl SumRows {
    /// Links a sum of equal rows.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> SumRows {
        let class = linker.class;
        let [rows, values] = [instruction.reads[0], instruction.reads[1]];
        let bucket = class.tensor(values.tensor).bucket.expect("gradients lie in buckets");
        let bucket = class.bucket(bucket);
        let is_next = |write: &Write| {
            write.to.tensor == rows.tensor && matches!(write.to.window, Window::Next { .. })
        };
        let is_written = class.instructions().any(|(_, _, it)| it.writes.iter().any(is_next));
        let param = class.param(bucket.params[0]);
        SumRows {
            // A table is alone in its bucket.
            table_rows: param.elements() / param.shape[1..].iter().product::<usize>().max(1),
            rows: linker.slot(rows),
            values: linker.slot(values),
            order: linker.room(instruction.writes[2].to.tensor),
            written: is_written.then_some([rows.tensor, values.tensor]),
        }
    }
}

/// The rows that gradients are of which an instruction reads, where they are of a bucket's rows.
pub(super) fn rows_of(
    linker: &Linker<'_>,
    instruction: &Instruction,
    gradients: TensorId,
) -> Option<Slot> {
    let class = linker.class;
    let bucket = class.tensor(gradients).bucket;
    let is_theirs = |tensor: TensorId| {
        let tensor = class.tensor(tensor);
        tensor.content == Content::Rows && tensor.bucket == bucket
    };
    let mut reads = instruction.reads.iter().map(|read| read.tensor);
    reads.find(|&it| is_theirs(it)).map(|rows| linker.store.slot(rows))
}

/// Gradients of a whole table as rows of it.
pub(super) fn of_rows(store: &Store, rows: Slot, values: Slot, at: At) -> Rows<'_> {
    Rows { rows: store.get(rows, at).view(), values: store.get(values, at).view() }
}

/// Gradients of a part of a bucket, or of a table of which rows are held.
pub(super) fn gradients(
    store: &Store,
    rows: Option<Slot>,
    (values, part): (Slot, std::ops::Range<usize>),
    at: At,
) -> Gradients<'_> {
    match rows {
        Some(rows) => Gradients::Rows(of_rows(store, rows, values, at)),
        None => Gradients::All(store.get(values, at).view().slice(part)),
    }
}

impl Rank {
    /// Sums equal rows.
    pub(super) fn sum_rows(&mut self, of: &SumRows, at: At) {
        let held = "rows are there until they are summed";
        let mut take = |slot| -> Buffer { self.store.take(slot, at).expect(held) };
        let [mut rows, mut values] = [of.rows, of.values].map(&mut take);
        let mut order = self.arena.take(&of.order, at);
        let filled = match of.written {
            Some(written) => written.map(|tensor| self.parameters.sums.take_filled(tensor))[0],
            None => rows.len(),
        };
        let device = self.device();
        device.sum_rows(
            of.table_rows,
            filled,
            rows.view_mut(),
            values.view_mut(),
            order.view_mut(),
        );
        self.store.put(of.rows, at, rows);
        self.store.put(of.values, at, values);
        self.store.put(of.order.slot, at, order);
    }
}
