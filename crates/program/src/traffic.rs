//! What a rank sends, exactly.

use shardloom_collectives::{Algorithm, Kind, Member, bytes_sent_per_member, plan};

use crate::{Action, Class, ClassId, Collective, Format, Group, Instruction, Program};

/// A collective as the fabric sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What must hold afterwards.
    pub kind: Kind,
    /// Over whom.
    pub group: Group,
    /// Elements of the logical buffer that every member holds.
    pub elements: usize,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// The algorithm.
    pub algorithm: Algorithm,
}

/// Up to this many members byte counts come from the step list itself, which is exact for sizes that
/// do not divide; beyond, from the closed form.
const LISTED: usize = 64;

impl Program {
    /// The collective that `position` of `class` takes part in when it runs `instruction`.
    pub fn exchange(
        &self,
        class: &Class,
        position: usize,
        instruction: &Instruction,
    ) -> Option<Exchange> {
        let Action::Collective { kind, group, algorithm } = &instruction.action else {
            return None;
        };
        // What is shared out is whole before, and what is joined is whole afterwards.
        let (kind, whole) = match kind {
            Collective::AllReduce(_) => (Kind::AllReduce, instruction.reads[0]),
            Collective::ReduceScatter { .. } => (Kind::ReduceScatter, instruction.reads[0]),
            Collective::AllToAll { .. } => (Kind::AllToAll, instruction.reads[0]),
            Collective::AllGather { .. } => (Kind::AllGather, instruction.writes[0].to),
        };
        Some(Exchange {
            kind,
            group: group.clone(),
            elements: class.view_range(whole, position).len(),
            element_bytes: class.tensor(whole.tensor).format.bytes(),
            algorithm: *algorithm,
        })
    }

    /// Bytes that `position` of class `id` sends in a step in which all guards hold; the most, where it sends as
    /// many rows as turn out while running.
    pub fn sent_bytes(&self, id: ClassId, position: usize) -> u64 {
        let class = self.class(id);
        let mut times = vec![0; class.bodies.len()];
        let held = class.guards().flat_map(|guard| &guard.then);
        class.unguarded().chain(held).for_each(|entry| times[entry.body.0 as usize] += 1);
        self.bytes_of_runs(id, position, &times)
    }

    /// Bytes that `position` of class `id` sends where it runs each of its bodies so many times.
    pub fn bytes_of_runs(&self, id: ClassId, position: usize, times: &[u64]) -> u64 {
        let bytes = |instruction| self.instruction_sent_bytes(id, position, instruction);
        let bodies = self.class(id).bodies.iter().zip(times).filter(|(_, times)| **times > 0);
        bodies.map(|(body, times)| times * body.instructions.iter().map(bytes).sum::<u64>()).sum()
    }

    /// Bytes that `position` of class `id` sends in one run of `instruction`. What it fetches counts for it, as the
    /// other rank takes no part.
    pub fn instruction_sent_bytes(
        &self,
        id: ClassId,
        position: usize,
        instruction: &Instruction,
    ) -> u64 {
        if let Action::Send { route } = instruction.action {
            let route = self.route(route);
            return route.sent_by(position).map(|it| route.message_bytes(it)).sum();
        }
        let class = self.class(id);
        if let Action::Fetch { .. } = instruction.action {
            let fetched = instruction.writes.iter().map(|it| class.view_bytes(it.to, position));
            return fetched.sum();
        }
        match self.exchange(class, position, instruction) {
            Some(exchange) => self.exchange_sent_bytes(id, position, &exchange),
            None => 0,
        }
    }

    /// What the members of a negotiated communicator tell each other in a cycle, one after the other: which
    /// requests they have made goes to the first of them, and its answer to all.
    pub fn told(&self, class: &Class, communicator: u16) -> [Exchange; 2] {
        let root = Member(0);
        [Kind::Reduce { root }, Kind::Broadcast { root }].map(|kind| Exchange {
            kind,
            group: class.communicators[usize::from(communicator)].clone(),
            elements: class.requests(communicator).len(),
            element_bytes: Format::U32.bytes(),
            algorithm: Algorithm::Direct,
        })
    }

    /// Bytes of that which `position` of class `id` sends in a cycle.
    pub fn told_bytes(&self, id: ClassId, position: usize, communicator: u16) -> u64 {
        let told = self.told(self.class(id), communicator);
        told.iter().map(|exchange| self.exchange_sent_bytes(id, position, exchange)).sum()
    }

    /// Bytes that `position` of class `id` sends in an exchange.
    pub fn exchange_sent_bytes(&self, id: ClassId, position: usize, exchange: &Exchange) -> u64 {
        let class = self.class(id);
        let members = exchange.group.size(&class.mesh, self.ranks());
        let member = match &exchange.group {
            Group::Mesh(axes) => class.mesh.index_along(position, axes),
            Group::Classes(classes) => classes.iter().position(|&each| each == id).unwrap_or(0),
            Group::World => class.first_rank.0 as usize + position,
        };
        if members <= 1 || exchange.elements == 0 {
            return 0;
        }
        let Exchange { kind, algorithm, elements, element_bytes, .. } = *exchange;
        let impossible = "the plan's validation and `exchanges` choose algorithms that exist";
        if members <= LISTED {
            let list = plan(kind, algorithm, members as u32, elements).expect(impossible);
            (list.sent_elements(Member(member as u32)) * element_bytes) as u64
        } else {
            let bytes = (elements * element_bytes) as f64;
            bytes_sent_per_member(kind, algorithm, members as u32, bytes).expect(impossible).round()
                as u64
        }
    }
}
