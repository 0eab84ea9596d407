//! What a rank sends by priority to other processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardloom_fabric::{
    Arrived, Contents, Endpoint, Engine, Format, MessagePassing, Packet, Pool, Priority, Queues,
    Returns, Settings, Transport,
};
use shardloom_kernels::Arithmetic;

/// What is on its way: it has arrived, but has not been sent until somebody says so.
type OnItsWay = Arc<Mutex<Vec<(Contents, Arc<dyn Returns>)>>>;

/// A transport that says of no body by itself that it has been sent.
struct Slow {
    queues: Queues,
    on_its_way: OnItsWay,
}

/// To whom the transport gives a body back.
struct Kept {
    origin: Arc<dyn Returns>,
    on_its_way: OnItsWay,
}

impl Returns for Kept {
    fn take_back(&self, contents: Contents) {
        self.on_its_way.lock().unwrap().push((contents, Arc::clone(&self.origin)));
    }
}

impl Transport for Slow {
    fn process(&self) -> u32 {
        self.queues.process()
    }

    fn processes(&self) -> u32 {
        self.queues.processes()
    }

    fn send(&self, to: u32, Packet { header, body, origin }: Packet) {
        let origin = match body.as_bytes().is_empty() {
            true => origin,
            false => Arc::new(Kept { origin, on_its_way: Arc::clone(&self.on_its_way) }),
        };
        self.queues.send(to, Packet { header, body, origin });
    }

    fn receive(&self) -> Option<Arrived> {
        self.queues.receive()
    }

    fn is_under_way(&self) -> bool {
        self.queues.is_under_way()
    }

    fn reuse(&self, body: Contents) {
        self.queues.reuse(body);
    }
}

/// With two at a time, the most urgent goes next of what waits when one has been sent, whatever came before it; what
/// waits at the end is sent all the same.
#[test]
fn a_more_urgent_message_overtakes_those_that_wait() {
    let on_its_way = OnItsWay::default();
    let mut queues = Queues::between(2).into_iter();
    let slow = Slow { queues: queues.next().unwrap(), on_its_way: Arc::clone(&on_its_way) };
    let engines: [Box<dyn Transport>; 2] = [Box::new(slow), Box::new(queues.next().unwrap())];
    let engines = engines.map(|it| MessagePassing::over(it).expect("a thread"));
    let settings = Settings { timeout: Duration::from_secs(20), arithmetic: Arc::new(Arithmetic) };
    let mut ends = engines.iter().map(|engine| -> Box<dyn Endpoint<Contents>> {
        engine.connect(2, &settings).expect("one in each").remove(0)
    });
    let (mut zero, mut one) = (ends.next().unwrap(), ends.next().unwrap());
    let mut send = |place, tag| {
        let priority = Some(Priority { place, most_under_way: 2 });
        let pool = Pool { to: 1, format: Format::F32, elements: 1, ready: 1, most: 1, priority };
        let pool = zero.pool(pool).unwrap();
        let message = zero.message(pool, tag).unwrap();
        zero.send(message).unwrap();
    };
    for (place, tag) in [(9, 0), (8, 1), (8, 2), (7, 3), (0, 4), (9, 5)] {
        send(place, tag);
    }
    let mut next = |tags: &[u64]| {
        let from: Vec<(u32, u64)> = tags.iter().map(|&tag| (0, tag)).collect();
        one.receive_any(&from).unwrap().tag()
    };
    // Nothing waits yet when the first two are sent.
    assert_eq!([next(&[0]), next(&[1])], [0, 1]);
    for (left, expected) in [(&[2, 3, 4, 5][..], 4), (&[2, 3, 5], 3), (&[2, 5], 2)] {
        let sent = on_its_way.lock().unwrap().remove(0);
        sent.1.take_back(sent.0);
        assert_eq!(next(left), expected);
    }
    drop(zero);
    assert_eq!(next(&[5]), 5);
}
