use std::collections::VecDeque;

use super::communicator::Communicator;
use crate::{Collective, Completed, FabricError, Group, Handle, Lent};

/// A group that carries collectives out as they are started.
pub(super) struct InLine<B> {
    communicator: Communicator,
    started: u64,
    /// What has not been waited for.
    completed: VecDeque<(u64, Completed<B>)>,
}

impl<B: Lent> InLine<B> {
    pub(super) fn new(communicator: Communicator) -> Self {
        Self { communicator, started: 0, completed: VecDeque::with_capacity(1) }
    }

    fn find(&self, handle: &Handle) -> Option<usize> {
        self.completed.iter().position(|&(number, _)| number == handle.number())
    }
}

impl<B: Lent> Group<B> for InLine<B> {
    fn members(&self) -> &[u32] {
        self.communicator.members()
    }

    fn position(&self) -> u32 {
        self.communicator.position()
    }

    fn start(&mut self, collective: Collective<'_>, mut lent: B) -> Handle {
        let outcome = self.communicator.carry_out(collective, &mut lent);
        let number = self.started;
        self.started += 1;
        self.completed.push_back((number, (lent, outcome)));
        Handle::new(number)
    }

    fn test(&mut self, handle: &Handle) -> bool {
        self.find(handle).is_some()
    }

    fn wait(&mut self, handle: Handle) -> Completed<B> {
        let found = self.find(&handle).and_then(|found| self.completed.remove(found));
        found.expect("a handle is waited for once, with the group that gave it").1
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.communicator.barrier()
    }
}
