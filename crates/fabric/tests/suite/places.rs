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
    let ranks = |of: &Endpoints| of.iter().map(|it| it.rank()).collect::<Vec<_>>();
    assert_eq!(endpoints.iter().map(ranks).collect::<Vec<_>>(), [vec![1], vec![], vec![0]]);
    let mut zero = endpoints[2].remove(0);
    let mut one = endpoints[0].remove(0);
    let pool = Pool { to: 1, format: Format::F32, elements: 1, ready: 1, most: 1 };
    let pool = zero.pool(pool).expect("there is a rank 1");
    let mut message = zero.message(pool, 7).expect("it is free");
    let ViewMut::F32(numbers) = message.view_mut() else { unreachable!("it is f32") };
    numbers[0] = 1.5;
    zero.send(message).expect("it is there");
    let received = one.receive(0, 7).expect("it was sent");
    let View::F32(numbers) = received.view() else { unreachable!("it is f32") };
    assert_eq!(numbers, [1.5]);
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
    for (places, said) in [(vec![0, 2], "no process 2"), (vec![1, 0, 1], "ranks of process 1")] {
        let refused: Result<Endpoints, FabricError> = engines[0].connect_in(&places, &settings());
        let error = refused.err().expect("it is wrong").to_string();
        assert!(error.contains(said), "{error}");
    }
}
