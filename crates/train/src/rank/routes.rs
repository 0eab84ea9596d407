//! Messages between stages: a part of a tensor is packed into a buffer of its route, and copied out of it.

use shardloom_kernels::window::{cut_box, place_box};
use shardloom_kernels::{Buffer, DType};
use shardloom_program::{Format, Instruction, RouteId};

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
        let tensor = instruction.reads[0].tensor;
        let source = self.store.get(tensor, microbatch);
        if self.class().tensor(tensor).format == Format::F64 {
            payload.as_u32_mut().copy_from_slice(source.as_u32());
            return Some(payload);
        }
        let part = &self.shared.program.route(route).messages[message].source;
        let shape = self.class().tensor(tensor).extents();
        let source = source.as_f32();
        if part.extent == shape {
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
        let id = instruction.writes[0].to.tensor;
        if self.class().tensor(id).format == Format::F64 {
            return self.hear_of_norm(&payload, instruction.writes[0].mode);
        }
        let Rank { shared, class, arena, store, .. } = self;
        let part = &shared.program.route(route).messages[message].target;
        let shape = shared.program.class(*class).tensor(id).extents();
        let mut tensor = store
            .take(id, microbatch)
            .unwrap_or_else(|| arena.take(id, DType::F32, shape.iter().product()));
        let target = tensor.as_f32_mut();
        if part.extent == shape {
            target.copy_from_slice(payload.as_f32());
        } else {
            place_box(payload.as_f32(), &part.extent, target, shape, &part.start);
        }
        store.put(id, microbatch, tensor);
    }
}
