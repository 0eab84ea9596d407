//! What a rank sends, exactly.

use shardloom_collectives::{Algorithm, Kind, Member, bytes_sent_per_member, plan};

use crate::{
    Action, BucketId, Change, Class, ClassId, Group, Instruction, Operand, Program, StreamItem,
    WeightParam,
};

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
        let exchange = |kind, group: Group, elements, element_bytes| Exchange {
            kind,
            group,
            elements,
            element_bytes,
            algorithm: self.algorithm,
        };
        // Few bytes or any layout: straight from all to all.
        let direct = |mut exchange: Exchange| {
            exchange.algorithm = Algorithm::Direct;
            exchange
        };
        let whole = |operand: Operand| class.shape(operand).iter().product::<usize>();
        match &instruction.action {
            Action::Redistribute { change, axis } => {
                let group = Group::Mesh(vec![*axis]);
                let (read, written) = (instruction.reads[0], instruction.writes[0].to);
                let bytes = match read {
                    Operand::Slot(slot) => {
                        class.slot(slot).dtype.bytes(self.precision.compute.bytes())
                    }
                    _ => self.precision.compute.bytes(),
                };
                let scatters = [Kind::ReduceScatter, Kind::AllGather]
                    .iter()
                    .all(|kind| kind.has(self.algorithm));
                let scattering = |exchange| if scatters { exchange } else { direct(exchange) };
                match change {
                    Change::Slice { .. } => None,
                    Change::AllReduce(_) => {
                        Some(exchange(Kind::AllReduce, group, whole(read), bytes))
                    }
                    Change::ReduceScatter { .. } => {
                        Some(scattering(exchange(Kind::ReduceScatter, group, whole(read), bytes)))
                    }
                    Change::AllGather { .. } => {
                        Some(scattering(exchange(Kind::AllGather, group, whole(written), bytes)))
                    }
                    Change::AllToAll { .. } => {
                        Some(direct(exchange(Kind::AllToAll, group, whole(read), bytes)))
                    }
                }
            }
            Action::Gather { bucket } => {
                let bucket = class.bucket(*bucket);
                let group = Group::Mesh(bucket.replicas.clone());
                let bytes = self.precision.compute.bytes();
                Some(exchange(Kind::AllGather, group, bucket.elements, bytes))
            }
            Action::Reduce { bucket, group, scatter } => {
                let bucket = class.bucket(*bucket);
                let bytes = self.precision.gradients.bytes();
                let kind = if *scatter { Kind::ReduceScatter } else { Kind::AllReduce };
                // Tied weights are added up after scattering: only the shard is left to add.
                let sharded = matches!(group, Group::Homes(_))
                    && self.shard.state()
                    && class.replicated(bucket);
                let elements = match sharded {
                    true => class.shard_range(bucket, position).len(),
                    false => bucket.elements,
                };
                Some(exchange(kind, group.clone(), elements, bytes))
            }
            Action::Norm { group } => Some(direct(exchange(Kind::AllReduce, group.clone(), 1, 8))),
            Action::Statistics { bucket, round, owners } => {
                let elements = self.statistics_elements(class, *bucket, *round);
                Some(direct(exchange(Kind::AllReduce, owners.clone(), elements, 4)))
            }
            _ => None,
        }
    }

    /// Numbers in one round of the optimizer's statistics of a bucket.
    pub(crate) fn statistics_elements(
        &self,
        class: &Class,
        bucket: BucketId,
        round: usize,
    ) -> usize {
        let params = class.bucket(bucket).params.iter().map(|&param| class.param(param));
        let of = |param: &WeightParam| {
            self.optimizer.statistics_elements(param.rows, param.columns, round)
        };
        params.map(of).sum()
    }

    /// Bytes that `position` of class `id` sends in one step whose weights need no amendment.
    pub fn sent_bytes(&self, id: ClassId, position: usize) -> u64 {
        self.bytes_of(id, position, |item| !item.amends)
    }

    /// Bytes that `position` of class `id` sends besides where the update of the step before is amended.
    pub fn amending_bytes(&self, id: ClassId, position: usize) -> u64 {
        self.bytes_of(id, position, |item| item.amends)
    }

    fn bytes_of(&self, id: ClassId, position: usize, of: fn(&StreamItem) -> bool) -> u64 {
        let class = self.class(id);
        let mut per_body: Vec<Option<u64>> = vec![None; class.bodies.len()];
        let mut total = 0;
        for StreamItem { body, .. } in class.stream.iter().filter(|item| of(item)) {
            total += *per_body[body.0 as usize].get_or_insert_with(|| {
                let instructions = &class.body(*body).instructions;
                instructions.iter().map(|it| self.instruction_sent_bytes(id, position, it)).sum()
            });
        }
        total
    }

    /// Bytes that `position` of class `id` sends in one run of `instruction`.
    pub fn instruction_sent_bytes(
        &self,
        id: ClassId,
        position: usize,
        instruction: &Instruction,
    ) -> u64 {
        if let Action::Send { route } = instruction.action {
            let route = self.route(route);
            let real_bytes = self.precision.compute.bytes();
            return route.sent_by(position).map(|it| route.message_bytes(it, real_bytes)).sum();
        }
        let class = self.class(id);
        match self.exchange(class, position, instruction) {
            Some(exchange) => self.exchange_sent_bytes(id, position, &exchange),
            None => 0,
        }
    }

    fn exchange_sent_bytes(&self, id: ClassId, position: usize, exchange: &Exchange) -> u64 {
        let class = self.class(id);
        let members = match &exchange.group {
            Group::Mesh(axes) => class.mesh.span(axes),
            Group::Homes(classes) => classes.len(),
            Group::World => self.ranks(),
        };
        let member = match &exchange.group {
            Group::Mesh(axes) => class.mesh.index_along(position, axes),
            Group::Homes(classes) => classes.iter().position(|&each| each == id).unwrap_or(0),
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
