//! What ranks run in a row of steps, instruction by instruction.

use super::violation::Site;
use crate::{
    BodyId, Class, ClassId, Content, Entry, Guard, Instruction, Next, Program, Run, TensorId,
};

/// Which entries are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Steps in which the flags of all guards hold.
    Usual,
    /// Steps in which none does: every update is rolled back.
    RolledBack,
    /// The evaluation of a micro-batch.
    Evaluation,
}

impl Row {
    /// The rows that a program can run. Guards leave the same behind in either arm, so these two show what
    /// happens where some flags hold and others do not.
    pub(super) fn all(program: &Program) -> Vec<Row> {
        match program.classes.iter().any(|class| class.guards().next().is_some()) {
            true => vec![Row::Usual, Row::RolledBack, Row::Evaluation],
            false => vec![Row::Usual, Row::Evaluation],
        }
    }
}

/// How many steps a row has: enough for the pipeline to fill, to be full for a step, and to drain.
pub(super) fn steps(program: &Program) -> u32 {
    program.ahead + 2
}

/// An instruction, as one entry runs it.
#[derive(Clone, Copy)]
pub(super) struct Step<'p> {
    pub class: &'p Class,
    pub id: ClassId,
    pub run: Run,
    pub index: usize,
    pub instruction: &'p Instruction,
}

impl Step<'_> {
    pub fn site(&self) -> Site {
        site(self.class, self.id, self.run.entry.body, self.index)
    }

    pub fn tensor_name(&self, tensor: TensorId) -> String {
        self.class.tensor(tensor).name.clone()
    }

    /// Whether it puts back what an update has changed.
    pub fn restores(&self) -> bool {
        let content = |tensor: TensorId| self.class.tensor(tensor).content;
        self.instruction.action == crate::Action::Copy
            && self.instruction.reads.iter().any(|it| content(it.tensor) == Content::Backup)
    }
}

/// What a class comes to in a row.
pub(super) enum Part<'p> {
    Run(Run),
    /// A guard with what its arms run, before that which the row takes.
    Guard(&'p Guard, [Vec<Run>; 2]),
}

/// What a class comes to, in order.
pub(super) fn parts<'p>(program: &Program, class: &'p Class, row: Row) -> Vec<Part<'p>> {
    if row == Row::Evaluation {
        let entries = class.evaluation.iter().map(|&body| Entry::new(body, Some(0)));
        return entries.map(|entry| Part::Run(Run::alone(entry))).collect();
    }
    let mut cursor = program.cursor(class, steps(program));
    let mut parts = vec![];
    while let Some(next) = cursor.advance() {
        parts.push(match next {
            Next::Run(run) => Part::Run(run),
            // In which order clients are answered makes no difference to what a server holds between them.
            Next::Serve => Part::Run(cursor.serve_in_turn()),
            Next::Guard(guard, _) => {
                let arms = [true, false].map(|holds| cursor.arm(holds));
                cursor.take(row == Row::Usual);
                Part::Guard(guard, arms)
            }
        });
    }
    parts
}

/// The entries that a class runs.
pub(super) fn entries(program: &Program, class: &Class, row: Row) -> Vec<Run> {
    let run = |part| match part {
        Part::Run(run) => Some(run),
        Part::Guard(..) => None,
    };
    parts(program, class, row).into_iter().filter_map(run).collect()
}

/// The instructions of some of a class's entries.
pub(super) fn instructions<'p>(
    class: &'p Class,
    id: ClassId,
    entries: &[Run],
) -> impl Iterator<Item = Step<'p>> {
    entries.iter().flat_map(move |&run| {
        let body = &class.body_of(&run.entry).instructions;
        body.iter().enumerate().map(move |(index, instruction)| Step {
            class,
            id,
            run,
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
