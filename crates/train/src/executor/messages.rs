//! The buffers that a rank sends its messages in.
//!
//! Each message of a route has a pool of buffers of its own, as many as can be under way at once. The
//! sender packs into one of them what the receiver copies out, which gives it back.

use std::collections::HashMap;

use shardloom_fabric::{Endpoint, Pool, PoolId};
use shardloom_program::buffers::MessagePlan;
use shardloom_program::{Program, Rank, RouteId};

use crate::Result;
use crate::rank::{Contribution, stored};

/// The pools of a rank's messages.
pub(super) struct Messages(HashMap<(RouteId, usize), SendsFrom>);

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
        let own = Rank(endpoint.rank());
        let mut pools = HashMap::new();
        for (id, route) in (0u32..).map(RouteId).zip(&program.routes) {
            for (message, _, to) in program.transfers(id).filter(|&(_, from, _)| from == own) {
                let planned = plan.most_under_way(id, message).map(|most| most as usize);
                let pool = endpoint.pool(Pool {
                    to: to.0,
                    format: stored(route.format),
                    elements: route.messages[message].source.elements(),
                    ready: planned.unwrap_or(0),
                    most: planned.unwrap_or(most),
                })?;
                pools.insert((id, message), SendsFrom { pool, is_bounded: planned.is_some() });
            }
        }
        Ok(Messages(pools))
    }

    /// What the n-th message of a route, which the rank sends, is sent from.
    pub fn sends_from(&self, route: RouteId, message: usize) -> SendsFrom {
        self.0[&(route, message)]
    }
}

/// What the receiver of a message asks for it by: where it belongs, and its micro-batch.
pub(super) fn tag(route: RouteId, microbatch: u32) -> u64 {
    u64::from(route.0) << 32 | u64::from(microbatch)
}
