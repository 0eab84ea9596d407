//! The engine whose ranks live in processes that share no memory, over whatever carries packets between
//! them.
//!
//! - `transport`: what carries packets, within one process `queues`; `frame`: what they say.
//! - `router`: hands packets out to the `connection` that they are for, and breaks groups with one error.
//! - `endpoint`: point-to-point messages, in buffers of a `pool`.
//! - `group`: collectives.
//! - `window`: what ranks publish, and how it is asked for.

mod connection;
mod endpoint;
mod frame;
mod group;
mod pool;
mod queues;
mod router;
mod send_queue;
mod signal;
mod transport;
mod window;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use connection::Connection;
use endpoint::MessagePassingEndpoint;
use router::Router;

pub use queues::Queues;
pub use transport::{Arrived, Packet, Transport};

use crate::{Endpoint, Engine, FabricError, Lent, Process, Settings};

/// How often a process looks for packets while its ranks compute: often while something is under way, and
/// ever more seldom while nothing is.
const OFTEN: Duration = Duration::from_micros(200);
const SELDOM: Duration = Duration::from_millis(1);

/// An engine whose ranks live in several processes, each in its share of them: of n ranks and p processes the
/// first n / p in process 0, and so on; fewer ranks than processes are in the first of these. Every process makes the same connections in the same order.
///
/// Collectives follow their step lists over messages, [direct](shardloom_collectives::Algorithm::Direct) ones
/// too, so they come to the same, to the last bit, as in one process. What a rank has lent or started
/// proceeds while it computes: a thread of the process looks for packets every now and then. Dropping the
/// engine tells the other processes that this one is gone; drop endpoints before.
pub struct MessagePassing {
    router: Arc<Router>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MessagePassing {
    /// An engine over a transport.
    ///
    /// # Errors
    ///
    /// [`FabricError::Start`], if there is no thread to be had.
    pub fn over(transport: Box<dyn Transport>) -> Result<Self, FabricError> {
        let router = Router::new(transport);
        let done = Arc::new(AtomicBool::new(false));
        let thread = {
            let (router, done) = (Arc::clone(&router), Arc::clone(&done));
            let builder = thread::Builder::new().name("packets".to_owned());
            builder.spawn(move || look_for_packets(&router, &done)).map_err(|error| {
                let reason = format!("there is no thread to look for packets: {error}");
                FabricError::Start { reason }
            })?
        };
        Ok(Self { router, done, thread: Some(thread) })
    }

    /// Those of the ranks that live here.
    fn endpoints<B: Lent>(&self, connection: &Arc<Connection>) -> Vec<Box<dyn Endpoint<B>>> {
        let endpoint = |&rank: &u32| -> Box<dyn Endpoint<B>> {
            Box::new(MessagePassingEndpoint::new(rank, &self.router, connection))
        };
        connection.own.iter().map(endpoint).collect()
    }

    /// Tells all other processes that this one is gone, and why: whoever waits for one of its ranks, or will,
    /// gets [`FabricError::PeerGone`].
    pub fn leave(&self, reason: &str) {
        self.router.leave_all(reason);
    }
}

fn look_for_packets(router: &Router, done: &AtomicBool) {
    let mut pause = OFTEN;
    while !done.load(Ordering::Acquire) {
        router.progress();
        pause = match router.transport().is_under_way() {
            true => OFTEN,
            false => SELDOM.min(pause + OFTEN),
        };
        thread::sleep(pause);
    }
}

impl<B: Lent> Engine<B> for MessagePassing {
    fn process(&self) -> Process {
        let transport = self.router.transport();
        Process { number: transport.process(), of: transport.processes() }
    }

    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let connection = self.router.connect(ranks, settings)?;
        Ok(self.endpoints(&connection))
    }

    fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let connection = self.router.connect_in(processes, settings)?;
        Ok(self.endpoints(&connection))
    }
}

impl Drop for MessagePassing {
    fn drop(&mut self) {
        let reason = if thread::panicking() { "its process panicked" } else { "its process ended" };
        self.router.leave_all(reason);
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}
