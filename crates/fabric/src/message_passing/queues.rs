use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::{Arrived, Packet, Transport, connection::lock};
use crate::{Contents, Format};

/// A transport whose processes are parts of one: they share no more than queues of bytes. For trying out what
/// runs in several processes.
pub struct Queues {
    process: u32,
    /// By receiver.
    all: Arc<[Queue]>,
}

/// Sender, header and body of what has not been received.
type Queue = Mutex<VecDeque<(u32, Vec<u8>, Vec<u8>)>>;

impl Queues {
    /// The transports of so many processes.
    pub fn between(processes: u32) -> Vec<Queues> {
        let all: Arc<[Queue]> = (0..processes).map(|_| Queue::default()).collect();
        (0..processes).map(|process| Queues { process, all: Arc::clone(&all) }).collect()
    }

    fn own(&self) -> &Queue {
        &self.all[self.process as usize]
    }
}

impl Transport for Queues {
    fn process(&self) -> u32 {
        self.process
    }

    fn processes(&self) -> u32 {
        self.all.len() as u32
    }

    fn send(&self, to: u32, packet: Packet) {
        let Packet { header, body, origin } = packet;
        let bytes = body.as_bytes().to_vec();
        lock(&self.all[to as usize]).push_back((self.process, header, bytes));
        origin.take_back(body);
    }

    fn receive(&self) -> Option<Arrived> {
        let (from, header, bytes) = lock(self.own()).pop_front()?;
        let mut body = Contents::zeroed(Format::U8, bytes.len());
        body.as_bytes_mut().copy_from_slice(&bytes);
        Some(Arrived { from, header, body })
    }

    fn is_under_way(&self) -> bool {
        !lock(self.own()).is_empty()
    }

    fn reuse(&self, _: Contents) {}
}
