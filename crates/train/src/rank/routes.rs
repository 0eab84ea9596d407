//! Messages between stages: a part of a tensor is packed into a buffer of its route, and copied out of it.

use shardloom_kernels::Buffer;
use shardloom_kernels::device::BoxOf;
use shardloom_kernels::window::PerAxis;
use shardloom_program::{Content, Instruction, RouteId};
use smallvec::smallvec;

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
        let source = self.store.get(tensor, microbatch).view();
        let part = &self.shared.program.route(route).messages[message].source;
        let shape = self.class().tensor(tensor).local_shape();
        if part.extent == shape {
            self.device().copy(source, payload.view_mut());
        } else {
            let origin: PerAxis = smallvec![0; shape.len()];
            self.device().copy_box(
                BoxOf { elements: source, shape, start: &part.start },
                BoxOf { elements: payload.view_mut(), shape: &part.extent, start: &origin },
                &part.extent,
            );
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
        if self.class().tensor(id).content == Content::Norm {
            return self.hear_of_norm(&payload, instruction.writes[0].mode);
        }
        let Rank { shared, class, arena, store, .. } = self;
        let part = &shared.program.route(route).messages[message].target;
        let shape = shared.program.class(*class).tensor(id).local_shape();
        let mut tensor =
            store.take(id, microbatch).unwrap_or_else(|| arena.take(id, shape.iter().product()));
        let device = &shared.device;
        if part.extent == shape {
            device.copy(payload.view(), tensor.view_mut());
        } else {
            let origin: PerAxis = smallvec![0; shape.len()];
            device.copy_box(
                BoxOf { elements: payload.view(), shape: &part.extent, start: &origin },
                BoxOf { elements: tensor.view_mut(), shape, start: &part.start },
                &part.extent,
            );
        }
        store.put(id, microbatch, tensor);
    }
}
