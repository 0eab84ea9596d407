//! What ranks run in a row of steps, instruction by instruction.

use super::violation::Site;
use crate::{Action, BodyId, Class, ClassId, Instruction, Program, StreamItem, TensorId};

/// Which entries of the streams are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Steps whose updates were all right.
    Usual,
    /// Steps whose updates all had to be amended.
    Amended,
    /// The evaluation of a micro-batch.
    Evaluation,
}

impl Row {
    /// The rows that a program can run.
    pub(super) fn all(program: &Program) -> Vec<Row> {
        let validates = |class: &Class| class.ends_late() || class.updates_early();
        match program.classes.iter().any(validates) {
            true => vec![Row::Usual, Row::Amended, Row::Evaluation],
            false => vec![Row::Usual, Row::Evaluation],
        }
    }
}

/// How many steps a row has: enough for the pipeline to fill, to be full for a step, and to drain.
pub(super) fn steps(program: &Program) -> u32 {
    program.ahead + 2
}

/// An instruction, as one entry of a stream runs it.
#[derive(Clone, Copy)]
pub(super) struct Step<'p> {
    pub class: &'p Class,
    pub id: ClassId,
    pub item: StreamItem,
    pub index: usize,
    pub instruction: &'p Instruction,
}

impl Step<'_> {
    pub fn site(&self) -> Site {
        site(self.class, self.id, self.item.body, self.index)
    }

    pub fn tensor_name(&self, tensor: TensorId) -> String {
        self.class.tensor(tensor).name.clone()
    }

    /// Whether it takes back an update.
    pub fn undoes(&self, row: Row) -> bool {
        row == Row::Amended && self.instruction.action == Action::Validate
    }
}

/// The entries that a class runs.
pub(super) fn entries(program: &Program, class: &Class, row: Row) -> Vec<StreamItem> {
    if row == Row::Evaluation {
        let entry = |&body: &BodyId| StreamItem::new(body, Some(0));
        return class.evaluation.iter().map(entry).collect();
    }
    let all = program.unrolled(class, steps(program));
    // In the first step there is nothing to validate yet.
    let runs =
        |&(step, item): &(i64, StreamItem)| !item.amends || (row == Row::Amended && step > 0);
    all.filter(runs).map(|(_, item)| item).collect()
}

/// The instructions of some of a class's entries.
pub(super) fn instructions<'p>(
    class: &'p Class,
    id: ClassId,
    entries: &[StreamItem],
) -> impl Iterator<Item = Step<'p>> {
    entries.iter().flat_map(move |&item| {
        let body = &class.body(item.body).instructions;
        body.iter().enumerate().map(move |(index, instruction)| Step {
            class,
            id,
            item,
            index,
            instruction,
        })
    })
}

/// Where an instruction stands.
pub(super) fn site(class: &Class, id: ClassId, body: BodyId, instruction: usize) -> Site {
    Site { class: id, body, instruction, place: place(class, body) }
}

/// A body of a class, for people.
pub(super) fn place(class: &Class, body: BodyId) -> String {
    format!("{}, body {} ({})", class.place(), body.0, class.body(body).label(None))
}
