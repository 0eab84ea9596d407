//! Messages between stages: a part of a tensor is packed into a message of its route, and copied out of it.

use shardloom_fabric::{View, ViewMut};
use shardloom_kernels::DType;
use shardloom_kernels::window::{cut_box, place_box};
use shardloom_program::{Instruction, RouteId};

use super::Rank;

impl Rank {
    /// Fills a message of a send.
    pub fn pack(
        &self,
        route: RouteId,
        message: usize,
        instruction: &Instruction,
        microbatch: u32,
        payload: ViewMut<'_>,
    ) {
        let payload = match payload {
            ViewMut::F64(number) => {
                number.fill(self.squared_norm().expect("a norm is found before it is sent"));
                return;
            }
            ViewMut::F32(payload) => payload,
            other => unreachable!("activations and gradients are f32 here, not {other:?}"),
        };
        let tensor = instruction.reads[0].tensor;
        let part = &self.shared.program.route(route).messages[message].source;
        let shape = self.class().tensor(tensor).local_shape();
        let source = self.store.get(tensor, microbatch).as_f32();
        if part.extent == shape {
            payload.copy_from_slice(source);
        } else {
            cut_box(source, shape, &part.start, payload, &part.extent);
        }
    }

    /// Copies a message of a receive to where it belongs.
    pub fn unpack(
        &mut self,
        route: RouteId,
        message: usize,
        instruction: &Instruction,
        microbatch: u32,
        payload: View<'_>,
    ) {
        let payload = match payload {
            View::F64(number) => {
                return self.hear_of_norm(number[0], instruction.writes[0].mode);
            }
            View::F32(payload) => payload,
            other => unreachable!("activations and gradients are f32 here, not {other:?}"),
        };
        let id = instruction.writes[0].to.tensor;
        let Rank { shared, class, arena, store, .. } = self;
        let part = &shared.program.route(route).messages[message].target;
        let shape = shared.program.class(*class).tensor(id).local_shape();
        let mut tensor = store
            .take(id, microbatch)
            .unwrap_or_else(|| arena.take(id, DType::F32, shape.iter().product()));
        let target = tensor.as_f32_mut();
        if part.extent == shape {
            target.copy_from_slice(payload);
        } else {
            place_box(payload, &part.extent, target, shape, &part.start);
        }
        store.put(id, microbatch, tensor);
    }
}
