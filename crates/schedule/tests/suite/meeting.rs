//! Where devices meet before the end of a step.

use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::{MeetingRequest, meetings};

use super::{EQUAL, schedule};

/// A request's number, and for each of its devices the action after which it comes.
type Granted = (usize, Vec<(usize, usize)>);

/// Which of the requests a schedule on so many devices fulfils, with as many micro-batches and passes of one unit.
fn granted(kind: ScheduleKind, devices: usize, requests: &[&[(usize, usize)]]) -> Vec<Granted> {
    granted_at(&EQUAL, kind, devices, requests)
}

fn granted_at(
    times: &PassTimes,
    kind: ScheduleKind,
    devices: usize,
    requests: &[&[(usize, usize)]],
) -> Vec<Granted> {
    let built = schedule(kind, devices, 1, devices, times);
    let requests: Vec<MeetingRequest> =
        requests.iter().map(|it| MeetingRequest { not_before: it.to_vec() }).collect();
    let found = meetings(&built, times, &requests).expect("no deadlock");
    found.into_iter().map(|it| (it.request, it.after)).collect()
}

const KIND: ScheduleKind = ScheduleKind::OneForwardOneBackward;

// 1F1B on three devices:
//
// time      0  1  2  3  4  5  6  7  8  9
// device 0  F0 F1 F2 .  .  B0 .  B1 .  B2
// device 1  .  F0 F1 .  B0 F2 B1 .  B2 .
// device 2  .  .  F0 B0 F1 B1 F2 B2 .  .

/// After its B0 device 0 has a unit to wait, and device 1 one after its B1. They meet when the later of the
/// two is there, and what device 0 then begins a moment later is in time for its last pass.
const IDLE: &[(usize, usize)] = &[(0, 3), (1, 4)];
/// Device 2 works without a break from its first forward on, and all wait for it, while in the end both are
/// done before device 0.
const BUSY: &[(usize, usize)] = &[(1, 0), (2, 0)];
/// Device 2 is at its end.
const END: &[(usize, usize)] = &[(0, 3), (2, 5)];

#[test]
fn devices_that_stand_idle_meet_early_and_who_is_waited_for_or_at_its_end_does_not() {
    assert_eq!(granted(KIND, 3, &[IDLE]), [(0, IDLE.to_vec())]);
    assert_eq!(granted(KIND, 3, &[BUSY]), []);
    assert_eq!(granted(KIND, 3, &[END]), []);
    assert_eq!(granted(KIND, 3, &[BUSY, END, IDLE]), [(2, IDLE.to_vec())]);
}

/// Device 0 has time after its last forward, and is the last to end: to meet then makes the step shorter than to meet
/// at its end. To meet right after the first forward of device 2 costs as much as that saves.
#[test]
fn what_an_early_meeting_saves_is_not_spent_on_another() {
    let saves: &[(usize, usize)] = &[(0, 2)];
    let costs: &[(usize, usize)] = &[(2, 0)];
    assert_eq!(granted(KIND, 3, &[saves, costs]), [(0, saves.to_vec())]);
}

#[test]
fn requests_that_wait_for_the_same_are_held_together() {
    let both = [(0, IDLE.to_vec()), (2, IDLE.to_vec())];
    assert_eq!(granted(KIND, 3, &[IDLE, BUSY, IDLE]), both);
}

/// Before the latest of what it waits for, device 1's B1, device 0 has run its B0, though it requests to meet
/// from its first forward on.
#[test]
fn a_meeting_stands_behind_what_its_devices_have_run_until_the_last_of_them_comes() {
    assert_eq!(granted(KIND, 3, &[&[(0, 0), (1, 4)]]), [(0, IDLE.to_vec())]);
}

/// Both have run their first forwards at 5: device 2 three of them, until its first gradient comes at 7, and
/// device 3 two, with one unit to wait. At the end they are done two units before device 0, so that a
/// meeting would do no harm there even if it took long.
#[test]
fn a_meeting_is_so_short_that_any_idle_time_is_enough_for_it() {
    let first: &[(usize, usize)] = &[(2, 2), (3, 1)];
    assert_eq!(granted(KIND, 5, &[first]), [(0, first.to_vec())]);
}

#[test]
fn without_a_flush_there_is_no_end_of_a_step_before_which_to_meet() {
    assert_eq!(granted(ScheduleKind::PipeDream, 3, &[IDLE]), []);
}

// With messages of one unit:
//
// time      0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15
// device 0  F0 F1 F2 .  .  .  .  .  .  B0 .  B1 .  .  .  B2
// device 1  .  .  F0 F1 .  .  .  B0 F2 B1 .  .  .  B2 .  .
// device 2  .  .  .  .  F0 B0 F1 B1 .  .  F2 B2 .  .  .  .

/// Device 2 waits for what is on its way, so that its first micro-batches' gradients have time; all wait for the first
/// and the last.
#[test]
fn devices_meet_while_messages_are_under_way() {
    let times = PassTimes { message: 1.0, ..EQUAL };
    for action in 0..5 {
        let request: &[(usize, usize)] = &[(2, action)];
        let expected = match action {
            1..=3 => vec![(0, request.to_vec())],
            _ => vec![],
        };
        assert_eq!(granted_at(&times, KIND, 3, &[request]), expected, "{action}");
        // Without messages it works without a break.
        assert_eq!(granted(KIND, 3, &[request]), [], "{action}");
    }
}
