//! Ranks under the virtual clock: the event engine decides who goes on, the real kernels run, and their
//! thread CPU time advances that rank. Transfers cost what the cluster model says.
//!
//! So a program with more ranks than this machine has cores runs in the order it would have on the
//! modelled machine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cpu_time::ThreadTime;
use shardloom_cluster::Cluster;
use shardloom_collectives::{Counts, Reduction, all_to_all_v, plan};
use shardloom_kernels::Buffer;
use shardloom_program::timeline::{Clock, Picos, Track};
use shardloom_program::{
    Action, BodyId, MeasuredRows, Program, Rank as RankId, RouteId, StreamItem,
};
use shardloom_sim::{
    Actor, Call, Driver, Modelled, Options, Recorder, Recording, RowCounts, Simulation, run,
};

use super::communicators::reduction;
use super::{Command, Crew, Done, FULL_RING};
use crate::rank::{Contribution, PerMember, Rank, Shared, StepOutcome};
use crate::{Error, Result};

/// All ranks of a run, in one thread.
pub(crate) struct VirtualCrew {
    shared: Arc<Shared>,
    cluster: Cluster,
    ranks: Vec<Rank>,
    sent_bytes: Vec<u64>,
    /// What the last step took, instruction by instruction.
    recording: Option<Recording>,
}

/// Sets up the ranks of a run on the modelled `cluster`.
pub(crate) fn start(shared: &Arc<Shared>, cluster: Cluster) -> Crew {
    Crew::Virtual(Box::new(VirtualCrew::new(shared, cluster)))
}

impl VirtualCrew {
    fn new(shared: &Arc<Shared>, cluster: Cluster) -> VirtualCrew {
        let count = shared.program.ranks() as u32;
        let ranks: Vec<Rank> = (0..count).map(|rank| Rank::new(shared, RankId(rank))).collect();
        let sent_bytes = vec![0; ranks.len()];
        let shared = Arc::clone(shared);
        VirtualCrew { shared, cluster, ranks, sent_bytes, recording: None }
    }

    /// What the last step took, instruction by instruction.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// Has every rank carry out `command`.
    pub fn run(&mut self, command: &Command) -> Result<Vec<Done>> {
        let ranks = self.ranks.len();
        let mut tracks = vec![None; ranks];
        let mut outcomes: Vec<Vec<StepOutcome>> = vec![vec![]; ranks];
        match command {
            Command::Train { first_step, steps, .. } => {
                for rank in &mut self.ranks {
                    rank.begin_steps(*first_step, *steps);
                }
                let shared = Arc::clone(&self.shared);
                let before = self.sent_bytes.clone();
                let (simulation, recording) = self.follow(&shared.program, *steps)?;
                self.recording = Some(recording);
                let sent = self.sent_bytes.iter().zip(before).map(|(after, before)| after - before);
                let all = simulation.timeline.tracks.into_iter().zip(sent);
                for ((track, sent_bytes), slot) in all.zip(&mut tracks) {
                    *slot = Some(Track { sent_bytes, ..track });
                }
                for (rank, outcomes) in self.ranks.iter_mut().zip(&mut outcomes) {
                    *outcomes = rank.end_steps(*steps);
                }
            }
            Command::Evaluate { microbatches } => {
                let program = evaluation(&self.shared.program);
                let samples = program.microbatch_samples as u64;
                let mut sums = vec![StepOutcome::default(); ranks];
                for microbatch in 0..*microbatches {
                    for rank in &mut self.ranks {
                        rank.begin_evaluation(microbatch * samples);
                    }
                    self.follow(&program, 1)?;
                    for (rank, outcome) in self.ranks.iter_mut().zip(&mut sums) {
                        if let Some(loss) = rank.end_step().loss_sum {
                            *outcome.loss_sum.get_or_insert(0.0) += loss;
                        }
                    }
                }
                for (sum, outcomes) in sums.into_iter().zip(&mut outcomes) {
                    outcomes.push(sum);
                }
            }
            Command::Visit(visit) => {
                for rank in &mut self.ranks {
                    visit(rank)?;
                }
            }
        }
        Ok(self
            .ranks
            .iter()
            .zip(outcomes)
            .zip(tracks)
            .zip(&self.sent_bytes)
            .map(|(((rank, steps), track), &sent_bytes)| {
                let peak_bytes = rank.memory().peak_bytes() as u64;
                let system_allocations = rank.system_allocations();
                Done { steps, track, sent_bytes, peak_bytes, system_allocations }
            })
            .collect())
    }

    /// Runs the streams of `program` for so many steps.
    fn follow(&mut self, program: &Program, steps: u32) -> Result<(Simulation, Recording)> {
        let model = Modelled::new(&self.shared.graph, &self.cluster, program)?
            .with_rows(RowCounts::Measured(MeasuredRows::default()));
        let driver = Executing {
            shared: &self.shared,
            at: vec![0; self.ranks.len()],
            ranks: &mut self.ranks,
            sent_bytes: &mut self.sent_bytes,
            model,
            transfers: BTreeMap::new(),
        };
        let mut driver = Recorder::new(driver);
        let options = Options { steps, folded: false };
        let simulation = run(program, &self.cluster, options, &mut driver)?;
        Ok((simulation, driver.finish().1))
    }
}

/// The same ranks evaluating one micro-batch.
fn evaluation(program: &Program) -> Program {
    let mut program = program.clone();
    for class in &mut program.classes {
        let item = |&body: &BodyId| StreamItem::new(body, Some(0));
        class.stream = class.evaluation.iter().map(item).collect();
    }
    program
}

/// The driver that really executes.
struct Executing<'a> {
    shared: &'a Arc<Shared>,
    ranks: &'a mut [Rank],
    /// The step that each rank is at.
    at: Vec<u32>,
    sent_bytes: &'a mut [u64],
    model: Modelled<'a>,
    /// Messages under way, by route, sender, receiver and micro-batch.
    transfers: BTreeMap<(RouteId, RankId, RankId, u32), VecDeque<Buffer>>,
}

impl Executing<'_> {
    /// The rank of a call, at its step and entry of the stream.
    fn rank(&mut self, call: &Call<'_>) -> &mut Rank {
        let index = call.actor.rank.0 as usize;
        let rank = &mut self.ranks[index];
        if call.step > self.at[index] {
            self.at[index] = call.step;
            rank.begin_step(call.step);
        }
        let item = StreamItem::new(call.body, call.microbatch);
        rank.begin_item(&StreamItem { age: call.age, occurrence: call.occurrence, ..item });
        rank.go_to(call.index as u32);
        rank
    }

    fn count(&mut self, call: &Call<'_>) {
        let Actor { rank, class, position, .. } = call.actor;
        let program = &self.shared.program;
        let sent = program.instruction_sent_bytes(class, position, call.instruction);
        self.sent_bytes[rank.0 as usize] += sent;
    }
}

impl Driver for Executing<'_> {
    type Error = Error;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos> {
        let microbatch = call.microbatch.unwrap_or(0);
        let start = ThreadTime::now();
        self.rank(call).execute(call.instruction, microbatch)?;
        let span = picos(start.elapsed());
        // How long rows are under way depends on how many there are.
        if let RowCounts::Measured(measured) = self.model.row_counts() {
            let rank = &self.ranks[call.actor.rank.0 as usize];
            rank.add_new_row_counts(call.instruction, microbatch, measured);
        }
        Ok(span)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<()> {
        let Action::Send { route } = call.instruction.action else {
            unreachable!("the engine sends what is to be sent")
        };
        let microbatch = call.microbatch.unwrap_or(0);
        let shared = Arc::clone(self.shared);
        let sender = call.actor.rank;
        let transfers = shared.program.transfers(route);
        for (message, _, to) in transfers.filter(|&(_, from, _)| from == sender) {
            let payload = self.rank(call).pack(route, message, call.instruction, microbatch);
            let payload = payload.expect(FULL_RING);
            let key = (route, sender, to, microbatch);
            self.transfers.entry(key).or_default().push_back(payload);
        }
        self.rank(call).free(call.instruction, microbatch);
        self.count(call);
        Ok(self.model.send(call, durations)?)
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos> {
        let Action::Receive { route } = call.instruction.action else {
            unreachable!("the engine receives what is to be received")
        };
        let microbatch = call.microbatch.unwrap_or(0);
        let receiver = call.actor.rank;
        let shared = Arc::clone(self.shared);
        let transfers = shared.program.transfers(route);
        for (message, sender, _) in transfers.filter(|&(_, _, to)| to == receiver) {
            let key = (route, sender, receiver, microbatch);
            let transfers = self.transfers.get_mut(&key);
            let transfers = transfers.expect("the engine delivers after the send");
            let payload = transfers.pop_front().expect("what is empty is removed");
            if transfers.is_empty() {
                self.transfers.remove(&key);
            }
            self.rank(call).unpack(route, message, call.instruction, microbatch, payload);
        }
        self.rank(call).free(call.instruction, microbatch);
        Ok(self.model.receive(call)?)
    }

    fn amends(&mut self, call: &Call<'_>) -> Result<bool> {
        Ok(self.ranks[call.actor.rank.0 as usize].amends())
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos> {
        let mut contributions = vec![];
        for call in members {
            let microbatch = call.microbatch.unwrap_or(0);
            let contribution = self.rank(call).contribute(call.instruction, microbatch);
            match &contribution {
                Contribution::Rows(rows) => {
                    self.sent_bytes[call.actor.rank.0 as usize] += rows.sent_bytes();
                }
                Contribution::Reals(..) | Contribution::Scalar(_) => self.count(call),
            }
            contributions.push(contribution);
        }
        let first = &members[0];
        let rank = &self.ranks[first.actor.rank.0 as usize];
        exchange(rank, first, &mut contributions)?;
        for (call, result) in members.iter().zip(contributions) {
            let microbatch = call.microbatch.unwrap_or(0);
            self.rank(call).conclude(call.instruction, microbatch, result);
        }
        Ok(self.model.collective(members)?)
    }
}

/// Carries a collective out on all members' contributions, in the order of its step list.
fn exchange(rank: &Rank, call: &Call<'_>, members: &mut [Contribution]) -> Result<()> {
    let spec = rank.program().exchange(rank.class(), rank.position(), call.instruction);
    let Some(spec) = spec.filter(|spec| members.len() > 1 && spec.elements > 0) else {
        return Ok(());
    };
    if let Contribution::Rows(_) = members[0] {
        exchange_rows(members);
        return Ok(());
    }
    let reduction = reduction(call.instruction);
    let list = plan(spec.kind, spec.algorithm, members.len() as u32, spec.elements)
        .expect("the plan's validation and `exchange` choose algorithms that exist");
    let fits = "contributions have the collective's size";
    if let Contribution::Scalar(_) = members[0] {
        let number = |member: &Contribution| match member {
            Contribution::Scalar(number) => vec![*number],
            Contribution::Reals(..) | Contribution::Rows(_) => {
                unreachable!("members bring the same kind of thing")
            }
        };
        let mut numbers: Vec<Vec<f64>> = members.iter().map(number).collect();
        list.apply(&mut numbers, reduction).expect(fits);
        for (member, number) in members.iter_mut().zip(numbers) {
            *member = Contribution::Scalar(number[0]);
        }
        return Ok(());
    }
    let mut values: Vec<Vec<f32>> = vec![];
    for member in members.iter() {
        let Contribution::Reals(buffer, range) = member else {
            unreachable!("members bring the same kind of thing")
        };
        values.push(buffer.as_f32()[range.clone()].to_vec());
    }
    list.apply(&mut values, reduction).expect(fits);
    for (member, values) in members.iter_mut().zip(values) {
        if let Contribution::Reals(buffer, range) = member {
            buffer.as_f32_mut()[range.clone()].copy_from_slice(&values);
        }
    }
    Ok(())
}

/// Exchanges the rows of all members.
fn exchange_rows(members: &mut [Contribution]) {
    let rows = |member: &Contribution| match member {
        Contribution::Rows(rows) => rows.sends.clone(),
        Contribution::Reals(..) | Contribution::Scalar(_) => {
            unreachable!("members bring the same kind of thing")
        }
    };
    let sends: Vec<PerMember> = members.iter().map(rows).collect();
    let counts =
        Counts::new(members.len() as u32, |from, to| sends[from.0 as usize][to.0 as usize]);
    let list = all_to_all_v(&counts);
    let mut buffers: Vec<Vec<f32>> = vec![];
    for member in members.iter_mut() {
        let Contribution::Rows(rows) = member else { continue };
        let mut buffer = rows.parts().0.to_vec();
        buffer.resize(list.elements, 0.0);
        buffers.push(buffer);
    }
    list.apply(&mut buffers, Reduction::Sum).expect("buffers have the list's size");
    for (member, buffer) in members.iter_mut().zip(buffers) {
        let Contribution::Rows(rows) = member else { continue };
        let sent: usize = rows.sends.iter().sum();
        let receive = rows.parts().1;
        receive.copy_from_slice(&buffer[sent..sent + receive.len()]);
    }
}

fn picos(time: Duration) -> Picos {
    Picos::from_seconds(time.as_secs_f64())
}
