use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{Completed, FabricError};

/// Where a rank leaves requests for its thread, and gets them back.
pub(super) struct Pending<B> {
    state: Mutex<State<B>>,
    /// There is something to do, or there will be nothing more.
    more: Condvar,
    /// Something has been carried out, or nothing will be.
    done: Condvar,
}

struct State<B> {
    /// What was lent with a request that was made and not carried out, and the number of its handle.
    pending: Vec<Option<(u64, B)>>,
    /// These requests, in the order in which they were made.
    order: Vec<u32>,
    /// What has not been waited for.
    completed: Vec<(u64, Completed<B>)>,
    /// Why nothing is carried out any more.
    failure: Option<FabricError>,
    /// Whether something that was lent is lost.
    panicked: bool,
    stopped: bool,
    repeated: Option<VecDeque<Vec<u32>>>,
    lists: Vec<Vec<u32>>,
    cycles: u64,
}

impl<B> Pending<B> {
    pub(super) fn new(requests: usize) -> Self {
        let state = State {
            pending: (0..requests).map(|_| None).collect(),
            order: Vec::with_capacity(requests),
            completed: Vec::with_capacity(requests),
            failure: None,
            panicked: false,
            stopped: false,
            repeated: None,
            lists: vec![],
            cycles: 0,
        };
        Self { state: Mutex::new(state), more: Condvar::new(), done: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is made.
    pub(super) fn put(&self, request: usize, (number, lent): (u64, B)) {
        let mut state = self.state();
        if let Some(failure) = state.failure.clone() {
            state.completed.push((number, (lent, Err(failure))));
            return;
        }
        assert!(state.pending[request].is_none(), "request {request} is made before it has ended");
        state.pending[request] = Some((number, lent));
        state.order.push(request as u32);
        drop(state);
        self.more.notify_all();
    }

    pub(super) fn wait(&self, number: u64) -> Completed<B> {
        let mut state = self.state();
        loop {
            let found = state.completed.iter().position(|&(known, _)| known == number);
            if let Some(found) = found {
                return state.completed.swap_remove(found).1;
            }
            assert!(!state.panicked, "a collective panicked on the thread that negotiates");
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn take_lists(&self) -> Vec<Vec<u32>> {
        mem::take(&mut self.state().lists)
    }

    pub(super) fn cycles(&self) -> u64 {
        self.state().cycles
    }

    pub(super) fn repeat(&self, lists: Option<Vec<Vec<u32>>>) {
        self.state().repeated = lists.map(Vec::into);
    }

    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.more.notify_all();
    }

    /// Waits until some request is there, and then until `begin`. The requests that are there then, in the order
    /// in which they were made; none once there will be nothing more.
    pub(super) fn next_cycle(&self, begin: Option<Instant>) -> Option<Vec<u32>> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            let left = begin.map(|begin| begin.saturating_duration_since(Instant::now()));
            let left = left.filter(|left| !left.is_zero());
            state = match left {
                _ if state.order.is_empty() => {
                    self.more.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                Some(left) => {
                    let waited = self.more.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    state.cycles += 1;
                    return Some(state.order.clone());
                }
            };
        }
    }

    /// Of lists that are repeated those that come next as far as all that is in them is ready; none where none
    /// are repeated.
    pub(super) fn repeated(&self, is_ready: impl Fn(u32) -> bool) -> Option<Vec<Vec<u32>>> {
        let mut state = self.state();
        let repeated = state.repeated.as_mut()?;
        let mut next = vec![];
        // Each request once, as it is made once before it is answered.
        let mut known = BTreeSet::new();
        let mut is_next =
            |list: &mut Vec<u32>| list.iter().all(|&it| is_ready(it) && known.insert(it));
        while let Some(list) = repeated.pop_front_if(&mut is_next) {
            next.extend(Some(list).filter(|list| !list.is_empty()));
        }
        Some(next)
    }

    /// Takes what was lent with the requests of a list, which is about to be carried out.
    pub(super) fn take(&self, list: &[u32]) -> Vec<(u64, B)> {
        let mut state = self.state();
        state.lists.push(list.to_vec());
        state.order.retain(|request| !list.contains(request));
        let taken = list.iter().map(|&request| state.pending[request as usize].take());
        taken.map(|it| it.expect("the first member answers requests that all have made")).collect()
    }

    /// Gives back what was lent with a request that was carried out.
    pub(super) fn complete(&self, number: u64, completed: Completed<B>) {
        self.state().completed.push((number, completed));
        self.done.notify_all();
    }

    /// Nothing is carried out any more.
    pub(super) fn fail(&self, failure: &FabricError) {
        let mut state = self.state();
        state.failure = Some(failure.clone());
        state.order.clear();
        let State { pending, completed, .. } = &mut *state;
        let left = pending.iter_mut().filter_map(Option::take);
        completed.extend(left.map(|(number, lent)| (number, (lent, Err(failure.clone())))));
        drop(state);
        self.done.notify_all();
    }

    pub(super) fn panicked(&self) {
        self.state().panicked = true;
        self.done.notify_all();
    }
}
