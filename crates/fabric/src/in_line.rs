use std::collections::VecDeque;

use crate::{
    Collective, Completed, FabricError, Format, Group, Handle, Lent, ViewMut, view::Element,
};

/// What carries out the collectives of one member of a group, one at a time.
pub(crate) trait Communicator: Send {
    /// Ranks of the group, by position.
    fn members(&self) -> &[u32];

    /// The member's position.
    fn position(&self) -> usize;

    /// Carries a collective out on the member's buffer, in place.
    fn carry_out<T: Element>(
        &mut self,
        collective: Collective<'_>,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError>;

    /// Waits until all members have called it.
    fn barrier(&mut self) -> Result<(), FabricError>;
}

/// A group that carries collectives out as they are started.
pub(crate) struct InLine<B, C> {
    communicator: C,
    started: u64,
    /// What has not been waited for.
    completed: VecDeque<(u64, Completed<B>)>,
}

impl<B: Lent, C: Communicator> InLine<B, C> {
    pub(crate) fn new(communicator: C) -> Self {
        Self { communicator, started: 0, completed: VecDeque::with_capacity(1) }
    }

    fn carry_out(
        &mut self,
        collective: Collective<'_>,
        buffer: ViewMut<'_>,
    ) -> Result<(), FabricError> {
        let format = buffer.format();
        let own = &mut self.communicator;
        match buffer {
            ViewMut::F32(buffer) => own.carry_out(collective, format, buffer),
            ViewMut::F64(buffer) => own.carry_out(collective, format, buffer),
            ViewMut::Bf16(buffer) | ViewMut::F16(buffer) => {
                own.carry_out(collective, format, buffer)
            }
            ViewMut::U32(buffer) => own.carry_out(collective, format, buffer),
            ViewMut::U8(buffer) => own.carry_out(collective, format, buffer),
        }
    }

    fn find(&self, handle: &Handle) -> Option<usize> {
        self.completed.iter().position(|&(number, _)| number == handle.number())
    }
}

impl<B: Lent, C: Communicator> Group<B> for InLine<B, C> {
    fn members(&self) -> &[u32] {
        self.communicator.members()
    }

    fn position(&self) -> u32 {
        self.communicator.position() as u32
    }

    fn start(&mut self, collective: Collective<'_>, mut lent: B) -> Handle {
        let mut outcome = None;
        lent.lend(&mut |buffer| outcome = Some(self.carry_out(collective, buffer)));
        let outcome = outcome.expect("what is lent is worked on once");
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
