//! Messages that actors send by priority: whenever the way out of an actor's device is free, that goes first which has
//! the highest priority of those that are ready.
//!
//! An actor goes on from such a message when it comes to it; when it is sent is decided once the way out is free, or
//! it is ready, whichever is later, and no actor has anything to do before that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shardloom_program::RouteId;
use shardloom_program::timeline::Picos;

use crate::actor::Made;

/// A message, or those of one instruction, that an actor has come to.
pub(crate) struct Ready<'s, 'p> {
    /// The instruction, starting when they are ready.
    pub made: Made<'s, 'p>,
    pub route: RouteId,
    pub microbatch: u32,
    /// How long each takes.
    pub durations: Vec<Picos>,
    /// The lowest goes first.
    pub priority: u32,
}

/// All that has not been sent.
pub(crate) struct PrioritySends<'s, 'p> {
    /// By actor, in the order in which it has come to them.
    waiting: Vec<Vec<Ready<'s, 'p>>>,
    /// Until when the way out of each actor's device is taken.
    taken: Vec<Picos>,
    /// When an actor sends next, at the earliest.
    due: BinaryHeap<Reverse<(Picos, u32)>>,
}

impl<'s, 'p> PrioritySends<'s, 'p> {
    pub fn new(actors: usize) -> PrioritySends<'s, 'p> {
        PrioritySends {
            waiting: (0..actors).map(|_| vec![]).collect(),
            taken: vec![Picos::ZERO; actors],
            due: BinaryHeap::new(),
        }
    }

    /// An actor has come to messages that it sends by priority.
    pub fn add(&mut self, ready: Ready<'s, 'p>) {
        let actor = ready.made.call.actor.index;
        self.waiting[actor as usize].push(ready);
        self.note(actor);
    }

    /// When the next is sent, if nothing with a higher priority is ready before.
    pub fn next(&self) -> Option<Picos> {
        self.due.peek().map(|&Reverse((due, _))| due)
    }

    /// Takes out what is sent next of all actors', and when it starts; it takes the way out until it has been sent.
    pub fn take(&mut self) -> Option<(Ready<'s, 'p>, Picos)> {
        let Reverse((start, actor)) = self.due.pop()?;
        let waiting = &mut self.waiting[actor as usize];
        let ready = waiting.iter().enumerate().filter(|(_, it)| it.made.call.start <= start);
        let first = ready.min_by_key(|(place, it)| (it.priority, *place)).map(|(place, _)| place);
        let first = waiting.remove(first.expect("something is ready when it is due"));
        let takes = first.durations.iter().fold(Picos::ZERO, |sum, &each| sum + each);
        self.taken[actor as usize] = start + takes;
        // What is due of the actor stands there once.
        self.due.retain(|&Reverse((_, other))| other != actor);
        self.note(actor);
        Some((first, start))
    }

    /// Notes when an actor sends next.
    fn note(&mut self, actor: u32) {
        let ready = self.waiting[actor as usize].iter().map(|it| it.made.call.start).min();
        if let Some(ready) = ready {
            self.due.push(Reverse((ready.max(self.taken[actor as usize]), actor)));
        }
    }
}
