//! A rank's communicators, made with the rank.

use shardloom_collectives::Reduction;
use shardloom_fabric::{Collective as Meeting, Endpoint, Group as Communicator, Handle};
use shardloom_graph::Reduction as Partial;
use shardloom_program::{Action, Collective as Kind, Exchange, Group, Instruction};

use crate::Result;
use crate::rank::{Brought, Collective, Contribution, Rank};

/// A rank's communicators, and which of its instructions meet in which of them.
pub(crate) struct Communicators {
    made: Vec<Box<dyn Communicator<Contribution>>>,
    /// By the number of a collective; none where there is nothing to exchange or nobody to exchange it with.
    /// Else which of those that are made, and what the rank does there.
    meetings: Vec<Option<(usize, Meeting<'static>)>>,
}

/// A collective that was started among a rank's group.
#[expect(clippy::large_enum_variant, reason = "in a box it would ask the heap each time")]
pub(crate) enum Started {
    /// Nobody takes part but the rank.
    Alone(Contribution),
    /// In which of those that are made.
    Together(usize, Handle),
}

impl Communicators {
    /// Those of `rank`.
    ///
    /// # Errors
    /// If communication fails.
    pub fn new(endpoint: &mut dyn Endpoint<Contribution>, rank: &Rank) -> Result<Communicators> {
        let (program, class, position) = (rank.program(), rank.class(), rank.position());
        let met = rank.collectives().map(|instruction| {
            let exchange = program.exchange(class, position, instruction)?;
            let members = program.members(rank.class_id(), position, &exchange.group).len();
            (members > 1 && exchange.elements > 0).then_some((instruction, exchange))
        });
        let met: Vec<Option<(&Instruction, Exchange)>> = met.collect();
        // Two groups may have the same members, who all have to make them in the same order.
        let groups = met.iter().flatten().map(|(_, exchange)| &exchange.group);
        let mut groups: Vec<&Group> = groups.collect();
        groups.sort_unstable();
        groups.dedup();
        let make = |group: &&Group| {
            let members = program.members(rank.class_id(), position, group);
            let members: Vec<u32> = members.iter().map(|member| member.0).collect();
            Ok(endpoint.group(&members)?)
        };
        let made = groups.iter().map(make).collect::<Result<_>>()?;
        let meeting = |(instruction, exchange): &(&Instruction, Exchange)| {
            let Exchange { kind, ref group, algorithm, .. } = *exchange;
            let made = groups.binary_search(&group).expect("all groups are made");
            (made, Meeting::Equal { kind, algorithm, reduction: reduction(instruction) })
        };
        let meetings = met.iter().map(|met| met.as_ref().map(meeting)).collect();
        Ok(Communicators { made, meetings })
    }

    /// Starts a rank's part in a collective.
    pub fn start(&mut self, collective: &Collective, contribution: Contribution) -> Started {
        let Some((communicator, meeting)) = self.meetings[collective.number] else {
            return Started::Alone(contribution);
        };
        let group = &mut self.made[communicator];
        let handle = match &contribution.part {
            // Rows go by counts of their own each time.
            Brought::Rows(rows) => {
                let (sent, received) = (rows.sent.clone(), rows.received.clone());
                let meeting = Meeting::AllToAllV { sent: &sent, received: &received };
                group.start(meeting, contribution)
            }
            Brought::Elements(..) | Brought::Scalar(_) => group.start(meeting, contribution),
        };
        Started::Together(communicator, handle)
    }

    /// What a collective that was started came to, once it has ended.
    pub fn wait(&mut self, started: Started) -> Result<Contribution> {
        let (communicator, handle) = match started {
            Started::Alone(contribution) => return Ok(contribution),
            Started::Together(communicator, handle) => (communicator, handle),
        };
        let (contribution, outcome) = self.made[communicator].wait(handle);
        outcome?;
        Ok(contribution)
    }
}

/// How the parts of an instruction's collective combine.
pub(super) fn reduction(instruction: &Instruction) -> Reduction {
    let partial = match instruction.action {
        Action::Collective { kind: Kind::AllReduce(partial), .. } => partial,
        Action::Collective { kind: Kind::ReduceScatter { reduction, .. }, .. } => reduction,
        _ => Partial::Sum,
    };
    match partial {
        Partial::Sum => Reduction::Sum,
        Partial::Max => Reduction::Max,
    }
}
