use std::sync::Arc;

use crate::{Contents, Returns};

/// What carries packets between the processes that ranks live in.
///
/// Packets of one process to another, also to itself, arrive whole and in the order in which they were sent.
/// No call waits for another process.
pub trait Transport: Send + Sync {
    /// This process.
    fn process(&self) -> u32;

    /// Number of processes.
    fn processes(&self) -> u32;

    /// Takes a packet to be sent. What it carries goes back to its origin once it is no longer read.
    fn send(&self, to: u32, packet: Packet);

    /// Goes on with all that is under way, and takes the next packet that has arrived.
    fn receive(&self) -> Option<Arrived>;

    /// Whether something was taken to be sent, or has begun to arrive, and is not through.
    fn is_under_way(&self) -> bool;

    /// Takes a body of a packet that arrived to be used again.
    fn reuse(&self, body: Contents);
}

/// What is sent.
pub struct Packet {
    /// Says what it is and whom it is for; some tens of bytes.
    pub header: Vec<u8>,
    /// What it carries, if anything.
    pub body: Contents,
    /// Whom the body goes back to.
    pub origin: Arc<dyn Returns>,
}

/// What has arrived.
pub struct Arrived {
    /// The process that sent it.
    pub from: u32,
    /// As it was sent.
    pub header: Vec<u8>,
    /// The bytes of what was sent, whatever format they had.
    pub body: Contents,
}
