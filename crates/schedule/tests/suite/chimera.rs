//! Chimera and its doubling: pipelines in both directions.

use shardloom_plan::ScheduleKind::{Chimera, ChimeraDoubling, DualPipe};
use shardloom_schedule::{Action, Pass, PassKind, Schedule, check};

use super::{EQUAL, TWICE, refusal, schedule, text, timing};

/// Devices, pairs of pipelines and micro-batches of all sizes up to 8 devices and 32 micro-batches that
/// give each pipeline a multiple of `together`.
fn sizes(together: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let pairs = |half: usize| {
        let divides = move |pairs: &usize| half.is_multiple_of(*pairs);
        (1..=half).filter(divides).map(move |pairs| (2 * half, pairs))
    };
    (1..=4).flat_map(pairs).flat_map(move |(devices, pairs)| {
        let step = 2 * pairs * together;
        (step..=32).step_by(step).map(move |microbatches| (devices, pairs, microbatches))
    })
}

/// `D / q - 2`, which all gaps are multiples of.
fn gap(devices: usize, pairs: usize) -> f64 {
    (devices / pairs - 2) as f64
}

#[test]
fn published_makespans() {
    let cases = [(4, 1, 4, 10.0, 16.0), (8, 1, 8, 22.0, 36.0)];
    for (devices, pairs, microbatches, equal, twice) in cases {
        let schedule = schedule(Chimera, devices, 2 * pairs, microbatches, &EQUAL);
        assert_eq!(timing(&schedule, &EQUAL).makespan, equal, "{devices} devices");
        assert_eq!(timing(&schedule, &TWICE).makespan, twice, "{devices} devices");
    }
    for (pipelines, makespan) in [(4, 18.0), (8, 16.0)] {
        let schedule = schedule(Chimera, 8, pipelines, 8, &EQUAL);
        assert_eq!(timing(&schedule, &EQUAL).makespan, makespan, "{pipelines} pipelines");
    }
}

#[test]
fn the_orders_are_those_of_the_paper() {
    let merged = schedule(Chimera, 4, 2, 4, &EQUAL);
    assert_eq!(text(&merged, 0), "F0 F2 F1< B1< F3< B3< B0 B2");
    assert_eq!(text(&merged, 1), "F0 F1< F2 F3< B1< B0 B3< B2");
    assert_eq!(text(&merged, 2), "F1< F0 F3< F2 B0 B1< B2 B3<");
    assert_eq!(text(&merged, 3), "F1< F3< F0 B0 F2 B2 B1< B3<");
    let doubled = schedule(ChimeraDoubling, 2, 2, 8, &EQUAL);
    let text = text(&doubled, 0);
    assert_eq!(text, "F0 F2 F1< F3< B1< B3< B0 B2 F4 F6 F5< F7< B5< B7< B4 B6");
}

#[test]
fn with_equal_passes_the_bubble_ratio_of_whole_units_is_the_published_one() {
    for (devices, pairs, microbatches) in sizes(1) {
        if !microbatches.is_multiple_of(devices) {
            continue;
        }
        let schedule = schedule(Chimera, devices, 2 * pairs, microbatches, &EQUAL);
        let timing = timing(&schedule, &EQUAL);
        let idle = (devices - 2 * pairs) as f64;
        let ratio = idle / ((2 * pairs * microbatches) as f64 + idle);
        let size = (devices, pairs, microbatches);
        assert!((timing.bubble_fraction - ratio).abs() < 1e-12, "{size:?}");
        let makespan = 2.0 * microbatches as f64 + gap(devices, pairs);
        assert_eq!(timing.makespan, makespan, "{size:?}");
    }
}

#[test]
fn with_fewer_microbatches_than_devices_those_that_lack_leave_their_slots_empty() {
    for (devices, pairs, microbatches) in sizes(1).filter(|size| size.2 < size.0) {
        let schedule = schedule(Chimera, devices, 2 * pairs, microbatches, &EQUAL);
        let each = (microbatches / (2 * pairs)) as f64;
        // The first stage's first forward to its last backward, every second slot a micro-batch.
        let makespan = 2.0 * devices as f64 + 2.0 * (each - 1.0);
        assert_eq!(
            timing(&schedule, &EQUAL).makespan,
            makespan,
            "{devices} {pairs} {microbatches}"
        );
    }
}

/// The order is that for the next number of whole shares, without those that there are not.
#[test]
fn of_micro_batches_that_are_not_dealt_evenly_the_slots_of_those_that_lack_stay_empty() {
    for (devices, pairs, more) in sizes(1) {
        let pipelines = 2 * pairs;
        let even = schedule(Chimera, devices, pipelines, more, &EQUAL);
        for microbatches in (more - pipelines + 1..more).filter(|&it| it >= pipelines) {
            let size = (devices, pairs, microbatches);
            let odd = schedule(Chimera, devices, pipelines, microbatches, &EQUAL);
            let exists = |pass: &Pass| (pass.microbatch as usize) < microbatches;
            for (found, whole) in odd.orders.iter().zip(&even.orders) {
                let expected: Vec<Action> =
                    whole.iter().filter_map(|action| action.filtered(exists)).collect();
                assert_eq!(*found, expected, "{size:?}");
            }
            check(&odd, 1).unwrap_or_else(|error| panic!("{size:?}: {error}"));
            let makespan = |built: &Schedule| timing(built, &EQUAL).makespan;
            assert!(makespan(&odd) <= makespan(&even), "{size:?}");
        }
    }
}

#[test]
fn three_micro_batches_go_down_four_devices_twice_and_up_once() {
    let built = schedule(Chimera, 4, 2, 3, &EQUAL);
    assert_eq!(text(&built, 0), "F0 F2 F1< B1< B0 B2");
    assert_eq!(text(&built, 3), "F1< F0 B0 F2 B2 B1<");
}

#[test]
fn with_slower_backwards_each_unit_leaves_a_gap_which_doubling_closes() {
    for (devices, pairs, microbatches) in sizes(1) {
        if !microbatches.is_multiple_of(devices) {
            continue;
        }
        let (units, gap) = ((microbatches / devices) as f64, gap(devices, pairs));
        let plain = schedule(Chimera, devices, 2 * pairs, microbatches, &EQUAL);
        let bubble = timing(&plain, &TWICE).makespan - 3.0 * microbatches as f64;
        assert_eq!(bubble, (units + 1.0) * gap, "{devices} {pairs} {microbatches}");
        if microbatches.is_multiple_of(2 * devices) {
            let doubled = schedule(ChimeraDoubling, devices, 2 * pairs, microbatches, &EQUAL);
            let bubble = timing(&doubled, &TWICE).makespan - 3.0 * microbatches as f64;
            assert_eq!(bubble, 1.5 * gap, "{devices} {pairs} {microbatches}");
        }
    }
}

/// Backward halving: each micro-batch in two halves, whose passes take half as long.
#[test]
fn halving_leaves_a_fraction_of_one_gap_and_holds_no_more_than_whole_micro_batches() {
    for (devices, pairs, microbatches) in sizes(1) {
        if !microbatches.is_multiple_of(devices) {
            continue;
        }
        let halves = schedule(ChimeraDoubling, devices, 2 * pairs, 2 * microbatches, &EQUAL);
        let size = (devices, pairs, microbatches);
        let bubble = timing(&halves, &TWICE).makespan / 2.0 - 3.0 * microbatches as f64;
        assert_eq!(bubble, 0.75 * gap(devices, pairs), "{size:?}");
        let whole = schedule(Chimera, devices, 2 * pairs, microbatches, &EQUAL);
        let [of_halves, of_whole] = [(halves, 2), (whole, 1)].map(|(schedule, buffers)| {
            check(&schedule, buffers).unwrap_or_else(|error| panic!("{size:?}: {error}"))
        });
        let no_more = of_halves.iter().zip(&of_whole).all(|(half, whole)| *half <= 2 * whole);
        assert!(no_more, "{size:?}: {of_halves:?} halves, {of_whole:?} whole ones");
    }
}

#[test]
fn a_buffer_for_each_micro_batch_of_a_pass_is_enough_for_all_sizes() {
    for (kind, together) in [(Chimera, 1), (ChimeraDoubling, 2)] {
        for (devices, pairs, microbatches) in sizes(together) {
            let schedule = schedule(kind, devices, 2 * pairs, microbatches, &EQUAL);
            let size = (kind, devices, pairs, microbatches);
            let peaks =
                check(&schedule, together).unwrap_or_else(|error| panic!("{size:?}: {error}"));
            let most = (together * devices).min(microbatches);
            assert!(peaks.iter().all(|&peak| peak <= most), "{size:?}: {peaks:?}");
        }
    }
}

#[test]
fn doubling_puts_both_micro_batches_of_a_pair_on_their_way() {
    let schedule = schedule(ChimeraDoubling, 2, 2, 4, &EQUAL);
    let message = check(&schedule, 1).expect_err("a pair needs two buffers").to_string();
    assert_eq!(message, "schedule: deadlock with 1 buffers: device 0 at F2, device 1 at F3<");
}

#[test]
fn between_half_the_devices_and_one_and_all_of_them_are_in_flight() {
    for (kind, together) in [(Chimera, 1), (ChimeraDoubling, 2)] {
        for (devices, pairs, microbatches) in sizes(together) {
            if pairs > 1 || microbatches < together * devices {
                continue;
            }
            let schedule = schedule(kind, devices, 2, microbatches, &EQUAL);
            let expected: Vec<usize> = (0..devices)
                .map(|device| together * (devices / 2 + 1 + device.min(devices - 1 - device)))
                .collect();
            assert_eq!(
                check(&schedule, together),
                Ok(expected),
                "{kind:?} {devices} {microbatches}"
            );
        }
    }
}

#[test]
fn with_the_most_pipelines_nothing_is_idle() {
    for devices in [2, 4, 6, 8] {
        for microbatches in [devices, 2 * devices] {
            let schedule = schedule(Chimera, devices, devices, microbatches, &EQUAL);
            assert_eq!(timing(&schedule, &EQUAL).bubble_fraction, 0.0);
            assert_eq!(timing(&schedule, &TWICE).bubble_fraction, 0.0);
        }
    }
}

#[test]
fn doubling_runs_the_passes_of_a_pair_one_right_after_the_other() {
    for (devices, pairs, microbatches) in sizes(2) {
        let Schedule { map, orders } =
            schedule(ChimeraDoubling, devices, 2 * pairs, microbatches, &EQUAL);
        for order in orders {
            let passes: Vec<_> = order.iter().flat_map(|action| action.passes()).collect();
            for pair in passes.chunks(2) {
                let next = pair[0].microbatch + map.chains().len() as u32;
                assert_eq!(pair[1].microbatch, next);
                assert_eq!((pair[1].kind, pair[1].instance), (pair[0].kind, pair[0].instance));
                assert!(matches!(pair[0].kind, PassKind::Forward | PassKind::Backward));
            }
        }
    }
}

#[test]
fn sizes_that_do_not_exist_are_refused() {
    for (devices, chunks, rule) in [
        (4, 1, "pipelines in both directions come in pairs: an even number"),
        (4, 3, "pipelines in both directions come in pairs: an even number"),
        (5, 2, "pp = 5: pipelines in both directions need an even number of devices"),
        (6, 4, "come in pairs, as many as divide half of the devices, 3"),
    ] {
        assert!(refusal(Chimera, devices, chunks, 12).contains(rule), "{devices} {chunks}");
    }
    assert_eq!(
        refusal(Chimera, 4, 2, 1),
        "schedule: each of 2 pipelines needs a micro-batch, and there are 1"
    );
    for kind in [ChimeraDoubling, DualPipe] {
        assert_eq!(
            refusal(kind, 4, 2, 9),
            "schedule: 9 micro-batches cannot be dealt evenly to 2 pipelines"
        );
    }
    assert_eq!(
        refusal(ChimeraDoubling, 4, 2, 6),
        "schedule: chimera-doubling wants an even number of micro-batches for each of 2 pipelines, not 3"
    );
}
