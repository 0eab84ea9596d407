//! Ranks in processes of choice.

use std::sync::Arc;
use std::time::Duration;

use shardloom_fabric::{
    Contents, Endpoint, Engine, FabricError, Format, MessagePassing, Pool, Queues, Settings, View,
    ViewMut,
};
use shardloom_kernels::Arithmetic;

type Endpoints = Vec<Box<dyn Endpoint<Contents>>>;

fn settings() -> Settings {
    Settings { timeout: Duration::from_secs(20), arithmetic: Arc::new(Arithmetic) }
}

fn engines(processes: u32) -> Vec<MessagePassing> {
    let engine = |transport| MessagePassing::over(Box::new(transport)).expect("a thread");
    Queues::between(processes).into_iter().map(engine).collect()
}

#[test]
fn ranks_live_where_they_are_put_and_other_processes_have_none() {
    let engines = engines(3);
    let connect = |engine: &MessagePassing| -> Endpoints {
        engine.connect_in(&[2, 0], &settings()).expect("there are such processes")
    };
    let mut endpoints: Vec<Endpoints> = engines.iter().map(connect).collect();
    assert_eq!(endpoints.iter().map(ranks).collect::<Vec<_>>(), [vec![1], vec![], vec![0]]);
    let mut zero = endpoints[2].remove(0);
    let mut one = endpoints[0].remove(0);
    send(&mut zero, &[1.5], 7);
    assert_eq!(receive(&mut one, 7), Ok(1.5));
}

/// As those of workers and servers on their devices are.
#[test]
fn ranks_of_one_process_need_not_follow_each_other() {
    let engines = engines(2);
    let connect = |engine: &MessagePassing| -> Endpoints {
        engine.connect_in(&[1, 0, 1, 0, 1], &settings()).expect("there are such processes")
    };
    let mut endpoints: Vec<Endpoints> = engines.iter().map(connect).collect();
    assert_eq!(endpoints.iter().map(ranks).collect::<Vec<_>>(), [vec![1, 3], vec![0, 2, 4]]);
    // From everyone to the second rank, and within a process to another.
    let [first, second] = &mut endpoints[..] else { unreachable!("two processes") };
    let (mut one, mut others) = (first.remove(0), vec![first.remove(0)]);
    others.append(second);
    for (tag, other) in others.iter_mut().enumerate() {
        send(other, &[tag as f32], 7);
    }
    for (number, other) in others.iter().enumerate() {
        let received = one.receive(other.rank(), 7).expect("it was sent");
        let View::F32(numbers) = received.view() else { unreachable!("it is f32") };
        assert_eq!(numbers, [number as f32]);
    }
}

fn ranks(of: &Endpoints) -> Vec<u32> {
    of.iter().map(|it| it.rank()).collect()
}

#[test]
fn fewer_ranks_than_processes_are_in_the_first_of_these() {
    let engines = engines(3);
    let own = |engine: &MessagePassing| {
        let own: Endpoints = engine.connect(2, &settings()).expect("one or none in each");
        own.iter().map(|it| it.rank()).collect::<Vec<_>>()
    };
    assert_eq!(engines.iter().map(own).collect::<Vec<_>>(), [vec![0], vec![1], vec![]]);
}

#[test]
fn places_that_cannot_be_are_refused_by_process() {
    let engines = engines(2);
    let refused: Result<Endpoints, FabricError> = engines[0].connect_in(&[0, 2], &settings());
    let error = refused.err().expect("it is wrong").to_string();
    assert!(error.contains("no process 2"), "{error}");
}

/// Sends these numbers to rank 1 under a tag.
fn send(endpoint: &mut Box<dyn Endpoint<Contents>>, numbers: &[f32], tag: u64) {
    let most = numbers.len();
    let pool = Pool { to: 1, format: Format::F32, elements: 1, ready: most, most, priority: None };
    let pool = endpoint.pool(pool).expect("there is a rank 1");
    for &number in numbers {
        let mut message = endpoint.message(pool, tag).expect("it is free");
        let ViewMut::F32(numbers) = message.view_mut() else { unreachable!("it is f32") };
        numbers[0] = number;
        endpoint.send(message).expect("it is there");
    }
}

/// Receives a number of rank 0 under a tag.
fn receive(endpoint: &mut Box<dyn Endpoint<Contents>>, tag: u64) -> Result<f32, FabricError> {
    let received = endpoint.receive(0, tag)?;
    let View::F32(numbers) = received.view() else { unreachable!("it is f32") };
    Ok(numbers[0])
}

/// The first process makes a second connection and sends before the other has made its end of it.
#[test]
fn what_comes_for_a_connection_before_it_is_made_is_there_in_order_once_it_is() {
    let [sender, receiver] = &engines(2)[..] else { unreachable!("two processes") };
    let connect = |engine: &MessagePassing| -> Box<dyn Endpoint<Contents>> {
        let mut own: Endpoints = engine.connect(2, &settings()).expect("one each");
        own.remove(0)
    };
    let (mut known, mut other_known) = (connect(sender), connect(receiver));
    let mut early = connect(sender);
    send(&mut early, &[1.5, 2.5], 7);
    // Packets of a process stay in order, so those of before have arrived with this one.
    send(&mut known, &[0.5], 7);
    assert_eq!(receive(&mut other_known, 7), Ok(0.5));
    let mut late = connect(receiver);
    send(&mut early, &[3.5], 7);
    let received: Vec<_> = (0..3).map(|_| receive(&mut late, 7)).collect();
    assert_eq!(received, [Ok(1.5), Ok(2.5), Ok(3.5)]);
}

/// A process that is gone is not waited for in connections that are made afterwards.
#[test]
fn who_left_before_a_connection_was_made_is_gone_in_it() {
    let [leaver, other] = &engines(2)[..] else { unreachable!("two processes") };
    let connect = |engine: &MessagePassing| -> Box<dyn Endpoint<Contents>> {
        let mut own: Endpoints = engine.connect(2, &settings()).expect("one each");
        own.remove(0)
    };
    let (_known, mut other_known) = (connect(leaver), connect(other));
    leaver.leave("out of order");
    assert!(receive(&mut other_known, 7).is_err());
    let error = receive(&mut connect(other), 7).expect_err("nobody is there");
    let FabricError::PeerGone { peer: 0, reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, "out of order");
}
