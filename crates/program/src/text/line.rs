//! One instruction, in one line.

use std::fmt::Write;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpKind, Reduction};
use shardloom_plan::Axis;

use super::ranks::ranks;
use super::{Reader, names_of, shape};
use crate::quantity::bytes;
use crate::{
    Action, Body, ClassId, Collective, Group, Instruction, Message, Mode, Point, Queue, Rank,
    RouteId, View, Window, Write as Written,
};

/// The instructions of a rank.
pub(super) struct Lines<'a>(pub &'a Reader<'a>);

impl Lines<'_> {
    /// The instructions of a body, one a line, each with its number.
    pub fn body(&self, body: &Body, text: &mut String) {
        let queues: Vec<String> = body.instructions.iter().map(|it| self.queue(it.queue)).collect();
        let width = queues.iter().map(String::len).max().unwrap_or(0);
        let digits = body.instructions.len().saturating_sub(1).to_string().len();
        for (number, (queue, instruction)) in queues.iter().zip(&body.instructions).enumerate() {
            let line = self.instruction(instruction);
            writeln!(text, "    {number:digits$}  {queue:width$}  {line}")
                .expect("strings can be written");
        }
    }

    /// The name of a queue: instructions of different queues can be under way at the same time.
    fn queue(&self, queue: Queue) -> String {
        match queue {
            Queue::Negotiated(number) => {
                self.queue(Queue::Communicator(number)).replace(" again", "") + " negotiated"
            }
            Queue::Communicator(number) => match &self.0.class.communicators[usize::from(number)] {
                group @ Group::Mesh(axes) => {
                    let before = &self.0.class.communicators[..usize::from(number)];
                    let again = if before.contains(group) { " again" } else { "" };
                    let mesh = &self.0.class.mesh;
                    let wide: Vec<Axis> =
                        axes.iter().copied().filter(|&axis| mesh.width(axis) > 1).collect();
                    names_of(if wide.is_empty() { axes } else { &wide }) + again
                }
                Group::Classes(_) => "stages".into(),
                Group::World => "all".into(),
            },
            other => other.to_string(),
        }
    }

    /// What an instruction waits for in other queues.
    fn after(&self, instruction: &Instruction) -> String {
        let point = |points: &[Point]| {
            let numbers = match (points, points.last().and_then(|it| number(*it))) {
                ([first, _, _, ..], Some(last)) => {
                    format!("{} to {last}", number(*first).unwrap_or(last))
                }
                (_, Some(last)) => last.to_string(),
                (_, None) => String::new(),
            };
            match points[0] {
                Point::Queue(queue) => format!("all {}", self.queue(queue)),
                Point::Here(_) => numbers,
                Point::Microbatch(body, _) => format!("{numbers} of {}", self.0.names.body(body)),
                Point::Latest(body, _) => {
                    format!("{numbers} of the last {}", self.0.names.body(body))
                }
            }
        };
        // Three and more that follow each other are one.
        let follows = |one: &Point, next: &Point| match (*one, *next) {
            (Point::Here(one), Point::Here(next)) => next == one + 1,
            (Point::Microbatch(body, one), Point::Microbatch(other, next))
            | (Point::Latest(body, one), Point::Latest(other, next)) => {
                body == other && next == one + 1
            }
            _ => false,
        };
        let runs = instruction.after.chunk_by(follows).flat_map(|run| match run.len() {
            0..=2 => run.chunks(1),
            all => run.chunks(all),
        });
        // Entries that do the same have one name.
        let mut points: Vec<String> = vec![];
        for text in runs.map(point) {
            if !points.contains(&text) {
                points.push(text);
            }
        }
        points.join(" and ")
    }

    /// What an instruction does, to what, from what, and what it frees.
    fn instruction(&self, instruction: &Instruction) -> String {
        let writes: Vec<String> =
            instruction.writes.iter().map(|write| self.written(instruction, *write)).collect();
        let reads: Vec<String> = instruction.reads.iter().map(|&read| self.operand(read)).collect();
        let (writes, reads) = (writes.join(", "), reads.join(", "));
        let what = self.what(instruction);
        let mut text = match (writes.is_empty(), reads.is_empty()) {
            (false, false) => format!("{what}: {writes} <- {reads}"),
            (true, false) => format!("{what}: <- {reads}"),
            (false, true) => format!("{what}: {writes}"),
            (true, true) => what,
        };
        if !instruction.frees.is_empty() {
            text += &format!("; frees {}", self.freed(instruction));
        }
        if !instruction.after.is_empty() {
            text += &format!("; after {}", self.after(instruction));
        }
        text
    }

    /// What an instruction frees, and whose memory its result goes on to use.
    fn freed(&self, instruction: &Instruction) -> String {
        let Reader { class, names, .. } = self.0;
        let reused = class.allocated_by(instruction, None).find_map(|it| it.from);
        let name = |&tensor| {
            let reused = reused.is_some_and(|it| it.tensor == tensor);
            format!("{}{}", names.tensor(tensor), if reused { " (in place)" } else { "" })
        };
        instruction.frees.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// What it does.
    fn what(&self, instruction: &Instruction) -> String {
        let Reader { program, graph, id, class, position, .. } = *self.0;
        match &instruction.action {
            Action::Load { value, .. } => {
                format!("load {} from the data", graph.value(*value).name)
            }
            Action::Kernel { op, pass, again, .. } => {
                let pass = match (pass, again) {
                    (Pass::Forward, false) => "forward",
                    (Pass::Forward, true) => "recomputed forward",
                    (Pass::Input, _) => "input gradient",
                    (Pass::Weight, _) => "weight gradient",
                };
                let op = graph.op(*op);
                let kind = match op.kind {
                    OpKind::Contract { .. } => "matrix product",
                    OpKind::ExpertContract => "matrix product of each expert",
                    _ => op.kind.name(),
                };
                format!("{pass} of {} ({kind})", op.name)
            }
            Action::LoadRows { table, .. } => {
                format!("load the rows of {} that samples look up", graph.value(*table).name)
            }
            Action::FindRows => "find indices among rows".into(),
            Action::TakeRows => "take rows".into(),
            Action::Slice { axis, over } => {
                format!("keep this rank's part along {over} of axis {axis}")
            }
            Action::Collective { kind, group, algorithm } => {
                self.collective(instruction, *kind, group, &algorithm.to_string())
            }
            Action::Add => "sum".into(),
            Action::Difference => "weights less what they were before the update".into(),
            Action::Copy if instruction.backs_up(class) => "back up".into(),
            Action::Copy if instruction.restores(class) => "restore".into(),
            Action::Copy if instruction.is_move() => "hand over".into(),
            Action::Copy => "copy".into(),
            Action::Send { route } => {
                let to = program.route(*route).to;
                let messages = program.route(*route).sent_by(position);
                format!("to {}", self.messages(*route, to, messages.map(|it| (it.to, it))))
            }
            Action::Receive { route } => {
                let from = program.route(*route).from;
                let messages = program.route(*route).received_by(position);
                format!("from {}", self.messages(*route, from, messages.map(|it| (it.from, it))))
            }
            Action::Report => "report this micro-batch's part of the loss".into(),
            Action::Extrapolate { forward: true } => {
                "move a weight along its velocity to where its gradient will be applied".into()
            }
            Action::Extrapolate { forward: false } => {
                "move a weight back along its velocity to where its forward pass had it".into()
            }
            Action::Norm => "squared norm of the gradients that this rank owns".into(),
            Action::Statistics { round } => {
                format!("statistics of {} (round {round})", program.optimizer.name())
            }
            Action::Optimizer => {
                let bucket = instruction.writes.first().and_then(|write| {
                    let bucket = class.tensor(write.to.tensor).bucket?;
                    Some(format!(" of {}", self.0.names.bucket(bucket)))
                });
                format!("update by {}{}", program.optimizer.name(), bucket.unwrap_or_default())
            }
            Action::Compress { how, round: 0 } => format!("compress gradients, {how}"),
            Action::Compress { how, .. } => format!("compress what was exchanged, {how}"),
            Action::Decompress { how } => format!("the sum of what was exchanged, {how}"),
            Action::SumRows => "sum equal rows of gradients".into(),
            Action::Cast => "round the updated master weights".into(),
            Action::Publish { group } => {
                format!("publish for {}", ranks(&self.others(group)))
            }
            Action::Fetch { group } => {
                let size = bytes(program.instruction_sent_bytes(id, position, instruction));
                let others = ranks(&self.others(group));
                format!("fetch what one of {others} has published, drawn for each step ({size})")
            }
            Action::Average { rate, replicas: 1 } => {
                format!("weights: {rate} of the other's, the rest as they are")
            }
            Action::Average { rate, replicas } => {
                format!("weights: {rate} of the mean over {replicas}, the rest as they are")
            }
            Action::Due { every } => format!("whether it is a step in {every} that averages"),
            Action::Test => "test whether the update of the step before was right".into(),
            Action::Free => "drop what is not needed".into(),
        }
    }

    /// The other members of a group.
    fn others(&self, group: &Group) -> Vec<Rank> {
        let Reader { program, id, position, class, .. } = *self.0;
        let own = Rank(class.first_rank.0 + position as u32);
        let mut others = program.members(id, position, group);
        others.retain(|&member| member != own);
        others
    }

    /// The kind of a collective, between whom, how, and what this rank sends in it.
    fn collective(
        &self,
        instruction: &Instruction,
        kind: Collective,
        group: &Group,
        algorithm: &str,
    ) -> String {
        let Reader { program, id, position, .. } = *self.0;
        let by = |reduction| match reduction {
            Reduction::Sum => "sum",
            Reduction::Max => "maximum",
        };
        let rows = instruction.moves_rows(self.0.class);
        let kind = match kind {
            Collective::AllReduce(reduction) => format!("all-reduce ({}", by(reduction)),
            Collective::ReduceScatter { axis, reduction } => {
                format!("reduce-scatter ({}, axis {axis}", by(reduction))
            }
            Collective::AllGather { axis } => format!("all-gather (axis {axis}"),
            Collective::AllToAll { from, to } => {
                let name = if rows { "all-to-all-v" } else { "all-to-all" };
                format!("{name} (joins axis {from}, splits axis {to}")
            }
        };
        let members = program.members(id, position, group);
        if members.len() == 1 {
            return format!("{kind}, this rank alone)");
        }
        let sent = bytes(program.instruction_sent_bytes(id, position, instruction));
        let most = if rows { "at most " } else { "" };
        format!("{kind}, {algorithm}, {}, sends {most}{sent})", ranks(&members))
    }

    /// The other ends of messages, with the bytes of each.
    fn messages<'m>(
        &self,
        route: RouteId,
        class: ClassId,
        messages: impl Iterator<Item = (usize, &'m Message)>,
    ) -> String {
        let program = self.0.program;
        let words = messages.map(|(position, message)| {
            let rank = Rank(program.class(class).first_rank.0 + position as u32);
            let size = bytes(program.route(route).message_bytes(message));
            let most = if program.route(route).moves_rows() { "at most " } else { "" };
            format!("{} ({most}{size})", ranks(&[rank]))
        });
        let words: Vec<String> = words.collect();
        if words.is_empty() { "nobody".into() } else { words.join(", ") }
    }

    /// Something that is written: an operand with its format and bytes.
    fn written(&self, instruction: &Instruction, write: Written) -> String {
        let Reader { class, position, .. } = *self.0;
        let mode = match write.mode {
            // That it changes what is there is what an update is.
            _ if matches!(instruction.action, Action::Optimizer | Action::Difference) => "",
            Mode::Set => "",
            Mode::Add => "add to ",
            Mode::AddUnlessFirst => "start or add to ",
        };
        let format = class.tensor(write.to.tensor).format;
        let size = bytes(class.view_bytes(write.to, position));
        format!("{mode}{} {format} {size}", self.operand(write.to))
    }

    /// Which part of which tensor, and its local shape.
    fn operand(&self, view: View) -> String {
        let Reader { class, position, names, .. } = self.0;
        let name = names.tensor(view.tensor);
        match view.window {
            Window::Whole => format!("{name}{}", self.0.shape(view.tensor)),
            Window::Param(param) => {
                format!("{name}/{}{}", names.param(param), shape(&class.param(param).shape))
            }
            Window::Elements { start, end } => format!("{name}/{start}..{end}"),
            Window::Next { elements } => format!("{name}/next {elements}"),
            Window::Share | Window::SecondShare => {
                let which = if view.window == Window::Share { "share" } else { "second share" };
                format!("{name}/{which}{}", shape(&[class.view_range(view, *position).len()]))
            }
        }
    }
}

/// The number of the instruction that a point names, if it names one.
fn number(point: Point) -> Option<u32> {
    match point {
        Point::Queue(_) => None,
        Point::Here(number) | Point::Microbatch(_, number) | Point::Latest(_, number) => {
            Some(number)
        }
    }
}
