//! Processes without MPI: each is an engine of its own, and they share no more than queues of bytes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use shardloom_fabric::{
    Arrived, Contents, Endpoint, Engine, FabricError, MessagePassing, Packet, Queues, Settings,
    Transport,
};

/// As many processes as are asked for, with an equal share of the ranks each.
pub struct Separate {
    pub ranks_each: u32,
}

/// An endpoint that keeps its process alive.
struct Resident {
    endpoint: Box<dyn Endpoint<Contents>>,
    _process: Arc<MessagePassing>,
}

impl Engine<Contents> for Separate {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<Contents>>>, FabricError> {
        // One process has all ranks, where they cannot be shared out.
        let processes =
            if ranks.is_multiple_of(self.ranks_each) { ranks / self.ranks_each } else { 1 };
        let mut endpoints = vec![];
        for transport in Queues::between(processes) {
            let engine = Arc::new(MessagePassing::over(Box::new(transport))?);
            for endpoint in engine.connect(ranks, settings)? {
                let resident = Resident { endpoint, _process: Arc::clone(&engine) };
                endpoints.push(Box::new(resident) as Box<dyn Endpoint<Contents>>);
            }
        }
        Ok(endpoints)
    }
}

/// Processes of one rank each, of which none finds more than one packet at a time: whatever is sent together may come
/// in parts.
pub struct OnePacketAtATime;

struct Trickle {
    queues: Queues,
    /// Whether the next that arrives waits for the next look.
    pauses: AtomicBool,
}

impl Transport for Trickle {
    fn process(&self) -> u32 {
        self.queues.process()
    }

    fn processes(&self) -> u32 {
        self.queues.processes()
    }

    fn send(&self, to: u32, packet: Packet) {
        self.queues.send(to, packet);
    }

    fn receive(&self) -> Option<Arrived> {
        if self.pauses.swap(false, Ordering::Relaxed) {
            return None;
        }
        let arrived = self.queues.receive();
        self.pauses.store(arrived.is_some(), Ordering::Relaxed);
        arrived
    }

    fn is_under_way(&self) -> bool {
        self.queues.is_under_way()
    }

    fn reuse(&self, body: Contents) {
        self.queues.reuse(body);
    }
}

impl Engine<Contents> for OnePacketAtATime {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<Contents>>>, FabricError> {
        let mut endpoints = vec![];
        for queues in Queues::between(ranks) {
            let transport = Trickle { queues, pauses: AtomicBool::new(false) };
            let engine = Arc::new(MessagePassing::over(Box::new(transport))?);
            for endpoint in engine.connect(ranks, settings)? {
                let resident = Resident { endpoint, _process: Arc::clone(&engine) };
                endpoints.push(Box::new(resident) as Box<dyn Endpoint<Contents>>);
            }
        }
        Ok(endpoints)
    }
}

mod resident {
    use shardloom_fabric::{
        Contents, Counters, Endpoint, FabricError, Group, Message, Pool, PoolId, Window,
    };

    use super::Resident;

    impl Endpoint<Contents> for Resident {
        fn rank(&self) -> u32 {
            self.endpoint.rank()
        }

        fn ranks(&self) -> u32 {
            self.endpoint.ranks()
        }

        fn counters(&self) -> Counters {
            self.endpoint.counters()
        }

        fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
            self.endpoint.pool(pool)
        }

        fn message(&mut self, pool: PoolId, tag: u64) -> Result<Message, FabricError> {
            self.endpoint.message(pool, tag)
        }

        fn try_message(&mut self, pool: PoolId, tag: u64) -> Option<Message> {
            self.endpoint.try_message(pool, tag)
        }

        fn send(&mut self, message: Message) -> Result<(), FabricError> {
            self.endpoint.send(message)
        }

        fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
            self.endpoint.receive(from, tag)
        }

        fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
            self.endpoint.try_receive(from, tag)
        }

        fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
            self.endpoint.receive_any(from)
        }

        fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<Contents>>, FabricError> {
            self.endpoint.group(members)
        }

        fn window(&mut self, lent: Vec<Contents>) -> Box<dyn Window<Contents>> {
            self.endpoint.window(lent)
        }

        fn fail(&self, reason: &str) {
            self.endpoint.fail(reason);
        }
    }
}
