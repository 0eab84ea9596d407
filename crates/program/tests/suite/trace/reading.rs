//! Reads a program: the one part of this test that knows its types.

use std::collections::BTreeMap;
use std::fmt::Write;

use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::{
    Action, BodyKind, Class, ClassId, Content, Instruction, MemoryTracker, Program, Rank, Run,
    View, lower, verify::verify,
};

/// The trace of the first and the last rank of each class.
pub fn trace(graph: &Graph, plan: &Plan) -> String {
    let program = lower(graph, plan, plan.device_count()).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(verify(&program), Ok(()));
    let mut text = String::new();
    for (id, class) in program.classes() {
        let last = class.mesh.size() - 1;
        let mut known: Option<String> = None;
        for position in [0, last].into_iter().take(1 + last.min(1)) {
            let rank = Reader { graph, program: &program, id, class, position };
            writeln!(text, "rank {} ({})", class.first_rank.0 as usize + position, class.place())
                .expect("strings can be written");
            let lines = rank.lines();
            match &known {
                Some(first) if *first == lines => text += "  as the first of its stages\n",
                _ => text += &lines,
            }
            known.get_or_insert(lines);
        }
    }
    text
}

struct Reader<'a> {
    graph: &'a Graph,
    program: &'a Program,
    id: ClassId,
    class: &'a Class,
    position: usize,
}

/// A line, and what is taken before and given back after it.
struct Line {
    text: String,
    taken: u64,
    given: u64,
}

impl Reader<'_> {
    fn lines(&self) -> String {
        let Reader { program, class, position, .. } = *self;
        let bytes = class.persistent_bytes(position);
        let mut text = format!(
            "  holds {} of weights, {} of gradients, {} of state\n",
            bytes.weights, bytes.gradients, bytes.state
        );
        let mut tracker = MemoryTracker::new(class, position);
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        let steps = program.ahead + 1 + class.late();
        for run in program.cursor(class, steps).runs_of_both_arms() {
            let Run { entry, microbatch, step, .. } = run;
            // What follows from a wrong update is not on the way of a usual step.
            let is_usual = run.arm != Some(false);
            let mut lines: Vec<Line> = vec![];
            let (mut taken_before, mut given_before) = (0, 0);
            for instruction in &class.body_of(&entry).instructions {
                let mut before = tracker.live_bytes();
                let (mut taken, mut given) = (0, 0);
                if is_usual {
                    tracker.begin(instruction, microbatch);
                    taken = tracker.live_bytes().saturating_sub(before);
                    before = tracker.live_bytes();
                    tracker.end(instruction, microbatch);
                    given = before - tracker.live_bytes();
                }
                match self.describe(instruction) {
                    Some(text) => {
                        let taken = taken + std::mem::take(&mut taken_before);
                        let given = given + std::mem::take(&mut given_before);
                        lines.push(Line { text, taken, given });
                    }
                    None => {
                        taken_before += taken;
                        given_before += given;
                    }
                }
            }
            let name = self.name(&run);
            let age = match entry.age {
                0 => String::new(),
                age => format!(", {age} updates old"),
            };
            let wrong = match run.arm {
                None => "",
                Some(true) => ", if the update was right",
                Some(false) => ", if the update was wrong",
            };
            let block = block(&lines);
            if let Some(first) = known.get(&block) {
                writeln!(text, "  step {step}, {name}{age}{wrong}: as {first}").expect("written");
                continue;
            }
            write!(text, "  step {step}, {name}{age}{wrong}\n{block}").expect("written");
            known.insert(block, format!("step {step}, {name}"));
        }
        text
    }

    fn name(&self, run: &Run) -> String {
        let body = self.class.body_of(&run.entry);
        let kind = match body.kind {
            BodyKind::Forward => "forward",
            BodyKind::Backward => "backward",
            BodyKind::BackwardInput => "input gradients",
            BodyKind::BackwardWeight => "weight gradients",
            BodyKind::Synchronisation => "synchronisation",
            BodyKind::Epilogue => "update",
            BodyKind::PartOfUpdate => "part of the update",
            BodyKind::Evaluation => "evaluation",
            BodyKind::Averaging => "averaging",
            BodyKind::Test => "test",
            BodyKind::Release => "release",
            BodyKind::Rollback => "rollback",
            BodyKind::Redo => "update once more",
        };
        let microbatch = run.microbatch.map_or(String::new(), |it| format!(" {it}"));
        let chunk = body.part.chunk.map_or(String::new(), |it| format!(" of chunk {it}"));
        let reverse = if body.part.reverse { ", reverse" } else { "" };
        format!("{kind}{microbatch}{chunk}{reverse}")
    }

    /// What an instruction does; none if it only prepares the next.
    fn describe(&self, instruction: &Instruction) -> Option<String> {
        let Reader { program, class, position, .. } = *self;
        let elements = |view: View| class.view_range(view, position).len();
        let written = || elements(instruction.writes[0].to);
        Some(match &instruction.action {
            Action::Load { value, .. } => format!("load {}", self.graph.value(*value).name),
            Action::Kernel { op, pass, again, .. } => {
                let again = if *again { " again" } else { "" };
                format!("{} {pass:?}{again}", self.graph.op(*op).name)
            }
            Action::Slice { .. } => format!("slice {}", written()),
            Action::Collective { .. } => {
                let tensor = class.tensor(instruction.reads[0].tensor);
                let of = match tensor.content {
                    Content::Norm => "norm, ".to_owned(),
                    Content::Statistics => self.statistics(instruction),
                    _ => String::new(),
                };
                of + &self.collective(instruction)
            }
            Action::Add => format!("add {}", written()),
            Action::Copy if self.backs_up(instruction) => "back up".into(),
            Action::Copy if self.restores(instruction) => "restore".into(),
            Action::Copy if instruction.is_move() => format!("hand over {}", written()),
            Action::Copy => format!("copy {}", written()),
            Action::Report => "loss".into(),
            Action::Send { route } => {
                let messages = program.route(*route).sent_by(position);
                let to = program.route(*route).to;
                let messages = messages.map(|it| (to, it.to, it));
                format!("send {}", self.messages(messages, *route))
            }
            Action::Receive { route } => {
                let messages = program.route(*route).received_by(position);
                let from = program.route(*route).from;
                let messages = messages.map(|it| (from, it.from, it));
                format!("receive {}", self.messages(messages, *route))
            }
            Action::Publish { .. } => "publish".into(),
            Action::Fetch { .. } => "fetch".into(),
            Action::Average { .. } => "average".into(),
            Action::Due { every } => format!("due every {every} steps"),
            Action::Test => "test".into(),
            Action::Free => "free".into(),
            Action::Optimizer => {
                let bucket = class.tensor(instruction.writes[0].to.tensor).bucket;
                let bucket = bucket.expect("weights lie in buckets");
                format!("update {}", class.bucket(bucket).name)
            }
            Action::Cast => {
                let bucket = class.tensor(instruction.writes[0].to.tensor).bucket;
                let bucket = bucket.expect("weights lie in buckets");
                format!("cast {}", class.bucket(bucket).name)
            }
            Action::Norm
            | Action::Statistics { .. }
            | Action::Extrapolate { .. }
            | Action::Compress { .. }
            | Action::Decompress { .. }
            | Action::LoadRows { .. }
            | Action::FindRows
            | Action::TakeRows
            | Action::SumRows
            | Action::Difference => return None,
        })
    }

    fn backs_up(&self, instruction: &Instruction) -> bool {
        let content = |view: View| self.class.tensor(view.tensor).content;
        instruction.writes.iter().any(|write| content(write.to) == Content::Backup)
    }

    fn restores(&self, instruction: &Instruction) -> bool {
        let content = |view: &View| self.class.tensor(view.tensor).content;
        instruction.reads.iter().any(|read| content(read) == Content::Backup)
    }

    /// The round of statistics that a collective sums up.
    fn statistics(&self, instruction: &Instruction) -> String {
        let tensor = instruction.reads[0].tensor;
        let mut held = self.class.buckets.iter().map(|bucket| &bucket.held.statistics);
        let round = held.find_map(|rounds| rounds.iter().position(|&it| it == tensor));
        format!("statistics {}, ", round.expect("statistics are a bucket's"))
    }

    fn messages<'m>(
        &self,
        messages: impl Iterator<Item = (ClassId, usize, &'m shardloom_program::Message)>,
        route: shardloom_program::RouteId,
    ) -> String {
        let program = self.program;
        let words = messages.map(|(class, position, message)| {
            let rank = Rank(program.class(class).first_rank.0 + position as u32);
            let bytes = program.route(route).message_bytes(message);
            format!("{bytes} bytes, rank {}", rank.0)
        });
        words.collect::<Vec<_>>().join("; ")
    }

    fn collective(&self, instruction: &Instruction) -> String {
        let Reader { program, id, class, position, .. } = *self;
        let exchange = program.exchange(class, position, instruction).expect("a collective");
        let members = program.members(id, position, &exchange.group);
        let members: Vec<String> = members.iter().map(|rank| rank.0.to_string()).collect();
        let sent = program.instruction_sent_bytes(id, position, instruction);
        format!(
            "{:?} of {} x {} bytes by {:?} over {}, sends {sent}",
            exchange.kind,
            exchange.elements,
            exchange.element_bytes,
            exchange.algorithm,
            members.join(" ")
        )
    }
}

fn block(lines: &[Line]) -> String {
    let mut text = String::new();
    for Line { text: line, taken, given } in lines {
        write!(text, "    {line}").expect("strings can be written");
        if *taken > 0 {
            write!(text, " +{taken}").expect("strings can be written");
        }
        if *given > 0 {
            write!(text, " -{given}").expect("strings can be written");
        }
        text.push('\n');
    }
    text
}
