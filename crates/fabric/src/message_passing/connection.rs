use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use super::{frame::MemberId, send_queue::SendQueue, signal::Signal, window::WindowState};
use crate::{
    Call, Contents, FabricError, Message, Reduce, Settings, channel::Channel,
    message_passing::pool::Credits,
};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the ranks of one connection that live in this process have been sent.
pub(super) struct Connection {
    /// The n-th of its process.
    pub number: u32,
    pub ranks: u32,
    /// The ranks that live here, ascending.
    pub own: Box<[u32]>,
    /// By rank: the process that it lives in.
    processes: Box<[u32]>,
    pub timeout: Duration,
    pub arithmetic: Arc<dyn Reduce>,
    /// By rank, why it is gone.
    gone: Box<[OnceLock<String>]>,
    /// Whether every rank of this process may have a core for itself.
    pub has_cores: bool,
    /// In the order of [`Self::own`].
    own_ranks: Box<[OwnRank]>,
    groups: Mutex<HashMap<MemberId, Arc<Mutex<GroupState>>>>,
    /// What ranks of this process send by priority: they share its links, as a worker and a server do.
    send_queue: Mutex<SendQueue>,
}

/// What one rank of this process has been sent, but for collectives.
struct OwnRank {
    /// What it has been sent, by sender.
    messages: Box<[Channel<Message>]>,
    /// By pool of the rank.
    pools: Mutex<Vec<Arc<Credits>>>,
    window: WindowState,
    signal: Signal,
}

/// What one member of a group has been sent.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    /// By member: collectives that it called and this one has not.
    pub called: HashMap<u32, VecDeque<Call>>,
    /// By member: what it sent.
    pub parts: HashMap<u32, VecDeque<Contents>>,
    pub broken: Option<FabricError>,
}

impl GroupState {
    /// Breaks the group with this error, if it was whole; the error that did.
    pub fn break_off(&mut self, error: FabricError) -> FabricError {
        self.broken.get_or_insert(error).clone()
    }
}

impl Connection {
    /// With the process of each rank, as this one sees it.
    pub fn new(number: u32, processes: &[u32], process: u32, settings: &Settings) -> Self {
        let ranks = processes.len() as u32;
        let own = (0..ranks).filter(|&rank| processes[rank as usize] == process);
        let own: Box<[u32]> = own.collect();
        let state = |_: &u32| OwnRank {
            messages: (0..ranks).map(|_| Channel::new()).collect(),
            pools: Mutex::default(),
            window: WindowState::default(),
            signal: Signal::default(),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            number,
            ranks,
            timeout: settings.timeout,
            arithmetic: Arc::clone(&settings.arithmetic),
            gone: (0..ranks).map(|_| OnceLock::new()).collect(),
            own_ranks: own.iter().map(state).collect(),
            has_cores: own.len() <= cores,
            own,
            processes: processes.into(),
            groups: Mutex::default(),
            send_queue: Mutex::default(),
        }
    }

    /// The process that a rank lives in.
    pub fn process_of(&self, rank: u32) -> u32 {
        self.processes[rank as usize]
    }

    /// Why a rank is gone, if it is.
    pub fn gone(&self, rank: u32) -> Option<&str> {
        self.gone[rank as usize].get().map(String::as_str)
    }

    /// Notes that a rank is gone; the first reason stays.
    pub fn leave(&self, rank: u32, reason: String) {
        // A later reason is of no interest.
        let _ = self.gone[rank as usize].set(reason);
    }

    fn state(&self, rank: u32) -> &OwnRank {
        let place = self.own.binary_search(&rank);
        &self.own_ranks[place.expect("what is for a rank comes to its process")]
    }

    /// What one rank has sent another, which lives here.
    pub fn messages(&self, from: u32, to: u32) -> &Channel<Message> {
        &self.state(to).messages[from as usize]
    }

    /// The pools of a rank that lives here.
    pub fn pools(&self, rank: u32) -> MutexGuard<'_, Vec<Arc<Credits>>> {
        lock(&self.state(rank).pools)
    }

    /// What a rank that lives here publishes, and what it has been sent of what others do.
    pub fn window(&self, rank: u32) -> &WindowState {
        &self.state(rank).window
    }

    /// Where a rank that lives here sleeps until something has come for it.
    pub fn signal(&self, rank: u32) -> &Signal {
        &self.state(rank).signal
    }

    /// Something has come for all ranks that live here.
    pub fn raise_all(&self) {
        self.own_ranks.iter().for_each(|it| it.signal.raise());
    }

    /// What ranks that live here send by priority.
    pub fn send_queue(&self) -> MutexGuard<'_, SendQueue> {
        lock(&self.send_queue)
    }

    /// What a member that lives here has been sent, before it builds the group or after.
    pub fn group(&self, at: MemberId) -> Arc<Mutex<GroupState>> {
        Arc::clone(lock(&self.groups).entry(at).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::GroupState;
    use crate::FabricError;

    #[test]
    fn a_group_stays_broken_by_what_broke_it_first() {
        let [first, second] = [1, 2].map(|rank| FabricError::NoSuchRank { rank, ranks: 1 });
        let mut state = GroupState::default();
        assert_eq!(state.break_off(first.clone()), first);
        assert_eq!(state.break_off(second), first);
        assert_eq!(state.broken, Some(first));
    }
}
