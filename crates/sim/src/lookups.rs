//! How much of the room that servers have for rows of tables is filled, as workers look up.

use std::collections::BTreeMap;

use shardloom_program::{
    Action, Bucket, BucketId, Carried, Class, Instruction, Program, Rank, TableRows, Window,
};

use crate::{RowCounts, SimError};

/// What workers ask servers for.
#[derive(Clone, Debug)]
pub(crate) struct Lookups {
    /// By a server's first rank and its bucket: the rows of each worker, by where they begin there.
    of: BTreeMap<(Rank, BucketId), BTreeMap<usize, Asked>>,
}

/// The rows that one worker asks for.
#[derive(Clone, Debug)]
struct Asked {
    rows: TableRows,
    /// The most that there may be.
    room: usize,
}

impl Lookups {
    /// Those of a program.
    pub fn of(program: &Program) -> Lookups {
        let mut of: BTreeMap<_, BTreeMap<usize, Asked>> = BTreeMap::new();
        for route in &program.routes {
            let Carried::Lookups(..) = route.carried else { continue };
            let (Some(rows), [message]) = (program.table_rows(route), &route.messages[..]) else {
                continue;
            };
            let worker = program.class(rows.worker);
            let value = worker.param(worker.bucket(rows.bucket).params[0]).value;
            let server = program.class(rows.server);
            let is_it = |class: &Class, bucket: &Bucket| {
                let param = class.param(bucket.params[0]);
                param.value == value && param.part.start == rows.rows.start * param.columns
            };
            let held = server.buckets().find(|(_, bucket)| is_it(server, bucket));
            let Some((bucket, _)) = held else { continue };
            let (start, room) = (message.target.start[0], message.target.extent[0]);
            of.entry((server.first_rank, bucket)).or_default().insert(start, Asked { rows, room });
        }
        Lookups { of }
    }

    /// How much is filled of the room for rows that an instruction of a server works on: for those of one worker where
    /// it takes rows out, else for those of all. All of it, if it works on none.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub fn filled(
        &self,
        class: &Class,
        instruction: &Instruction,
        counts: &RowCounts,
    ) -> Result<f64, SimError> {
        let bucket = instruction.reads.first().and_then(|it| class.tensor(it.tensor).bucket);
        let all = bucket.and_then(|bucket| self.of.get(&(class.first_rank, bucket)));
        let Some(all) = all else { return Ok(1.0) };
        let of_one = match (&instruction.action, instruction.reads.get(1).map(|it| it.window)) {
            (Action::TakeRows, Some(Window::Elements { start, end })) => start..end,
            _ => 0..usize::MAX,
        };
        let (mut found, mut room) = (0.0, 0.0);
        for (_, asked) in all.range(of_one) {
            found += counts.looked_up(&asked.rows)?;
            room += asked.room as f64;
        }
        Ok(if room > 0.0 { found / room } else { 1.0 })
    }
}
