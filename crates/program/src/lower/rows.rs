//! Rows whose number is known only while running: whoever reads or moves them reads their counts too.
//!
//! Samples and experts are all that may be split of them, so the one change of layout that they go through
//! exchanges the one split for the other: rows travel to their experts, or back. Their counts went the same
//! way before, as a tensor of fixed size.

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, Value, ValueId};

use super::emitter::{Emitter, Form, write};
use crate::redistribution::{Change, Step};
use crate::{Action, Collective, Group, Layout, ProgramError, View};

/// The layout of the counts of rows in `layout`.
pub(super) fn counts_layout(layout: &Layout) -> Layout {
    Layout { splits: layout.splits[..Value::COUNTED_AXES].to_vec(), partial: vec![] }
}

/// Whether a value counts rows.
pub(super) fn counts_rows(graph: &Graph, value: ValueId) -> bool {
    let counted = |&it: &ValueId| graph.value(it).counts == Some(value);
    graph.value(value).consumers.iter().any(|&op| graph.op(op).outputs.iter().any(counted))
}

impl Emitter<'_> {
    /// The counts of rows in `layout`.
    ///
    /// # Panics
    /// If they are not at hand: whoever makes or moves rows gets their counts first.
    pub fn counts_at_hand(&self, counts: ValueId, layout: &Layout) -> View {
        let wanted = counts_layout(layout);
        let forms = self.forms.get(&counts).map(Vec::as_slice).unwrap_or_default();
        let form = forms.iter().find(|form| form.layout == wanted);
        form.expect("counts are at hand before the rows that they count").operand
    }

    /// Takes rows through `steps` of layouts.
    pub fn redistribute_rows(
        &mut self,
        (value, counts): (ValueId, ValueId),
        form: &Form,
        steps: Vec<Step>,
        suffix: &str,
    ) -> Result<View, ProgramError> {
        let mut before = form.clone();
        for step in steps {
            let Change::Together(kind @ Collective::AllToAll { from, to }) = step.change else {
                return Err(self.immovable(value, &before.layout, &step.layout));
            };
            if from.max(to) >= Value::COUNTED_AXES {
                return Err(self.immovable(value, &before.layout, &step.layout));
            }
            let own = self.counts_at_hand(counts, &before.layout);
            let others = self.obtain(counts, &counts_layout(&step.layout))?;
            let others = others.expect("counts are at hand in one layout at least");
            let name = format!("{suffix}@{}", step.layout);
            let tensor = self.value(value, &step.layout, &name);
            // What comes back from experts arrives as it lies; what goes to them is sorted by expert.
            let parts = (to == 0).then(|| self.parts_of(tensor, tensor));
            let group = Group::Mesh(vec![step.axis]);
            let action = Action::Collective { kind, group, algorithm: Algorithm::Direct };
            let reads = vec![before.operand, own, others];
            self.push(action, reads, [tensor].into_iter().chain(parts).map(write).collect());
            before = Form { layout: step.layout, operand: View::whole(tensor) };
        }
        Ok(before.operand)
    }

    fn immovable(&self, value: ValueId, from: &Layout, to: &Layout) -> ProgramError {
        ProgramError::Rows {
            name: self.context.graph.value(value).name.clone(),
            from: from.to_string(),
            to: to.to_string(),
        }
    }
}
