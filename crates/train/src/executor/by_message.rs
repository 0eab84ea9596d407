//! Collectives of elements that groups of the fabric do not move, those of 16 bits: carried out over messages
//! between ranks, step by step of the algorithm's list, as groups do with fp32.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use shardloom_collectives::{Algorithm, Combine, Kind, Member, Reduction, StepList, plan};
use shardloom_fabric::Endpoint;
use shardloom_kernels::{Combine as How, Device, Memory, ViewMut};

use super::communicators::Parcel;
use crate::Result;

/// The tag of these messages, which no route has. Ranks that are in several groups together come to their
/// collectives in the same order.
const TAG: u64 = u64::MAX;

/// The most messages that a step of a list has from one member to another: of two trees at once.
pub(super) const MOST_IN_A_STEP: usize = 2;

/// What one rank's collectives need.
pub(super) struct ByMessage {
    /// What messages are sent in; a buffer comes back when its receiver drops it.
    memory: Memory,
    lists: HashMap<(Kind, Algorithm, usize, usize), Arc<StepList>>,
}

/// The ranks of a group, and which of them this one is.
#[derive(Clone, Copy)]
pub(super) struct Among<'a> {
    pub members: &'a [u32],
    pub position: u32,
}

impl ByMessage {
    /// Collectives on a device.
    pub fn new(device: &Arc<dyn Device>) -> ByMessage {
        ByMessage { memory: Memory::new(Arc::clone(device)), lists: HashMap::new() }
    }

    /// Carries a collective out on this rank's elements, in place. Sums are formed in the order of the
    /// list, in the arithmetic of [`Device::combine`].
    ///
    /// # Errors
    /// If communication fails.
    pub fn run(
        &mut self,
        endpoint: &Endpoint<Parcel>,
        among: Among<'_>,
        (kind, algorithm): (Kind, Algorithm),
        reduction: Reduction,
        mut elements: ViewMut<'_>,
    ) -> Result<()> {
        let Among { members, position } = among;
        let list = self.list(kind, algorithm, members.len(), elements.len());
        let (own, device) = (Member(position), self.memory.device());
        let how = match reduction {
            Reduction::Sum => How::Sum,
            Reduction::Max => How::Max,
        };
        for step in &list.steps {
            // Every transfer reads the state from before the step, those to oneself too.
            let mut local = VecDeque::new();
            for transfer in step.iter().filter(|transfer| transfer.from == own) {
                let mut message = self.memory.alloc(elements.format(), transfer.source.len());
                let source = elements.as_view().slice(transfer.source.clone());
                device.copy(source, message.view_mut());
                match transfer.to == own {
                    true => local.push_back(message),
                    false => {
                        let to = members[transfer.to.0 as usize];
                        endpoint.send(to, TAG, Parcel(message))?;
                    }
                }
            }
            for transfer in step.iter().filter(|transfer| transfer.to == own) {
                let message = match transfer.from == own {
                    true => local.pop_front().expect("it was sent in this step"),
                    false => endpoint.receive(members[transfer.from.0 as usize], TAG)?.0,
                };
                let range = transfer.target..transfer.target + message.len();
                let target = elements.reborrow().slice(range);
                match transfer.combine {
                    Combine::Overwrite => device.copy(message.view(), target),
                    Combine::Reduce => device.combine(target, message.view(), how),
                }
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        members: usize,
        elements: usize,
    ) -> Arc<StepList> {
        let list = || {
            plan(kind, algorithm, members as u32, elements)
                .expect("the plan's validation and `exchange` choose algorithms that exist")
        };
        let key = (kind, algorithm, members, elements);
        Arc::clone(self.lists.entry(key).or_insert_with(|| Arc::new(list())))
    }
}
