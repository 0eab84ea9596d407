//! What ranks with a communication thread may rely on besides what every engine gives them.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{
    Collective, Contents, Endpoint, Engine, FabricError, Format, InProcess, Lent, Overlapped, Pool,
    Settings, View, ViewMut,
};
use shardloom_kernels::Arithmetic;

const SUM: Collective<'static> = Collective::Equal {
    kind: Kind::AllReduce,
    algorithm: Algorithm::Direct,
    reduction: Reduction::Sum,
};

/// Long enough that only a hang reaches it.
const PATIENT: Duration = Duration::from_secs(120);

fn connect<B: Lent>(ranks: u32, timeout: Duration) -> Vec<Box<dyn Endpoint<B>>> {
    let settings = Settings { timeout, arithmetic: Arc::new(Arithmetic) };
    Overlapped(InProcess).connect(ranks, &settings).unwrap()
}

/// Some numbers, all the same.
fn numbers(value: f32) -> Contents {
    let mut contents = Contents::zeroed(Format::F32, 5);
    let ViewMut::F32(values) = contents.view_mut() else { unreachable!("they are f32") };
    values.fill(value);
    contents
}

#[test]
fn what_was_started_proceeds_while_its_rank_does_something_else() {
    let mut ranks = connect::<Contents>(2, PATIENT);
    let (mut one, mut zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || {
            let pool =
                Pool { to: 1, format: Format::U8, elements: 0, ready: 1, most: 1, priority: None };
            let pool = zero.pool(pool).unwrap();
            let mut group = zero.group(&[0, 1]).unwrap();
            let started = group.start(SUM, numbers(1.0));
            // Rank 1 comes to the collective only when it has this: where rank 0 waited in `start`, both
            // would wait for ever.
            let message = zero.message(pool, 0).unwrap();
            zero.send(message).unwrap();
            // Nobody waits for the collective before rank 1 has its sum.
            drop(zero.receive(1, 0).unwrap());
            let (sum, outcome) = group.wait(started);
            outcome.unwrap();
            assert_eq!(sum.view(), View::F32(&[3.0; 5]));
        });
        scope.spawn(move || {
            let pool =
                Pool { to: 0, format: Format::U8, elements: 0, ready: 1, most: 1, priority: None };
            let pool = one.pool(pool).unwrap();
            let mut group = one.group(&[0, 1]).unwrap();
            drop(one.receive(0, 0).unwrap());
            let (sum, outcome) = group.run(SUM, numbers(2.0));
            outcome.unwrap();
            assert_eq!(sum.view(), View::F32(&[3.0; 5]));
            let message = one.message(pool, 0).unwrap();
            one.send(message).unwrap();
        });
    });
}

#[test]
fn unequal_parts_that_are_under_way_arrive_where_they_belong() {
    // By sender, how many numbers each rank gets.
    const PARTS: [[usize; 2]; 2] = [[1, 3], [0, 2]];
    thread::scope(|scope| {
        for (own, mut endpoint) in connect::<Contents>(2, PATIENT).into_iter().enumerate() {
            scope.spawn(move || {
                let mut group = endpoint.group(&[0, 1]).unwrap();
                let sent = PARTS[own];
                let received = PARTS.map(|parts| parts[own]);
                let counts = Collective::AllToAllV { sent: &sent, received: &received };
                let started = group.start(counts, numbers(own as f32));
                let (after, outcome) = group.wait(started);
                outcome.unwrap();
                let View::F32(after) = after.view() else { unreachable!("they are f32") };
                let expected: &[f32] = if own == 0 { &[0.0] } else { &[0.0, 0.0, 0.0, 1.0, 1.0] };
                assert_eq!(&after[..expected.len()], expected);
            });
        }
    });
}

fn assert_left(error: &FabricError, left: u32) {
    assert!(matches!(error, FabricError::PeerGone { peer, .. } if *peer == left), "{error}");
}

/// Numbers that note in which order engines come to them.
struct Noted {
    number: u32,
    contents: Contents,
    order: Arc<Mutex<Vec<u32>>>,
}

impl Lent for Noted {
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
        self.order.lock().unwrap().push(self.number);
        work(self.contents.view_mut());
    }
}

#[test]
fn collectives_of_all_groups_are_carried_out_in_the_order_in_which_they_were_started() {
    const ROUNDS: u32 = if cfg!(miri) { 3 } else { 100 };
    thread::scope(|scope| {
        for mut endpoint in connect::<Noted>(2, PATIENT) {
            scope.spawn(move || {
                let mut groups = [&[0, 1], &[1, 0]].map(|it| endpoint.group(it).unwrap());
                let order = Arc::new(Mutex::new(vec![]));
                let lent = |number| {
                    let order = Arc::clone(&order);
                    Noted { number, contents: numbers(number as f32), order }
                };
                let mut handles = vec![];
                for number in 0..ROUNDS {
                    let group = number as usize % 2;
                    handles.push((group, groups[group].start(SUM, lent(number))));
                }
                // What is waited for at once, and a barrier, come behind.
                let (last, outcome) = groups[1].run(SUM, lent(ROUNDS));
                outcome.unwrap();
                assert_eq!(last.number, ROUNDS);
                groups[0].barrier().unwrap();
                assert_eq!(*order.lock().unwrap(), (0..=ROUNDS).collect::<Vec<_>>());
                for (number, (group, handle)) in (0..ROUNDS).zip(handles).rev() {
                    assert!(groups[group].test(&handle));
                    let (noted, outcome) = groups[group].wait(handle);
                    outcome.unwrap();
                    assert_eq!(noted.number, number);
                    let sum = 2.0 * number as f32;
                    assert_eq!(noted.contents.view(), View::F32(&[sum; 5]));
                }
            });
        }
    });
}

#[test]
fn an_endpoint_that_is_dropped_breaks_off_what_nobody_has_waited_for() {
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        let mut ranks = connect::<Contents>(2, PATIENT);
        let mut other = ranks[1].group(&[0, 1]).unwrap();
        let mut group = ranks[0].group(&[0, 1]).unwrap();
        let (kind, reduction) = (Kind::AllReduce, Reduction::Sum);
        let collective = Collective::Equal { kind, algorithm, reduction };
        let handles = [1.0, 2.0].map(|value| group.start(collective, numbers(value)));
        // Rank 1 is there, and will not come: only a timeout would end a wait for it.
        drop(ranks.remove(0));
        let late = group.start(collective, numbers(3.0));
        for (handle, value) in handles.into_iter().chain([late]).zip([1.0, 2.0, 3.0]) {
            let (lent, outcome) = group.wait(handle);
            assert_eq!(lent.view(), View::F32(&[value; 5]));
            assert_left(&outcome.unwrap_err(), 0);
        }
        assert_left(&other.barrier().unwrap_err(), 0);
    }
}

#[test]
fn a_timeout_is_reported_by_the_handle_and_not_before() {
    let mut ranks = connect::<Contents>(2, Duration::from_millis(5));
    let mut group = ranks[0].group(&[0, 1]).unwrap();
    let handle = group.start(SUM, numbers(1.0));
    let (lent, outcome) = group.wait(handle);
    assert_eq!(lent.view(), View::F32(&[1.0; 5]));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "all-reduce of 5 f32 (direct, sum) in group [0, 1] timed out on rank 0 after 5ms, still \
         waiting for rank 1"
    );
}

/// What cannot be brought.
struct Broken;

impl Lent for Broken {
    fn lend(&mut self, _: &mut dyn FnMut(ViewMut<'_>)) {
        panic!("the device is lost");
    }
}

#[test]
fn what_panicked_is_there_for_who_asks() {
    let mut ranks = connect::<Broken>(1, PATIENT);
    let mut group = ranks[0].group(&[0]).unwrap();
    let handle = group.start(SUM, Broken);
    // A barrier stands behind what was started, however that ended.
    let _ = group.barrier();
    assert!(group.test(&handle));
}

#[test]
#[should_panic(expected = "a collective panicked on the communication thread")]
fn whoever_waits_for_what_panicked_hears_of_it() {
    let mut ranks = connect::<Broken>(1, PATIENT);
    let mut group = ranks[0].group(&[0]).unwrap();
    let handle = group.start(SUM, Broken);
    group.wait(handle).1.unwrap();
}
