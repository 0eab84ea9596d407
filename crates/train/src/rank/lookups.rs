//! Rows of tables that servers hold: which ones a worker's samples look up, where each index stands among them, and
//! what goes between workers and servers, as many rows as there are.

use std::ops::Range;

use shardloom_data::{Field, Part};
use shardloom_fabric::{Message, ViewMut};
use shardloom_graph::ValueId;
use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_kernels::rows::NO_ROW;
use shardloom_program::{
    BucketId, Class, ClassId, Instruction, MeasuredRows, Message as Way, RouteId, View, Window,
};

use super::arena::Room;
use super::link::{Linker, Local, Work};
use super::rows::NotedRows;
use super::store::Slot;
use super::{At, LinkedInstruction, Rank};
use crate::{Error, Result};

/// Which rows of a table this rank's samples look up.
pub(crate) struct LoadRows {
    /// What the source of data calls the inputs that say which.
    inputs: Box<[Box<str>]>,
    microbatches: Box<[u32]>,
    table_rows: usize,
    to: Slot,
    /// Which of the rank's logs is of it.
    log: usize,
}

/// Where indices stand among rows.
pub(crate) struct FindRows {
    indices: Slot,
    rows: Slot,
    to: Room,
}

/// Rows that are taken out of weights.
pub(crate) struct TakeRows {
    weights: Slot,
    rows: Slot,
    /// Which of the rows.
    part: Range<usize>,
    columns: usize,
    to: Room,
}

/// Which of some rows a message is of, and where they lie at this end.
pub(super) struct Rows {
    rows: Slot,
    /// Which elements of these, if not all.
    part: Range<usize>,
    /// The rows of the table that are the piece's, as they are numbered here.
    piece: Range<u32>,
    lies: Lies,
    /// Elements of a row of what is sent; none where that is which rows they are.
    columns: Option<usize>,
}

/// Where a message's rows lie in their tensor.
enum Lies {
    /// Beside those of other pieces, in ascending order.
    Among,
    /// From this row on.
    From(usize),
}

impl LoadRows {
    /// Links it.
    pub(super) fn link(
        linker: &Linker<'_>,
        (table, microbatches): (ValueId, &[u32]),
        instruction: &Instruction,
    ) -> LoadRows {
        let (class, graph) = (linker.class, &linker.shared.graph);
        let to = instruction.writes[0].to;
        let bucket = class.tensor(to.tensor).bucket.expect("rows are of a table");
        let mut inputs: Vec<ValueId> = graph.table_indices(table).collect();
        inputs.sort_unstable();
        inputs.dedup();
        LoadRows {
            inputs: inputs.iter().map(|&it| graph.value(it).name.as_str().into()).collect(),
            microbatches: microbatches.into(),
            table_rows: class.param(class.bucket(bucket).params[0]).shape[0],
            to: linker.slot(to),
            log: linker.counted.lookups_of(bucket),
        }
    }
}

impl FindRows {
    /// Links it.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> FindRows {
        let [indices, rows] = [0, 1].map(|index| linker.slot(instruction.reads[index]));
        FindRows { indices, rows, to: linker.room(instruction.writes[0].to.tensor) }
    }
}

impl TakeRows {
    /// Links it.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> TakeRows {
        let [weights, rows] = [instruction.reads[0], instruction.reads[1]];
        let to = instruction.writes[0].to.tensor;
        TakeRows {
            weights: linker.slot(weights),
            rows: linker.slot(rows),
            part: linker.class.view_range(rows, linker.position),
            columns: linker.class.tensor(to).local_shape()[1],
            to: linker.room(to),
        }
    }
}

impl Rows {
    /// Which rows a message of a route is of, at this end of it; none if it brings something else.
    pub(super) fn link(
        linker: &Linker<'_>,
        route: RouteId,
        message: &Way,
        instruction: &Instruction,
    ) -> Option<Rows> {
        let program = &linker.shared.program;
        let route = program.route(route);
        let of = program.table_rows(route)?;
        let is_worker = program.class(of.worker).first_rank == linker.class.first_rank;
        let sends = instruction.writes.is_empty();
        let part = if sends { &message.source } else { &message.target };
        let written = instruction.writes.iter().map(|write| write.to);
        let operands: Vec<View> = match sends {
            true => instruction.reads.to_vec(),
            false => written.chain(instruction.reads.iter().copied()).collect(),
        };
        let rows = *operands.last()?;
        let start = part.start[0];
        let own = match rows.window {
            Window::Elements { start, end } => start..end,
            // At a server those of the worker.
            _ if !is_worker => start..start + part.extent[0],
            _ => 0..linker.class.elements(rows.tensor, linker.position),
        };
        let piece = match is_worker {
            true => of.rows.start as u32..of.rows.end as u32,
            false => 0..of.rows.len() as u32,
        };
        Some(Rows {
            rows: linker.slot(rows),
            part: own,
            piece,
            lies: if is_worker { Lies::Among } else { Lies::From(start) },
            columns: part.extent.get(1).copied(),
        })
    }
}

impl Rank {
    /// Finds which rows the samples look up.
    ///
    /// # Errors
    /// If data is missing.
    pub(super) fn load_rows(&mut self, load: &LoadRows, at: At) -> Result<()> {
        let LoadRows { inputs, microbatches, table_rows, to, log } = load;
        let mut rows = std::mem::take(&mut self.lists.rows);
        rows.clear();
        let mut room = std::mem::take(&mut self.sample);
        let samples = self.shared.program.microbatch_samples as u64;
        let trains = self.now.part == Part::Training;
        let first = match trains {
            true => {
                let steps = self.now.of_step - self.now.first_step;
                self.now.first_sample + steps * self.shared.program.global_batch as u64
            }
            false => self.now.first_sample,
        };
        let alone = at.issued.microbatch.map(|_| 0);
        let microbatches = if trains { &microbatches[..] } else { alone.as_slice() };
        for (input, &microbatch) in
            inputs.iter().flat_map(|input| microbatches.iter().map(move |it| (input, it)))
        {
            for sample in 0..samples {
                let position = first + u64::from(microbatch) * samples + sample;
                match self.shared.source.field(self.now.part, position, input, &mut room)? {
                    Some(Field::Indices(indices)) => rows.extend(indices),
                    _ => return Err(Error::Input { input: input.to_string(), position }),
                }
            }
        }
        self.sample = room;
        rows.sort_unstable();
        rows.dedup();
        // Others are none of the table's, as an embedding that reads all of it has it.
        rows.truncate(rows.partition_point(|&row| (row as usize) < *table_rows));
        if trains {
            self.counted.note_lookups(*log, &rows);
        }
        let mut held = self.store.take(*to, at).expect("which rows is there all the time");
        rows.resize(held.len(), NO_ROW);
        self.device().upload(HostSlice::U32(&rows), held.view_mut());
        self.store.put(*to, at, held);
        self.lists.rows = rows;
        Ok(())
    }

    /// Writes where indices stand among rows.
    pub(super) fn find_rows(&mut self, find: &FindRows, at: At) {
        self.read_rows(find.rows, None, at);
        let mut indices = std::mem::take(&mut self.lists.indices);
        let held = self.store.get(find.indices, at);
        indices.resize(held.len(), 0);
        self.device().download(held.view(), HostSliceMut::U32(&mut indices));
        for index in &mut indices {
            *index = self.lists.rows.binary_search(index).map_or(NO_ROW, |place| place as u32);
        }
        let mut found = self.arena.take(&find.to, at);
        self.device().upload(HostSlice::U32(&indices), found.view_mut());
        self.store.put(find.to.slot, at, found);
        self.lists.indices = indices;
    }

    /// Takes rows out of weights.
    pub(super) fn take_rows(&mut self, take: &TakeRows, at: At) {
        let TakeRows { weights, rows, part, columns, to } = take;
        self.read_rows(*rows, Some(part), at);
        let mut taken = self.arena.take(to, at);
        let weights = self.store.get(*weights, at).view();
        for (place, &row) in self.lists.rows.iter().enumerate() {
            let row = row as usize * columns;
            let to = taken.view_mut().slice(place * columns..(place + 1) * columns);
            self.device().copy(weights.slice(row..row + columns), to);
        }
        self.store.put(to.slot, at, taken);
    }

    /// Copies rows to the list of them, those that there are.
    fn read_rows(&mut self, rows: Slot, part: Option<&Range<usize>>, at: At) {
        let held = self.store.get(rows, at).view();
        let held = part.map_or(held, |part| held.slice(part.clone()));
        let mut list = std::mem::take(&mut self.lists.rows);
        list.resize(held.len(), 0);
        self.device().download(held, HostSliceMut::U32(&mut list));
        list.truncate(list.partition_point(|&row| row != NO_ROW));
        self.lists.rows = list;
    }

    /// The rows of a message among those that are read: the first and how many.
    fn rows_of(&mut self, of: &Rows, at: At) -> Range<usize> {
        self.read_rows(of.rows, Some(&of.part), at);
        let below = |bound: u32| self.lists.rows.partition_point(|&row| row < bound);
        below(of.piece.start)..below(of.piece.end)
    }

    /// Fills a message with rows, as many as there are.
    pub(super) fn pack_rows(&mut self, of: &Rows, from: Slot, at: At, message: &mut Message) {
        let rows = self.rows_of(of, at);
        let Some(columns) = of.columns else {
            message.shorten(rows.len());
            if let ViewMut::U32(payload) = message.view_mut() {
                let own = &self.lists.rows[rows];
                payload.iter_mut().zip(own).for_each(|(to, row)| *to = row - of.piece.start);
            }
            return;
        };
        message.shorten(rows.len() * columns);
        let first = match of.lies {
            Lies::Among => rows.start,
            Lies::From(first) => first,
        };
        let source = self.store.get(from, at).view();
        let source = source.slice(first * columns..(first + rows.len()) * columns);
        self.device().download(source, message.view_mut());
    }

    /// Copies a message of rows to where they belong.
    ///
    /// # Panics
    /// If there are others than were asked for: a mistake in the program.
    pub(super) fn unpack_rows(&mut self, of: &Rows, into: &Room, at: At, payload: HostSlice<'_>) {
        let Some(columns) = of.columns else {
            let HostSlice::U32(rows) = payload else { unreachable!("rows are indices") };
            let mut list = std::mem::take(&mut self.lists.rows);
            list.clear();
            list.extend_from_slice(rows);
            list.resize(of.part.len(), NO_ROW);
            let mut held = self.store.take(into.slot, at).expect("rows are there all the time");
            let to = held.view_mut().slice(of.part.clone());
            self.device().upload(HostSlice::U32(&list), to);
            self.store.put(into.slot, at, held);
            self.lists.rows = list;
            return;
        };
        let rows = self.rows_of(of, at);
        let first = match of.lies {
            Lies::Among => rows.start,
            Lies::From(first) => first,
        };
        let elements = rows.len() * columns;
        assert_eq!(payload.elements(), elements, "values of {} rows", rows.len());
        let mut held = self.store.take(into.slot, at).expect("room for rows is there all the time");
        let to = held.view_mut().slice(first * columns..first * columns + elements);
        self.device().upload(payload, to);
        self.store.put(into.slot, at, held);
    }
}

/// How many different rows of each piece of a worker's table its last step looked up.
pub(super) struct Lookups {
    worker: ClassId,
    bucket: BucketId,
    /// The first row behind each piece.
    ends: Vec<u32>,
    counts: Vec<u32>,
}

impl Lookups {
    /// One for each table of a class that servers hold.
    pub fn of(id: ClassId, class: &Class) -> Vec<Lookups> {
        let asked = class.buckets().filter(|(_, bucket)| bucket.is_looked_up());
        let of = |(number, bucket): (BucketId, &shardloom_program::Bucket)| {
            let columns = bucket.elements / class.param(bucket.params[0]).shape[0];
            let ends = bucket.served.iter().map(|it| (it.range.end / columns) as u32);
            let counts = vec![0; bucket.served.len()];
            Lookups { worker: id, bucket: number, ends: ends.collect(), counts }
        };
        asked.map(of).collect()
    }

    /// Whether it is of a bucket.
    pub fn is_of(&self, bucket: BucketId) -> bool {
        self.bucket == bucket
    }

    /// Notes which rows were looked up.
    pub fn note(&mut self, rows: &[u32]) {
        let mut before = 0;
        for (count, &end) in self.counts.iter_mut().zip(&self.ends) {
            let behind = rows.partition_point(|&row| row < end);
            *count = (behind - before) as u32;
            before = behind;
        }
    }

    /// What was noted.
    pub fn noted(&self) -> NotedRows {
        NotedRows::LookedUp {
            worker: self.worker.0,
            bucket: self.bucket.0,
            pieces: self.counts.clone(),
        }
    }
}

impl Rank {
    /// Adds what this rank has just looked up, if the instruction that it ran did so.
    pub(super) fn add_new_lookups(&self, instruction: &LinkedInstruction, all: &mut MeasuredRows) {
        if let Work::Local(Local::LoadRows(load)) = &instruction.work {
            self.counted.noted_lookups(load.log).add_to(all);
        }
    }
}
