use std::ops::Range;

use shardloom_collectives::{Combine, Member, Reduction, StepList};

use super::{
    Exchange,
    stock::{Stock, stock},
};
use crate::{FabricError, Format, Reduce, view::Element};

/// One member's part of a step list.
#[derive(Debug)]
pub(crate) struct Script {
    steps: Vec<OwnStep>,
    /// What the messages to each member are sent in.
    needed: Vec<(usize, Stock)>,
    /// Elements this member sends to others.
    pub(crate) sent_elements: usize,
}

/// What a member does in one step.
#[derive(Debug, Default)]
struct OwnStep {
    sends: Vec<Send>,
    receives: Vec<Receive>,
}

#[derive(Debug)]
struct Send {
    to: usize,
    source: Range<usize>,
}

#[derive(Debug)]
struct Receive {
    from: usize,
    target: Range<usize>,
    combine: Combine,
}

impl Script {
    /// The part of `position`, without what messages are sent in: for members that send none, or have no
    /// stock.
    pub(crate) fn new(list: &StepList, position: usize) -> Self {
        let own = Member(position as u32);
        let steps = list.steps.iter().map(|step| {
            let mut own_step = OwnStep::default();
            for transfer in step {
                if transfer.from == own {
                    let to = transfer.to.0 as usize;
                    own_step.sends.push(Send { to, source: transfer.source.clone() });
                }
                if transfer.to == own {
                    let target = transfer.target..transfer.target + transfer.source.len();
                    let from = transfer.from.0 as usize;
                    own_step.receives.push(Receive { from, target, combine: transfer.combine });
                }
            }
            own_step
        });
        Self { steps: steps.collect(), needed: vec![], sent_elements: list.sent_elements(own) }
    }

    /// The part of `position`, to be [followed](Script::follow).
    pub(crate) fn for_messages(list: &StepList, position: usize, element_bytes: usize) -> Self {
        let needed = stock(list, Member(position as u32), element_bytes).into_iter().collect();
        Self { needed, ..Self::new(list, position) }
    }

    /// Carries the script out over messages, once all members are through with what they did before.
    /// `stocked` says what there is to send messages in, by receiver.
    ///
    /// All sends of a step are copied out before any of its receives is applied, local
    /// contributions included: they are messages to oneself. So every transfer reads
    /// the state from before the step, and receives are combined in the list's order.
    pub(crate) fn follow<T: Element>(
        &self,
        members: &impl Exchange,
        stocked: &mut [Stock],
        (arithmetic, reduction): (&dyn Reduce, Reduction),
        (format, buffer): (Format, &mut [T]),
    ) -> Result<(), FabricError> {
        for &(to, needed) in &self.needed {
            members.stock(to, needed, stocked);
        }
        for own_step in &self.steps {
            for send in &own_step.sends {
                members.send(send.to, &buffer[send.source.clone()]);
            }
            for receive in &own_step.receives {
                let message = members.receive(receive.from)?;
                let target = &mut buffer[receive.target.clone()];
                let part = message.elements();
                match receive.combine {
                    Combine::Overwrite => target.copy_from_slice(part),
                    Combine::Reduce => {
                        let (into, part) = (T::view_mut(format, target), T::view(format, part));
                        arithmetic.reduce(reduction, into, part);
                    }
                }
                members.give_back(receive.from, message);
            }
        }
        Ok(())
    }
}
