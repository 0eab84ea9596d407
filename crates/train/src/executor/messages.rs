//! The buffers that a rank sends its messages in.
//!
//! Each message of a route has a pool of buffers of its own, as many as can be under way at once. The
//! sender packs into one of them what the receiver copies out, which gives it back.

use shardloom_fabric::{Endpoint, Pool, PoolId, Priority};
use shardloom_program::buffers::MessagePlan;
use shardloom_program::{Program, Rank, RouteId};

use crate::Result;
use crate::rank::{Contribution, SentMessage, sent_messages, stored};

/// The pools of the messages that a rank sends, by their number among them.
pub(super) struct Messages(Vec<SendsFrom>);

/// What a message is sent from.
#[derive(Clone, Copy)]
pub(super) struct SendsFrom {
    pub pool: PoolId,
    /// Whether there is a most that can be under way, as many as the pool has. If not, the receiver does
    /// nothing that the sender waits for, and buffers are made as needed.
    pub is_bounded: bool,
}

impl Messages {
    /// Those of the rank of `endpoint`, as many buffers in each pool as `plan` says; where it names no
    /// most, up to `most` of them.
    ///
    /// # Errors
    /// If communication fails.
    pub fn new(
        endpoint: &mut dyn Endpoint<Contribution>,
        program: &Program,
        plan: &MessagePlan,
        most: usize,
    ) -> Result<Messages> {
        let sent = sent_messages(program, Rank(endpoint.rank())).into_iter();
        let pool = |sent: SentMessage| {
            let route = program.route(sent.route);
            let planned = plan.most_under_way(sent.route, sent.message).map(|most| most as usize);
            let pool = endpoint.pool(Pool {
                to: sent.to.0,
                format: stored(route.format),
                elements: route.messages[sent.message].source.elements(),
                ready: planned.unwrap_or(0),
                most: planned.unwrap_or(most),
                priority: route
                    .priority
                    .map(|it| Priority { place: it.place, most_under_way: it.most_under_way }),
            })?;
            Ok(SendsFrom { pool, is_bounded: planned.is_some() })
        };
        sent.map(pool).collect::<Result<_>>().map(Messages)
    }

    /// What a message is sent from.
    pub fn sends_from(&self, number: usize) -> SendsFrom {
        self.0[number]
    }
}

/// What the receiver of a message asks for it by: where it belongs, and its micro-batch, if it has one, in an entry
/// of this one.
pub(super) fn tag(program: &Program, route: RouteId, microbatch: u32) -> u64 {
    let microbatch = program.route(route).microbatch(Some(microbatch)).unwrap_or(0);
    u64::from(route.0) << 32 | u64::from(microbatch)
}
