//! Processes without MPI: each is an engine of its own, and they share no more than queues of bytes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use shardloom_fabric::{
    Arrived, Contents, Endpoint, Engine, FabricError, MessagePassing, Packet, Settings, Transport,
};

/// As many processes as are asked for, with an equal share of the ranks each.
pub struct Separate {
    pub ranks_each: u32,
}

type Queue = Mutex<VecDeque<(u32, Vec<u8>, Vec<u8>)>>;

/// One process's access to the queues of all.
struct Queues {
    process: u32,
    all: Arc<Vec<Queue>>,
}

impl Transport for Queues {
    fn process(&self) -> u32 {
        self.process
    }

    fn processes(&self) -> u32 {
        self.all.len() as u32
    }

    fn send(&self, to: u32, packet: Packet) {
        let bytes = packet.body.as_bytes().to_vec();
        self.all[to as usize].lock().unwrap().push_back((self.process, packet.header, bytes));
        packet.origin.take_back(packet.body);
    }

    fn receive(&self) -> Option<Arrived> {
        let next = self.all[self.process as usize].lock().unwrap().pop_front();
        next.map(|(from, header, bytes)| {
            let mut body = Contents::zeroed(shardloom_fabric::Format::U8, bytes.len());
            body.as_bytes_mut().copy_from_slice(&bytes);
            Arrived { from, header, body }
        })
    }

    fn is_under_way(&self) -> bool {
        !self.all[self.process as usize].lock().unwrap().is_empty()
    }

    fn reuse(&self, _: Contents) {}
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
        let all: Arc<Vec<Queue>> = Arc::new((0..processes).map(|_| Queue::default()).collect());
        let mut endpoints = vec![];
        for process in 0..processes {
            let transport = Queues { process, all: Arc::clone(&all) };
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
        Contents, Counters, Endpoint, FabricError, Group, Message, Pool, PoolId,
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

        fn fail(&self, reason: &str) {
            self.endpoint.fail(reason);
        }
    }
}
