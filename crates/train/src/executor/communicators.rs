//! A rank's communicators, made when first needed.

use std::collections::HashMap;

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Endpoint, Group as Communicator, Payload};
use shardloom_graph::Reduction as Partial;
use shardloom_kernels::Buffer;
use shardloom_program::{Action, BodyId, Collective, Exchange, Group, Instruction};

use crate::Result;
use crate::rank::{Contribution, Rank};

/// What travels between ranks.
pub(crate) struct Parcel(pub Buffer);

impl Payload for Parcel {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }
}

/// A rank's communicators, and which of its instructions meet in which of them.
#[derive(Default)]
pub(crate) struct Communicators {
    made: Vec<(Group, Communicator)>,
    /// By instruction; none where there is nothing to exchange or nobody to exchange it with.
    meetings: HashMap<(BodyId, u32), Option<Meeting>>,
}

/// What an instruction does among others, which is the same each time.
#[derive(Clone, Copy)]
struct Meeting {
    /// Among those that are made.
    communicator: usize,
    kind: Kind,
    algorithm: Algorithm,
    reduction: Reduction,
}

impl Communicators {
    /// Runs the collective of `instruction`, which `rank` is at, among its group.
    pub fn exchange(
        &mut self,
        endpoint: &Endpoint<Parcel>,
        rank: &Rank,
        instruction: &Instruction,
        contribution: &mut Contribution,
    ) -> Result<()> {
        let meeting = match self.meetings.get(&rank.instruction()) {
            Some(known) => *known,
            None => {
                let meeting = self.meeting(endpoint, rank, instruction)?;
                self.meetings.insert(rank.instruction(), meeting);
                meeting
            }
        };
        let Some(Meeting { communicator, kind, algorithm, reduction }) = meeting else {
            return Ok(());
        };
        let (_, communicator) = &mut self.made[communicator];
        match contribution {
            Contribution::Scalar(number) => {
                let mut numbers = [*number];
                communicator.all_reduce_f64(&mut numbers, Reduction::Sum)?;
                *number = numbers[0];
            }
            Contribution::Reals(buffer, range) => {
                let values = &mut buffer.as_f32_mut()[range.clone()];
                communicator.collective(kind, algorithm, reduction, values)?;
            }
            Contribution::Rows(rows) => {
                let (sends, receives) = (rows.sends.clone(), rows.receives.clone());
                let (send, receive) = rows.parts();
                communicator.all_to_all_v(send, &sends, receive, &receives)?;
            }
        }
        Ok(())
    }

    fn meeting(
        &mut self,
        endpoint: &Endpoint<Parcel>,
        rank: &Rank,
        instruction: &Instruction,
    ) -> Result<Option<Meeting>> {
        let (program, class, position) = (rank.program(), rank.class(), rank.position());
        let Some(exchange) = program.exchange(class, position, instruction) else {
            return Ok(None);
        };
        let members = program.members(rank.class_id(), position, &exchange.group);
        if members.len() <= 1 || exchange.elements == 0 {
            return Ok(None);
        }
        let Exchange { kind, group, algorithm, .. } = exchange;
        let known = self.made.iter().position(|(known, _)| *known == group);
        let communicator = match known {
            Some(known) => known,
            None => {
                let members: Vec<u32> = members.iter().map(|member| member.0).collect();
                self.made.push((group, endpoint.group(&members)?));
                self.made.len() - 1
            }
        };
        let reduction = reduction(instruction);
        Ok(Some(Meeting { communicator, kind, algorithm, reduction }))
    }
}

/// How the parts of an instruction's collective combine.
pub(super) fn reduction(instruction: &Instruction) -> Reduction {
    let partial = match instruction.action {
        Action::Collective { kind: Collective::AllReduce(partial), .. } => partial,
        Action::Collective { kind: Collective::ReduceScatter { reduction, .. }, .. } => reduction,
        _ => Partial::Sum,
    };
    match partial {
        Partial::Sum => Reduction::Sum,
        Partial::Max => Reduction::Max,
    }
}
