//! 1F1B with and without flush where stages have replicas that take micro-batches in turn (1F1B-RR).

use shardloom_plan::{Arrangement, ScheduleKind};
use shardloom_schedule::{Instance, PassKind, Schedule, StageMap, check};

use super::{EQUAL, delays, steady_seconds, text, timing};

const ENDLESS: ScheduleKind = ScheduleKind::PipeDream;
const FLUSHED: ScheduleKind = ScheduleKind::OneForwardOneBackward;

/// A step of `rounds` times as many micro-batches as there are pipelines.
fn map(replicas: &[usize], rounds: usize) -> StageMap {
    let places = Arrangement::taking_turns(replicas).expect("few turns");
    let microbatches = rounds * places.len();
    StageMap::new(places, microbatches).expect("a map")
}

fn on(kind: ScheduleKind, replicas: &[usize], rounds: usize) -> Schedule {
    Schedule::build(kind, map(replicas, rounds), &EQUAL).expect("a schedule")
}

/// One to four replicas of each of two or three stages, and some more.
fn configurations() -> Vec<Vec<usize>> {
    let mut found = vec![vec![7, 1], vec![1, 7], vec![5, 2, 1], vec![3, 2, 5], vec![2, 1, 2, 1]];
    for first in 1..=4 {
        for second in 1..=4 {
            found.push(vec![first, second]);
            found.extend((1..=4).map(|third| vec![first, second, third]));
        }
    }
    found
}

/// For each device the replicas of its stage, and of the later ones.
fn replicas_by_device(replicas: &[usize]) -> Vec<(usize, &[usize])> {
    let stages = replicas.iter().enumerate();
    stages.flat_map(|(stage, &own)| vec![(own, &replicas[stage + 1..]); own]).collect()
}

/// Micro-batches that each replica of a stage has in flight: their devices together as many as the next
/// stage's, and one more each.
fn in_flight(own: usize, later: &[usize]) -> usize {
    match later {
        [] => 1,
        [next, rest @ ..] => 1 + (in_flight(*next, rest) * next).div_ceil(own),
    }
}

#[test]
fn the_orders_are_those_of_one_forward_one_backward_on_each_replica_s_own_minibatches() {
    let wide_first = on(ENDLESS, &[2, 1], 1);
    for (device, order) in ["F2 B0", "F3 B1", "F0 B0 F1 B1"].into_iter().enumerate() {
        assert_eq!(text(&wide_first, device), order);
    }
    let wide_last = on(ENDLESS, &[1, 2], 2);
    assert_eq!(text(&wide_last, 0), "F2 B0 F3 B1 F4 B2 F5 B3");
    assert_eq!(text(&wide_last, 1), "F0 B0 F2 B2");
    assert_eq!(text(&wide_last, 2), "F1 B1 F3 B3");
    let flushed = on(FLUSHED, &[2, 1], 2);
    for (device, order) in
        ["F0 F2 B0 B2", "F1 F3 B1 B3", "F0 B0 F1 B1 F2 B2 F3 B3"].into_iter().enumerate()
    {
        assert_eq!(text(&flushed, device), order);
    }
}

#[test]
fn micro_batch_k_goes_to_replica_k_mod_r_forward_and_backward() {
    for replicas in configurations() {
        for kind in [ENDLESS, FLUSHED] {
            let schedule = on(kind, &replicas, 1);
            let mut first = 0;
            for (stage, &count) in replicas.iter().enumerate() {
                for replica in 0..count {
                    let passes = schedule.orders[first + replica].iter().flat_map(|it| it.passes());
                    for pass in passes {
                        assert_eq!(pass.microbatch as usize % count, replica, "{replicas:?}");
                        assert_eq!(usize::from(pass.instance.stage), stage);
                    }
                }
                first += count;
            }
        }
    }
}

#[test]
fn one_buffer_is_enough_and_each_replica_has_its_share_of_the_next_stage_s_in_flight_and_one() {
    for replicas in configurations() {
        let devices = replicas_by_device(&replicas);
        let expected: Vec<usize> =
            devices.iter().map(|(own, later)| in_flight(*own, later)).collect();
        for rounds in [1, 3] {
            let peaks = check(&on(ENDLESS, &replicas, rounds), 1);
            assert_eq!(peaks.as_ref(), Ok(&expected), "{replicas:?}");
            let flushed = on(FLUSHED, &replicas, rounds);
            let all = flushed.map.microbatches() as usize;
            let least = devices.iter().zip(&expected);
            let least = least.map(|((own, _), &most)| most.min(all / own)).collect();
            assert_eq!(check(&flushed, 1), Ok(least), "{replicas:?}");
        }
    }
}

#[test]
fn backwards_between_a_forward_and_its_own_are_one_less_than_are_in_flight() {
    for replicas in configurations() {
        let devices = replicas_by_device(&replicas);
        let expected: Vec<usize> =
            devices.iter().map(|(own, later)| in_flight(*own, later) - 1).collect();
        assert_eq!(delays(&on(ENDLESS, &replicas, 1)), expected, "{replicas:?}");
    }
}

#[test]
fn two_stages_admit_as_many_minibatches_as_the_paper_says_and_more_stages_at_least() {
    for replicas in configurations() {
        let workers: usize = replicas.iter().sum();
        let published = workers.div_ceil(replicas[0]);
        let admitted = check(&on(ENDLESS, &replicas, 1), 1).expect("one buffer is enough")[0];
        assert!(admitted >= published, "{replicas:?}");
        if replicas.len() == 2 || replicas.iter().all(|it| *it == replicas[0]) {
            assert_eq!(admitted, published, "{replicas:?}");
        }
    }
}

#[test]
fn all_forwards_first_take_micro_batches_in_turn_and_idle_no_longer_for_more_of_them() {
    let wide_first = on(ScheduleKind::Afab, &[2, 1], 2);
    for (device, order) in
        ["F0 F2 B2 B0", "F1 F3 B3 B1", "F0 F1 F2 F3 B3 B2 B1 B0"].into_iter().enumerate()
    {
        assert_eq!(text(&wide_first, device), order);
    }
    for replicas in configurations() {
        let [some, more] = [4, 8].map(|rounds| on(ScheduleKind::Afab, &replicas, rounds));
        let idle = |schedule: &Schedule| {
            timing(schedule, &EQUAL).makespan - 2.0 * f64::from(schedule.map.microbatches())
        };
        assert_eq!(idle(&some), idle(&more), "{replicas:?}");
    }
}

#[test]
fn balanced_stages_are_always_busy_once_the_pipeline_is_full() {
    for replicas in configurations() {
        for (forward, backward) in [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)] {
            let schedule = on(ENDLESS, &replicas, 1);
            let seconds = steady_seconds(&schedule, forward, backward, 0.0);
            // A stage with r devices takes r times as long for a micro-batch and gets every r-th.
            let work = f64::from(schedule.map.microbatches()) * (forward + backward);
            assert_eq!(seconds, work, "{replicas:?}");
        }
    }
}

/// Why warm-ups are rounded up stage by stage.
#[test]
fn the_paper_s_number_of_admitted_minibatches_leaves_devices_of_one_two_one_idle() {
    let table = ["F3 B0 F4 B1", "F2 B0", "F3 B1", "F0 B0 F1 B1"].map(String::from);
    let published = Schedule::from_table(map(&[1, 2, 1], 1), &table).expect("a schedule");
    assert_eq!(check(&published, 1).map(|peaks| peaks[0]), Ok(4));
    assert_eq!(steady_seconds(&published, 1.0, 1.0, 0.0), 1.5 * 4.0);
    assert_eq!(steady_seconds(&on(ENDLESS, &[1, 2, 1], 1), 1.0, 1.0, 0.0), 4.0);
}

#[test]
fn a_written_order_names_the_stage_by_the_micro_batch() {
    for replicas in [&[2, 1][..], &[1, 2], &[3, 2, 1]] {
        let built = on(ENDLESS, replicas, 1);
        let lines: Vec<String> = (0..built.map.devices()).map(|it| text(&built, it)).collect();
        assert!(lines.iter().all(|line| !line.contains(['@', '<'])), "{lines:?}");
        let read = Schedule::from_table(built.map.clone(), &lines);
        assert_eq!(read.map(|it| it.orders), Ok(built.orders));
    }
}

#[test]
fn a_replica_s_micro_batch_on_another_replica_is_refused() {
    let mut schedule = on(ENDLESS, &[2, 1], 1);
    schedule.orders.swap(0, 1);
    let error = check(&schedule, 1).expect_err("the replicas are swapped").to_string();
    assert!(error.contains("where it does not belong"), "{error}");
    let wrong = ["F3 B1", "F2 B0", "F0 B0 F1 B1"].map(String::from);
    let error = Schedule::from_table(map(&[2, 1], 1), &wrong).expect_err("likewise").to_string();
    assert!(error.contains("that micro-batch does not go through that stage"), "{error}");
}

#[test]
fn pipelines_that_are_no_turns_are_refused() {
    let refused = [
        // More pipelines than there are turns.
        (vec![vec![0, 1], vec![0, 1]], "0 1"),
        // A device of two stages.
        (vec![vec![0, 1], vec![1, 2]], "0 2; 1 3"),
        (vec![vec![0, 1, 0]], "0 1 2"),
        // Replicas that do not come round evenly.
        (vec![vec![0, 3], vec![1, 3], vec![1, 3], vec![2, 3]], "0 3; 1 3; 2 3"),
        // Replicas that are not in order.
        (vec![vec![1, 2], vec![0, 2]], "0 2; 1 2"),
    ];
    for (places, wanted) in refused {
        let map = StageMap::new(places.clone(), 12).expect("a map");
        assert_eq!(map.replicas(), None, "{places:?}");
        for kind in [ENDLESS, FLUSHED] {
            let error = Schedule::build(kind, map.clone(), &EQUAL).expect_err("no turns");
            let says = format!("wants its stages on devices {wanted}, and they are on");
            assert!(error.to_string().contains(&says), "{error}");
        }
    }
    let in_turn = map(&[2, 1], 1);
    let error = Schedule::build(ScheduleKind::PipeMare, in_turn, &EQUAL).expect_err("one pipeline");
    assert!(error.to_string().contains("wants its stages on devices"), "{error}");
}

#[test]
fn only_forwards_of_later_steps_run_ahead_and_with_a_flush_nothing_does() {
    for replicas in configurations() {
        assert_eq!(on(FLUSHED, &replicas, 2).ahead(), 0);
        let endless = on(ENDLESS, &replicas, 1);
        let passes = endless.orders.iter().flatten().flat_map(|action| action.passes());
        let late = passes.filter(|it| it.microbatch >= endless.map.microbatches());
        let passes: Vec<PassKind> = late.map(|it| it.kind).collect();
        assert!(
            !passes.is_empty() && passes.iter().all(|it| *it == PassKind::Forward),
            "{replicas:?}"
        );
    }
}

#[test]
fn pipelines_apart_go_through_unequal_shares_each_at_its_own_pace() {
    let apart = || Arrangement::taking_turns(&[2, 2]).expect("few turns");
    let map = || StageMap::with_shares(apart(), &[3, 1]).expect("a map");
    let dealt = |pipeline| map().microbatches_of(Instance { pipeline, stage: 0 }).to_vec();
    assert_eq!([dealt(0), dealt(1)], [vec![0, 1, 3], vec![2]]);
    let schedule = Schedule::build(FLUSHED, map(), &EQUAL).expect("a schedule");
    let orders = ["F0 F1 B0 F3 B1 B3", "F2 B2", "F0 B0 F1 B1 F3 B3", "F2 B2"];
    for (device, order) in orders.into_iter().enumerate() {
        assert_eq!(text(&schedule, device), order);
    }
    let schedule = Schedule::build(ScheduleKind::Afab, map(), &EQUAL).expect("a schedule");
    assert_eq!(text(&schedule, 0), "F0 F1 F3 B3 B1 B0");
    // Without flush devices run ahead into later steps in turn.
    assert!(Schedule::build(ENDLESS, map(), &EQUAL).is_err());
    // Where they share devices they keep turns.
    let shared = Arrangement::taking_turns(&[2, 1]).expect("few turns");
    assert!(StageMap::with_shares(shared, &[3, 1]).is_err());
    assert!(StageMap::with_shares(apart(), &[4, 0]).is_err());
}

#[test]
fn equal_shares_and_those_that_differ_by_one_are_dealt_in_turn() {
    for pipelines in 1..=5usize {
        for microbatches in pipelines..=4 * pipelines {
            let places: Vec<Vec<usize>> = (0..pipelines).map(|device| vec![device]).collect();
            let map = StageMap::new(places, microbatches).expect("a map");
            for microbatch in 0..3 * microbatches as u32 {
                for pipeline in 0..pipelines as u16 {
                    let in_step = microbatch as usize % microbatches;
                    let its = in_step % pipelines == usize::from(pipeline);
                    let instance = Instance { pipeline, stage: 0 };
                    assert_eq!(map.feeds(instance, microbatch), its);
                    let is_last = its && in_step + pipelines >= microbatches;
                    assert_eq!(map.is_last(instance, microbatch), is_last);
                }
            }
        }
    }
}

#[test]
fn a_stage_is_on_the_replica_that_its_device_is_by_number() {
    for replicas in configurations() {
        let map = map(&replicas, 2);
        for instance in map.instances() {
            let stage = usize::from(instance.stage);
            let first: usize = replicas[..stage].iter().sum();
            let place = (map.device(instance) - first) as u32;
            // One that is alone is not called a replica.
            let expected = (replicas[stage] > 1).then_some(place);
            assert_eq!(map.replica(instance), expected, "{instance:?} of {replicas:?}");
            let among = map.microbatches_of(instance);
            assert!(among.iter().all(|it| it % replicas[stage] as u32 == place), "{among:?}");
            assert_eq!(map.share(instance), replicas[stage] as f64);
        }
    }
}
