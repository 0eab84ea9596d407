//! Messages between stages: a part of a tensor is packed into a message of its route, and copied out of it.

use shardloom_fabric::{Message, View, ViewMut};
use shardloom_kernels::device::BoxOf;
use shardloom_program::{Instruction, Mode, Placement, Program, Rank as RankId, RouteId, Tensor};

use super::arena::Room;
use super::exchange::Unwritten;
use super::link::Linker;
use super::lookups::Rows;
use super::store::Slot;
use super::{At, Rank};

/// A message of a route that a rank sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentMessage {
    pub route: RouteId,
    /// Its number in the route.
    pub message: usize,
    pub to: RankId,
}

/// All messages that a rank sends. What counts them is their number.
pub(crate) fn sent_messages(program: &Program, rank: RankId) -> Vec<SentMessage> {
    let routes = (0..program.routes.len() as u32).map(RouteId);
    let of = |route| {
        let sent = program.transfers(route).filter(move |&(_, from, _)| from == rank);
        sent.map(move |(message, _, to)| SentMessage { route, message, to })
    };
    routes.flat_map(of).collect()
}

/// What a rank sends of a route.
pub(crate) struct Sends {
    pub route: RouteId,
    pub messages: Box<[Sent]>,
    from: Slot,
    unwritten: Option<Unwritten>,
}

/// One message.
pub(crate) struct Sent {
    /// Its number among those that the rank sends.
    pub number: usize,
    part: Option<BoxIn>,
    /// Which rows it is of, where they are as many as turn out.
    rows: Option<Rows>,
}

/// What a rank receives of a route.
pub(crate) struct Receives {
    pub route: RouteId,
    pub messages: Box<[Received]>,
    into: Room,
    mode: Mode,
}

/// One message.
pub(crate) struct Received {
    pub from: RankId,
    part: Option<BoxIn>,
    /// Which rows it is of, where they are as many as turn out.
    rows: Option<Rows>,
}

/// A box in a tensor.
struct BoxIn {
    shape: Box<[usize]>,
    start: Box<[usize]>,
    extent: Box<[usize]>,
}

impl BoxIn {
    /// A part of a tensor; none if it is all of it.
    fn of(part: &Placement, tensor: &Tensor) -> Option<BoxIn> {
        let [shape, start, extent] = [tensor.extents(), &part.start, &part.extent];
        let [shape, start, extent] = [shape, start, extent].map(Box::from);
        (extent != shape).then_some(BoxIn { shape, start, extent })
    }
}

impl Sends {
    /// Links what the rank sends of a route.
    pub(super) fn link(linker: &Linker<'_>, route: RouteId, instruction: &Instruction) -> Sends {
        let read = instruction.reads[0];
        let tensor = linker.class.tensor(read.tensor);
        let messages = &linker.shared.program.route(route).messages;
        let sent = linker.sent.iter().enumerate().filter(|(_, sent)| sent.route == route);
        let sent = sent.map(|(number, sent)| {
            let message = &messages[sent.message];
            let rows = Rows::link(linker, route, message, instruction);
            Sent { number, part: BoxIn::of(&message.source, tensor), rows }
        });
        let moves_rows = linker.shared.program.route(route).moves_rows();
        // What a server sends to replicas is written by messages, and by no operator.
        let is_of_operators = !linker.class.stages.is_empty();
        let unwritten = Unwritten::link(linker, read).filter(|_| is_of_operators && !moves_rows);
        Sends { route, messages: sent.collect(), from: linker.slot(read), unwritten }
    }
}

impl Receives {
    /// Links what the rank receives of a route.
    pub(super) fn link(linker: &Linker<'_>, route: RouteId, instruction: &Instruction) -> Receives {
        let write = instruction.writes[0];
        let tensor = linker.class.tensor(write.to.tensor);
        let (program, own) = (&linker.shared.program, linker.rank());
        let messages = &program.route(route).messages;
        let received = program.transfers(route).filter(|&(_, _, to)| to == own);
        let received = received.map(|(message, from, _)| {
            let message = &messages[message];
            let rows = Rows::link(linker, route, message, instruction);
            Received { from, part: BoxIn::of(&message.target, tensor), rows }
        });
        let (messages, into) = (received.collect(), linker.room(write.to.tensor));
        Receives { route, messages, into, mode: write.mode }
    }
}

impl Rank {
    /// Fills a message of a send.
    pub fn pack(&mut self, sends: &Sends, sent: &Sent, at: At, message: &mut Message) {
        if let Some(rows) = &sent.rows {
            return self.pack_rows(rows, sends.from, at, message);
        }
        let payload = message.view_mut();
        if let ViewMut::F64(number) = payload {
            number.fill(self.squared_norm().expect("a norm is found before it is sent"));
            return;
        }
        self.clear_unwritten(sends.unwritten.as_ref());
        let source = self.store.get(sends.from, at).view();
        match &sent.part {
            None => self.device().download(source, payload),
            Some(BoxIn { shape, start, extent }) => {
                let from = BoxOf { elements: source, shape, start };
                self.device().download_box(from, extent, payload);
            }
        }
    }

    /// Copies a message of a receive to where it belongs.
    pub fn unpack(&mut self, receives: &Receives, of: &Received, at: At, payload: View<'_>) {
        if let View::F64(number) = payload {
            return self.hear_of_norm(number[0], receives.mode);
        }
        if let Some(rows) = &of.rows {
            return self.unpack_rows(rows, &receives.into, at, payload);
        }
        let Rank { shared, arena, store, .. } = self;
        let into = &receives.into;
        let mut tensor = store.take(into.slot, at).unwrap_or_else(|| arena.take(into, at));
        match &of.part {
            None => shared.device.upload(payload, tensor.view_mut()),
            Some(BoxIn { shape, start, extent }) => {
                let to = BoxOf { elements: tensor.view_mut(), shape, start };
                shared.device.upload_box(payload, extent, to);
            }
        }
        store.put(into.slot, at, tensor);
    }
}
