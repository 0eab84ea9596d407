//! The discrete-event engine: follows the control of a program's ranks in virtual time.
//!
//! Instructions are issued in the order of control and join their [queues](shardloom_program::Queue), each of
//! which works through its instructions in order. An instruction starts when its queue comes to it and
//! the [points](shardloom_program::Point) in other queues that it follows have been reached, so
//! communication holds back only the computation that reads its result. Computation that runs beside a collective takes
//! longer, by what the software stack says; other queues do not slow each other down, even where two groups share a
//! link. An actor on a device whose lanes do not overlap finishes
//! each instruction before the next, as an executor does that computes and communicates on the same
//! cores; where ranks have a communication thread, that runs collectives one after the other beside the rest,
//! which waits for them as [`Outstanding`](shardloom_program::Outstanding) says.
//!
//! A device's host launches its instructions in the order of control, one after the other, and an
//! instruction starts no sooner than it is launched. The host runs ahead of the device to the end of a step,
//! or of a message that its software waits for.
//!
//! A message is under way for as long as its sender's driver says and arrives at the end of that, or later where
//! the way into its receiver is still taken by what an earlier receive takes in, as when many send to one at once:
//! it is there no sooner than what it takes of that way ([`Driver::inflow`]) after the one before. Senders are not
//! held up by that. Actors on one device, as a worker and a server, take the same ways in and out of it, one message
//! after another, but for those between them. Messages that are sent by priority wait until fewer than may be are under way, and then that is
//! chosen which is the most urgent of those that are ready; what comes in takes its way then in the order in which it
//! was sent.
//! A collective starts when the last member can start it. An actor waits at a receive until the message
//! has been sent, and at a collective until all members have come to it, as a blocking executor does.
//! A fetch starts once whoever it is from has published something and is not about to publish, and then finds the
//! last: the publisher is not held up.
//! That changes no start: starts follow from when things are ready, not from when they are issued.

mod messages;

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_plan::Communication;
use shardloom_program::timeline::{Picos, Timeline};
use shardloom_program::{Action, Class, Program, Rank, RouteId};

use crate::actor::{ActorState, Lanes, Made, Moved};
use crate::held::ExtraBytes;
use crate::negotiation::Negotiations;
use crate::priority::PrioritySends;
use crate::rendezvous::{self, Rendezvous};
use crate::runnable::Runnable;
use crate::script::{Doing, Line, Script};
use crate::shared_way::SharedWays;
use crate::slowing::Slowing;
use crate::track_writer::{Kept, TrackWriter};
use crate::transfers::Transfers;
use crate::{Actor, Call, Driver, Options, SimError, Simulation};
use messages::{Received, received};

/// A program that is being followed.
pub(crate) struct Engine<'s, 'p> {
    program: &'p Program,
    options: Options,
    /// Whether an actor's own work may be followed before what others do earlier: it changes nothing for them, and what
    /// it depends on is known when it is its turn, but for when requests are answered and urgent messages sent.
    runs_ahead: bool,
    /// Whether launching takes time.
    launches: bool,
    /// Whether hosts wait for messages before they launch more.
    waits_for_messages: bool,
    /// What hosts wait after the end of a step before they launch, if they wait for it.
    pause: Option<Picos>,
    /// How much collectives slow down the computation beside them.
    slowing: Slowing,
    actors: Vec<ActorState<'s, 'p>>,
    tracks: Vec<TrackWriter<'p>>,
    step_ends: Vec<Vec<Picos>>,
    /// The first actor of each class.
    first_actor: Vec<u32>,
    transfers: Transfers,
    groups: Vec<Rendezvous<'p>>,
    groups_of: Vec<Vec<u32>>,
    negotiations: Negotiations<'s, 'p>,
    /// Actors that can go on, by when.
    runnable: Runnable,
    finished: usize,
    durations: Vec<Picos>,
    calls: Vec<Call<'p>>,
    /// By actor, the first actor that is on its device, and whether there are others: servers are on devices of workers
    /// where the plan says so.
    devices: Vec<u32>,
    shares_device: Vec<bool>,
    /// By the first actor on it, the ways of each device on which there are several.
    shared_ways: Vec<SharedWays>,
    /// Until when the way into the device of each other actor is taken.
    inflows: Vec<Picos>,
    /// Where something is sent by priority, what receives each route: messages then come in another order than they
    /// are received in. Otherwise empty.
    received: Vec<Option<Received<'p>>>,
    /// What actors send by priority.
    by_priority: PrioritySends<'s, 'p>,
    /// By actor: when what it published last was there, and who waits for it to publish something.
    published: Vec<Option<Picos>>,
    awaiting: Vec<Vec<usize>>,
    /// How many steps were run before.
    steps_before: u64,
}

impl<'s, 'p> Engine<'s, 'p> {
    pub fn new(
        program: &'p Program,
        cluster: &Cluster,
        scripts: &'s [Script<'p>],
        (options, kept): (Options, Kept),
    ) -> Result<Engine<'s, 'p>, SimError> {
        let folded = options.folded;
        let (mut actors, mut tracks, mut first_actor) = (vec![], vec![], vec![]);
        for ((id, class), script) in program.classes().zip(scripts) {
            first_actor.push(actors.len() as u32);
            for position in 0..if folded { 1 } else { class.mesh.size() } {
                let actor = Actor {
                    index: actors.len() as u32,
                    rank: Rank(class.first_rank.0 + position as u32),
                    class: id,
                    position,
                    multiplicity: if folded { class.mesh.size() as u32 } else { 1 },
                };
                let lanes = lanes(cluster, program, class, actor)?;
                actors.push(ActorState::new(actor, script, program, options.steps, lanes));
                let stack = cluster.stack();
                tracks.push(TrackWriter::new(program, stack, actor, (folded, kept)));
            }
        }
        let (groups, groups_of) = rendezvous::meet(program, scripts, folded);
        let actors_count = actors.len();
        let (devices, shares_device) = on_one_device(program, &actors);
        let sends_by_priority = program.routes.iter().any(|route| route.priority.is_some());
        let requests = |line: &Line<'_>| matches!(line.doing, Doing::Request { .. });
        let negotiates = scripts.iter().flat_map(|it| &it.bodies).flatten().any(requests);
        let host = cluster.stack().host;
        Ok(Engine {
            program,
            options,
            runs_ahead: !sends_by_priority && !negotiates,
            launches: false,
            waits_for_messages: host.waits_for_messages,
            pause: host.waits_for_steps.then(|| Picos::from_seconds(host.pause_seconds())),
            slowing: Slowing(cluster.stack().beside_collectives),
            step_ends: vec![vec![]; actors.len()],
            inflows: vec![Picos::ZERO; actors.len()],
            received: if sends_by_priority { received(program) } else { vec![] },
            by_priority: PrioritySends::new(actors.len()),
            shared_ways: devices.iter().map(|_| SharedWays::default()).collect(),
            devices,
            shares_device,
            published: vec![None; actors.len()],
            awaiting: vec![vec![]; actors.len()],
            steps_before: 0,
            actors,
            tracks,
            first_actor,
            transfers: Transfers::new(program, folded),
            negotiations: Negotiations::new(program, groups.len(), actors_count),
            groups,
            groups_of,
            runnable: Runnable::none_of(actors_count),
            finished: 0,
            durations: vec![],
            calls: vec![],
        })
    }

    /// Runs all actors to the end of the last step.
    pub fn follow<D: Driver>(&mut self, driver: &mut D) -> Result<(), D::Error> {
        self.launches = driver.launches();
        self.steps_before = driver.steps_before();
        for index in 0..self.actors.len() {
            let moved = self.actors[index].next_entry();
            if self.come(index, moved, driver)? {
                self.wake(index);
            }
        }
        loop {
            loop {
                let next = self.runnable.first().map(|(time, _)| time);
                if self.sends_before(next) {
                    self.send_first(driver)?;
                } else if let Some(index) = self.runnable.take() {
                    self.run_actor(index, driver)?;
                } else {
                    break;
                }
            }
            // Nobody makes more requests before some are answered.
            if !self.negotiate(driver)? {
                break;
            }
        }
        if self.finished < self.actors.len() {
            return Err(self.deadlock().into());
        }
        Ok(())
    }

    /// Runs one actor until another one is earlier, or it has to wait, or it is through.
    fn run_actor<D: Driver>(&mut self, index: usize, driver: &mut D) -> Result<(), D::Error> {
        loop {
            // Who is woken may be through by then.
            if self.actors[index].is_through() {
                return Ok(());
            }
            if self.actors[index].is_at_choice() {
                if !self.choose(index, driver)? {
                    return Ok(());
                }
                // What it has chosen may be nothing.
                continue;
            }
            self.launch(index, driver)?;
            let line: &'s Line<'p> = self.actors[index].line();
            if self.actors[index].awaits_answer(line) {
                self.negotiations.wait(index);
                return Ok(());
            }
            let Some(due) = self.due(index, line) else { return Ok(()) };
            let is_own = self.runs_ahead && line.doing == Doing::Local;
            if !is_own && !self.is_first(due, index) {
                self.runnable.add(due, index);
                return Ok(());
            }
            let runs_on = match line.doing {
                Doing::Local => {
                    self.compute(index, line, driver)?;
                    self.advance(index, driver)?
                }
                Doing::Collective { group } => self.join(index, line, group, driver)?,
                Doing::Request { group } => {
                    self.request(index, line, group, driver)?;
                    self.advance(index, driver)?
                }
                Doing::Send(route) => {
                    self.send(index, line, route, driver)?;
                    self.advance(index, driver)?
                }
                Doing::Receive(route) => {
                    self.receive(index, line, route, driver)?;
                    self.advance(index, driver)?
                }
                Doing::Publish => {
                    self.publish(index, line, driver)?;
                    self.advance(index, driver)?
                }
                Doing::Fetch => {
                    self.fetch(index, line, driver)?;
                    self.advance(index, driver)?
                }
            };
            if !runs_on {
                return Ok(());
            }
        }
    }

    /// Whether nobody has anything to do before an actor goes on.
    fn is_first(&mut self, due: Picos, index: usize) -> bool {
        let others = self.runnable.first();
        others.is_none_or(|next| next >= (due, index as u32)) && !self.sends_before(Some(due))
    }

    /// Whether something is sent by priority, or chosen to be, before that time; at that time more may become ready.
    fn sends_before(&self, time: Option<Picos>) -> bool {
        self.by_priority.next().is_some_and(|due| time.is_none_or(|time| due < time))
    }

    /// Has the host launch the actor's current instruction, unless it has.
    fn launch<D: Driver>(&mut self, index: usize, driver: &mut D) -> Result<(), D::Error> {
        let actor = &self.actors[index];
        if self.launches && !actor.is_launched() {
            let takes = driver.launch(&actor.call(actor.clock()))?;
            self.actors[index].launch(takes);
        }
        Ok(())
    }

    /// Has a server choose what it can run first, the first of several: answer a client, or sum what has come. Whether
    /// it has come to an instruction; otherwise it waits for a message, or another actor is earlier, or it is through.
    fn choose<D: Driver>(&mut self, index: usize, driver: &mut D) -> Result<bool, D::Error> {
        let actor = &mut self.actors[index];
        let position = actor.actor.position;
        let mut arrival = |route| Some(self.transfers.look(route, position, 0)?.arrival);
        let first = if actor.awaits_all() {
            actor.first_entry(arrival)
        } else {
            let open = actor.open().filter_map(|(choice, mut received)| {
                let ready = received
                    .try_fold(actor.clock(), |ready, route| Some(ready.max(arrival(route)?)));
                Some((ready?, choice))
            });
            open.min()
        };
        let Some((due, choice)) = first else { return Ok(false) };
        if !self.is_first(due, index) {
            self.runnable.add(due, index);
            return Ok(false);
        }
        let moved = self.actors[index].choose(choice);
        self.come(index, moved, driver)
    }

    /// At which time the actor comes to `line`; none if it waits for a message that has not been sent.
    fn due(&mut self, index: usize, line: &Line<'_>) -> Option<Picos> {
        let actor = &self.actors[index];
        let delivery = match line.doing {
            Doing::Receive(route) => {
                let position = actor.actor.position;
                let microbatch = microbatch(self.program, actor, route);
                Some(self.transfers.look(route, position, microbatch)?)
            }
            _ => None,
        };
        if line.doing == Doing::Fetch {
            let from = self.partner(index).1;
            let Some(published) = self.published[from] else {
                self.awaiting[from].push(index);
                return None;
            };
            return Some(self.actors[index].earliest(line).max(published));
        }
        let actor = &self.actors[index];
        Some(match line.doing {
            Doing::Local | Doing::Publish => actor.earliest(line),
            _ if !actor.is_blocking() => actor.clock(),
            _ => delivery.map_or(actor.arrival(), |it| it.arrival.max(actor.arrival())),
        })
    }

    /// Has the actor do its own work: when that is done.
    fn compute<D: Driver>(
        &mut self,
        index: usize,
        line: &Line<'_>,
        driver: &mut D,
    ) -> Result<Picos, D::Error> {
        self.arrive(index);
        let actor = &mut self.actors[index];
        let start = actor.earliest(line);
        let call = actor.call(start);
        self.tracks[index].remember(actor, start, driver.extra_bytes(&call));
        let took = match line.doing {
            Doing::Publish => driver.publish(&call)?,
            _ => driver.local(&call)?,
        };
        let end = actor.end_of(start, took, self.slowing);
        actor.end(line, end);
        self.tracks[index].compute(actor, start, end);
        Ok(end)
    }

    /// Whom the actor's current instruction fetches from: the rank and the actor. A folded one fetches from itself.
    fn partner(&self, index: usize) -> (Rank, usize) {
        let actor = &self.actors[index];
        let (Actor { class, position, .. }, run) = (actor.actor, actor.run());
        let Action::Fetch { group } = &actor.line().instruction.action else {
            unreachable!("it fetches")
        };
        let step = self.steps_before.saturating_add_signed(run.of_step());
        let rank = self.program.partner(class, position, group, step);
        if self.options.folded {
            return (rank, index);
        }
        let (class, position) = self.program.locate(rank);
        (rank, self.first_actor[class.0 as usize] as usize + position)
    }

    /// Has the actor publish, and those go on that wait for it to have done so.
    fn publish<D: Driver>(
        &mut self,
        index: usize,
        line: &Line<'_>,
        driver: &mut D,
    ) -> Result<(), D::Error> {
        self.published[index] = Some(self.compute(index, line, driver)?);
        for waiting in std::mem::take(&mut self.awaiting[index]) {
            self.wake(waiting);
        }
        Ok(())
    }

    fn fetch<D: Driver>(
        &mut self,
        index: usize,
        line: &Line<'_>,
        driver: &mut D,
    ) -> Result<(), D::Error> {
        self.arrive(index);
        let (rank, from) = self.partner(index);
        let published = self.published[from].expect("a fetch is due only once there is something");
        let actor = &mut self.actors[index];
        let start = actor.earliest(line).max(published);
        let call = actor.call(start);
        self.tracks[index].remember(actor, actor.clock(), ExtraBytes::default());
        let end = start + driver.fetch(&call, rank)?;
        actor.end(line, end);
        if self.waits_for_messages {
            actor.hold_host(end);
        }
        self.tracks[index].communicate(line, shown(actor), start, end);
        Ok(())
    }

    /// Has the actor wait for what has to end before its current instruction.
    fn arrive(&mut self, index: usize) {
        let track = &mut self.tracks[index];
        self.actors[index].arrive(|ended| track.free(ended));
    }

    /// Brings the actor to a collective, and runs it if all others are there. Whether the actor goes on.
    fn join<D: Driver>(
        &mut self,
        index: usize,
        line: &Line<'_>,
        group: usize,
        driver: &mut D,
    ) -> Result<bool, D::Error> {
        self.arrive(index);
        let actor = &self.actors[index];
        let start = actor.earliest(line);
        let call = actor.call(start);
        self.tracks[index].begin_collective(actor, actor.clock());
        let group = self.groups_of[index][group] as usize;
        let Some(start) = self.groups[group].arrive(call) else { return Ok(false) };
        let mut calls = std::mem::take(&mut self.calls);
        self.groups[group].leave(start, &mut calls);
        let end = start + driver.collective(&calls)?;
        let mut runs_on = false;
        for call in &calls {
            let member = call.actor.index as usize;
            let actor = &mut self.actors[member];
            let line = actor.line();
            actor.end(line, end);
            actor.enter_collective(start, end);
            self.tracks[member].end_collective(actor, end);
            self.tracks[member].communicate(line, shown(actor), start, end);
            let goes_on = self.advance(member, driver)?;
            match member == index {
                true => runs_on = goes_on,
                false if goes_on => self.wake(member),
                false => {}
            }
        }
        self.calls = calls;
        Ok(runs_on)
    }

    /// Has the actor make a request.
    fn request<D: Driver>(
        &mut self,
        index: usize,
        line: &'s Line<'p>,
        group: usize,
        driver: &mut D,
    ) -> Result<(), D::Error> {
        self.arrive(index);
        let actor = &self.actors[index];
        self.tracks[index].remember(actor, actor.clock(), ExtraBytes::default());
        driver.request(&actor.call(actor.ready(line)))?;
        let made = self.actors[index].request(line);
        let group = self.groups_of[index][group] as usize;
        self.negotiations.add(group, &self.groups[group].members, made);
        Ok(())
    }

    /// Runs the earliest cycle in which requests are answered, and what it answers. Whether there is one.
    fn negotiate<D: Driver>(&mut self, driver: &mut D) -> Result<bool, D::Error> {
        let Some((mut time, lists)) = self.negotiations.next_cycle(driver)? else {
            return Ok(false);
        };
        for list in &lists {
            let calls =
                |request: &Vec<Made<'s, 'p>>| request.iter().map(|made| made.call).collect();
            let calls: Vec<Vec<Call<'p>>> = list.requests.iter().map(calls).collect();
            let took = driver.fused(&calls)?;
            let end = time + took;
            // Each request is shown for its part of that.
            let all = list.elements.iter().sum::<usize>().max(1) as u128;
            let mut before = 0;
            for (request, elements) in list.requests.iter().zip(&list.elements) {
                let at = |elements: usize| {
                    time + Picos((u128::from(took.0) * elements as u128 / all) as u64)
                };
                let shown = [at(before), at(before + elements)];
                before += elements;
                for made in request {
                    let member = made.call.actor.index as usize;
                    self.actors[member].answer(made, end);
                    self.actors[member].enter_collective(shown[0], shown[1]);
                    self.tracks[member].communicate(made.line, made.shown, shown[0], shown[1]);
                }
            }
            time = end;
        }
        self.negotiations.end_cycle(&lists, time);
        for index in self.negotiations.woken() {
            self.wake(index);
        }
        Ok(true)
    }

    /// Moves an actor on to its next instruction. Whether there is one.
    fn advance<D: Driver>(&mut self, index: usize, driver: &mut D) -> Result<bool, D::Error> {
        let actor = &mut self.actors[index];
        let moved = actor.advance();
        if moved == Moved::Within {
            return Ok(true);
        }
        self.tracks[index].end_item(actor.clock());
        self.come(index, moved, driver)
    }

    /// Has the driver decide the guards that an actor comes to before its next instruction. Whether there
    /// is one; otherwise the actor is through.
    fn come<D: Driver>(
        &mut self,
        index: usize,
        mut moved: Moved<'p>,
        driver: &mut D,
    ) -> Result<bool, D::Error> {
        loop {
            let actor = &self.actors[index];
            match moved {
                // A server's steps are over between clients.
                Moved::Within | Moved::Entry if actor.served_steps().is_some() => {}
                Moved::Within | Moved::Entry => self.come_to(index, Some(actor.run().step)),
                Moved::Guard(_, step) => self.come_to(index, Some(step)),
                Moved::Choice => self.come_to(index, Some(actor.step_of_choice())),
                Moved::End => self.come_to(index, None),
            }
            match moved {
                Moved::Within | Moved::Entry | Moved::Choice => return Ok(true),
                Moved::Guard(guard, step) => {
                    let holds = driver.holds(self.actors[index].actor, guard, step)?;
                    moved = self.actors[index].take(holds);
                }
                Moved::End => {
                    self.finished += 1;
                    return Ok(false);
                }
            }
        }
    }

    /// Brings an actor to a step, or to the end of the row: what ends with the steps before has ended.
    fn come_to(&mut self, index: usize, step: Option<i64>) {
        let (actor, track) = (&mut self.actors[index], &mut self.tracks[index]);
        if actor.leaves_step(step) {
            actor.arrive_at_end(step.is_none(), |ended| track.free(ended));
            track.end_item(actor.clock());
        }
        for _ in 0..actor.come_to(step) {
            let end = actor.done();
            if let Some(pause) = self.pause {
                actor.hold_host(end + pause);
            }
            track.end_step(end);
            self.step_ends[index].push(end);
        }
    }

    fn wake(&mut self, index: usize) {
        self.runnable.add(self.actors[index].clock(), index);
    }

    fn deadlock(&self) -> SimError {
        const NAMED: usize = 4;
        let waiting = self.actors.iter().filter(|actor| !actor.is_through());
        let waiting = waiting.map(|actor| {
            if actor.is_at_choice() {
                return format!("rank {} waits for what others send", actor.actor.rank.0);
            }
            let (rank, entry) = (actor.actor.rank.0, actor.label());
            format!("rank {rank} waits at {} in {entry}", actor.line().label)
        });
        let all: Vec<String> = waiting.collect();
        SimError::Deadlock {
            others: all.len().saturating_sub(NAMED),
            waiting: all.into_iter().take(NAMED).collect(),
        }
    }

    pub fn finish<D: Driver>(self, driver: &D) -> Simulation {
        let tracks = self.tracks.into_iter().zip(&self.actors).map(|(track, state)| {
            let Actor { class, position, multiplicity, .. } = state.actor;
            let program = self.program;
            let told = self.negotiations.cycles(program, state.actor, &self.groups_of);
            let told = |bytes: &dyn Fn(u16) -> u64| -> u64 {
                told.iter().map(|&(communicator, cycles)| cycles * bytes(communicator)).sum()
            };
            let sent = program.bytes_of_runs(class, position, state.times())
                + told(&|communicator| program.told_bytes(class, position, communicator));
            let of_class = (multiplicity > 1).then(|| {
                program.class_bytes_of_runs(class, state.times())
                    + told(&|communicator| program.class_told_bytes(class, communicator))
            });
            track.finish(sent, of_class)
        });
        let timeline = Timeline { clock: driver.clock(), tracks: tracks.collect() };
        let draining = self.program.ahead as usize;
        let folded = self.options.folded;
        let period = self.program.period() as usize;
        Simulation { timeline, step_ends: self.step_ends, period, draining, folded }
    }
}

/// The micro-batch and the chunk that an actor's current instruction is shown with.
fn shown(actor: &ActorState<'_, '_>) -> (Option<u32>, Option<u32>) {
    (actor.microbatch(), actor.item().chunk)
}

/// The micro-batch that messages of a route belong to; the first where they belong to none, as a norm does,
/// which is the only thing that goes its way.
fn microbatch(program: &Program, actor: &ActorState<'_, '_>, route: RouteId) -> u32 {
    program.route(route).microbatch(actor.microbatch()).unwrap_or(0)
}

/// By actor, the first one on the same device, and whether there are several. Actors that stand for several ranks have
/// devices of their own.
fn on_one_device(program: &Program, actors: &[ActorState<'_, '_>]) -> (Vec<u32>, Vec<bool>) {
    let mut first = BTreeMap::new();
    let devices: Vec<u32> = actors
        .iter()
        .map(|it| {
            let Actor { index, class, position, multiplicity, .. } = it.actor;
            match multiplicity {
                1 => *first.entry(program.class(class).devices[position]).or_insert(index),
                _ => index,
            }
        })
        .collect();
    let mut shares = vec![false; devices.len()];
    for (actor, &device) in devices.iter().enumerate().filter(|it| it.0 != *it.1 as usize) {
        shares[actor] = true;
        shares[device as usize] = true;
    }
    (devices, shares)
}

fn lanes(
    cluster: &Cluster,
    program: &Program,
    class: &Class,
    actor: Actor,
) -> Result<Lanes, SimError> {
    let positions = actor.position..actor.position + actor.multiplicity as usize;
    for &device in &class.devices[positions] {
        if !cluster.kind_of(device)?.lanes_overlap {
            return Ok(match program.communication {
                Communication::InLine => Lanes::Block,
                Communication::Thread => Lanes::Thread,
            });
        }
    }
    Ok(Lanes::Overlap)
}
