//! One actor per class gives what one actor per rank gives.

use crate::scenario::{cores, gpt, h100, lowered, narrow, uniform};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Precision, Recompute, ScheduleKind, Uniform};
use shardloom_sim::{MemoryFit, Options, Simulation, simulate};

fn both(graph: &Graph, cluster: &Cluster, plan: &Uniform) -> (Simulation, Simulation) {
    let program = lowered(graph, plan);
    let of = |folded| {
        simulate(graph, cluster, &program, Options { steps: 2, folded }).expect("it simulates")
    };
    (of(true), of(false))
}

/// Each folded track is that of its first rank, and all ranks of a class end their steps with it.
fn assert_equal(plan: &Uniform, (folded, unfolded): &(Simulation, Simulation)) {
    assert_eq!(folded.step_time(), unfolded.step_time(), "{plan:?}");
    for (track, ends) in folded.timeline.tracks.iter().zip(&folded.step_ends) {
        let rank = track.rank as usize;
        let same = &unfolded.timeline.tracks[rank];
        assert_eq!(track.intervals, same.intervals, "rank {rank} of {plan:?}");
        assert_eq!(track.memory, same.memory, "rank {rank} of {plan:?}");
        let bytes = (same.peak_bytes, same.sent_bytes);
        assert_eq!((track.peak_bytes, track.sent_bytes), bytes, "rank {rank} of {plan:?}");
        let ranks = rank..rank + track.multiplicity as usize;
        for (other, other_ends) in ranks.clone().zip(&unfolded.step_ends[ranks.clone()]) {
            assert_eq!(ends, other_ends, "rank {other} of {plan:?}");
        }
        let sent: u64 = unfolded.timeline.tracks[ranks].iter().map(|it| it.sent_bytes).sum();
        assert_eq!(track.sent_bytes_by_all(), sent, "the class of rank {rank} of {plan:?}");
    }
    let folded_ranks: u64 = folded.timeline.tracks.iter().map(|it| it.multiplicity).sum();
    assert_eq!(folded_ranks as usize, unfolded.timeline.tracks.len());
}

#[test]
fn folded_equals_unfolded_up_to_256_ranks() {
    let graph = gpt(6, false);
    for (pp, dp, tp) in [(8, 16, 2), (4, 8, 8), (2, 32, 4), (1, 64, 1)] {
        let plan = uniform(pp, dp, tp, 2 * pp);
        let cluster = h100(pp * plan.mesh.size());
        assert_equal(&plan, &both(&graph, &cluster, &plan));
    }
}

#[test]
fn folded_equals_unfolded_with_tied_weights_and_sharded_ones() {
    let graph = gpt(6, true);
    for zero in 0..=2 {
        let mut plan = uniform(4, 4, 2, 4);
        plan.sync.zero = zero;
        assert_equal(&plan, &both(&graph, &h100(32), &plan));
    }
}

/// The first members of stars and trees send more than others, and so do those that others fold into.
#[test]
fn a_class_sends_what_its_ranks_send_whoever_of_them_sends_most() {
    let graph = gpt(2, false);
    for name in
        ["star", "binary-tree", "double-binary-tree", "halving-doubling", "two-level-star:3"]
    {
        for (dp, tp) in [(6, 1), (9, 2), (96, 1)] {
            let mut plan = uniform(1, dp, tp, 1);
            plan.clip_norm = None;
            plan.precision = Precision::FP32;
            let algorithm = name.parse().expect("an algorithm");
            plan.sync.algorithm = algorithm;
            let cluster = h100(plan.mesh.size().next_multiple_of(8));
            let (folded, unfolded) = both(&graph, &cluster, &plan);
            let each = |it: &Simulation| -> Vec<u64> {
                it.timeline.tracks.iter().map(|track| track.sent_bytes).collect()
            };
            let (first, sent) = (each(&folded), each(&unfolded));
            let summary = folded.summary();
            let all = summary.ranks[0].sent_bytes_by_all;
            assert_eq!(2 * all, sent.iter().sum::<u64>(), "{name} over {dp} replicas");
            assert_eq!(first, sent[..1]);
            assert!(sent.iter().any(|&it| it != sent[0]), "all send as much");
            if tp == 1 {
                // Everything goes to the others and comes back, whatever the way.
                assert_eq!(all, u64::from(2 * (dp - 1)) * 4 * graph.parameter_count());
            }
        }
    }
}

/// Adafactor keeps sums over the rows and columns of a parameter wherever a part of it is, which is not most on the
/// first position, whose share is the largest.
#[test]
fn a_class_holds_what_the_fullest_of_its_ranks_does() {
    let graph = gpt(3, false);
    let (mut elsewhere, weight_decay) = (0, 0.0);
    for (dp, zero, bucket_bytes) in
        [(3, 1, 100_000), (4, 2, 100_000), (4, 3, 30_000), (7, 1, 1 << 20), (8, 3, 1 << 20)]
    {
        let mut plan = uniform(1, dp, 1, 2);
        (plan.sync.zero, plan.sync.bucket_bytes) = (zero, bucket_bytes);
        plan.optimizer = Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay,
        };
        let cluster = h100(dp as usize);
        let (folded, unfolded) = both(&graph, &cluster, &plan);
        let peaks = unfolded.timeline.tracks.iter().map(|track| track.peak_bytes);
        let most = peaks.clone().max().expect("ranks");
        assert_eq!(folded.timeline.tracks[0].peak_bytes, most, "dp {dp}, ZeRO {zero}");
        let program = lowered(&graph, &plan);
        let fits = folded.memory_fits(&program, &cluster).expect("the devices are there");
        let all = unfolded.memory_fits(&program, &cluster).expect("the devices are there");
        let of_fullest = all[fits[0].fullest_rank as usize];
        assert_eq!(MemoryFit { rank: fits[0].fullest_rank, ..fits[0] }, of_fullest);
        elsewhere += u32::from(fits[0].fullest_rank > 0);
    }
    assert!(elsewhere > 0, "the first holds most, so that this proves nothing");
}

#[test]
fn folding_is_not_faster_where_lanes_overlap_on_the_first_devices_of_a_class_only() {
    let mut groups = h100(8).groups().to_vec();
    groups.push(groups[0].clone());
    let device = &mut groups[1].profile.device;
    (device.name, device.lanes_overlap) = ("h100-80g without overlap".into(), false);
    let cluster = Cluster::new(groups).expect("a cluster");
    let (folded, unfolded) = both(&gpt(6, false), &cluster, &uniform(1, 16, 1, 4));
    let [folded, unfolded] = [folded, unfolded].map(|it| it.step_time());
    assert!(folded >= unfolded, "{folded:?} folded, {unfolded:?} unfolded");
}

#[test]
fn a_class_computes_as_long_as_its_slowest_rank_wherever_that_is() {
    let mut groups = h100(1).groups().to_vec();
    groups.push(groups[0].clone());
    let device = &mut groups[1].profile.device;
    device.name = "slow in memory".into();
    device.memory_bytes_per_second /= 4.0;
    let graph = gpt(6, false);
    for order in [[0, 1], [1, 0]] {
        let cluster = Cluster::new(order.map(|it| groups[it].clone()).to_vec());
        let cluster = cluster.expect("a cluster");
        let (folded, unfolded) = both(&graph, &cluster, &uniform(1, 2, 1, 2));
        let busy = |simulation: &Simulation| -> Vec<_> {
            simulation.timeline.tracks.iter().map(|track| track.busy()).collect()
        };
        let [first, second] = busy(&unfolded)[..] else { panic!("two ranks") };
        assert_eq!(first < second, order == [0, 1]);
        assert_eq!(busy(&folded), [first.max(second)]);
    }
}

#[test]
fn a_track_says_which_ranks_it_is_of() {
    let graph = gpt(2, false);
    let places = |plan: &Uniform, folded: bool| -> Vec<String> {
        let program = lowered(&graph, plan);
        let options = Options { steps: 1, folded };
        let found = simulate(&graph, &h100(8), &program, options).expect("it simulates");
        found.timeline.tracks.into_iter().map(|track| track.place).collect()
    };
    let wide = uniform(1, 2, 2, 1);
    assert_eq!(places(&wide, true), ["stage 0, dp 2 x tp 2"]);
    let ranks = [(0, 0), (0, 1), (1, 0), (1, 1)];
    assert_eq!(places(&wide, false), ranks.map(|(dp, tp)| format!("stage 0, dp {dp}, tp {tp}")));
    // Whoever is alone on its stage needs no more.
    for folded in [true, false] {
        assert_eq!(places(&uniform(2, 1, 1, 1), folded), ["stage 0", "stage 1"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(16384),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn folded_equals_unfolded(
        (pp, dp, tp) in (0u32..4, 0u32..3, 0u32..4).prop_map(|(p, d, t)| (1 << p, 1 << d, 1 << t)),
        rounds in 1usize..4,
        zero in 0u8..4,
        recompute in prop::sample::select(&Recompute::ALL[..]),
        schedule in prop::sample::select(&ScheduleKind::PLAIN[..]),
        sequence_parallel: bool,
        clips: bool,
        cluster in 0..3,
        algorithm in prop::sample::select(&["ring", "direct", "halving-doubling", "hierarchical:2"][..]),
    ) {
        let graph = gpt(6, false);
        let mut plan = uniform(pp, dp, tp, rounds * pp);
        plan.sync.zero = zero;
        plan.sync.algorithm = algorithm.parse().expect("an algorithm");
        plan.recompute = recompute;
        plan.schedule = schedule;
        plan.sequence_parallel = sequence_parallel;
        plan.clip_norm = clips.then_some(1.0);
        let ranks = pp * plan.mesh.size();
        let cluster = match cluster {
            0 => h100(ranks),
            1 => narrow(ranks),
            _ => cores(ranks),
        };
        if !cluster.groups()[0].profile.device.lanes_overlap {
            plan.precision = Precision::FP32;
        }
        assert_equal(&plan, &both(&graph, &cluster, &plan));
    }

    #[test]
    fn folding_is_never_faster_where_ranks_are_placed_unlike(
        pp in 1usize..6,
        dp in prop::sample::select(&[1u32, 3, 5, 6, 7][..]),
        tp in 1u32..3,
        zero in 0u8..4,
    ) {
        let graph = gpt(6, false);
        let mut plan = uniform(pp, dp, tp, pp);
        plan.sync.zero = zero;
        let (folded, unfolded) = both(&graph, &narrow(pp * plan.mesh.size()), &plan);
        for (track, ends) in folded.timeline.tracks.iter().zip(&folded.step_ends) {
            let first = track.rank as usize;
            for rank in first..first + track.multiplicity as usize {
                let others = &unfolded.step_ends[rank];
                prop_assert!(ends.iter().zip(others).all(|(end, other)| end >= other));
                prop_assert!(track.peak_bytes >= unfolded.timeline.tracks[rank].peak_bytes);
            }
        }
    }
}
