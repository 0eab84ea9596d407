//! Messages on their way between actors.

use shardloom_program::timeline::Picos;
use shardloom_program::{Class, Program, RouteId};

/// What one receiver waits for on one route for one micro-batch.
#[derive(Clone, Copy, Debug, Default)]
struct Transfer {
    arrived: u32,
    begun: Option<Picos>,
    arrival: Picos,
    awaited: bool,
}

/// What has been sent and when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// When the first message set out.
    pub begun: Picos,
    /// When the last message was there.
    pub arrival: Picos,
}

/// All routes' messages. Senders and receivers are named by their place in their class: the position,
/// or 0 for a folded class.
pub(crate) struct Transfers {
    routes: Vec<RouteTransfers>,
    /// How many micro-batches in a row can be under way at a time.
    microbatches: usize,
    /// How many deliveries of one micro-batch can be under way at a time: where a step may begin anew,
    /// what was sent for nothing and what is sent instead.
    deliveries: usize,
}

struct RouteTransfers {
    /// Receivers of each sender's messages, in the order in which it sends them.
    receivers: Vec<Vec<usize>>,
    /// How many messages make each receiver's delivery.
    expected: Vec<u32>,
    /// Per receiver, per micro-batch, as many as there are deliveries.
    transfers: Vec<Transfer>,
    /// Which of them is next, per sender, per micro-batch, and per receiver, per micro-batch.
    posted: Vec<usize>,
    taken: Vec<usize>,
}

impl Transfers {
    pub fn new(program: &Program, folded: bool) -> Transfers {
        // A sender may be a step further ahead than any rank is of its own.
        let microbatches = program.microbatches
            * match program.ahead {
                0 => 1,
                ahead => ahead as usize + 2,
            };
        let begins_anew = program.classes.iter().any(Class::tests_updates);
        let deliveries = if begins_anew { 2 } else { 1 };
        let routes = program.routes.iter().map(|route| {
            let size = |class| if folded { 1 } else { program.class(class).mesh.size() };
            let mut receivers = vec![vec![]; size(route.from)];
            let mut expected = vec![0; size(route.to)];
            if folded {
                receivers[0].push(0);
                expected[0] = 1;
            } else {
                for message in &route.messages {
                    receivers[message.from].push(message.to);
                    expected[message.to] += 1;
                }
            }
            let transfers = vec![Transfer::default(); expected.len() * microbatches * deliveries];
            let posted = vec![0; receivers.len() * microbatches];
            let taken = vec![0; expected.len() * microbatches];
            RouteTransfers { receivers, expected, transfers, posted, taken }
        });
        Transfers { routes: routes.collect(), microbatches, deliveries }
    }

    /// To whom `sender` sends, in order.
    pub fn receivers(&self, route: RouteId, sender: usize) -> &[usize] {
        &self.routes[route.0 as usize].receivers[sender]
    }

    /// A message of `sender` has been sent. Whether the receiver has been waiting and now has all of them.
    pub fn post(
        &mut self,
        (route, receiver, microbatch): (RouteId, usize, u32),
        sender: usize,
        sent: Delivery,
    ) -> bool {
        let expected = self.routes[route.0 as usize].expected[receiver];
        let place = self.place(sender, microbatch);
        let next = self.routes[route.0 as usize].posted[place];
        let transfer = self.transfer(route, receiver, microbatch, next);
        assert!(
            transfer.arrived < expected,
            "a stage has received a micro-batch of one step before it is sent that of the next"
        );
        transfer.arrived += 1;
        transfer.begun = Some(transfer.begun.map_or(sent.begun, |begun| begun.min(sent.begun)));
        transfer.arrival = transfer.arrival.max(sent.arrival);
        transfer.awaited && transfer.arrived == expected
    }

    /// All of `sender`'s messages of one send have been posted.
    pub fn end_send(&mut self, route: RouteId, sender: usize, microbatch: u32) {
        let place = self.place(sender, microbatch);
        let next = &mut self.routes[route.0 as usize].posted[place];
        *next = (*next + 1) % self.deliveries;
    }

    /// The delivery, if it is complete; otherwise the receiver waits from now on.
    pub fn look(&mut self, route: RouteId, receiver: usize, microbatch: u32) -> Option<Delivery> {
        let expected = self.routes[route.0 as usize].expected[receiver];
        let next = self.routes[route.0 as usize].taken[self.place(receiver, microbatch)];
        let transfer = self.transfer(route, receiver, microbatch, next);
        transfer.awaited = transfer.arrived < expected;
        let begun = transfer.begun.unwrap_or_default();
        (!transfer.awaited).then_some(Delivery { begun, arrival: transfer.arrival })
    }

    /// The delivery has been taken in; the place is free for another.
    pub fn clear(&mut self, route: RouteId, receiver: usize, microbatch: u32) {
        let place = self.place(receiver, microbatch);
        let deliveries = self.deliveries;
        let next = &mut self.routes[route.0 as usize].taken[place];
        let taken = std::mem::replace(next, (*next + 1) % deliveries);
        *self.transfer(route, receiver, microbatch, taken) = Transfer::default();
    }

    /// The place of one micro-batch of one sender or receiver.
    fn place(&self, position: usize, microbatch: u32) -> usize {
        position * self.microbatches + microbatch as usize % self.microbatches
    }

    fn transfer(
        &mut self,
        route: RouteId,
        receiver: usize,
        microbatch: u32,
        delivery: usize,
    ) -> &mut Transfer {
        let place = self.place(receiver, microbatch) * self.deliveries + delivery;
        &mut self.routes[route.0 as usize].transfers[place]
    }
}
