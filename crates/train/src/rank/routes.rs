//! Messages between stages.

use shardloom_kernels::window::copy_box;
use shardloom_kernels::{Buffer, DType};
use shardloom_program::{Instruction, Message, Operand, Rank as RankId, Route, RouteId};

use super::Rank;

/// A message to be sent.
pub(crate) struct Outgoing {
    pub to: RankId,
    pub payload: Buffer,
}

impl Rank {
    fn route(&self, route: RouteId) -> &Route {
        self.shared.program.route(route)
    }

    /// The messages of a send, in the route's order.
    pub fn outgoing(
        &mut self,
        route: RouteId,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Vec<Outgoing> {
        let messages: Vec<Message> = self.route(route).sent_by(self.position).cloned().collect();
        let first = self.shared.program.class(self.route(route).to).first_rank.0;
        let slot = match instruction.reads[0] {
            Operand::Slot(slot) => slot,
            Operand::Norm => {
                let to = |message: &Message| RankId(first + message.to as u32);
                let norm = |message| Outgoing { to: to(message), payload: self.norm_in_words() };
                return messages.iter().map(norm).collect();
            }
            Operand::Weight(_) | Operand::Gradient(_) => unreachable!("parameters stay"),
        };
        let shape = self.class().slot(slot).shape.clone();
        let whole = |message: &Message| message.source.extent == shape;
        let mut outgoing = vec![];
        let last = messages.len().saturating_sub(1);
        for (index, message) in messages.iter().enumerate() {
            let moves = index == last && whole(message) && instruction.frees.contains(&slot);
            let payload = match moves {
                true => self.slots.take(slot, microbatch).expect("read slots are held"),
                false => {
                    let source = self.slots.get(slot, microbatch);
                    let mut part = self.memory.alloc(DType::F32, message.source.elements());
                    let zeros = vec![0; shape.len()];
                    let (start, extent) = (&message.source.start, &message.source.extent);
                    let target = part.as_f32_mut();
                    copy_box(source.as_f32(), &shape, start, target, extent, &zeros, extent);
                    part
                }
            };
            let payload = payload.adopt(&self.shared.in_transit);
            outgoing.push(Outgoing { to: RankId(first + message.to as u32), payload });
        }
        self.slots.free(instruction, microbatch);
        outgoing
    }

    /// From whom a receive's messages come, in the order [`Rank::incoming`] takes them.
    pub fn senders(&self, route: RouteId) -> Vec<RankId> {
        let route = self.route(route);
        let first = self.shared.program.class(route.from).first_rank.0;
        route.received_by(self.position).map(|it| RankId(first + it.from as u32)).collect()
    }

    /// Puts together what was received.
    pub fn incoming(
        &mut self,
        route: RouteId,
        instruction: &Instruction,
        microbatch: u32,
        payloads: Vec<Buffer>,
    ) {
        let slot = match instruction.writes[0].to {
            Operand::Slot(slot) => slot,
            Operand::Norm => {
                return self.hear_of_norm(&payloads[0], instruction.writes[0].accumulate);
            }
            Operand::Weight(_) | Operand::Gradient(_) => unreachable!("parameters stay"),
        };
        let shape = self.class().slot(slot).shape.clone();
        let messages: Vec<Message> =
            self.route(route).received_by(self.position).cloned().collect();
        let mut tensor: Option<Buffer> = None;
        for (message, payload) in messages.iter().zip(payloads) {
            let payload = payload.adopt(&self.memory);
            if message.target.extent == shape {
                tensor = Some(payload);
                continue;
            }
            let whole =
                tensor.get_or_insert_with(|| self.memory.alloc(DType::F32, shape.iter().product()));
            let (start, extent) = (&message.target.start, &message.target.extent);
            let zeros = vec![0; shape.len()];
            let target = whole.as_f32_mut();
            copy_box(payload.as_f32(), extent, &zeros, target, &shape, start, extent);
        }
        let tensor = tensor.expect("a route brings something to each of its receivers");
        self.slots.put(slot, microbatch, tensor);
        self.slots.free(instruction, microbatch);
    }
}
