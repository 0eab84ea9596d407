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
    ///
    /// # Errors
    /// The first that `rows` gives.
    pub fn sent_bytes<E>(&self, rows: impl Fn(&Placement) -> Result<f64, E>) -> Result<u64, E> {
        let sent = self.moves[self.own].iter().enumerate().filter(|&(to, _)| to != self.own);
        let sent = sent.filter_map(|(_, moved)| moved.as_ref()).map(rows);
        let rows = sent.sum::<Result<f64, E>>()?;
        Ok((rows * self.row_bytes as f64).round() as u64)
    }

    /// The most rows that a member sends to others or receives from them, where `rows` says how many rows
    /// some experts have of some samples.
    ///
    /// # Errors
    /// The first that `rows` gives.
    pub fn busiest<E>(&self, rows: impl Fn(&Placement) -> Result<f64, E>) -> Result<f64, E> {
        let members = self.moves.len();
        let (mut sent, mut received) = (vec![0.0; members], vec![0.0; members]);
        for (from, moves) in self.moves.iter().enumerate() {
            for (to, moved) in moves.iter().enumerate() {
                if let (Some(moved), true) = (moved, from != to) {
                    let rows = rows(moved)?;
                    sent[from] += rows;
                    received[to] += rows;
                }
            }
        }
        Ok(sent.into_iter().chain(received).fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use shardloom_graph::ModelSpec;

    use super::RowExchange;
    use crate::Placement;

    /// An exchange in which member `i` sends the rows of expert `j` of sample `i` to member `j`.
    fn exchange(members: usize) -> RowExchange {
        let placement = |from, to| Placement { start: vec![to, from], extent: vec![1, 1] };
        let moves = |from| (0..members).map(|to| Some(placement(from, to))).collect();
        let graph = ModelSpec::parse("mlp:inputs=2,hidden=3,layers=1,classes=2")
            .and_then(|spec| spec.graph());
        RowExchange {
            // Whatever counts them.
            counts: graph.expect("a valid model").loss(),
            moves: (0..members).map(moves).collect(),
            own: 1,
            row_bytes: 8,
            row_elements: 2,
        }
    }

    #[test]
    fn the_busiest_member_may_be_a_sender_or_a_receiver() {
        let sent = [[9, 1, 2], [0, 9, 4], [0, 0, 9]];
        let exchange = exchange(3);
        let rows = |of: &Placement| Ok::<_, Infallible>(f64::from(sent[of.start[1]][of.start[0]]));
        // Member 2 receives 2 and 4; nobody sends more than 4.
        assert_eq!(exchange.busiest(rows), Ok(6.0));
        assert_eq!(exchange.sent_bytes(rows), Ok(4 * 8));
        let back = |of: &Placement| Ok::<_, Infallible>(f64::from(sent[of.start[0]][of.start[1]]));
        assert_eq!(exchange.busiest(back), Ok(6.0));
        assert_eq!(exchange.sent_bytes(back), Ok(8));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let unknown = |of: &Placement| match of.start.as_slice() {
            [2, 1] => Err("unknown"),
            _ => Ok(1.0),
        };
        assert_eq!(exchange(3).busiest(unknown), Err("unknown"));
        assert_eq!(exchange(3).sent_bytes(unknown), Err("unknown"));
    }
}
