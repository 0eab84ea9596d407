//! Messages between actors: when they are sent, and when they are in.

use shardloom_program::timeline::Picos;
use shardloom_program::{Action, Class, Instruction, Program, Queue, RouteId};

use super::{Engine, microbatch, shown};
use crate::held::ExtraBytes;
use crate::priority::Ready;
use crate::script::Line;
use crate::transfers::Delivery;
use crate::{Call, Driver, SimError};

impl<'s, 'p> Engine<'s, 'p> {
    /// Has the actor send, or, by priority, come to what it sends later.
    pub(super) fn send<D: Driver>(
        &mut self,
        index: usize,
        line: &'s Line<'p>,
        route: RouteId,
        driver: &mut D,
    ) -> Result<(), D::Error> {
        self.arrive(index);
        let actor = &self.actors[index];
        // Who computes and communicates in turn sends at once.
        let priority = self.program.route(route).priority.filter(|_| !actor.is_blocking());
        let start = match priority {
            Some(_) => actor.ready(line),
            None => actor.earliest(line),
        };
        let call = actor.call(start);
        self.durations.clear();
        driver.send(&call, &mut self.durations)?;
        let receivers = self.transfers.receivers(route, call.actor.position).len();
        if self.options.folded {
            let total = self.durations.iter().fold(Picos::ZERO, |sum, &each| sum + each);
            self.durations.clear();
            self.durations.push(total);
        } else if self.durations.len() != receivers {
            let (rank, durations) = (call.actor.rank.0, self.durations.len());
            return Err(SimError::Messages { rank, messages: receivers, durations }.into());
        }
        let microbatch = microbatch(self.program, &self.actors[index], route);
        let durations = std::mem::take(&mut self.durations);
        let takes_shared_way = self.shares_device[index] && priority.is_none();
        let start = match takes_shared_way {
            true => self.take_way_out(index, start, &durations),
            false => start,
        };
        let call = Call { start, ..call };
        let actor = &mut self.actors[index];
        self.tracks[index].remember(actor, actor.clock(), ExtraBytes::default());
        if let Some(priority) = priority {
            let made = actor.request(line);
            let ready = Ready { made, route, microbatch, durations, priority };
            self.by_priority.add(self.devices[index], ready);
            return Ok(());
        }
        let arrival = self.post(&call, (route, microbatch), &durations, driver)?;
        let actor = &mut self.actors[index];
        actor.end(line, arrival);
        self.tracks[index].communicate(line, shown(actor), start, arrival);
        self.durations = durations;
        Ok(())
    }

    /// Puts the messages of a send on their way, one after another, each of which takes so long. When the last is out.
    fn post<D: Driver>(
        &mut self,
        call: &Call<'p>,
        (route, microbatch): (RouteId, u32),
        durations: &[Picos],
        driver: &mut D,
    ) -> Result<Picos, D::Error> {
        let (sender, mut end) = (call.actor, call.start);
        let to = self.first_actor[self.program.route(route).to.0 as usize] as usize;
        for (message, &takes) in durations.iter().enumerate() {
            let begun = end;
            end += takes;
            let receiver = self.transfers.receivers(route, sender.position)[message];
            let mut arrival = end;
            if let Some(&Some(Received { index, instruction })) =
                self.received.get(route.0 as usize)
            {
                let actor = self.actors[to + receiver].actor;
                let call = Call { actor, run: call.run, index, instruction, start: end };
                arrival = self.come_in(&call, driver)?;
            }
            let address = (route, receiver, microbatch);
            if self.transfers.post(address, sender.position, Delivery { begun, arrival }) {
                self.actors[to + receiver].sent(route);
                self.wake(to + receiver);
            }
        }
        self.transfers.end_send(route, sender.position, microbatch);
        Ok(end)
    }

    /// Sends what is next of all that actors send by priority, or has that chosen.
    pub(super) fn send_first<D: Driver>(&mut self, driver: &mut D) -> Result<(), D::Error> {
        let Some((ready, start)) = self.by_priority.take() else { return Ok(()) };
        let Ready { made, route, microbatch, durations, .. } = ready;
        let index = made.call.actor.index as usize;
        let start = match self.shares_device[index] {
            true => self.take_way_out(index, start, &durations),
            false => start,
        };
        let call = Call { start, ..made.call };
        let end = self.post(&call, (route, microbatch), &durations, driver)?;
        if self.shares_device[index] {
            self.by_priority.hold(self.devices[index], end);
        }
        self.actors[index].answer(&made, end);
        self.tracks[index].communicate(made.line, made.shown, start, end);
        for waiting in self.negotiations.woken() {
            self.wake(waiting);
        }
        Ok(())
    }

    /// Has the actor take in what it waits for, which has been sent.
    pub(super) fn receive<D: Driver>(
        &mut self,
        index: usize,
        line: &Line<'_>,
        route: RouteId,
        driver: &mut D,
    ) -> Result<(), D::Error> {
        self.arrive(index);
        let actor = &mut self.actors[index];
        let position = actor.actor.position;
        let microbatch = microbatch(self.program, actor, route);
        let delivery = self.transfers.look(route, position, microbatch);
        let delivery = delivery.expect("a receive is due only once its messages have been sent");
        self.transfers.clear(route, position, microbatch);
        let begun = actor.free(Queue::Receive).max(delivery.begun);
        // Where messages come in another order they have come in by now.
        let arrival = match self.received.is_empty() {
            true => {
                let call = actor.call(delivery.arrival);
                self.come_in(&call, driver)?
            }
            false => delivery.arrival,
        };
        let actor = &mut self.actors[index];
        let start = actor.earliest(line).max(arrival);
        let call = actor.call(start);
        self.tracks[index].remember(actor, actor.clock(), ExtraBytes::default());
        let end = start + driver.receive(&call)?;
        actor.end(line, end);
        if self.waits_for_messages {
            actor.hold_host(end);
        }
        self.tracks[index].communicate(line, shown(actor), begun, end);
        Ok(())
    }

    /// Has what a call receives, starting when it is there, take the way into its actor's device behind all that has.
    /// When it is in.
    fn come_in<D: Driver>(&mut self, call: &Call<'_>, driver: &mut D) -> Result<Picos, D::Error> {
        let actor = call.actor.index as usize;
        let takes = driver.inflow(call)?;
        if self.shares_device[actor] {
            let way = &mut self.shared_ways[self.devices[actor] as usize].inward;
            let first = Picos(call.start.0.saturating_sub(takes.0));
            return Ok(way.take(first, takes).max(first) + takes);
        }
        let taken = &mut self.inflows[actor];
        *taken = call.start.max(*taken + takes);
        Ok(*taken)
    }

    /// Has messages that take so long take the way out of an actor's device, from `start` on, when others on it leave
    /// room. When they start.
    fn take_way_out(&mut self, actor: usize, start: Picos, durations: &[Picos]) -> Picos {
        let takes = durations.iter().fold(Picos::ZERO, |sum, &each| sum + each);
        self.shared_ways[self.devices[actor] as usize].outward.take(start, takes)
    }
}

/// What receives a route, and where it stands in its body.
#[derive(Clone, Copy)]
pub(super) struct Received<'p> {
    index: usize,
    instruction: &'p Instruction,
}

/// What receives each route.
pub(super) fn received(program: &Program) -> Vec<Option<Received<'_>>> {
    let mut received = vec![None; program.routes.len()];
    for (_, index, instruction) in program.classes.iter().flat_map(Class::instructions) {
        if let Action::Receive { route } = instruction.action {
            received[route.0 as usize] = Some(Received { index, instruction });
        }
    }
    received
}
