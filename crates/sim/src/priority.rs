//! Messages that the actors on a device send by priority: of those that are ready that goes first which has the highest priority, and
//! only so many are under way at a time.
//!
//! An actor goes on from such a message when it comes to it. Once fewer are under way than may be, the next is chosen of
//! those that are ready; those that are under way take the way out of the actor's device one after another, in the order
//! in which they were chosen. What becomes ready later and is more urgent waits for these. With one at a time the next is
//! chosen when the way is free. Nothing is decided before the time at which it happens, as no actor has anything to do
//! before that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;
use shardloom_program::timeline::Picos;
use shardloom_program::{Priority, RouteId};

use crate::actor::Made;

/// A message, or those of one instruction, that an actor has come to.
pub(crate) struct Ready<'s, 'p> {
    /// The instruction, starting when they are ready.
    pub made: Made<'s, 'p>,
    pub route: RouteId,
    pub microbatch: u32,
    /// How long each takes.
    pub durations: Vec<Picos>,
    pub priority: Priority,
}

/// All that has not been sent.
pub(crate) struct PrioritySends<'s, 'p> {
    /// What each device sends, by the first actor on it.
    devices: Vec<Outgoing<'s, 'p>>,
    /// When devices choose or send next. Of a device there may be former times besides [`Outgoing::noted`]; the first of
    /// all is never one of these.
    due: BinaryHeap<Reverse<(Picos, u32)>>,
}

/// What a device sends by priority, all actors on it together.
#[derive(Default)]
struct Outgoing<'s, 'p> {
    /// What has not been chosen, by the order in which actors have come to it.
    waiting: FxHashMap<u64, Ready<'s, 'p>>,
    /// Of that, what is ready at some time after the last decision, by that time.
    coming: BinaryHeap<Reverse<(Picos, u64)>>,
    /// The rest, by its priority.
    ready: BinaryHeap<Reverse<(u32, u64)>>,
    /// How many messages actors have come to.
    come: u64,
    /// How many may be under way; the same of all that a device sends.
    most_under_way: usize,
    /// What has been chosen and waits for the way out, in that order.
    chosen: VecDeque<Ready<'s, 'p>>,
    /// Until when the way out of the actor's device is taken, by one that is under way.
    taken: Picos,
    /// When something was chosen or sent last.
    decided: Picos,
    /// When something is chosen or sent next, as it was noted last.
    noted: Option<Picos>,
}

/// What happens next of what a device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The first that was chosen takes the way out.
    Send,
    /// The next is chosen.
    Choose,
}

impl<'s, 'p> PrioritySends<'s, 'p> {
    pub fn new(actors: usize) -> PrioritySends<'s, 'p> {
        PrioritySends {
            devices: (0..actors).map(|_| Outgoing::default()).collect(),
            due: BinaryHeap::new(),
        }
    }

    /// An actor on a device has come to messages that it sends by priority.
    pub fn add(&mut self, device: u32, ready: Ready<'s, 'p>) {
        self.devices[device as usize].add(ready);
        self.note(device);
    }

    /// When the next is chosen or sent, if nothing with a higher priority is ready before.
    pub fn next(&self) -> Option<Picos> {
        self.due.peek().map(|&Reverse((due, _))| due)
    }

    /// Does what is next of all devices': takes out what is sent, and when it starts, from when it takes the way out until
    /// it has been sent; none where something is chosen, or has to wait after all.
    pub fn take(&mut self) -> Option<(Ready<'s, 'p>, Picos)> {
        let Reverse((time, device)) = self.due.pop()?;
        let outgoing = &mut self.devices[device as usize];
        outgoing.noted = None;
        let is_due = outgoing.next().is_some_and(|(due, _)| due <= time);
        let sent = if is_due { outgoing.go_on(time) } else { None };
        self.note(device);
        sent.map(|sent| (sent, time))
    }

    /// What a device has sent last takes its way until then, as that was not free before.
    pub fn hold(&mut self, device: u32, until: Picos) {
        self.devices[device as usize].taken = until;
    }

    /// Notes when a device chooses or sends next.
    fn note(&mut self, device: u32) {
        let outgoing = &mut self.devices[device as usize];
        let due = outgoing.next().map(|(due, _)| due);
        if due != outgoing.noted {
            outgoing.noted = due;
            self.due.extend(due.map(|due| Reverse((due, device))));
        }
        // Former times.
        while let Some(&Reverse((due, device))) = self.due.peek()
            && self.devices[device as usize].noted != Some(due)
        {
            self.due.pop();
        }
    }
}

impl<'s, 'p> Outgoing<'s, 'p> {
    fn add(&mut self, ready: Ready<'s, 'p>) {
        self.most_under_way = ready.priority.most_under_way as usize;
        self.coming.push(Reverse((ready.made.call.start, self.come)));
        self.waiting.insert(self.come, ready);
        self.come += 1;
    }

    /// What happens next, and when.
    fn next(&self) -> Option<(Picos, Next)> {
        let send = (!self.chosen.is_empty()).then_some((self.taken.max(self.decided), Next::Send));
        // What is ready has been so since the last decision.
        let first = match self.ready.is_empty() {
            true => self.coming.peek().map(|&Reverse((start, _))| start),
            false => Some(self.decided),
        };
        let choose = first.and_then(|first| {
            // So many may wait for the way out while another has it.
            let behind = self.most_under_way.saturating_sub(1);
            let is_room = match self.chosen.len() {
                chosen if chosen < behind => self.decided,
                chosen if chosen == behind => self.decided.max(self.taken),
                _ => return None,
            };
            Some((first.max(is_room), Next::Choose))
        });
        send.into_iter().chain(choose).min()
    }

    /// Does what is next: what is sent, if it is that.
    fn go_on(&mut self, time: Picos) -> Option<Ready<'s, 'p>> {
        let (_, next) = self.next()?;
        self.decided = time;
        match next {
            Next::Send => {
                let sent = self.chosen.pop_front()?;
                self.taken = sent.durations.iter().fold(time, |end, &each| end + each);
                Some(sent)
            }
            Next::Choose => {
                while let Some(&Reverse((start, number))) = self.coming.peek()
                    && start <= time
                {
                    self.coming.pop();
                    self.ready.push(Reverse((self.waiting[&number].priority.place, number)));
                }
                let Reverse((_, first)) =
                    self.ready.pop().expect("something is ready when it is due");
                self.chosen.extend(self.waiting.remove(&first));
                None
            }
        }
    }
}
