//! What a rank sends, and a class of them, exactly.

use shardloom_collectives::{Algorithm, Kind, Member, sent_elements, sent_elements_by_all};

use shardloom_plan::Axis;

use crate::{Action, Class, ClassId, Collective, Format, Group, Instruction, Program, View};

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

/// Why the counts of an exchange are there.
const EXISTS: &str = "the plan's validation and `exchanges` choose algorithms that exist";

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
        let kind = match kind {
            Collective::AllReduce(_) => Kind::AllReduce,
            Collective::ReduceScatter { .. } => Kind::ReduceScatter,
            Collective::AllToAll { .. } => Kind::AllToAll,
            Collective::AllGather { .. } => Kind::AllGather,
        };
        let whole = logical_buffer(instruction);
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
        self.bytes_of_runs(id, position, &self.runs_of_step(id))
    }

    /// Bytes that all ranks of class `id` together send in such a step.
    pub fn class_sent_bytes(&self, id: ClassId) -> u64 {
        self.class_bytes_of_runs(id, &self.runs_of_step(id))
    }

    /// How often ranks of class `id` run each of its bodies in a step in which all guards hold.
    fn runs_of_step(&self, id: ClassId) -> Vec<u64> {
        let class = self.class(id);
        let mut times = vec![0; class.bodies.len()];
        let held = class.guards().flat_map(|guard| &guard.then);
        class.unguarded().chain(held).for_each(|entry| times[entry.body.0 as usize] += 1);
        times
    }

    /// Bytes that `position` of class `id` sends where it runs each of its bodies so many times.
    pub fn bytes_of_runs(&self, id: ClassId, position: usize, times: &[u64]) -> u64 {
        self.over_runs(id, times, |it| self.instruction_sent_bytes(id, position, it))
    }

    /// Bytes that all ranks of class `id` together send where each runs its bodies so many times.
    pub fn class_bytes_of_runs(&self, id: ClassId, times: &[u64]) -> u64 {
        self.over_runs(id, times, |it| self.instruction_class_sent_bytes(id, it))
    }

    fn over_runs(&self, id: ClassId, times: &[u64], bytes: impl Fn(&Instruction) -> u64) -> u64 {
        let bodies = self.class(id).bodies.iter().zip(times).filter(|(_, times)| **times > 0);
        bodies.map(|(body, times)| times * body.instructions.iter().map(&bytes).sum::<u64>()).sum()
    }

    /// Bytes that all ranks of class `id` together send in one run of `instruction` by each.
    fn instruction_class_sent_bytes(&self, id: ClassId, instruction: &Instruction) -> u64 {
        let class = self.class(id);
        let positions = 0..class.mesh.size();
        match &instruction.action {
            Action::Send { route } => {
                let route = self.route(*route);
                route.messages.iter().map(|it| route.message_bytes(it)).sum()
            }
            Action::Collective { group: Group::Mesh(axes), .. } => {
                let exchange = |position: usize| {
                    self.exchange(class, position, instruction).expect("it is a collective")
                };
                let sent = |position| self.group_sent_bytes(class, axes, &exchange(position));
                match class.differs(logical_buffer(instruction)) {
                    true => firsts(class, axes).map(sent).sum(),
                    false => groups(class, axes) * sent(0),
                }
            }
            Action::Collective { .. } | Action::Fetch { .. } => positions
                .map(|position| self.instruction_sent_bytes(id, position, instruction))
                .sum(),
            _ => 0,
        }
    }

    /// Bytes that the members of a group of `class` along `axes` together send in an exchange.
    fn group_sent_bytes(&self, class: &Class, axes: &[Axis], exchange: &Exchange) -> u64 {
        let Exchange { kind, algorithm, elements, element_bytes, .. } = *exchange;
        let members = class.mesh.span(axes) as u32;
        let sent = sent_elements_by_all(kind, algorithm, members, elements);
        (sent.expect(EXISTS) * element_bytes) as u64
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

    /// Bytes of that which all ranks of class `id` together send, in a cycle of each of its groups.
    pub fn class_told_bytes(&self, id: ClassId, communicator: u16) -> u64 {
        let class = self.class(id);
        let all = self.told(class, communicator).map(|exchange| match &exchange.group {
            Group::Mesh(axes) => {
                groups(class, axes) * self.group_sent_bytes(class, axes, &exchange)
            }
            Group::Classes(_) | Group::World => (0..class.mesh.size())
                .map(|position| self.exchange_sent_bytes(id, position, &exchange))
                .sum(),
        });
        all.into_iter().sum()
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
        let Exchange { kind, algorithm, elements, element_bytes, .. } = *exchange;
        let member = Member(member as u32);
        let sent = sent_elements(kind, algorithm, members as u32, elements, member);
        (sent.expect(EXISTS) * element_bytes) as u64
    }
}

/// The buffer that a collective is of: what is shared out is whole before, and what is joined afterwards.
fn logical_buffer(instruction: &Instruction) -> View {
    match instruction.action {
        Action::Collective { kind: Collective::AllGather { .. }, .. } => instruction.writes[0].to,
        _ => instruction.reads[0],
    }
}

/// How many groups of `class` there are along `axes`.
fn groups(class: &Class, axes: &[Axis]) -> u64 {
    (class.mesh.size() / class.mesh.span(axes)) as u64
}

/// The first members of all groups of `class` along `axes`.
fn firsts<'a>(class: &'a Class, axes: &'a [Axis]) -> impl Iterator<Item = usize> + 'a {
    (0..class.mesh.size())
        .filter(|&position| axes.iter().all(|&axis| class.mesh.coordinate(position, axis) == 0))
}
