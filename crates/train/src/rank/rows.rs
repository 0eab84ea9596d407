//! Rows whose number is known only while running: their exchange between experts and samples, and what is
//! counted of them.

use shardloom_graph::op::Overflow;
use shardloom_graph::{Graph, OpId, OpKind, ValueId};
use shardloom_kernels::{Buffer, DType};
use shardloom_program::{
    Action, Assignment, Class, Collective, Instruction, MeasuredRows, Placement, Program,
};
use smallvec::{SmallVec, smallvec};

use super::Rank;
use super::exchange::Contribution;
use crate::source::Part;
use crate::{Error, Result};

/// One number for each member of a group.
pub(crate) type PerMember = SmallVec<[usize; 8]>;

/// A rank's part in an exchange of rows.
pub(crate) struct RowExchange {
    /// What is sent, in the order of receivers.
    pub send: Buffer,
    /// Elements to each member.
    pub sends: PerMember,
    /// Where to what is received goes, in the order of senders.
    pub receive: Buffer,
    /// Elements from each member.
    pub receives: PerMember,
    /// This rank's place among the members.
    own: usize,
}

impl RowExchange {
    /// What is sent, and where to what is received goes.
    pub fn parts(&mut self) -> (&[f32], &mut [f32]) {
        let (sent, received) = (self.sends.iter().sum(), self.receives.iter().sum());
        (&self.send.as_f32()[..sent], &mut self.receive.as_f32_mut()[..received])
    }

    /// Bytes that go to others.
    pub fn sent_bytes(&self) -> u64 {
        let elements = self.sends.iter().sum::<usize>() - self.sends[self.own];
        (elements * DType::F32.bytes()) as u64
    }
}

/// Rows by two indices: those that a rank keeps together, and members of its group.
struct Blocks {
    /// `[own, members]`: rows of each.
    rows: Vec<usize>,
    members: usize,
    width: usize,
}

impl Blocks {
    /// The rows that `counts [experts, samples]` says, by expert and by the member that has the sample.
    fn by_expert(counts: &Buffer, experts: usize, members: usize, width: usize) -> Blocks {
        let counts = counts.as_f32();
        let samples = counts.len() / experts;
        let each = counts.chunks_exact(samples / members);
        let rows = each.map(|counts| counts.iter().map(|&count| count as usize).sum());
        Blocks { rows: rows.collect(), members, width }
    }

    /// Elements of each member's blocks.
    fn by_member(&self) -> PerMember {
        let mut elements: PerMember = smallvec![0; self.members];
        for rows in self.rows.chunks_exact(self.members) {
            elements.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += rows * self.width);
        }
        elements
    }

    /// Calls `visit` for each block with its elements and where it begins: if experts come first, and if
    /// members do.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let mut by_member = self.by_member();
        let mut first = 0;
        for elements in &mut by_member {
            first += std::mem::replace(elements, first);
        }
        let mut at = 0;
        for (index, rows) in self.rows.iter().enumerate() {
            let (elements, by_member) = (rows * self.width, &mut by_member[index % self.members]);
            visit(elements, at, *by_member);
            at += elements;
            *by_member += elements;
        }
    }

    /// From the order of members to the order of experts.
    fn join(&self, from: &[f32], to: &mut [f32]) {
        self.each(|elements, expert_first, member_first| {
            to[expert_first..][..elements].copy_from_slice(&from[member_first..][..elements]);
        });
    }

    /// From the order of experts to the order of members.
    fn cut(&self, from: &[f32], to: &mut [f32]) {
        self.each(|elements, expert_first, member_first| {
            to[member_first..][..elements].copy_from_slice(&from[expert_first..][..elements]);
        });
    }
}

/// Elements of the rows of each of so many runs of experts.
fn by_run(counts: &Buffer, runs: usize, width: usize) -> PerMember {
    let counts = counts.as_f32();
    let each = counts.chunks_exact(counts.len() / runs);
    each.map(|counts| counts.iter().map(|&count| count as usize).sum::<usize>() * width).collect()
}

/// Whether rows go to their experts, and not back to their samples.
fn to_experts(instruction: &Instruction) -> bool {
    matches!(
        instruction.action,
        Action::Collective { kind: Collective::AllToAll { to: 0, .. }, .. }
    )
}

impl Rank {
    /// What this rank brings into an exchange of rows. Rows that it sends to their experts lie as they are
    /// sent; those that it sends back are cut by who has their samples.
    pub(super) fn bring_rows(
        &mut self,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Contribution {
        let [rows, own, others] = [0, 1, 2].map(|index| instruction.reads[index].tensor);
        let [result, parts] = [0, 1].map(|index| instruction.writes[index].to.tensor);
        let (place, members) = self.place_in_group(instruction);
        let bound = self.class().tensor(rows).local_shape();
        let (experts, width) = (bound[0], bound[3]);
        let room = bound.iter().product();
        let out = to_experts(instruction);
        let counts = |tensor| self.store.get(tensor, microbatch);
        let (sends, receives) = match out {
            true => {
                let blocks = Blocks::by_expert(counts(others), experts / members, members, width);
                (by_run(counts(own), members, width), blocks.by_member())
            }
            false => {
                let blocks = Blocks::by_expert(counts(own), experts, members, width);
                (blocks.by_member(), by_run(counts(others), members, width))
            }
        };
        let (send, receive) = match out {
            true => {
                let receive = self.arena.take(parts, DType::F32, room);
                let held = self.store.take(rows, microbatch);
                (held.expect("what is sent is held"), receive)
            }
            false => {
                let mut send = self.arena.take(parts, DType::F32, room);
                let blocks = Blocks::by_expert(counts(own), experts, members, width);
                let held = self.store.get(rows, microbatch);
                blocks.cut(held.as_f32(), send.as_f32_mut());
                (send, self.arena.take(result, DType::F32, room))
            }
        };
        let exchange = RowExchange { send, sends, receive, receives, own: place };
        Contribution::Rows(Box::new(exchange))
    }

    /// Takes the result of an exchange of rows.
    pub(super) fn settle_rows(
        &mut self,
        instruction: &Instruction,
        microbatch: u32,
        exchange: RowExchange,
    ) {
        let [rows, others] = [0, 2].map(|index| instruction.reads[index].tensor);
        let result = instruction.writes[0].to.tensor;
        if !to_experts(instruction) {
            self.store.put(result, microbatch, exchange.receive);
            return;
        }
        let (_, members) = self.place_in_group(instruction);
        let bound = self.class().tensor(result).local_shape();
        let (experts, width, room) = (bound[0], bound[3], bound.iter().product());
        let mut joined = self.arena.take(result, DType::F32, room);
        let counts = self.store.get(others, microbatch);
        Blocks::by_expert(counts, experts, members, width)
            .join(exchange.receive.as_f32(), joined.as_f32_mut());
        self.store.put(rows, microbatch, exchange.send);
        self.store.put(result, microbatch, joined);
    }

    /// Notes how many rows a routing gave to each expert.
    ///
    /// # Errors
    /// If an expert has more than it has slots for and that is to stop the run.
    pub(super) fn note_rows(
        &mut self,
        op: OpId,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<()> {
        let node = self.shared.graph.op(op);
        let OpKind::Route { slots, overflow } = node.kind else { return Ok(()) };
        let counts = self.store.get(instruction.writes[3].to.tensor, microbatch).as_f32();
        let Some(log) = self.counted.0.iter_mut().find(|log| log.op == op) else { return Ok(()) };
        let samples = log.placement.extent[1];
        let over = counts.iter().position(|&count| count as usize > slots);
        if let (Some(at), Overflow::Stop) = (over, overflow) {
            let (expert, sample) = (at / samples, at % samples);
            let (microbatch, program) = (u64::from(microbatch), &self.shared.program);
            let first = microbatch * program.microbatch_samples as u64;
            return Err(Error::Overflow {
                step: self.now.first_step + microbatch / program.microbatches as u64,
                layer: node.name.clone(),
                expert,
                sample: self.now.first_sample + first + (log.placement.start[1] + sample) as u64,
                count: counts[at] as u64,
                bound: slots as u64,
            });
        }
        if self.now.part == Part::Validation {
            return Ok(());
        }
        let place = microbatch as usize % log.microbatches * counts.len();
        log.counts[place..][..counts.len()].copy_from_slice(counts);
        Ok(())
    }

    /// Adds what this rank counted of the last step's rows.
    pub fn add_row_counts(&self, all: &mut MeasuredRows) {
        for log in &self.counted.0 {
            for microbatch in 0..log.microbatches as u32 {
                log.add(microbatch, all);
            }
        }
    }

    /// Adds what this rank has just counted, if the instruction that it ran was a routing.
    pub fn add_new_row_counts(
        &self,
        instruction: &Instruction,
        microbatch: u32,
        all: &mut MeasuredRows,
    ) {
        let Action::Kernel { op, .. } = instruction.action else { return };
        if let Some(log) = self.counted.0.iter().find(|log| log.op == op) {
            log.add(microbatch % log.microbatches as u32, all);
        }
    }
}

/// What a rank has counted, by routing.
pub(super) struct CountedRows(Vec<Log>);

/// The counts of one routing.
struct Log {
    op: OpId,
    value: ValueId,
    /// Experts and samples of a micro-batch.
    of: [usize; 2],
    /// Those that are counted here.
    placement: Placement,
    microbatches: usize,
    /// `[microbatches, experts, samples]`
    counts: Vec<f32>,
}

impl CountedRows {
    /// Room for all that `position` of `class` counts in a step.
    pub fn new(graph: &Graph, program: &Program, class: &Class, position: usize) -> CountedRows {
        let mut logs: Vec<Log> = vec![];
        let extents = program.microbatch_extents(graph);
        let kernels = class.bodies.iter().flat_map(|body| &body.instructions);
        let kernels = kernels.filter_map(|it| match &it.action {
            Action::Kernel { op, assignment, .. } => Some((*op, assignment)),
            _ => None,
        });
        let routings = kernels.filter(|&(op, _): &(OpId, &Assignment)| {
            matches!(graph.op(op).kind, OpKind::Route { .. })
        });
        for (op, assignment) in routings {
            if logs.iter().any(|log| log.op == op) {
                continue;
            }
            let value = graph.op(op).outputs[3];
            let shape = extents.shape(&graph.value(value).axes);
            let placement =
                assignment.output(graph, op, 3).placement(&shape, &class.mesh, position);
            let microbatches = program.microbatches;
            let counts = vec![0.0; microbatches * placement.elements()];
            let of = [shape[0], shape[1]];
            logs.push(Log { op, value, of, placement, microbatches, counts });
        }
        CountedRows(logs)
    }
}

impl Log {
    fn add(&self, microbatch: u32, all: &mut MeasuredRows) {
        let counts = self.counts.chunks_exact(self.placement.elements());
        let own = counts.skip(microbatch as usize).take(1).flatten().map(|&count| count as u32);
        all.note((self.value, microbatch), self.of, &self.placement, own);
    }
}
