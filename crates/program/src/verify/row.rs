//! What ranks run in a row of steps, instruction by instruction.

use super::violation::Site;
use crate::{
    BodyId, Class, ClassId, Cursor, Entry, Guard, Instruction, Next, Program, Run, TensorId,
};

/// Which entries are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Steps in which the flags of all guards hold, and servers answer clients in turn.
    Usual,
    /// Steps in which none does: every update that is tested is rolled back, and nothing is averaged that is not
    /// averaged in every step.
    RolledBack,
    /// Steps in which servers answer clients in one of many orders: 0 the first client that they may, which
    /// gets ahead of the others, 1 the last, and from 2 on one or another.
    Served(u32),
    /// The evaluation of a micro-batch.
    Evaluation,
}

impl Row {
    /// Rows that a program can run. Guards leave the same behind in either arm, so that all flags or none
    /// show what happens where some hold and others do not. Of the orders of answers these are a few, in
    /// which anything that a server does comes after anything that it may come after.
    pub(super) fn all(program: &Program) -> Vec<Row> {
        let any = |has: fn(&Class) -> bool| program.classes.iter().any(has);
        let guarded = any(|class| class.guards().next().is_some());
        let served = any(|class| class.serves().is_some());
        let mut rows = vec![Row::Usual, Row::Evaluation];
        rows.extend(guarded.then_some(Row::RolledBack));
        rows.extend((0..ORDERS).map(Row::Served).filter(|_| served));
        rows
    }
}

/// In how many orders servers answer clients.
const ORDERS: u32 = 6;

/// How many steps a row has: enough for the pipeline to fill, to be full for a step, and to drain; with
/// servers enough for clients to get ahead of each other and be waited for.
pub(super) fn steps(program: &Program) -> u32 {
    let served = program.classes.iter().any(|class| class.serves().is_some());
    program.ahead + if served { 4 } else { 2 }
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
            Next::Choice => {
                Part::Run(match answered((program, class), &cursor, row, parts.len()) {
                    Some(client) => cursor.choose(client),
                    None => cursor.choose_in_turn(),
                })
            }
            Next::Guard(guard, _) => {
                let arms = [true, false].map(|holds| cursor.arm(holds));
                cursor.take(row != Row::RolledBack);
                Part::Guard(guard, arms)
            }
        });
    }
    parts
}

/// Whom a server answers that has answered so many; none if each in turn. What other servers send for their replicas
/// comes once they have heard of all workers, for which two servers must not wait first.
fn answered(
    (program, class): (&Program, &Class),
    cursor: &Cursor<'_>,
    row: Row,
    before: usize,
) -> Option<usize> {
    let Row::Served(order) = row else { return None };
    let is_worker = |client: usize| {
        let client = class.serves().map(|serve| serve.clients[client].class);
        client.is_some_and(|client| program.class(client).serves().is_none())
    };
    let clocks = cursor.clocks();
    let of_workers = (0..clocks.len()).filter(|&client| is_worker(client));
    let heard = of_workers.map(|client| clocks[client]).min().unwrap_or(0);
    let open = cursor.open().map(|(client, _)| client);
    let open: Vec<usize> =
        open.filter(|&client| is_worker(client) || clocks[client] < heard).collect();
    let place = match order {
        0 => 0,
        1 => open.len() - 1,
        // A fixed mixture of the order and how far it is, so that each order is another one.
        _ => (order as usize * 7919 + before * 104_729) / 64 % open.len(),
    };
    Some(open[place])
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
