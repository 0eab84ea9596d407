//! Every gradient is reduced once over all that have a part of it before an update reads it, but for replicas
//! with weights of their own, over whom none is; and every micro-batch adds to it alike.

mod collectives;
mod servers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use shardloom_graph::{OpId, ValueId};
use shardloom_plan::Axis;

use super::row::{Row, Step, entries, instructions, steps};
use super::violation::Violation;
use crate::{
    Action, Bucket, BucketId, Carried, ClassId, Content, Extent, ParamId, Program, RouteId, Run,
    Shape, TensorId, View, Window, overlap,
};

/// Over whom a sum is reduced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    Axis(Axis),
    Classes,
    World,
}

/// What was added to gradients since an update read them.
#[derive(Clone, Default)]
struct Sum {
    parts: BTreeMap<ParamId, Vec<(u32, OpId)>>,
    over: BTreeSet<Over>,
    /// Of a table's gradient, or the rows that it is of: how many elements operators have written.
    written: usize,
    /// Of such: whether rows may be there several times.
    has_equal_rows: bool,
    /// The elements that a worker has sent to servers that update.
    sent: Vec<Range<usize>>,
    /// Those that it has sent to servers that sum.
    sent_to_sum: Vec<Range<usize>>,
    /// Those that are summed over all classes, by a server or among them, where not all are at once.
    summed: Vec<Range<usize>>,
    /// Whether an update has read it, or a reduction has moved it elsewhere: the next write begins anew.
    is_used: bool,
}

impl Sum {
    fn is_pending(&self) -> bool {
        !self.is_used && !self.parts.is_empty()
    }

    /// Whether some of these elements are summed over all classes, or about to be.
    fn is_begun(&self, range: &Range<usize>) -> bool {
        let begun = self.sent_to_sum.iter().chain(&self.summed);
        begun.into_iter().any(|it| !overlap(it, range).is_empty())
    }

    /// Notes that elements are summed over all classes; all are, once these are so many.
    fn sum(&mut self, range: Range<usize>, elements: usize) {
        self.summed.push(range);
        if self.summed.iter().map(Range::len).sum::<usize>() == elements {
            self.over.insert(Over::Classes);
        }
    }

    /// Whether nothing that was sent has yet to come back.
    fn is_summed(&self) -> bool {
        self.sent_to_sum.iter().all(|it| self.summed.contains(it))
    }
}

/// The gradients of a tensor: all of it, or the rank's share of it.
type Place = (TensorId, bool);

fn place(view: View) -> Place {
    (view.tensor, view.window == Window::Share)
}

/// The gradients that updates have read: by parameter and micro-batch the operators that added to them.
type Read = BTreeMap<ValueId, BTreeMap<u32, Vec<OpId>>>;

/// The gradients under way to servers: by parameter the operators that added to them.
type Sent = BTreeMap<RouteId, VecDeque<BTreeMap<ValueId, Vec<(u32, OpId)>>>>;

/// Checks the gradients of all classes in a row.
pub(super) fn check(program: &Program, row: Row, found: &mut Vec<Violation>) {
    let mut read = Read::new();
    let mut read_for_replicas = Read::new();
    let mut sent = Sent::new();
    // Servers read what others send, and for replicas what servers send.
    let (servers, others): (Vec<_>, Vec<_>) =
        program.classes().partition(|(_, class)| class.stages.is_empty());
    // What those that only sum do is looked at by itself.
    let again = servers.clone().into_iter().map(|(id, class)| (id, class, true));
    let all = others.into_iter().chain(servers).map(|(id, class)| (id, class, false));
    let all = all.chain(again.filter(|(_, class, _)| class.serves().is_some()));
    for (id, _, for_replicas) in all.filter(|(_, class, _)| !class.sums() || class.holds_tables()) {
        Reductions {
            program,
            id,
            for_replicas,
            sums: BTreeMap::new(),
            statistics: BTreeMap::new(),
            read: if for_replicas { &mut read_for_replicas } else { &mut read },
            sent: &mut sent,
        }
        .run(row, found);
    }
    for (route, sums) in sent {
        found.extend(sums.into_iter().map(|_| {
            let tensor = format!("what route {} brings", route.0);
            Violation::Unused { place: program.class(program.route(route).to).place(), tensor }
        }));
    }
    let microbatches = steps(program) * program.microbatches as u32;
    for (value, by_microbatch) in read.iter_mut().chain(&mut read_for_replicas) {
        by_microbatch.values_mut().for_each(|ops| ops.sort());
        let first = by_microbatch.get(&0).cloned();
        let differs = |it: &u32| by_microbatch.get(it) != first.as_ref();
        if let Some(microbatch) = (0..microbatches).find(differs) {
            let parameter = format!("parameter {}", value.index());
            found.push(Violation::Contributions { microbatch, parameter });
        }
    }
}

/// Follows the sums of one class.
struct Reductions<'a> {
    program: &'a Program,
    id: ClassId,
    /// Whether of what a server does only that is followed which it does for servers whose replicas it has, which
    /// is left out otherwise.
    for_replicas: bool,
    sums: BTreeMap<Place, Sum>,
    /// The statistics that are found, and over whom they are summed.
    statistics: BTreeMap<TensorId, BTreeSet<Over>>,
    read: &'a mut Read,
    sent: &'a mut Sent,
}

impl Reductions<'_> {
    fn run(mut self, row: Row, found: &mut Vec<Violation>) {
        let class = self.program.class(self.id);
        let mut entries = entries(self.program, class, row);
        let is_for_replicas = |run: &Run| class.served_owner(self.program, run.number).is_some();
        entries.retain(|run| is_for_replicas(run) == self.for_replicas);
        for step in instructions(class, self.id, &entries) {
            match &step.instruction.action {
                Action::Kernel { op, .. } => {
                    for write in &step.instruction.writes {
                        let content = class.tensor(write.to.tensor).content;
                        if matches!(content, Content::Gradient | Content::Rows) {
                            self.add(&step, *op, write.to, found);
                        }
                    }
                }
                &Action::Send { route }
                    if self.program.route(route).moves_rows()
                        && reads(&step) == Content::Gradient =>
                {
                    self.send_rows(&step, route, found);
                }
                // What is summed here for workers is looked at by itself.
                Action::Send { .. } | Action::Add if class.sums() => {}
                &Action::Send { route }
                    if matches!(self.program.route(route).carried, Carried::Aggregated(_)) =>
                {
                    self.send_aggregated(&step, route, found);
                }
                &Action::Send { route } if reads(&step) == Content::Gradient => {
                    let server = self.program.class(self.program.route(route).to);
                    match server.sums() {
                        true => self.send_to_sum(&step, route, found),
                        false => self.send(&step, route, found),
                    }
                }
                &Action::Receive { route } => {
                    let to = step.instruction.writes[0].to;
                    let carried = self.program.route(route).carried;
                    match class.tensor(to.tensor).content {
                        Content::Gradient if matches!(carried, Carried::Sums(_)) => {
                            self.receive_sum(&step, route, to, found);
                        }
                        Content::Gradient if matches!(carried, Carried::RowGradients(..)) => {
                            self.receive_rows(&step, route, to, found);
                        }
                        Content::Gradient if class.tensor(to.tensor).bucket.is_some() => {
                            self.receive(&step, route, to, found);
                        }
                        _ => {}
                    }
                }
                Action::Add if reads(&step) == Content::Gradient => self.add_up(&step, found),
                Action::Collective { group, .. } => match reads(&step) {
                    Content::Gradient => match step.instruction.reads[0].window {
                        Window::Elements { start, end } => {
                            self.reduce_range(&step, group, start..end, found);
                        }
                        _ => self.reduce(&step, group, found),
                    },
                    Content::Compressed | Content::OfRank(_) | Content::Rows => {
                        self.reduce(&step, group, found)
                    }
                    Content::Statistics => self.sum_up(&step, group, found),
                    _ => {}
                },
                Action::SumRows => self.sum_rows(&step, found),
                Action::Compress { round, .. } => self.compress(&step, *round, found),
                Action::Decompress { .. } => self.decompress(&step, found),
                Action::Norm => {
                    let content = |read: &View| class.tensor(read.tensor).content;
                    let reads = step.instruction.reads.iter();
                    let is_whole = |it: &View| matches!(it.window, Window::Whole | Window::Share);
                    let are_whole = reads.clone().all(is_whole);
                    let reads: Vec<&View> =
                        reads.filter(|it| content(it) == Content::Gradient).collect();
                    let reads = reads.into_iter();
                    let read: BTreeSet<BucketId> =
                        reads.clone().filter_map(|it| class.tensor(it.tensor).bucket).collect();
                    let own = class.buckets.iter();
                    let own = own.filter(|it| !it.is_looked_up() && !it.is_frozen);
                    let all = reads.len() == own.count() && read.len() == reads.len();
                    if !all || !are_whole {
                        let fault =
                            "the norm is not that of all buckets, each whole and once".into();
                        found.push(Violation::Operands { at: step.site(), fault });
                    }
                    for &read in reads {
                        self.require_reduced(&step, read, found);
                        self.require_rows(&step, read, found);
                    }
                }
                Action::Statistics { .. } => {
                    self.require_reduced(&step, step.instruction.reads[0], found);
                    self.require_rows(&step, step.instruction.reads[0], found);
                    self.require_summed(&step, found);
                    let written = step.instruction.writes[0].to.tensor;
                    self.statistics.insert(written, BTreeSet::new());
                }
                Action::Optimizer => {
                    self.require_summed(&step, found);
                    self.update(&step, found);
                }
                _ => {}
            }
        }
        let pending = self.sums.iter().filter(|(_, sum)| sum.is_pending());
        let left = pending.map(|((tensor, _), _)| Violation::Unused {
            place: class.place(),
            tensor: class.tensor(*tensor).name.clone(),
        });
        found.extend(left);
    }

    /// An operator adds to a parameter's gradient.
    fn add(&mut self, step: &Step<'_>, op: OpId, to: View, found: &mut Vec<Violation>) {
        let share = self.sums.get(&(to.tensor, true)).is_some_and(Sum::is_pending);
        self.sums.remove(&(to.tensor, true));
        let sum = self.sums.entry((to.tensor, false)).or_default();
        if sum.is_used {
            *sum = Sum::default();
        }
        let is_begun =
            !sum.sent.is_empty() || !sum.sent_to_sum.is_empty() || !sum.summed.is_empty();
        // Rows that are summed are no longer behind those that were written.
        let is_begun = is_begun || (sum.written > 0 && !sum.has_equal_rows);
        if share || !sum.over.is_empty() || is_begun {
            found.push(Violation::ReducedTwice {
                at: step.site(),
                tensor: step.tensor_name(to.tensor),
            });
        }
        // A table is alone in its bucket.
        let param = match to.window {
            Window::Param(param) => Some(param),
            Window::Next { elements } => {
                (sum.written, sum.has_equal_rows) = (sum.written + elements, true);
                if sum.written > step.class.elements(to.tensor, 0) {
                    let tensor = step.tensor_name(to.tensor);
                    found.push(Violation::Outside { at: step.site(), tensor });
                }
                let bucket = step.class.tensor(to.tensor).bucket;
                bucket.and_then(|bucket| step.class.bucket(bucket).params.first().copied())
            }
            _ => None,
        };
        if let (Some(param), Some(microbatch)) = (param, step.run.microbatch) {
            sum.parts.entry(param).or_default().push((microbatch, op));
        }
    }

    /// Equal rows of a table's gradient become one.
    fn sum_rows(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let [rows, values] = [step.instruction.reads[0], step.instruction.reads[1]];
        if !self.belong_together(rows, values) {
            let tensor = step.tensor_name(values.tensor);
            found.push(Violation::RowsOfOthers { at: step.site(), tensor });
        }
        for view in [rows, values] {
            let sum = self.sums.entry(place(view)).or_default();
            // What was summed is read from its beginning the next time.
            if !std::mem::take(&mut sum.has_equal_rows) {
                let tensor = step.tensor_name(view.tensor);
                found.push(Violation::ReducedTwice { at: step.site(), tensor });
            }
        }
    }

    /// Whether rows and values are of the same operators' passes, over the same ranks.
    fn belong_together(&self, rows: View, values: View) -> bool {
        match [rows, values].map(|view| self.sums.get(&place(view))) {
            [Some(rows), Some(values)] => {
                (&rows.parts, &rows.over, rows.is_used, rows.has_equal_rows)
                    == (&values.parts, &values.over, values.is_used, values.has_equal_rows)
            }
            _ => false,
        }
    }

    /// Something needs the gradients of a table as different rows, and reads which these are; of other gradients
    /// nothing is asked.
    fn require_rows(&self, step: &Step<'_>, values: View, found: &mut Vec<Violation>) {
        let Some(bucket) = self.bucket(step, values) else { return };
        if bucket.held.replicated.rows().is_none() {
            return;
        }
        let class = step.class;
        let is_theirs = |read: &&View| {
            let tensor = class.tensor(read.tensor);
            let id = class.tensor(values.tensor).bucket;
            tensor.content == Content::Rows && tensor.bucket == id
        };
        let rows = step.instruction.reads.iter().find(is_theirs);
        if !rows.is_some_and(|&rows| self.belong_together(rows, values)) {
            let tensor = step.tensor_name(values.tensor);
            found.push(Violation::RowsOfOthers { at: step.site(), tensor });
        }
        if self.sums.get(&place(values)).is_some_and(|sum| sum.has_equal_rows) {
            let tensor = step.tensor_name(values.tensor);
            found.push(Violation::EqualRows { at: step.site(), tensor });
        }
    }

    /// Something needs gradients as they are over all that have parts of them.
    fn require_reduced(&self, step: &Step<'_>, read: View, found: &mut Vec<Violation>) {
        let Some(bucket) = self.bucket(step, read) else { return };
        let axes = bucket.replicas.iter().chain(&bucket.partial);
        let mut wanted: BTreeSet<Over> = axes.map(|&axis| Over::Axis(axis)).collect();
        if !bucket.classes.is_empty() {
            wanted.insert(Over::Classes);
        }
        let has_all = |sum: &Sum| {
            // One worker's sum is its own gradient.
            let is_own = bucket.classes.is_empty() && !sum.summed.is_empty();
            let over = sum.over.iter().filter(|it| **it != Over::Classes || !is_own);
            over.copied().collect::<BTreeSet<_>>() == wanted && sum.is_summed()
        };
        let is_reduced = self.sums.get(&place(read)).is_some_and(has_all);
        if !is_reduced {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::Unreduced { at: step.site(), tensor });
        }
    }

    /// Something needs statistics over all ranks that have a part of what the bucket's parameters are
    /// updated with.
    fn require_summed(&self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let gradients = step.instruction.reads[0];
        let Some(bucket) = self.bucket(step, gradients) else { return };
        let shape = &step.class.tensor(gradients.tensor).shape;
        let is_share = gradients.window == Window::Share || *shape == Shape::Flat(Extent::Share);
        let shards = bucket.shards.iter().filter(|_| is_share);
        let wanted: BTreeSet<Over> =
            bucket.splits.iter().chain(shards).map(|&axis| Over::Axis(axis)).collect();
        let tensors = step.instruction.reads.iter().map(|read| read.tensor);
        let unlike = |it: &TensorId| {
            let is_sum = step.class.tensor(*it).content == Content::Statistics;
            is_sum && self.statistics.get(it) != Some(&wanted)
        };
        for tensor in tensors.filter(unlike) {
            let tensor = step.tensor_name(tensor);
            found.push(Violation::Unreduced { at: step.site(), tensor });
        }
    }

    /// An update reads gradients.
    fn update(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let read = step.instruction.reads[0];
        self.require_reduced(step, read, found);
        self.require_rows(step, read, found);
        let Some(bucket) = self.bucket(step, read) else { return };
        if let Some(rows) = bucket.held.replicated.rows().filter(|_| step.run.arm != Some(false)) {
            let rows = self.sums.entry((rows.reduced, false)).or_default();
            rows.is_used = true;
        }
        let sum = self.sums.entry(place(read)).or_default();
        // An update that is made once more has the gradients that it had.
        if step.run.arm == Some(false) {
            return;
        }
        for &param in &bucket.params {
            let value = step.class.param(param).value;
            match sum.parts.get(&param).filter(|_| !sum.is_used) {
                None => {
                    let parameter = format!("parameter {}", value.index());
                    found.push(Violation::NoGradient { at: step.site(), parameter });
                }
                Some(parts) => {
                    for &(microbatch, op) in parts {
                        let of_value = self.read.entry(value).or_default();
                        of_value.entry(microbatch).or_default().push(op);
                    }
                }
            }
        }
        sum.is_used = true;
    }

    fn bucket<'s>(&self, step: &Step<'s>, view: View) -> Option<&'s Bucket> {
        let class = step.class;
        class.tensor(view.tensor).bucket.map(|bucket| class.bucket(bucket))
    }
}

/// What an instruction reads first.
fn reads(step: &Step<'_>) -> Content {
    step.class.tensor(step.instruction.reads[0].tensor).content
}
