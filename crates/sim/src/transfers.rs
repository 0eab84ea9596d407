//! Messages on their way between actors.

use shardloom_program::timeline::Picos;
use shardloom_program::{Program, RouteId};
use smallvec::SmallVec;

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
}

struct RouteTransfers {
    /// Receivers of each sender's messages, in the order in which it sends them.
    receivers: Vec<Vec<usize>>,
    /// How many messages make each receiver's delivery.
    expected: Vec<u32>,
    /// Per receiver and micro-batch what it gets. Lists of micro-batches are as long as those that were asked for, as
    /// many routes have messages of few.
    deliveries: Vec<Vec<Deliveries>>,
    /// How often each sender has sent, per micro-batch.
    posted: Vec<Vec<usize>>,
}

/// What comes to a receiver of one micro-batch after the other that have the same place.
#[derive(Clone, Default)]
struct Deliveries {
    /// Those that are under way or waited for, the next one first: several where a step begins anew, or nothing keeps
    /// the sender from beginning the next step.
    under_way: SmallVec<[Transfer; 1]>,
    /// How many it has taken in.
    taken: usize,
}

impl Transfers {
    pub fn new(program: &Program, folded: bool) -> Transfers {
        // A sender may be a step further ahead than any rank is of its own.
        let microbatches = program.microbatches
            * match program.ahead {
                0 => 1,
                ahead => ahead as usize + 2,
            };
        let routes = program.routes.iter().map(|route| {
            let size = |class| if folded { 1 } else { program.class(class).mesh.size() };
            let mut receivers = vec![vec![]; size(route.from)];
            let mut expected = vec![0; size(route.to)];
            if folded {
                receivers[0].push(0);
                expected[0] = 1;
            } else {
                for message in route.messages.iter() {
                    receivers[message.from].push(message.to);
                    expected[message.to] += 1;
                }
            }
            let deliveries = vec![vec![]; expected.len()];
            let posted = vec![vec![]; receivers.len()];
            RouteTransfers { receivers, expected, deliveries, posted }
        });
        Transfers { routes: routes.collect(), microbatches }
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
        let place = self.place(microbatch);
        let RouteTransfers { expected, deliveries, posted, .. } =
            &mut self.routes[route.0 as usize];
        let expected = expected[receiver];
        let Deliveries { under_way, taken } = at(&mut deliveries[receiver], place);
        let ahead = *at(&mut posted[sender], place) - *taken;
        if under_way.len() <= ahead {
            under_way.resize(ahead + 1, Transfer::default());
        }
        let transfer = &mut under_way[ahead];
        transfer.arrived += 1;
        transfer.begun = Some(transfer.begun.map_or(sent.begun, |begun| begun.min(sent.begun)));
        transfer.arrival = transfer.arrival.max(sent.arrival);
        transfer.awaited && transfer.arrived == expected
    }

    /// All of `sender`'s messages of one send have been posted.
    pub fn end_send(&mut self, route: RouteId, sender: usize, microbatch: u32) {
        let place = self.place(microbatch);
        *at(&mut self.routes[route.0 as usize].posted[sender], place) += 1;
    }

    /// The delivery, if it is complete; otherwise the receiver waits from now on.
    pub fn look(&mut self, route: RouteId, receiver: usize, microbatch: u32) -> Option<Delivery> {
        let place = self.place(microbatch);
        let RouteTransfers { expected, deliveries, .. } = &mut self.routes[route.0 as usize];
        let expected = expected[receiver];
        let Deliveries { under_way, .. } = at(&mut deliveries[receiver], place);
        if under_way.is_empty() {
            under_way.push(Transfer::default());
        }
        let transfer = &mut under_way[0];
        transfer.awaited = transfer.arrived < expected;
        let begun = transfer.begun.unwrap_or_default();
        (!transfer.awaited).then_some(Delivery { begun, arrival: transfer.arrival })
    }

    /// The delivery has been taken in; the next one of that micro-batch is another.
    pub fn clear(&mut self, route: RouteId, receiver: usize, microbatch: u32) {
        let place = self.place(microbatch);
        let delivered = at(&mut self.routes[route.0 as usize].deliveries[receiver], place);
        if !delivered.under_way.is_empty() {
            delivered.under_way.remove(0);
        }
        delivered.taken += 1;
    }

    /// The place of a micro-batch among those that can be under way at a time.
    fn place(&self, microbatch: u32) -> usize {
        microbatch as usize % self.microbatches
    }
}

/// What is at `place` of a list that is as long as it has to be.
fn at<T: Clone + Default>(list: &mut Vec<T>, place: usize) -> &mut T {
    if list.len() <= place {
        list.resize(place + 1, T::default());
    }
    &mut list[place]
}
