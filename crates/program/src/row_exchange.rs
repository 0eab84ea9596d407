//! Who sends which rows to whom, where rows go to their experts or come back.

use shardloom_graph::ValueId;

use crate::{Action, Class, Group, Instruction, Placement};

/// An exchange of rows, as one member of its group takes part in it.
#[derive(Clone, Debug, PartialEq)]
pub struct RowExchange {
    /// What counts the rows.
    pub counts: ValueId,
    /// By sender and receiver, in the order of the group: which experts' and samples' rows go.
    pub moves: Vec<Vec<Option<Placement>>>,
    /// This member.
    pub own: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Elements of a row.
    pub row_elements: usize,
}

impl Class {
    /// The exchange of rows that `position` takes part in when it runs `instruction`, if it is one.
    pub fn row_exchange(&self, position: usize, instruction: &Instruction) -> Option<RowExchange> {
        let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action else {
            return None;
        };
        if !instruction.moves_rows(self) {
            return None;
        }
        let (read, write) = (instruction.reads[0].tensor, instruction.writes[0].to.tensor);
        let (counts, _) = self.counted(read, position)?;
        let members = self.mesh.members_along(position, axes);
        let between = |from: usize, to: usize| {
            let (_, before) = self.counted(read, from)?;
            let (_, after) = self.counted(write, to)?;
            before.intersection(&after)
        };
        let moves = members
            .iter()
            .map(|&from| members.iter().map(|&to| between(from, to)).collect::<Vec<_>>());
        let tensor = self.tensor(read);
        let row_elements = tensor.local_shape().last().copied().unwrap_or(1);
        Some(RowExchange {
            counts,
            moves: moves.collect(),
            own: self.mesh.index_along(position, axes),
            row_bytes: row_elements * tensor.format.bytes(),
            row_elements,
        })
    }
}

impl RowExchange {
    /// Bytes that this member sends to others, where `rows` says how many rows some experts have of some
    /// samples.
    pub fn sent_bytes(&self, rows: impl Fn(&Placement) -> f64) -> u64 {
        let sent = self.moves[self.own].iter().enumerate().filter(|&(to, _)| to != self.own);
        let rows: f64 = sent.filter_map(|(_, moved)| moved.as_ref()).map(rows).sum();
        (rows * self.row_bytes as f64).round() as u64
    }

    /// The most rows that a member sends to others or receives from them.
    pub fn busiest(&self, rows: impl Fn(&Placement) -> f64) -> f64 {
        let count = |from: usize, to: usize| match &self.moves[from][to] {
            Some(moved) if from != to => rows(moved),
            _ => 0.0,
        };
        let members = 0..self.moves.len();
        let of = |member: usize| {
            let sent: f64 = members.clone().map(|other| count(member, other)).sum();
            let received: f64 = members.clone().map(|other| count(other, member)).sum();
            sent.max(received)
        };
        members.clone().map(of).fold(0.0, f64::max)
    }
}
