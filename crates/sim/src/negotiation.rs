//! Groups whose members agree while running in which order their requests are carried out.
//!
//! A cycle of a group begins when every member has made a request that was not answered, no sooner than the plan
//! says after the begin of the cycle before, and when all that was answered then has been carried out. Members
//! tell each other of the requests that they have made by then; those that all have made are answered, in the
//! order in which the first member made them, and carried out one list after the other.
//!
//! Actors go on from a request before it is known when it ends, until something waits for it. So a cycle is run
//! when nobody can go on, and then that which begins earliest, of all groups'.

use std::collections::BTreeMap;

use shardloom_collectives::{Algorithm, fused};
use shardloom_plan::Negotiation;
use shardloom_program::timeline::Picos;
use shardloom_program::{BodyId, Format, Program, Queue};

use crate::actor::Made;
use crate::{Actor, Call, Driver};

/// Where a request stands.
type Place = (BodyId, usize);

/// All groups that negotiate.
pub(crate) struct Negotiations<'s, 'p> {
    program: &'p Program,
    plan: Negotiation,
    /// By group.
    groups: Vec<Open<'s, 'p>>,
    /// Whether each actor waits for an answer, or for something to be sent.
    waiting: Vec<bool>,
}

/// The requests of a group that were not answered.
#[derive(Default)]
struct Open<'s, 'p> {
    /// By place and by member.
    requests: BTreeMap<Place, Vec<Option<Made<'s, 'p>>>>,
    /// When the next cycle can begin at the earliest.
    next: Picos,
    cycles: u64,
}

/// Requests that are carried out as one.
pub(crate) struct List<'s, 'p> {
    group: usize,
    /// When their cycle began.
    began: Picos,
    /// By request, of each member.
    pub requests: Vec<Vec<Made<'s, 'p>>>,
    /// Of each request.
    pub elements: Vec<usize>,
}

impl<'s, 'p> Negotiations<'s, 'p> {
    pub fn new(program: &'p Program, groups: usize, actors: usize) -> Negotiations<'s, 'p> {
        let groups = (0..groups).map(|_| Open::default()).collect();
        let plan = program.negotiation.unwrap_or_default();
        Negotiations { program, plan, groups, waiting: vec![false; actors] }
    }

    /// A member of a group makes a request.
    pub fn add(&mut self, group: usize, members: &[u32], made: Made<'s, 'p>) {
        let place = members.iter().position(|&member| member == made.call.actor.index);
        let place = place.expect("a group contains the actors that it was made for");
        let at = (made.call.run.entry.body, made.call.index);
        let none = || members.iter().map(|_| None).collect();
        let request = self.groups[group].requests.entry(at).or_insert_with(none);
        debug_assert!(request[place].is_none(), "a request is made before it has ended");
        request[place] = Some(made);
    }

    /// An actor goes on when something is answered, or was sent that waited for its turn.
    pub fn wait(&mut self, actor: usize) {
        self.waiting[actor] = true;
    }

    /// Those that wait, which go on now.
    pub fn woken(&mut self) -> Vec<usize> {
        let waiting = self.waiting.iter_mut().enumerate();
        waiting.filter_map(|(index, waits)| std::mem::take(waits).then_some(index)).collect()
    }

    /// The earliest cycle of all groups that answers something: when its answer is there, and the lists of it.
    /// Earlier cycles of that group are over.
    pub fn next_cycle<D: Driver>(
        &mut self,
        driver: &mut D,
    ) -> Result<Option<(Picos, Vec<List<'s, 'p>>)>, D::Error> {
        let begins = self.groups.iter().enumerate();
        let begins = begins.filter_map(|(index, open)| Some((open.begin()?, index)));
        let Some((begin, group)) = begins.min() else { return Ok(None) };
        let cycle = Picos::from_seconds(self.plan.cycle_seconds);
        let open = &mut self.groups[group];
        let first = open.all_ready().min().expect("it begins when all have made a request");
        let members: Vec<Call<'p>> = open.of_each_member();
        // How long it takes is the same each time; how many there are follows from it.
        let one = driver.negotiate(&members, 1)?;
        let step = cycle.max(one);
        let skipped = match first.0.saturating_sub(begin.0) {
            0 => 0,
            left => left.div_ceil(step.0.max(1)),
        };
        let begin = match step.0 {
            0 => begin.max(first),
            step => begin + Picos(skipped * step),
        };
        if skipped > 0 {
            driver.negotiate(&members, skipped)?;
        }
        open.cycles += 1 + skipped;
        let lists = self.answer(group, begin);
        Ok(Some((begin + one, lists)))
    }

    /// What is answered of what all members of a group have made by `begin`.
    fn answer(&mut self, group: usize, begin: Picos) -> Vec<List<'s, 'p>> {
        let open = &mut self.groups[group];
        let is_ready = |request: &Vec<Option<Made<'_, '_>>>| {
            request.iter().all(|made| made.as_ref().is_some_and(|it| it.call.start <= begin))
        };
        let ready: Vec<Place> =
            open.requests.iter().filter(|(_, it)| is_ready(it)).map(|(&place, _)| place).collect();
        let taken = ready.into_iter().filter_map(|place| open.requests.remove(&place));
        let mut taken: Vec<Vec<Made<'s, 'p>>> =
            taken.map(|request| request.into_iter().flatten().collect()).collect();
        taken.sort_by_key(|request| request[0].number);
        let size = |request: &Vec<Made<'s, 'p>>| size(self.program, &request[0].call);
        let sizes: Vec<((Algorithm, Format), usize)> = taken.iter().map(size).collect();
        let bytes = sizes.iter().map(|&(kind, elements)| (kind, elements * kind.1.bytes()));
        let runs = fused(bytes, self.plan.fusion_bytes);
        let (mut taken, mut sizes) = (taken.into_iter(), sizes.into_iter());
        let list = |length: usize| List {
            group,
            began: begin,
            requests: taken.by_ref().take(length).collect(),
            elements: sizes.by_ref().take(length).map(|(_, elements)| elements).collect(),
        };
        runs.into_iter().map(list).collect()
    }

    /// All that was answered in a cycle has been carried out at `end`.
    pub fn end_cycle(&mut self, lists: &[List<'_, '_>], end: Picos) {
        let Some(List { group, began, .. }) = lists.first() else { return };
        let cycle = Picos::from_seconds(self.plan.cycle_seconds);
        self.groups[*group].next = end.max(*began + cycle);
    }

    /// The communicators in which an actor negotiates, and in how many cycles each has.
    pub fn cycles(
        &self,
        program: &Program,
        actor: Actor,
        groups_of: &[Vec<u32>],
    ) -> Vec<(u16, u64)> {
        let class = program.class(actor.class);
        let queues = class.instructions().map(|(_, _, it)| it.queue);
        let mut numbers: Vec<u16> = queues
            .filter_map(|queue| match queue {
                Queue::Negotiated(number) => Some(number),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let cycles = |number: u16| {
            let group = groups_of[actor.index as usize][usize::from(number)];
            (number, self.groups[group as usize].cycles)
        };
        numbers.into_iter().map(cycles).collect()
    }
}

impl<'s, 'p> Open<'s, 'p> {
    /// When each request is ready that all have made.
    fn all_ready(&self) -> impl Iterator<Item = Picos> + '_ {
        self.requests.values().filter_map(|request| {
            let made = request.iter().map(|made| made.as_ref().map(|it| it.call.start));
            made.collect::<Option<Vec<Picos>>>()?.into_iter().max()
        })
    }

    /// When the next cycle begins, if one answers something.
    fn begin(&self) -> Option<Picos> {
        self.all_ready().next()?;
        let members = self.requests.values().next()?.len();
        let first = |member: usize| {
            let made = self.requests.values().filter_map(|request| request[member].as_ref());
            made.map(|it| it.call.start).min()
        };
        let firsts = (0..members).filter_map(first);
        firsts.max().map(|first| first.max(self.next))
    }

    /// Some request of each member.
    fn of_each_member(&self) -> Vec<Call<'p>> {
        let is_whole = |request: &&Vec<Option<Made<'s, 'p>>>| request.iter().all(Option::is_some);
        let whole = self.requests.values().find(is_whole);
        whole.into_iter().flatten().flatten().map(|made| made.call).collect()
    }
}

/// Its kind, of which others can be carried out with it, and its elements.
fn size(program: &Program, call: &Call<'_>) -> ((Algorithm, Format), usize) {
    let class = program.class(call.actor.class);
    let format = class.tensor(call.instruction.reads[0].tensor).format;
    match program.exchange(class, call.actor.position, call.instruction) {
        Some(exchange) => ((exchange.algorithm, format), exchange.elements),
        None => ((Algorithm::Direct, format), 0),
    }
}
