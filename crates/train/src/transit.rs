//! Messages between ranks, from the end of their send to their receive.
//!
//! Each message of a route has a ring of buffers of its own, as many as can be under way at once. The
//! sender packs into one of them what the receiver copies out, which gives it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardloom_kernels::{Buffer, Device, Format, Memory};
use shardloom_program::buffers::MessagePlan;
use shardloom_program::{Program, Rank, RouteId};

use crate::rank::stored;

/// All rings of a run.
pub(crate) struct Transit {
    /// Counts what is under way.
    account: Memory,
    /// By route and message.
    rings: Vec<Vec<Ring>>,
    /// How often the system had been asked when all rings were full.
    stocked: usize,
    /// The most messages that can be under way from one rank to another; of those that have no most, as
    /// many as a step has.
    pub most_between_two: usize,
}

struct Ring {
    memory: Memory,
    format: Format,
    elements: usize,
    /// Whether there is a most that can be under way. If not, the receiver does nothing that the sender
    /// waits for, and buffers are asked for as needed: a stage without gradients may run as far ahead as
    /// the channel between the ranks has room.
    bounded: bool,
}

impl Transit {
    /// The rings of `program` on `device`, as many buffers in each as `plan` says.
    pub fn new(program: &Program, plan: &MessagePlan, device: &Arc<dyn Device>) -> Transit {
        let routes = (0u32..).map(RouteId).zip(&program.routes);
        let in_a_step = (program.microbatches * (program.ahead as usize + 1)) as u32;
        let mut between: BTreeMap<(Rank, Rank), usize> = BTreeMap::new();
        let rings = routes.map(|(id, route)| {
            for (index, from, to) in program.transfers(id) {
                let most = plan.most_under_way(id, index).unwrap_or(in_a_step);
                *between.entry((from, to)).or_default() += most as usize;
            }
            let format = stored(route.format);
            let ring = |(index, message): (usize, &shardloom_program::Message)| {
                let memory = Memory::new(Arc::clone(device));
                let elements = message.source.elements();
                let most = plan.most_under_way(id, index);
                memory.stock(format, elements, most.unwrap_or(0) as usize);
                Ring { memory, format, elements, bounded: most.is_some() }
            };
            route.messages.iter().enumerate().map(ring).collect()
        });
        let rings = rings.collect();
        let most_between_two = between.into_values().max().unwrap_or(0);
        let account = Memory::new(Arc::clone(device));
        let mut transit = Transit { account, rings, stocked: 0, most_between_two };
        transit.stocked = transit.system_allocations();
        transit
    }

    /// A buffer for the n-th message of a route; none while all are under way.
    pub fn take(&self, route: RouteId, message: usize) -> Option<Buffer> {
        let Ring { memory, format, elements, bounded } = &self.rings[route.0 as usize][message];
        let buffer = match bounded {
            true => memory.reuse(*format, *elements)?,
            false => memory.alloc(*format, *elements),
        };
        Some(buffer.adopt(&self.account))
    }

    /// The most bytes that were under way at once.
    pub fn peak_bytes(&self) -> u64 {
        self.account.peak_bytes() as u64
    }

    /// How often the system was asked for a buffer after the rings were made.
    pub fn system_allocations(&self) -> usize {
        let rings = self.rings.iter().flatten();
        rings.map(|ring| ring.memory.system_allocations()).sum::<usize>() - self.stocked
    }
}
