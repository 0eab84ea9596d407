//! Messages between stages: a part of a tensor is packed into a message of its route, and copied out of it.

use shardloom_fabric::{View, ViewMut};
use shardloom_kernels::device::BoxOf;
use shardloom_program::{Instruction, RouteId};

use super::Rank;

impl Rank {
    /// Fills a message of a send.
    pub fn pack(
        &mut self,
        route: RouteId,
        message: usize,
        instruction: &Instruction,
        microbatch: u32,
        payload: ViewMut<'_>,
    ) {
        if let ViewMut::F64(number) = payload {
            number.fill(self.squared_norm().expect("a norm is found before it is sent"));
            return;
        }
        self.clear_unwritten(instruction.reads[0]);
        let tensor = instruction.reads[0].tensor;
        let source = self.store.get(tensor, microbatch).view();
        let part = &self.shared.program.route(route).messages[message].source;
        let shape = self.class().tensor(tensor).extents();
        if part.extent == shape {
            self.device().download(source, payload);
        } else {
            let from = BoxOf { elements: source, shape, start: &part.start };
            self.device().download_box(from, &part.extent, payload);
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
        if let View::F64(number) = payload {
            return self.hear_of_norm(number[0], instruction.writes[0].mode);
        }
        let id = instruction.writes[0].to.tensor;
        let Rank { shared, class, arena, store, .. } = self;
        let part = &shared.program.route(route).messages[message].target;
        let shape = shared.program.class(*class).tensor(id).extents();
        let mut tensor =
            store.take(id, microbatch).unwrap_or_else(|| arena.take(id, shape.iter().product()));
        let device = &shared.device;
        if part.extent == shape {
            device.upload(payload, tensor.view_mut());
        } else {
            let to = BoxOf { elements: tensor.view_mut(), shape, start: &part.start };
            device.upload_box(payload, &part.extent, to);
        }
        store.put(id, microbatch, tensor);
    }
}
