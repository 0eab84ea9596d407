//! Candidates to be estimated: plans in a few numbers.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};

/// One replica with so many stages and this tensor-parallel width, micro-batches of one sample.
pub(crate) fn pipeline(pp: u32, tp: u32, microbatches: u32) -> Candidate {
    Candidate {
        pp,
        dp: 1,
        cp: 1,
        tp,
        sequence_parallel: false,
        zero: 0,
        sharing: 1,
        microbatch: 1,
        microbatches,
        recompute: Recompute::None,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        cut: Cut::Even,
    }
}

/// All candidates on `devices` devices, with micro-batches of up to 4 samples.
pub(crate) fn candidates(devices: u32, global_batch: u32) -> Vec<Candidate> {
    candidates_of_context(1, devices, global_batch)
}

/// Those of them with this context-parallel width.
pub(crate) fn candidates_of_context(cp: u32, devices: u32, global_batch: u32) -> Vec<Candidate> {
    let devices = devices / cp;
    let mut all = vec![];
    let widths = |most: u32| (0..).map(|power| 1 << power).take_while(move |&it| it <= most);
    for pp in widths(devices.min(8)) {
        for tp in widths((devices / pp).min(8)) {
            let dp = devices / pp / tp;
            for microbatch in widths((global_batch / dp).min(4)) {
                for zero in 0..if dp * cp > 1 { 4 } else { 1 } {
                    for recompute in Recompute::BY_BLOCK {
                        for schedule in ScheduleKind::PLAIN {
                            for cut in [Cut::Even, Cut::Balanced] {
                                for sequence_parallel in [false, true] {
                                    all.push(Candidate {
                                        pp,
                                        dp,
                                        cp,
                                        tp,
                                        sequence_parallel: sequence_parallel && tp > 1,
                                        zero,
                                        sharing: dp,
                                        microbatch,
                                        microbatches: global_batch / dp / microbatch,
                                        recompute,
                                        schedule,
                                        chunks: 1,
                                        cut,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Schedules with stages on a mesh, for pipelines.
pub(crate) const ORDERS: [(ScheduleKind, u32); 16] = [
    (ScheduleKind::Afab, 1),
    (ScheduleKind::OneForwardOneBackward, 1),
    (ScheduleKind::Interleaved, 2),
    (ScheduleKind::Interleaved, 3),
    (ScheduleKind::ZeroBubbleH1, 1),
    (ScheduleKind::ZeroBubbleH2, 1),
    (ScheduleKind::ZeroBubbleOneP, 1),
    (ScheduleKind::ZeroBubbleTwoP, 1),
    (ScheduleKind::ZeroBubbleV, 2),
    (ScheduleKind::VHalf, 2),
    (ScheduleKind::VMin, 2),
    (ScheduleKind::Hanayo, 2),
    (ScheduleKind::Hanayo, 4),
    (ScheduleKind::DualPipeV, 2),
    (ScheduleKind::DualPipe, 2),
    (ScheduleKind::Chimera, 2),
];

/// All pipelines on `devices` devices that the schedules exist for, with micro-batches of up to 4 samples.
pub(crate) fn candidates_in_all_orders(devices: u32, global_batch: u32) -> Vec<Candidate> {
    let mut all = vec![];
    for (pp, tp) in [(2, 1), (2, 2), (4, 1), (4, 2), (8, 1)] {
        let dp = devices / pp / tp;
        for (microbatch, zero) in
            [1, 2, 4].iter().flat_map(|&it| (0..4).map(move |zero| (it, zero)))
        {
            for (recompute, (schedule, chunks)) in Recompute::BY_BLOCK
                .iter()
                .flat_map(|&recompute| ORDERS.map(|order| (recompute, order)))
            {
                for cut in [Cut::Even, Cut::Balanced] {
                    all.push(Candidate {
                        pp,
                        dp,
                        cp: 1,
                        tp,
                        sequence_parallel: tp > 1,
                        zero: if dp > 1 { zero } else { 0 },
                        sharing: dp,
                        microbatch,
                        microbatches: global_batch / dp / microbatch,
                        recompute,
                        schedule,
                        chunks,
                        cut,
                    });
                }
            }
        }
    }
    all
}

/// Those of `candidates` that there is an estimate of.
pub(crate) fn possible(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    candidates: Vec<Candidate>,
) -> Vec<Candidate> {
    let mut estimator = Estimator::new(graph, cluster, settings.clone()).expect("an estimator");
    let exists = |it: &Candidate| estimator.estimate(it).expect("costs").is_some();
    candidates.into_iter().filter(exists).collect()
}

/// Each n-th of `all`, which a fixed walk picks.
pub(crate) fn sample(all: Vec<Candidate>, n: u64) -> Vec<Candidate> {
    let mut state = 1u64;
    let mut picks = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33).is_multiple_of(n)
    };
    all.into_iter().filter(|_| picks()).collect()
}
