//! Tables: parameters of which operators read rows: embeddings, and losses over drawn classes.

use crate::{Graph, OpId, OpKind, ValueId};

impl Graph {
    /// Whether embeddings or a loss over drawn classes read a matrix, and nothing else does: its gradient is zero but
    /// in the rows that they read. A vector, such as the bias of such a loss, is none.
    pub fn is_table(&self, parameter: ValueId) -> bool {
        let node = self.value(parameter);
        node.axes.len() > 1
            && !node.consumers.is_empty()
            && node.consumers.iter().all(|&op| self.op(op).kind.reads_rows())
    }

    /// Whether embeddings read a parameter, and nothing else does.
    pub fn is_embedding(&self, parameter: ValueId) -> bool {
        let mut consumers = self.value(parameter).consumers.iter();
        consumers.len() > 0 && consumers.all(|&op| self.op(op).kind == OpKind::Embed)
    }

    /// The parameters that are tables, in their order.
    pub fn tables(&self) -> impl Iterator<Item = ValueId> {
        self.parameters().map(|(value, _)| value).filter(|&value| self.is_table(value))
    }

    /// Per operator that reads a table, the value that says which rows, besides those of drawn classes.
    pub fn table_indices(&self, table: ValueId) -> impl Iterator<Item = ValueId> {
        self.value(table).consumers.iter().map(|&op| self.row_indices(op))
    }

    /// Of an operator that reads rows of a table, the input that says which, besides those of drawn classes.
    pub fn row_indices(&self, op: OpId) -> ValueId {
        let node = self.op(op);
        node.inputs[usize::from(node.kind.drawn_classes() > 0)]
    }

    /// How many classes are drawn by what reads a table; 0 where the data alone say which rows are read.
    pub fn drawn_rows(&self, table: ValueId) -> usize {
        self.value(table).consumers.iter().map(|&op| self.op(op).kind.drawn_classes()).sum()
    }
}
