//! A rank's communicators, made when first needed.

use std::collections::BTreeMap;

use shardloom_collectives::Reduction;
use shardloom_fabric::{Endpoint, Group as Communicator, Payload};
use shardloom_graph::Reduction as Partial;
use shardloom_kernels::Buffer;
use shardloom_program::{Action, Change, Exchange, Group, Instruction};

use crate::Result;
use crate::rank::{Contribution, Rank};

/// What travels between ranks.
pub(crate) struct Parcel(pub Buffer);

impl Payload for Parcel {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }
}

/// Communicators by group.
#[derive(Default)]
pub(crate) struct Communicators {
    made: BTreeMap<Group, Communicator>,
}

impl Communicators {
    /// Runs the collective of `instruction` among its group.
    pub fn exchange(
        &mut self,
        endpoint: &Endpoint<Parcel>,
        rank: &Rank,
        instruction: &Instruction,
        contribution: &mut Contribution,
    ) -> Result<()> {
        let class = rank.class();
        let Some(exchange) = rank.program().exchange(class, rank.position(), instruction) else {
            return Ok(());
        };
        let members = rank.program().members(rank.class_id(), rank.position(), &exchange.group);
        if members.len() <= 1 || exchange.elements == 0 {
            return Ok(());
        }
        let Exchange { kind, group, algorithm, .. } = exchange;
        let communicator = match self.made.entry(group) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let members: Vec<u32> = members.iter().map(|member| member.0).collect();
                new.insert(endpoint.group(&members)?)
            }
        };
        match contribution {
            Contribution::Scalar(number) => {
                let mut numbers = [*number];
                communicator.all_reduce_f64(&mut numbers, Reduction::Sum)?;
                *number = numbers[0];
            }
            Contribution::Reals(buffer) => {
                let (reduction, buffer) = (reduction(instruction), buffer.as_f32_mut());
                communicator.collective(kind, algorithm, reduction, buffer)?;
            }
        }
        Ok(())
    }
}

/// How the parts of an instruction's collective combine.
pub(super) fn reduction(instruction: &Instruction) -> Reduction {
    let partial = match &instruction.action {
        Action::Redistribute { change: Change::AllReduce(partial), .. } => *partial,
        Action::Redistribute { change: Change::ReduceScatter { reduction, .. }, .. } => *reduction,
        _ => Partial::Sum,
    };
    match partial {
        Partial::Sum => Reduction::Sum,
        Partial::Max => Reduction::Max,
    }
}
