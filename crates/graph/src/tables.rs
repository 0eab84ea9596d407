//! Tables: parameters of which embeddings look up rows.

use crate::{Graph, OpKind, ValueId};

impl Graph {
    /// Whether embeddings read a parameter, and nothing else does: its gradient is zero but in the rows that they read.
    pub fn is_table(&self, parameter: ValueId) -> bool {
        let mut consumers = self.value(parameter).consumers.iter();
        consumers.len() > 0 && consumers.all(|&op| self.op(op).kind == OpKind::Embed)
    }

    /// The parameters that are tables, in their order.
    pub fn tables(&self) -> impl Iterator<Item = ValueId> {
        self.parameters().map(|(value, _)| value).filter(|&value| self.is_table(value))
    }

    /// Per embedding that reads a table, the value that says which rows.
    pub fn table_indices(&self, table: ValueId) -> impl Iterator<Item = ValueId> {
        self.value(table).consumers.iter().map(|&op| self.op(op).inputs[0])
    }
}
