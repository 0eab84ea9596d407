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
use shardloom_collectives::plan;
use shardloom_kernels::Buffer;
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, BodyId, Control, Entry, Guard, Program, Rank as RankId, RouteId};
use shardloom_sim::{Actor, Call, Driver, Modelled, Options, Recorder, Recording, Simulation, run};

use super::communicators::reduction;
use super::{Answers, Command, Crew, Done, FULL_RING};
use crate::rank::{Contribution, Rank, Shared, StepOutcome};
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
        let mut answers = vec![vec![]; ranks];
        let mut outcomes: Vec<Vec<StepOutcome>> = vec![vec![]; ranks];
        match command {
            Command::Train { first_step, steps, .. } => {
                for rank in &mut self.ranks {
                    rank.begin_steps(*first_step, *steps);
                }
                let shared = Arc::clone(&self.shared);
                let (simulation, recording, answered) = self.follow(&shared.program, *steps)?;
                answers = answered;
                self.recording = Some(recording);
                for (track, slot) in simulation.timeline.tracks.into_iter().zip(&mut tracks) {
                    *slot = Some(track);
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
                        if let Some(loss) = rank.end_evaluation() {
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
            .zip(tracks.into_iter().zip(answers))
            .zip(&self.sent_bytes)
            .map(|(((rank, steps), (track, answers)), &sent_bytes)| {
                let peak_bytes = rank.memory().peak_bytes() as u64;
                let system_allocations = rank.system_allocations();
                Done { steps, track, answers, sent_bytes, peak_bytes, system_allocations }
            })
            .collect())
    }

    /// Runs the control of `program` for so many steps, and says whom servers have answered.
    fn follow(
        &mut self,
        program: &Program,
        steps: u32,
    ) -> Result<(Simulation, Recording, Answers)> {
        let model = Modelled::new(&self.shared.graph, &self.cluster, program)?;
        let driver = Executing {
            shared: &self.shared,
            at: vec![0; self.ranks.len()],
            answers: vec![vec![]; self.ranks.len()],
            ranks: &mut self.ranks,
            sent_bytes: &mut self.sent_bytes,
            model,
            transfers: BTreeMap::new(),
        };
        let mut driver = Recorder::new(driver);
        let options = Options { steps, folded: false };
        let simulation = run(program, &self.cluster, options, &mut driver)?;
        let (driver, recording) = driver.finish();
        Ok((simulation, recording, driver.answers))
    }
}

/// The same ranks evaluating one micro-batch.
fn evaluation(program: &Program) -> Program {
    let mut program = program.clone();
    for class in &mut program.classes {
        let entry = |&body: &BodyId| Control::Run(Entry::new(body, Some(0)));
        class.control = class.evaluation.iter().map(entry).collect();
    }
    program
}

/// The driver that really executes.
struct Executing<'a> {
    shared: &'a Arc<Shared>,
    ranks: &'a mut [Rank],
    /// The step that each rank is at.
    at: Vec<u32>,
    /// Whom servers have answered.
    answers: Answers,
    sent_bytes: &'a mut [u64],
    model: Modelled<'a>,
    /// Messages under way, by route, sender, receiver and micro-batch.
    transfers: BTreeMap<(RouteId, RankId, RankId, u32), VecDeque<Buffer>>,
}

impl Executing<'_> {
    /// The rank of a call, at its step and entry.
    fn rank(&mut self, call: &Call<'_>) -> &mut Rank {
        let index = call.actor.rank.0 as usize;
        let rank = &mut self.ranks[index];
        let step = call.run.at_step();
        if step > self.at[index] {
            self.at[index] = step;
            rank.begin_step(step);
        }
        rank.begin_entry(&call.run);
        rank.go_to(call.index as u32);
        rank
    }

    /// Notes whom a server answers with the entry of a call, if it is the first of the entry.
    fn note_answer(&mut self, call: &Call<'_>) {
        let class = self.shared.program.class(call.actor.class);
        let Some(serve) = class.serves().filter(|_| call.index == 0) else { return };
        let mut end = 0;
        let client = serve.clients.iter().position(|client| {
            end += client.handlers.len();
            call.run.number < end
        });
        let client = client.expect("a server's entries are its handlers'");
        self.answers[call.actor.rank.0 as usize].push(client as u32);
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
        let microbatch = call.run.microbatch.unwrap_or(0);
        let start = ThreadTime::now();
        self.rank(call).execute(call.instruction, microbatch)?;
        Ok(picos(start.elapsed()))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<()> {
        let Action::Send { route } = call.instruction.action else {
            unreachable!("the engine sends what is to be sent")
        };
        self.note_answer(call);
        let microbatch = call.run.microbatch.unwrap_or(0);
        let shared = Arc::clone(self.shared);
        let sender = call.actor.rank;
        let transfers = shared.program.transfers(route);
        for (message, _, to) in transfers.filter(|&(_, from, _)| from == sender) {
            self.rank(call).clear_unwritten(call.instruction.reads[0]);
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
        self.note_answer(call);
        let microbatch = call.run.microbatch.unwrap_or(0);
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

    fn holds(&mut self, actor: Actor, guard: &Guard, _: i64) -> Result<bool> {
        Ok(self.ranks[actor.rank.0 as usize].holds(guard.on))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos> {
        let mut contributions = vec![];
        for call in members {
            let microbatch = call.run.microbatch.unwrap_or(0);
            contributions.push(self.rank(call).contribute(call.instruction, microbatch));
            self.count(call);
        }
        let first = &members[0];
        let rank = &self.ranks[first.actor.rank.0 as usize];
        exchange(rank, first, &mut contributions)?;
        for (call, result) in members.iter().zip(contributions) {
            let microbatch = call.run.microbatch.unwrap_or(0);
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
    let reduction = reduction(call.instruction);
    let list = plan(spec.kind, spec.algorithm, members.len() as u32, spec.elements)
        .expect("the plan's validation and `exchange` choose algorithms that exist");
    let fits = "contributions have the collective's size";
    if let Contribution::Scalar(_) = members[0] {
        let number = |member: &Contribution| match member {
            Contribution::Scalar(number) => vec![*number],
            Contribution::Reals(..) => unreachable!("members bring the same kind of thing"),
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

fn picos(time: Duration) -> Picos {
    Picos::from_seconds(time.as_secs_f64())
}
