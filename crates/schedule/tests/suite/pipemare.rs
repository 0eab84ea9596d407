//! A forward and a backward pass in each slot, for PipeMare and pipelined backpropagation.

use shardloom_plan::ScheduleKind;
use shardloom_schedule::check;

use super::pipedream::sizes;
use super::{EQUAL, delays, schedule, steady_seconds, text};

const KIND: ScheduleKind = ScheduleKind::PipeMare;

#[test]
fn each_slot_has_a_forward_and_a_backward() {
    let single = schedule(KIND, 3, 1, 1, &EQUAL);
    for (stage, order) in ["F4 B0", "F2 B0", "F0 B0"].into_iter().enumerate() {
        assert_eq!(text(&single, stage), order);
    }
    assert_eq!(text(&schedule(KIND, 2, 1, 3, &EQUAL), 0), "F2 B0 F3 B1 F4 B2");
}

#[test]
fn the_delay_is_twice_the_number_of_stages_after_and_one_more_are_in_flight() {
    for (stages, microbatches) in sizes() {
        let schedule = schedule(KIND, stages, 1, microbatches, &EQUAL);
        let expected: Vec<usize> = (0..stages).map(|stage| 2 * (stages - 1 - stage)).collect();
        assert_eq!(delays(&schedule), expected, "{stages} {microbatches}");
        let in_flight = expected.iter().map(|delay| delay + 1).collect();
        assert_eq!(check(&schedule, 1), Ok(in_flight), "{stages} {microbatches}");
    }
}

#[test]
fn balanced_stages_are_always_busy_even_if_a_message_takes_half_a_slot() {
    for (stages, microbatches) in sizes() {
        for (forward, backward) in [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)] {
            for message in [0.0, (forward + backward) / 2.0] {
                let schedule = schedule(KIND, stages, 1, microbatches, &EQUAL);
                let seconds = steady_seconds(&schedule, forward, backward, message);
                let work = microbatches as f64 * (forward + backward);
                assert_eq!(seconds, work, "{stages} {microbatches} {message}");
            }
        }
    }
}
