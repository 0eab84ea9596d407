//! The driver that really executes: what the event engine calls for each instruction of a rank.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cpu_time::ThreadTime;
use shardloom_fabric::Endpoint;
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Class, Exchange, Guard, Issued, Outstanding, Queue, Rank as RankId};
use shardloom_sim::{Actor, Call, Driver, Modelled, RowCounts};

use super::exchange::{exchange, exchange_fused};
use crate::executor::messages::{Messages, tag};
use crate::executor::{Answers, FULL_POOL};
use crate::rank::{At, Begun, Brought, Contribution, Linked, Rank, Shared, Work, copy_published};
use crate::{Error, Result};

/// How a rank sends messages and gets them. Ranks share a thread, so nothing may wait: collectives are
/// carried out on all members' parts at once instead.
pub(super) struct Link {
    pub(super) endpoint: Box<dyn Endpoint<Contribution>>,
    pub(super) messages: Messages,
}

/// Collectives that a rank has not waited for. They have been carried out, which it does not know yet.
pub(super) struct StartedByRank {
    pub(super) outstanding: Outstanding,
    /// These, with what they came to, or of a request that was not answered what the rank brings.
    pub(super) results: VecDeque<(Begun, Option<Contribution>)>,
}

impl StartedByRank {
    /// Takes what the rank brings into a request.
    fn take(&mut self, request: Issued) -> Contribution {
        self.brought(request).take().expect("a request is answered once")
    }

    /// Puts what a request came to where it was.
    fn put(&mut self, request: Issued, result: Contribution) {
        *self.brought(request) = Some(result);
    }

    fn brought(&mut self, request: Issued) -> &mut Option<Contribution> {
        let mut all = self.results.iter_mut();
        let found = all.find(|(begun, _)| begun.issued() == request);
        &mut found.expect("what is answered was made and not waited for").1
    }
}

/// The driver that really executes.
pub(super) struct Executing<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) ranks: &'a mut [Rank],
    /// The step that each rank is at.
    pub(super) at: Vec<u32>,
    /// Whom servers have answered; what ranks have fetched, by the step of the row in which it was published.
    pub(super) answers: Answers,
    /// The step of the row in which each rank published last.
    pub(super) published: Vec<u32>,
    pub(super) sent_bytes: &'a mut [u64],
    pub(super) sends: &'a [Vec<Box<[u64]>>],
    pub(super) links: &'a mut [Link],
    pub(super) started: &'a mut [StartedByRank],
    pub(super) model: Modelled<'a>,
}

impl Executing<'_> {
    /// Has the rank of a call come to its step and entry, when it has waited for what has to have ended by then.
    fn come(&mut self, call: &Call<'_>) -> At {
        let index = call.actor.rank.0 as usize;
        let step = call.run.at_step();
        if step > self.at[index] {
            self.at[index] = step;
            self.end_step(index, false);
            self.ranks[index].begin_step(step);
        }
        let ending = self.started[index].outstanding.ending_before(self.class(call), at(call));
        self.end_first(index, ending);
        let rank = &mut self.ranks[index];
        rank.begin_entry(&call.run);
        rank.at(call.index as u32)
    }

    /// What the rank of a call runs.
    fn linked(&self, call: &Call<'_>) -> Arc<Linked> {
        Arc::clone(self.ranks[call.actor.rank.0 as usize].linked())
    }

    fn class(&self, call: &Call<'_>) -> &Class {
        self.shared.program.class(call.actor.class)
    }

    /// Has a rank wait for what ends with its step.
    pub(super) fn end_step(&mut self, rank: usize, is_last: bool) {
        let ending = self.started[rank].outstanding.ending_with_step(is_last);
        self.end_first(rank, ending);
    }

    /// Has a rank wait for so many of the collectives that it started first.
    fn end_first(&mut self, rank: usize, count: usize) {
        let StartedByRank { outstanding, results } = &mut self.started[rank];
        for (begun, result) in results.drain(..count) {
            outstanding.end_first();
            let result = result.expect("what is waited for has ended");
            self.ranks[rank].conclude(begun, result);
        }
    }

    /// Notes whom a server answers with the entry of a call, if it is the first of the entry.
    fn note_answer(&mut self, call: &Call<'_>) {
        let class = self.shared.program.class(call.actor.class);
        let Some(serve) = class.serves().filter(|_| call.index == 0) else { return };
        let client = serve.client_of(call.run.number);
        let client = client.expect("a server's entries are its handlers'");
        self.answers[call.actor.rank.0 as usize].push(client as u32);
    }

    /// Notes a list that is carried out with the rank that answered it: the number of the communicator, the
    /// length and the numbers of the requests.
    fn note_list(&mut self, requests: &[Vec<Call<'_>>]) {
        let first = &requests[0][0];
        let Queue::Negotiated(number) = first.instruction.queue else { return };
        let all = self.class(first).requests(number);
        let place = |call: &Call<'_>| {
            let at = (call.run.entry.body, call.index);
            all.iter().position(|&it| it == at).expect("it is a request") as u32
        };
        let list = requests.iter().map(|request| place(&request[0]));
        let list = [u32::from(number), requests.len() as u32].into_iter().chain(list);
        let list: Vec<u32> = list.collect();
        self.answers[first.actor.rank.0 as usize].extend(list);
    }

    fn count(&mut self, call: &Call<'_>) {
        let rank = call.actor.rank.0 as usize;
        self.sent_bytes[rank] += self.sends[rank][call.run.entry.body.0 as usize][call.index];
    }
}

impl Driver for Executing<'_> {
    type Error = Error;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos> {
        let linked = self.linked(call);
        let instruction = linked.instruction(at(call));
        let Work::Local(work) = &instruction.work else {
            unreachable!("the engine has a rank do alone what it can")
        };
        let start = ThreadTime::now();
        let at = self.come(call);
        let rank = &mut self.ranks[call.actor.rank.0 as usize];
        rank.execute(instruction, work, at)?;
        let span = picos(start.elapsed());
        // How long rows are under way depends on how many there are.
        if let RowCounts::Measured(measured) = self.model.row_counts() {
            rank.add_new_row_counts(instruction, at.microbatch(), measured);
        }
        Ok(span)
    }

    fn steps_before(&self) -> u64 {
        self.ranks[0].first_step()
    }

    fn publish(&mut self, call: &Call<'_>) -> Result<Picos> {
        let linked = self.linked(call);
        let instruction = linked.instruction(at(call));
        let Work::Publish(publish) = &instruction.work else {
            unreachable!("the engine publishes what is to be published")
        };
        let start = ThreadTime::now();
        let at = self.come(call);
        let index = call.actor.rank.0 as usize;
        let rank = &mut self.ranks[index];
        rank.publish(publish, at);
        rank.free(instruction, at);
        self.published[index] = rank.step_of_row() as u32;
        Ok(picos(start.elapsed()))
    }

    fn fetch(&mut self, call: &Call<'_>, from: RankId) -> Result<Picos> {
        let linked = self.linked(call);
        let instruction = linked.instruction(at(call));
        let Work::Fetch(fetch) = &instruction.work else {
            unreachable!("the engine fetches what is to be fetched")
        };
        let at = self.come(call);
        let own = call.actor.rank.0 as usize;
        let mut fetched = vec![];
        self.ranks[own].room_for(fetch, at, &mut fetched);
        copy_published(&self.ranks[from.0 as usize], &mut fetched);
        let rank = &mut self.ranks[own];
        rank.take_fetched(fetch, at, &mut fetched);
        rank.free(instruction, at);
        self.answers[own].push(self.published[from.0 as usize]);
        self.count(call);
        Ok(self.model.fetch(call, from)?)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<()> {
        let linked = self.linked(call);
        let instruction = linked.instruction(at(call));
        let Work::Send(sends) = &instruction.work else {
            unreachable!("the engine sends what is to be sent")
        };
        self.note_answer(call);
        let at = self.come(call);
        let sender = call.actor.rank.0 as usize;
        let (rank, link) = (&mut self.ranks[sender], &mut self.links[sender]);
        let Link { endpoint, messages } = link;
        let moves_rows = rank.program().route(sends.route).moves_rows();
        let mut bytes = 0;
        for sent in &sends.messages {
            let pool = messages.sends_from(sent.number).pool;
            let tag = tag(rank.program(), sends.route, at.microbatch());
            let lent = endpoint.try_message(pool, tag);
            let mut lent = lent.expect(FULL_POOL);
            rank.pack(sends, sent, at, &mut lent);
            bytes += lent.bytes();
            endpoint.send(lent)?;
        }
        rank.free(instruction, at);
        match moves_rows {
            true => self.sent_bytes[sender] += bytes,
            false => self.count(call),
        }
        Ok(self.model.send(call, durations)?)
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos> {
        let linked = self.linked(call);
        let instruction = linked.instruction(at(call));
        let Work::Receive(receives) = &instruction.work else {
            unreachable!("the engine receives what is to be received")
        };
        self.note_answer(call);
        let at = self.come(call);
        let receiver = call.actor.rank.0 as usize;
        let (rank, link) = (&mut self.ranks[receiver], &mut self.links[receiver]);
        let tag = tag(rank.program(), receives.route, at.microbatch());
        for received in &receives.messages {
            let payload = link.endpoint.try_receive(received.from.0, tag)?;
            let payload = payload.expect("the engine delivers after the send");
            rank.unpack(receives, received, at, payload.view());
        }
        rank.free(instruction, at);
        Ok(self.model.receive(call)?)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos> {
        Ok(self.model.inflow(call)?)
    }

    fn holds(&mut self, actor: Actor, guard: &Guard, _: i64) -> Result<bool> {
        Ok(self.ranks[actor.rank.0 as usize].holds(guard.on))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos> {
        let (mut contributions, mut begun) = (vec![], vec![]);
        for call in members {
            let linked = self.linked(call);
            let Work::Collective(collective) = &linked.instruction(at(call)).work else {
                unreachable!("members meet at a collective")
            };
            let at = self.come(call);
            let rank = &mut self.ranks[call.actor.rank.0 as usize];
            let (contribution, own) = rank.contribute(collective, at);
            match &contribution.part {
                Brought::Rows(rows) => {
                    self.sent_bytes[call.actor.rank.0 as usize] += rows.sent_bytes();
                }
                Brought::Elements(..) | Brought::Scalar(_) => self.count(call),
            }
            contributions.push(contribution);
            begun.push(own);
        }
        let first = &members[0];
        let rank = &self.ranks[first.actor.rank.0 as usize];
        exchange(rank, first, &mut contributions);
        for (call, (begun, result)) in members.iter().zip(begun.into_iter().zip(contributions)) {
            let (rank, class) = (call.actor.rank.0 as usize, call.actor.class);
            let class = self.shared.program.class(class);
            let StartedByRank { outstanding, results } = &mut self.started[rank];
            match outstanding.start(class, begun.issued()) {
                true => results.push_back((begun, Some(result))),
                false => self.ranks[rank].conclude(begun, result),
            }
        }
        Ok(self.model.collective(members)?)
    }

    fn request(&mut self, call: &Call<'_>) -> Result<()> {
        let linked = self.linked(call);
        let Work::Collective(collective) = &linked.instruction(at(call)).work else {
            unreachable!("a request is a collective")
        };
        let at = self.come(call);
        let class = self.shared.program.class(call.actor.class);
        let rank = call.actor.rank.0 as usize;
        let (contribution, begun) = self.ranks[rank].contribute(collective, at);
        let StartedByRank { outstanding, results } = &mut self.started[rank];
        outstanding.start(class, begun.issued());
        results.push_back((begun, Some(contribution)));
        Ok(())
    }

    fn negotiate(&mut self, members: &[Call<'_>], cycles: u64) -> Result<Picos> {
        for call in members {
            if let Queue::Negotiated(number) = call.instruction.queue {
                let Actor { class, position, rank, .. } = call.actor;
                let told = self.shared.program.told_bytes(class, position, number);
                self.sent_bytes[rank.0 as usize] += cycles * told;
            }
        }
        Ok(self.model.negotiate(members, cycles)?)
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos> {
        let first = &requests[0][0];
        let class = self.shared.program.class(first.actor.class);
        let mut all: Option<Exchange> = None;
        for request in requests {
            let position = request[0].actor.position;
            let one = self.shared.program.exchange(class, position, request[0].instruction);
            let one = one.expect("a request is a collective");
            match &mut all {
                Some(all) => all.elements += one.elements,
                None => all = Some(one),
            }
        }
        let all = all.expect("a list is of some requests");
        let mut members: Vec<Vec<Contribution>> = vec![];
        for (member, call) in requests[0].iter().enumerate() {
            let Actor { class, position, rank, .. } = call.actor;
            let sent = self.shared.program.exchange_sent_bytes(class, position, &all);
            self.sent_bytes[rank.0 as usize] += sent;
            let started = &mut self.started[rank.0 as usize];
            let brought = requests.iter().map(|request| started.take(at(&request[member])));
            members.push(brought.collect());
        }
        exchange_fused(&all, first, &mut members);
        for (member, brought) in members.into_iter().enumerate() {
            for (request, contribution) in requests.iter().zip(brought) {
                let call = &request[member];
                self.started[call.actor.rank.0 as usize].put(at(call), contribution);
            }
        }
        self.note_list(requests);
        Ok(self.model.fused(requests)?)
    }
}

/// What a call runs.
fn at(call: &Call<'_>) -> Issued {
    Issued { body: call.run.entry.body, index: call.index as u32, microbatch: call.run.microbatch }
}

fn picos(time: Duration) -> Picos {
    Picos::from_seconds(time.as_secs_f64())
}

/// What was reduced as one, group by group as ranks on threads tell it, of lists in the order of time: of each the
/// number of the communicator, its length and the numbers of the requests.
pub(super) fn by_group(lists: &[u32]) -> Vec<u32> {
    let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut rest = lists;
    while let [number, length, more @ ..] = rest {
        let (list, left) = more.split_at(*length as usize);
        let group = groups.entry(*number).or_default();
        group.extend([*number, *length]);
        group.extend(list);
        rest = left;
    }
    groups.into_values().flatten().collect()
}
