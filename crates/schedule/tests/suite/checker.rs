//! What the checker refuses, and what it finds.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::ScheduleKind;
use shardloom_schedule::ScheduleError;
use shardloom_schedule::{Schedule, StageMap, check, time};

use super::{EQUAL, schedule};

/// A schedule written as people write it: each device's order, stage `s` of the only pipeline on
/// device `places[s]`.
fn written(places: &[usize], microbatches: usize, orders: &[&str]) -> Schedule {
    let map = StageMap::new(vec![places.to_vec()], microbatches).expect("a map");
    let order = |(device, order): (usize, &&str)| {
        order
            .split_whitespace()
            .map(|action| map.parse(device, action).expect("an action"))
            .collect()
    };
    let orders = orders.iter().enumerate().map(order).collect();
    Schedule { map, orders }
}

fn refusal(schedule: &Schedule, buffers: usize) -> String {
    match check(schedule, buffers) {
        Err(ScheduleError::Rule(message)) => message,
        other => panic!("it should be refused, and is {other:?}"),
    }
}

#[test]
fn a_pass_that_runs_twice_or_where_it_does_not_belong_is_refused() {
    let twice = written(&[0], 1, &["F0 F0 B0"]);
    assert_eq!(refusal(&twice, 1), "device 0 runs, twice or where it does not belong, F0");
    for (both, pass) in [("F0 B0 I0 W0", "I0"), ("F0 B0 W0", "W0"), ("F0 I0 B0", "B0")] {
        let message = format!("device 0 runs, twice or where it does not belong, {pass}");
        assert_eq!(refusal(&written(&[0], 1, &[both]), 1), message);
    }
    let mut elsewhere = written(&[0, 1], 1, &["F0 B0", "F0 B0"]);
    elsewhere.orders[0] = elsewhere.orders[1].clone();
    assert_eq!(refusal(&elsewhere, 1), "device 0 runs, twice or where it does not belong, F0");
}

#[test]
fn a_pass_that_never_runs_is_refused() {
    let cases = [
        (["F0 F1 B0", "F0 B0 F1 B1"], "device 0 never runs B1"),
        (["F0 F1 B0 B1", "F0 B0"], "device 1 never runs F1"),
        (["F0 F1 I0 B1", "F0 B0 F1 B1"], "device 0 never runs W0"),
    ];
    for (orders, message) in cases {
        assert_eq!(refusal(&written(&[0, 1], 2, &orders), 1), message);
    }
}

#[test]
fn two_passes_at_once_that_send_the_same_way_need_two_buffers() {
    let schedule = written(&[0, 1], 2, &["F0+F1 B0 B1", "F0 B0 F1 B1"]);
    let message = "deadlock with 1 buffers: device 0 at F0+F1, device 1 at F0";
    assert_eq!(refusal(&schedule, 1), message);
    assert_eq!(check(&schedule, 2), Ok(vec![2, 1]));
}

#[test]
fn a_backward_before_its_forward_deadlocks() {
    let schedule = written(&[0], 1, &["B0 F0"]);
    assert_eq!(refusal(&schedule, 1), "deadlock with 1 buffers: device 0 at B0");
    let message = time(&schedule, 1, &EQUAL).expect_err("it never starts").to_string();
    assert_eq!(message, "schedule: deadlock: device 0 waits at B0");
}

#[test]
fn weight_gradients_wait_for_input_gradients() {
    let schedule = written(&[0], 1, &["F0 W0 I0"]);
    assert_eq!(refusal(&schedule, 1), "deadlock with 1 buffers: device 0 at W0");
}

#[test]
fn devices_that_wait_for_each_other_deadlock() {
    // Device 0 wants the gradient of 0 before it sends 1; device 1 wants 1 first.
    let schedule = written(&[0, 1], 2, &["F0 B0 F1 B1", "F0 F1 B1 B0"]);
    assert_eq!(refusal(&schedule, 9), "deadlock with 9 buffers: device 0 at B0, device 1 at F1");
    assert!(time(&schedule, 1, &EQUAL).is_err());
}

#[test]
fn too_few_buffers_deadlock_where_more_would_do() {
    // Device 1 takes micro-batches in reverse, so both forwards must be on their way at once.
    let schedule = written(&[0, 1], 2, &["F0 F1 B1 B0", "F1 F0 B1 B0"]);
    assert_eq!(refusal(&schedule, 1), "deadlock with 1 buffers: device 0 at F1, device 1 at F1");
    assert_eq!(check(&schedule, 2), Ok(vec![2, 2]));
}

#[test]
fn without_a_buffer_nothing_can_be_sent_but_stages_of_one_device_hand_over() {
    let message = "deadlock with 0 buffers: device 0 at F0, device 1 at F0";
    assert_eq!(refusal(&written(&[0, 1], 1, &["F0 B0", "F0 B0"]), 0), message);
    assert_eq!(check(&written(&[0, 0], 1, &["F0 F0@1 B0@1 B0"]), 0), Ok(vec![2]));
}

/// Of two passes that overlap neither may need what the other is only about to do, or what is not there.
#[test]
fn passes_that_overlap_are_ready_both() {
    let apart = written(&[0], 2, &["F0 F1+B0 B1"]);
    assert_eq!(check(&apart, 1), Ok(vec![2]));
    for order in ["F0 F1+B1 B0", "F0 B1+F1 B0"] {
        let text = order.split(' ').nth(1).unwrap_or_default();
        let message = format!("deadlock with 1 buffers: device 0 at {text}");
        assert_eq!(refusal(&written(&[0], 2, &[order]), 1), message);
    }
}

#[test]
fn micro_batches_are_in_flight_until_their_weight_gradients() {
    assert_eq!(check(&written(&[0], 2, &["F0 I0 F1 W0 I1 W1"]), 1), Ok(vec![2]));
    assert_eq!(check(&written(&[0], 2, &["F0 I0 W0 F1 I1 W1"]), 1), Ok(vec![1]));
}

#[test]
fn a_schedule_without_flush_runs_ahead_from_the_first_step_and_stops_with_the_last() {
    // PipeDream on two devices: the first is one micro-batch ahead.
    let schedule = written(&[0, 1], 1, &["F1 B0", "F0 B0"]);
    assert_eq!(schedule.ahead(), 1);
    let unrolled = schedule.unrolled(3);
    let text = |device: usize| -> Vec<String> {
        unrolled[device].iter().map(|&action| schedule.map.text(device, action)).collect()
    };
    assert_eq!(text(0).join(" "), "F0 F1 B0 F2 B1 B2");
    assert_eq!(text(1).join(" "), "F0 B0 F1 B1 F2 B2");
    assert_eq!(check(&schedule, 1), Ok(vec![2, 1]));
}

#[test]
fn what_is_no_pass_is_refused_with_what_would_be_one() {
    let map = StageMap::new(vec![vec![0, 1, 1, 0], vec![1, 0]], 4).expect("a map");
    for text in ["", "X1", "F", "F-1", "F1@", "F0+F2+B0", "F0@9", "F1", "F0<", "F1@1<"] {
        assert!(map.parse(0, text).is_err(), "{text:?} on device 0");
    }
    for text in ["F0", "B2@1", "I1<", "F0+B1<", "W3<+F2@1", "F8@1"] {
        let action = map.parse(0, text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        let expected = text.replace("F0", "F0@0");
        assert_eq!(map.text(0, action), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn with_enough_buffers_an_order_is_refused_just_where_it_never_ends(
        stages in 1usize..=4,
        microbatches in 1usize..=5,
        stage in 0usize..4,
        first in 0usize..10,
        second in 0usize..10,
    ) {
        let kind = ScheduleKind::OneForwardOneBackward;
        let mut swapped = schedule(kind, stages, 1, microbatches, &EQUAL);
        let order = &mut swapped.orders[stage % stages];
        let (first, second) = (first % order.len(), second % order.len());
        order.swap(first, second);
        let checked = check(&swapped, microbatches);
        prop_assert_eq!(checked.is_ok(), time(&swapped, 1, &EQUAL).is_ok());
    }
}

/// Whether some execution of two devices, each with one of two stages, gets to the end of both orders. A device sends
/// where fewer than `buffers` messages wait on that way.
fn some_execution_ends(orders: [&[&str]; 2], buffers: usize) -> bool {
    let count = |device: usize, done: usize, kind: char| {
        orders[device][..done].iter().filter(|pass| pass.starts_with(kind)).count()
    };
    let has = |device: usize, done: usize, pass: &str| orders[device][..done].contains(&pass);
    let (mut open, mut met) = (vec![[0, 0]], vec![[0, 0]]);
    while let Some(done) = open.pop() {
        for device in [0, 1] {
            let Some(&pass) = orders[device].get(done[device]) else { continue };
            let waiting = |from: usize, kind: char| {
                count(from, done[from], kind) - count(1 - from, done[1 - from], kind)
            };
            let forward = pass.replace('B', "F");
            let can = match (device, pass.starts_with('F')) {
                (0, true) => waiting(0, 'F') < buffers,
                (1, true) => has(0, done[0], pass),
                (0, false) => has(0, done[0], &forward) && has(1, done[1], pass),
                _ => has(1, done[1], &forward) && waiting(1, 'B') < buffers,
            };
            let mut next = done;
            next[device] += 1;
            if can && !met.contains(&next) {
                met.push(next);
                open.push(next);
            }
        }
    }
    met.contains(&orders.map(<[_]>::len))
}

/// All orders of two micro-batches on two devices.
#[test]
fn what_is_taken_is_what_some_execution_gets_to_the_end_of() {
    let passes = ["F0", "F1", "B0", "B1"];
    let places =
        || (0..4usize).flat_map(|a| (0..4).flat_map(move |b| (0..4).map(move |c| [a, b, c])));
    let order = |[a, b, c]: [usize; 3]| -> Option<Vec<&str>> {
        let different = a != b && a != c && b != c;
        different.then(|| [a, b, c, 6 - a - b - c].map(|it| passes[it]).to_vec())
    };
    let orders: Vec<Vec<&str>> = places().filter_map(order).collect();
    assert_eq!(orders.len(), 24);
    let mut taken = [0; 4];
    for (first, second) in orders.iter().flat_map(|one| orders.iter().map(move |it| (one, it))) {
        let [one, other] = [first, second].map(|it| it.join(" "));
        let schedule = written(&[0, 1], 2, &[&one, &other]);
        for (buffers, taken) in taken.iter_mut().enumerate() {
            let found = check(&schedule, buffers);
            let ends = some_execution_ends([first, second], buffers);
            assert_eq!(found.is_ok(), ends, "{one} and {other}, {buffers} buffers: {found:?}");
            *taken += usize::from(ends);
        }
    }
    // None without a buffer; more than two are never needed.
    assert!(taken[0] == 0 && taken[0] < taken[1] && taken[1] < taken[2] && taken[2] == taken[3]);
}
