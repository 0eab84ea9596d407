//! Messages between stages: a part of a slot is packed into a buffer of its route, and copied out of it.

use shardloom_kernels::window::copy_box;
use shardloom_kernels::{Buffer, DType};
use shardloom_program::{Instruction, Operand, Rank as RankId, RouteId, Tenant};

use super::{Rank, Shared};

impl Shared {
    /// The messages that `position` of a route's first class sends, by their number in the route, and to
    /// whom.
    pub fn sent(&self, route: RouteId, position: usize) -> impl Iterator<Item = (usize, RankId)> {
        let route = self.program.route(route);
        let first = self.program.class(route.to).first_rank.0;
        let messages = route.messages.iter().enumerate();
        let own = messages.filter(move |(_, message)| message.from == position);
        own.map(move |(index, message)| (index, RankId(first + message.to as u32)))
    }

    /// The messages that `position` of a route's second class receives, and from whom.
    pub fn received(
        &self,
        route: RouteId,
        position: usize,
    ) -> impl Iterator<Item = (usize, RankId)> {
        let route = self.program.route(route);
        let first = self.program.class(route.from).first_rank.0;
        let messages = route.messages.iter().enumerate();
        let own = messages.filter(move |(_, message)| message.to == position);
        own.map(move |(index, message)| (index, RankId(first + message.from as u32)))
    }
}

impl Rank {
    /// A message of a send; none while all buffers of its ring are under way.
    pub fn pack(
        &self,
        route: RouteId,
        message: usize,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Option<Buffer> {
        let mut payload = self.shared.transit.take(route, message)?;
        let slot = match instruction.reads[0] {
            Operand::Slot(slot) => slot,
            Operand::Norm => {
                payload.as_u32_mut().copy_from_slice(&self.norm_in_words());
                return Some(payload);
            }
            Operand::Weight(_) | Operand::Gradient(_) => unreachable!("parameters stay"),
        };
        let part = &self.shared.program.route(route).messages[message].source;
        let shape = &self.class().slot(slot).shape;
        let source = self.slots.get(slot, microbatch).as_f32();
        if part.extent == *shape {
            payload.as_f32_mut().copy_from_slice(source);
        } else {
            let zeros = vec![0; shape.len()];
            let (start, extent) = (&part.start, &part.extent);
            copy_box(source, shape, start, payload.as_f32_mut(), extent, &zeros, extent);
        }
        Some(payload)
    }

    /// Copies a message of a receive to where it belongs; its buffer is free then.
    pub fn unpack(
        &mut self,
        route: RouteId,
        message: usize,
        instruction: &Instruction,
        microbatch: u32,
        payload: Buffer,
    ) {
        let slot = match instruction.writes[0].to {
            Operand::Slot(slot) => slot,
            Operand::Norm => return self.hear_of_norm(&payload, instruction.writes[0].accumulate),
            Operand::Weight(_) | Operand::Gradient(_) => unreachable!("parameters stay"),
        };
        let Rank { shared, class, arena, slots, .. } = self;
        let part = &shared.program.route(route).messages[message].target;
        let shape = &shared.program.class(*class).slot(slot).shape;
        let mut tensor = slots.take(slot, microbatch).unwrap_or_else(|| {
            let tenant = Tenant::Slot(slot, Some(microbatch));
            arena.take(tenant, DType::F32, shape.iter().product())
        });
        let target = tensor.as_f32_mut();
        if part.extent == *shape {
            target.copy_from_slice(payload.as_f32());
        } else {
            let zeros = vec![0; shape.len()];
            let (start, extent) = (&part.start, &part.extent);
            copy_box(payload.as_f32(), extent, &zeros, target, shape, start, extent);
        }
        slots.put(slot, microbatch, tensor);
    }

    /// Frees what a send or a receive, all messages done, says is dead.
    pub fn conclude_messages(&mut self, instruction: &Instruction, microbatch: u32) {
        self.slots.free(instruction, microbatch);
    }
}
