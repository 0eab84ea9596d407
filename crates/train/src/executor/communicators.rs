//! A rank's communicators, made when first needed.

use std::collections::HashMap;

use shardloom_collectives::Reduction;
use shardloom_fabric::{Collective as Meeting, Endpoint, Group as Communicator, Handle};
use shardloom_graph::Reduction as Partial;
use shardloom_program::{Action, BodyId, Collective, Exchange, Group, Instruction};

use crate::Result;
use crate::rank::{Brought, Contribution, Rank};

/// A rank's communicators, and which of its instructions meet in which of them.
#[derive(Default)]
pub(crate) struct Communicators {
    made: Vec<(Group, Box<dyn Communicator<Contribution>>)>,
    /// By instruction; none where there is nothing to exchange or nobody to exchange it with. Else which
    /// of those that are made, and what it does there, which is the same each time.
    meetings: HashMap<(BodyId, u32), Option<(usize, Meeting<'static>)>>,
}

/// A collective that was started among a rank's group.
pub(crate) enum Started {
    /// Nobody takes part but the rank.
    Alone(Contribution),
    /// In which of those that are made.
    Together(usize, Handle),
}

impl Communicators {
    /// Runs the collective of `instruction`, which `rank` is at, among its group.
    pub fn exchange(
        &mut self,
        endpoint: &mut dyn Endpoint<Contribution>,
        rank: &Rank,
        instruction: &Instruction,
        contribution: Contribution,
    ) -> Result<Contribution> {
        let started = self.start(endpoint, rank, instruction, contribution)?;
        self.wait(started)
    }

    /// Starts the collective of `instruction`, which `rank` is at, among its group.
    pub fn start(
        &mut self,
        endpoint: &mut dyn Endpoint<Contribution>,
        rank: &Rank,
        instruction: &Instruction,
        contribution: Contribution,
    ) -> Result<Started> {
        let known = self.known(endpoint, rank, instruction)?;
        let Some((communicator, meeting)) = known else { return Ok(Started::Alone(contribution)) };
        let handle = self.begin(communicator, meeting, contribution);
        Ok(Started::Together(communicator, handle))
    }

    /// Starts what is brought into a communicator. Rows go by counts of their own each time.
    fn begin(
        &mut self,
        communicator: usize,
        meeting: Meeting<'_>,
        contribution: Contribution,
    ) -> Handle {
        let (_, communicator) = &mut self.made[communicator];
        match &contribution.part {
            Brought::Rows(rows) => {
                let (sent, received) = (rows.sent.clone(), rows.received.clone());
                let meeting = Meeting::AllToAllV { sent: &sent, received: &received };
                communicator.start(meeting, contribution)
            }
            Brought::Elements(..) | Brought::Scalar(_) => communicator.start(meeting, contribution),
        }
    }

    /// What a collective that was started came to, once it has ended.
    pub fn wait(&mut self, started: Started) -> Result<Contribution> {
        let (communicator, handle) = match started {
            Started::Alone(contribution) => return Ok(contribution),
            Started::Together(communicator, handle) => (communicator, handle),
        };
        let (contribution, outcome) = self.made[communicator].1.wait(handle);
        outcome?;
        Ok(contribution)
    }

    /// In which of those that are made `rank` takes part at `instruction`, and what it does there.
    fn known(
        &mut self,
        endpoint: &mut dyn Endpoint<Contribution>,
        rank: &Rank,
        instruction: &Instruction,
    ) -> Result<Option<(usize, Meeting<'static>)>> {
        let meeting = match self.meetings.get(&rank.instruction()) {
            Some(known) => *known,
            None => {
                let meeting = self.meeting(endpoint, rank, instruction)?;
                self.meetings.insert(rank.instruction(), meeting);
                meeting
            }
        };
        Ok(meeting)
    }

    fn meeting(
        &mut self,
        endpoint: &mut dyn Endpoint<Contribution>,
        rank: &Rank,
        instruction: &Instruction,
    ) -> Result<Option<(usize, Meeting<'static>)>> {
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
        Ok(Some((communicator, Meeting::Equal { kind, algorithm, reduction })))
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
