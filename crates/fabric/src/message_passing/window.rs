//! Windows between processes. Who fetches asks the process in which the other rank publishes, which answers from
//! whatever thread of it looks for packets, once there is what is asked for.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::{
    connection::{Connection, lock},
    frame::{Frame, What},
    group::Parts,
    router::Router,
};
use crate::{
    Contents, FabricError, Format, Lent, Operation, Returns, View, Window, counters::LiveCounters,
    members::check, window::waited,
};

/// The window of a rank that lives here, as packets find it.
#[derive(Default)]
pub(super) struct WindowState {
    published: Mutex<Published>,
    /// What it was sent of what others publish.
    arrived: Mutex<VecDeque<Arrival>>,
}

/// What a rank publishes.
#[derive(Default)]
struct Published {
    /// Which publication it is; none before the first.
    number: Option<u64>,
    /// Copies its parts.
    read: Option<Read>,
    /// Who asked for what is not there yet.
    waiting: Vec<Ask>,
    /// How often it was sent.
    fetched: u64,
    /// What answers are sent in, while nobody uses it.
    unused: Arc<Parts>,
}

/// Copies the parts of what is published into what they are sent in.
type Read = Box<dyn Fn(&Parts) -> Vec<Contents> + Send>;

/// What a rank asks for.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub from: u32,
    /// Its number among those of its rank.
    pub number: u64,
    /// The least number that will do.
    pub least: u64,
}

/// A part of what was asked for.
pub(super) struct Arrival {
    pub ask: u64,
    /// The number that it was published under.
    pub number: u64,
    /// How many parts there are.
    pub parts: u32,
    pub body: Contents,
}

impl WindowState {
    pub fn arrive(&self, arrival: Arrival) {
        lock(&self.arrived).push_back(arrival);
    }

    /// All parts of what was asked for last, once they are there. What comes of asks that were given up is
    /// passed over.
    fn take(&self, ask: u64) -> Option<Vec<Arrival>> {
        let mut arrived = lock(&self.arrived);
        arrived.retain(|part| part.ask == ask);
        let parts = arrived.front()?.parts as usize;
        (arrived.len() >= parts).then(|| arrived.drain(..).collect())
    }
}

/// A rank asks for what another, which lives here, publishes.
pub(super) fn asked(router: &Router, connection: &Connection, of: u32, ask: Ask) {
    let mut published = lock(&connection.window(of).published);
    match published.number {
        Some(number) if number >= ask.least => {
            answer(router, connection, of, &mut published, ask);
        }
        _ => published.waiting.push(ask),
    }
}

/// Sends what a rank has published to who asked for it.
fn answer(router: &Router, connection: &Connection, of: u32, published: &mut Published, ask: Ask) {
    let (Some(number), Some(read)) = (published.number, &published.read) else { return };
    published.fetched += 1;
    let all = read(&published.unused);
    let parts = all.len() as u32;
    for body in all {
        let (to, ask, format) = (ask.from, ask.number, body.view().format());
        let what = What::Published { of, to, ask, number, parts, format };
        let frame = Frame { connection: connection.number, what };
        let origin: Arc<dyn Returns> = Arc::<Parts>::clone(&published.unused);
        router.send(connection.process_of(to), &frame, (body, origin));
    }
}

/// One rank's side.
pub(super) struct MessagePassingWindow<B> {
    rank: u32,
    router: Arc<Router>,
    connection: Arc<Connection>,
    counters: Arc<LiveCounters>,
    parts: Arc<Mutex<Vec<B>>>,
    /// How often it has asked.
    asks: u64,
}

impl<B: Lent> MessagePassingWindow<B> {
    pub fn new(
        rank: u32,
        router: Arc<Router>,
        connection: Arc<Connection>,
        counters: Arc<LiveCounters>,
        lent: Vec<B>,
    ) -> Self {
        assert!(!lent.is_empty(), "a window has parts");
        let parts = Arc::new(Mutex::new(lent));
        let read = {
            let parts = Arc::clone(&parts);
            move |unused: &Parts| lock(&parts).iter_mut().map(|part| copied(part, unused)).collect()
        };
        let before = lock(&connection.window(rank).published).read.replace(Box::new(read));
        assert!(before.is_none(), "a rank has one window");
        Self { rank, router, connection, counters, parts, asks: 0 }
    }
}

/// The elements of a part.
fn copied<B: Lent>(part: &mut B, unused: &Parts) -> Contents {
    let (mut storage, mut format) = (unused.unused(), Format::U8);
    part.lend(&mut |elements| {
        format = elements.format();
        match elements.as_view() {
            View::F32(it) => storage.set(it),
            View::F64(it) => storage.set(it),
            View::Bf16(it) | View::F16(it) => storage.set(it),
            View::U32(it) => storage.set(it),
            View::U8(it) => storage.set(it),
        }
    });
    Contents::from(storage).relabelled(format)
}

impl<B: Lent> Window<B> for MessagePassingWindow<B> {
    fn publish(&mut self, number: u64, fill: &mut dyn FnMut(&mut [B])) -> Result<(), FabricError> {
        let Self { rank, router, connection, parts, .. } = self;
        let mut published = lock(&connection.window(*rank).published);
        fill(&mut lock(parts));
        published.number = Some(number);
        let all = std::mem::take(&mut published.waiting);
        let (ready, waiting) = all.into_iter().partition(|ask: &Ask| ask.least <= number);
        published.waiting = waiting;
        let ready: Vec<Ask> = ready;
        ready.into_iter().for_each(|ask| answer(router, connection, *rank, &mut published, ask));
        Ok(())
    }

    fn fetch(&mut self, from: u32, least: u64, into: &mut [B]) -> Result<u64, FabricError> {
        let Self { rank, router, connection, .. } = self;
        let (rank, operation) = (*rank, Operation::Fetch { from });
        check(from, connection.ranks)?;
        self.asks += 1;
        let ask = self.asks;
        let what = What::Fetch { from: rank, of: from, ask, least };
        router.tell(connection.process_of(from), &Frame { connection: connection.number, what });
        let arrived = router.wait((connection, rank), connection.timeout, || {
            // Nobody goes on with what a rank published that has failed since.
            let gone = connection.gone(from).map(|reason| Err((from, reason.to_owned())));
            gone.or_else(|| connection.window(rank).take(ask).map(Ok))
        });
        let arrived = waited(arrived, (rank, operation), (vec![from], connection.timeout))?;
        let unfit = |reason| FabricError::Unfit { rank, from, reason };
        if arrived.len() != into.len() {
            let reason = format!("{} parts for room for {}", arrived.len(), into.len());
            return Err(unfit(reason));
        }
        let (number, mut bytes) = (arrived[0].number, 0);
        for (Arrival { body, .. }, own) in arrived.into_iter().zip(into) {
            bytes += body.bytes();
            let mut outcome = Ok(());
            own.lend(&mut |mut own| outcome = own.set(body.view()));
            router.transport().reuse(body);
            outcome.map_err(unfit)?;
        }
        self.counters.count_message(if from == rank { 0 } else { bytes });
        Ok(number)
    }

    fn fetched(&self) -> u64 {
        lock(&self.connection.window(self.rank).published).fetched
    }

    fn wait_until_fetched(&mut self, times: u64) -> Result<(), FabricError> {
        let Self { rank, router, connection, .. } = &*self;
        let (rank, operation) = (*rank, Operation::Fetched { times });
        let others = || (0..connection.ranks).filter(|&other| other != rank);
        let found = router.wait((connection, rank), connection.timeout, || {
            let gone = others().find_map(|other| Some((other, connection.gone(other)?.to_owned())));
            match self.fetched() >= times {
                true => Some(Ok(())),
                false => gone.map(Err),
            }
        });
        waited(found, (rank, operation), (others().collect(), connection.timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ask: u64, number: u64, parts: u32, elements: usize) -> Arrival {
        Arrival { ask, number, parts, body: Contents::zeroed(Format::F32, elements) }
    }

    /// Parts come one by one, and behind those of earlier asks that were given up in the middle.
    #[test]
    fn what_was_asked_for_is_there_once_all_of_its_parts_are() {
        for parts in 1..5 {
            // Of the ask before, which nobody waits for any more, so many have come, and others come late.
            for (early, late) in
                (0..=parts).flat_map(|early| (0..=parts - early).map(move |it| (early, it)))
            {
                let window = WindowState::default();
                (0..early).for_each(|_| window.arrive(part(1, 7, parts, 9)));
                assert!(window.take(2).is_none());
                for place in 0..parts {
                    if place < late {
                        window.arrive(part(1, 7, parts, 9));
                    }
                    assert!(window.take(2).is_none(), "{place} of {parts}");
                    window.arrive(part(2, 8, parts, place as usize));
                }
                let found = window.take(2).expect("all parts are there");
                let words = found.iter().map(|it| (it.ask, it.number, it.body.view().elements()));
                let expected = (0..parts).map(|place| (2, 8, place as usize));
                assert!(words.eq(expected), "{parts} parts, {early} early and {late} late");
                // They are there once.
                assert!(window.take(2).is_none() && window.take(3).is_none());
            }
        }
    }
}
