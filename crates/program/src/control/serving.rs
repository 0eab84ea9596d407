//! Servers: what they do for their clients, and in which orders they may do it.

use std::ops::Range;

use shardloom_plan::Staleness;

use super::{Entry, Run};
use crate::ClassId;

/// When a handler may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once the client has sent what its entry receives first.
    Sent,
    /// Likewise, and once the clients before it have had this step ended.
    InTurn,
    /// Once no other client's clock is further behind this one's than that; at the end of a row, which leaves
    /// nothing under way, once none is behind.
    Within(Staleness),
}

/// What a server does for a client at its request. It runs whole, and nothing runs beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// When it may run.
    pub when: When,
    /// What it runs.
    pub run: Entry,
    /// Whether it ends a step of the client, whose clock goes on by one.
    pub publishes: bool,
}

/// One that is answered: a class of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The class.
    pub class: ClassId,
    /// What is done for it in each step, in order: the next only once the one before is done.
    pub handlers: Vec<Handler>,
}

/// Answers clients in any order in which their handlers may run, until each has had all of its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Serve {
    /// The clients.
    pub clients: Vec<Client>,
}

impl Serve {
    /// The client for which an entry with this number is run.
    pub fn client_of(&self, number: usize) -> Option<usize> {
        let mut end = 0;
        self.clients.iter().position(|client| {
            end += client.handlers.len();
            number < end
        })
    }

    /// The handlers of all clients, in order.
    pub fn handlers(&self) -> impl Iterator<Item = &Handler> {
        self.clients.iter().flat_map(|client| &client.handlers)
    }
}

/// How far a server is with its clients in a row of steps.
#[derive(Clone, Debug)]
pub(super) struct Serving<'p> {
    serve: &'p Serve,
    steps: Range<i64>,
    /// The number of the first handler's entry.
    number: usize,
    /// How many handlers were run for each client, and how many steps each has ended.
    done: Vec<usize>,
    clocks: Vec<i64>,
}

impl<'p> Serving<'p> {
    pub fn new(serve: &'p Serve, steps: Range<i64>, number: usize) -> Serving<'p> {
        let (done, clocks) = (vec![0; serve.clients.len()], vec![steps.start; serve.clients.len()]);
        Serving { serve, steps, number, done, clocks }
    }

    /// The step of the row that a client is in, and what is next for it; none after the last.
    fn next(&self, client: usize) -> Option<(i64, usize, &'p Handler)> {
        let handlers = &self.serve.clients[client].handlers;
        let index = self.done[client] % handlers.len().max(1);
        let step = self.steps.start + (self.done[client] / handlers.len().max(1)) as i64;
        (step < self.steps.end).then_some((step, index, handlers.get(index)?))
    }

    pub fn is_over(&self) -> bool {
        (0..self.done.len()).all(|client| self.next(client).is_none())
    }

    pub fn open(&self) -> impl Iterator<Item = (usize, &'p Handler)> + '_ {
        (0..self.done.len()).filter_map(|client| {
            let (_, _, handler) = self.next(client)?;
            self.may(client, handler.when).then_some((client, handler))
        })
    }

    fn may(&self, client: usize, when: When) -> bool {
        let clock = self.clocks[client];
        let staleness = match when {
            When::Sent => return true,
            When::InTurn => return self.clocks[..client].iter().all(|&before| before > clock),
            When::Within(_) if clock == self.steps.end => Staleness::SYNCHRONOUS,
            When::Within(staleness) => staleness,
        };
        let bound = staleness.bound().map(i64::from);
        bound.is_none_or(|bound| self.clocks.iter().all(|&other| other + bound >= clock))
    }

    pub fn serve(&mut self, client: usize) -> Run {
        let next = self.next(client).filter(|(_, _, handler)| self.may(client, handler.when));
        let Some((step, index, handler)) = next else {
            panic!("client {client} is answered before its turn")
        };
        self.done[client] += 1;
        self.clocks[client] += i64::from(handler.publishes);
        let before = self.serve.clients[..client].iter().map(|it| it.handlers.len());
        let number = self.number + before.sum::<usize>() + index;
        Run { entry: handler.run, number, arm: None, step, microbatch: None }
    }

    pub fn serve_in_turn(&mut self) -> Run {
        // By step and by how much of it is done: not all clients have as many handlers.
        let place = |&client: &usize| self.next(client).map(|(step, index, _)| (step, index));
        let behind = self.open().map(|(client, _)| client).min_by_key(place);
        self.serve(behind.expect("the client that is furthest behind waits for nobody"))
    }

    /// Up to which step each client has ended its steps.
    pub fn clocks(&self) -> &[i64] {
        &self.clocks
    }

    /// How many steps all clients have ended.
    pub fn finished(&self) -> i64 {
        self.clocks.iter().copied().min().unwrap_or(self.steps.end)
    }
}
