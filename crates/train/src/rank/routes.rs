//! Messages between stages: a part of a slot is packed into a buffer of its route, and copied out of it.

use shardloom_kernels::window::{cut_box, place_box};
use shardloom_kernels::{Buffer, DType};
use shardloom_program::{Instruction, Operand, RouteId, Tenant};

use super::Rank;

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
            cut_box(source, shape, &part.start, payload.as_f32_mut(), &part.extent);
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
            place_box(payload.as_f32(), &part.extent, target, shape, &part.start);
        }
        slots.put(slot, microbatch, tensor);
    }
}
