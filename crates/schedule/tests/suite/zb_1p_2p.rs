//! ZB-1p and ZB-2p: zero bubble in memory of which input gradients free a part.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::{PassKind, Schedule, check};

use super::{ALIKE, schedule, times, timing};

const ONE: ScheduleKind = ScheduleKind::ZeroBubbleOneP;
const TWO: ScheduleKind = ScheduleKind::ZeroBubbleTwoP;

/// A published setting and its bubble rates.
struct Row {
    devices: usize,
    microbatches: usize,
    times: PassTimes,
    rates: [(ScheduleKind, f64); 4],
}

fn published() -> Vec<Row> {
    let text = include_str!("zero_bubble_rates.csv");
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let row = |line: &str| {
        let numbers: Vec<f64> = line.split(',').map(|it| it.parse().expect("a number")).collect();
        let [devices, microbatches, hidden, heads, forward, input, weight, message, h1, h2, two] =
            numbers[..]
        else {
            panic!("{line}: eleven columns");
        };
        // For each token and layer 34 h + 5 a s bytes, of which weight gradients need 32 h (section 2.2).
        let kept = 32.0 * hidden / (34.0 * hidden + 5.0 * heads * 1024.0);
        Row {
            devices: devices as usize,
            microbatches: microbatches as usize,
            times: PassTimes { forward, input, weight, message, kept },
            rates: [
                (ScheduleKind::ZeroBubbleH1, h1),
                (ONE, h1),
                (ScheduleKind::ZeroBubbleH2, h2),
                (TWO, two),
            ],
        }
    };
    lines.map(row).collect()
}

/// The most that any device holds of what forward passes leave, in units of one.
fn most_memory(schedule: &Schedule, kept: f64) -> f64 {
    let most = |order: &Vec<_>| {
        let (mut held, mut most) = (0.0f64, 0.0f64);
        for pass in order.iter().flat_map(|action: &shardloom_schedule::Action| action.passes()) {
            held += match pass.kind {
                PassKind::Forward => 1.0,
                PassKind::BackwardInput => kept - 1.0,
                PassKind::BackwardWeight => -kept,
                PassKind::Backward => panic!("backward passes are split"),
            };
            most = most.max(held);
        }
        most
    };
    schedule.orders.iter().map(most).fold(0.0, f64::max)
}

#[test]
fn bubble_rates_are_the_published_ones_to_the_last_digit() {
    let rows = published();
    assert_eq!(rows.len(), 12);
    for Row { devices, microbatches, times, rates } in rows {
        for (kind, published) in rates {
            let built = schedule(kind, devices, 1, microbatches, &times);
            let rate = timing(&built, &times).span_bubble_fraction();
            let size = (kind, devices, microbatches);
            assert!((rate - published).abs() <= 0.5001e-4, "{size:?}: {rate} and {published}");
        }
    }
}

#[test]
fn the_less_is_kept_for_weight_gradients_the_more_microbatches_are_in_flight() {
    let times = PassTimes { weight: 5.0, ..ALIKE };
    let most = |kept: f64| {
        let built = schedule(TWO, 4, 1, 16, &PassTimes { kept, ..times });
        check(&built, 16).expect("no deadlock").into_iter().max()
    };
    assert_eq!([1.0, 0.5, 0.0].map(most), [Some(8), Some(15), Some(16)]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        rng_seed: RngSeed::Fixed(10),
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_of_p_and_of_2p_forwards_is_enough(
        devices in 1usize..=8,
        microbatches in 1usize..=32,
        times in times(),
        message in 0u32..=3,
        kept in 0u32..=10,
    ) {
        let kept = f64::from(kept) / 10.0;
        let times = PassTimes { message: f64::from(message), kept, ..times };
        for (kind, limit) in [(ONE, devices), (TWO, 2 * devices)] {
            let built = schedule(kind, devices, 1, microbatches, &times);
            check(&built, microbatches)?;
            let most = most_memory(&built, kept);
            prop_assert!(most <= limit as f64 + 1e-9, "{:?} {:?}", kind, most);
        }
    }

    #[test]
    fn where_all_is_kept_zb_1p_is_h1(
        devices in 1usize..=8,
        microbatches in 1usize..=32,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        let first = schedule(ScheduleKind::ZeroBubbleH1, devices, 1, microbatches, &times);
        prop_assert_eq!(schedule(ONE, devices, 1, microbatches, &times).orders, first.orders);
    }
}
