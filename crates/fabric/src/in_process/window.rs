//! Windows within a process: what is published lies where its rank lent it, under a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::endpoint::Shared;
use crate::{
    FabricError, Lent, Operation, Window,
    counters::LiveCounters,
    members::check,
    window::{copy_parts, waited},
};

/// What a rank publishes.
pub(super) struct Published<B>(Mutex<State<B>>);

struct State<B> {
    /// Which publication the parts are of; none before the first.
    number: Option<u64>,
    parts: Vec<B>,
    /// How often they were fetched.
    fetched: u64,
}

impl<B> Default for Published<B> {
    fn default() -> Self {
        Self(Mutex::new(State { number: None, parts: vec![], fetched: 0 }))
    }
}

impl<B> Published<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what its rank lends.
    pub(super) fn lend(&self, parts: Vec<B>) {
        assert!(!parts.is_empty(), "a window has parts");
        let mut state = self.lock();
        assert!(state.parts.is_empty(), "a rank has one window");
        state.parts = parts;
    }
}

/// One rank's side.
pub(super) struct InProcessWindow<B: Lent> {
    pub(super) rank: u32,
    pub(super) shared: Arc<Shared<B>>,
    pub(super) counters: Arc<LiveCounters>,
}

impl<B: Lent> Window<B> for InProcessWindow<B> {
    fn publish(&mut self, number: u64, fill: &mut dyn FnMut(&mut [B])) -> Result<(), FabricError> {
        let Shared { windows, roster, .. } = &*self.shared;
        let mut state = windows[self.rank as usize].lock();
        fill(&mut state.parts);
        state.number = Some(number);
        drop(state);
        let others = (0..roster.ranks()).filter(|&rank| rank != self.rank);
        others.for_each(|rank| roster.wakeup(rank).wake());
        Ok(())
    }

    fn fetch(&mut self, from: u32, least: u64, into: &mut [B]) -> Result<u64, FabricError> {
        let Shared { windows, roster, .. } = &*self.shared;
        check(from, roster.ranks())?;
        let (rank, operation) = (self.rank, Operation::Fetch { from });
        let there = roster.wakeup(rank).wait(Some(roster.timeout()), || {
            // Nobody goes on with what a rank published that has failed since.
            if let Some(reason) = roster.gone(from) {
                return Some(Err((from, reason.to_owned())));
            }
            let state = windows[from as usize].lock();
            let is_there = state.number.is_some_and(|number| number >= least);
            is_there.then_some(Ok(state))
        });
        let mut state = waited(there, (rank, operation), (vec![from], roster.timeout()))?;
        let bytes = copy_parts(&mut state.parts, into).map_err(|reason| FabricError::Unfit {
            rank,
            from,
            reason,
        })?;
        state.fetched += 1;
        roster.wakeup(from).wake();
        self.counters.count_message(if from == rank { 0 } else { bytes });
        Ok(state.number.expect("it was published"))
    }

    fn fetched(&self) -> u64 {
        self.shared.windows[self.rank as usize].lock().fetched
    }

    fn wait_until_fetched(&mut self, times: u64) -> Result<(), FabricError> {
        let Shared { roster, .. } = &*self.shared;
        let (rank, operation) = (self.rank, Operation::Fetched { times });
        let others = || (0..roster.ranks()).filter(|&other| other != rank);
        let found = roster.wakeup(rank).wait(Some(roster.timeout()), || {
            let gone = others().find_map(|other| Some((other, roster.gone(other)?.to_owned())));
            match self.fetched() >= times {
                true => Some(Ok(())),
                false => gone.map(Err),
            }
        });
        waited(found, (rank, operation), (others().collect(), roster.timeout()))
    }
}
