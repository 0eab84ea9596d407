//! What ranks of a process send by priority to other processes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardloom_fabric::{
    Arrived, Contents, Endpoint, Engine, Format, MessagePassing, Packet, Pool, Priority, Queues,
    Settings, Transport,
};
use shardloom_kernels::Arithmetic;

/// A transport over a slow link: what was sent, and said to be, arrives when it may.
struct Slow {
    queues: Queues,
    on_its_way: Mutex<VecDeque<Arrived>>,
    may_arrive: Arc<AtomicU32>,
}

impl Transport for Slow {
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
        let mut on_its_way = self.on_its_way.lock().unwrap();
        while let Some(arrived) = self.queues.receive() {
            match arrived.body.as_bytes().is_empty() {
                true => return Some(arrived),
                false => on_its_way.push_back(arrived),
            }
        }
        let less = |may: u32| may.checked_sub(1).filter(|_| !on_its_way.is_empty());
        self.may_arrive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok()?;
        on_its_way.pop_front()
    }

    fn is_under_way(&self) -> bool {
        true
    }

    fn reuse(&self, body: Contents) {
        self.queues.reuse(body);
    }
}

/// With two at a time for both ranks of a process, the most urgent of what waits goes next when one has arrived,
/// whatever came before it and whoever sends it; what waits at the end is sent all the same.
#[test]
fn a_more_urgent_message_overtakes_those_that_wait() {
    let may_arrive = Arc::new(AtomicU32::new(0));
    let mut queues = Queues::between(2).into_iter();
    let first = queues.next().unwrap();
    let slow = Slow {
        queues: queues.next().unwrap(),
        on_its_way: Mutex::default(),
        may_arrive: Arc::clone(&may_arrive),
    };
    let engines: [Box<dyn Transport>; 2] = [Box::new(first), Box::new(slow)];
    let engines = engines.map(|it| MessagePassing::over(it).expect("a thread"));
    let settings = Settings { timeout: Duration::from_secs(20), arithmetic: Arc::new(Arithmetic) };
    let connect = |engine: &MessagePassing| -> Vec<Box<dyn Endpoint<Contents>>> {
        engine.connect(4, &settings).expect("two in each")
    };
    let (mut senders, mut receivers) = (connect(&engines[0]), connect(&engines[1]));
    let mut send = |from: usize, place, tag| {
        let priority = Some(Priority { place, most_under_way: 2 });
        let pool = Pool { to: 2, format: Format::F32, elements: 1, ready: 1, most: 1, priority };
        let pool = senders[from].pool(pool).unwrap();
        let message = senders[from].message(pool, tag).unwrap();
        senders[from].send(message).unwrap();
    };
    let sent = [(0, 9, 0), (1, 8, 1), (0, 8, 2), (1, 7, 3), (1, 0, 4), (0, 9, 5)];
    for (from, place, tag) in sent {
        send(from, place, tag);
    }
    let mut left: Vec<(u32, u64)> = sent.iter().map(|&(from, _, tag)| (from as u32, tag)).collect();
    let mut next = || {
        may_arrive.fetch_add(1, Ordering::SeqCst);
        let message = receivers[0].receive_any(&left).unwrap();
        left.retain(|&it| it != (message.from(), message.tag()));
        message.tag()
    };
    // Nothing waits yet when the first two are sent.
    for expected in [0, 1, 4, 3] {
        assert_eq!(next(), expected);
    }
    drop(senders);
    assert_eq!([next(), next()], [2, 5]);
}
