//! Estimates beside simulations of the same plans.

use crate::estimated::{MIXED, mean_error, model, program, rank_correlation, sample, times};
use crate::scenario::{cores, gpt, h100, narrow};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_cluster::{Cluster, Curve, NodeGroup, Stack};
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Optimizer, ParameterGroup, Precision, Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};
use shardloom_sim::{Options, simulate};

/// Recomputation that can be estimated.
const ESTIMATED: [Recompute; 4] =
    [Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block];

/// All candidates on `devices` devices, with micro-batches of up to 4 samples.
fn candidates(devices: u32, global_batch: u32) -> Vec<Candidate> {
    candidates_of_context(1, devices, global_batch)
}

/// Those of them with this context-parallel width.
fn candidates_of_context(cp: u32, devices: u32, global_batch: u32) -> Vec<Candidate> {
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

#[test]
fn estimates_rank_plans_as_the_simulator_does() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    assert!(candidates.len() > 80, "{} plans", candidates.len());
    let times = times(&graph, &h100(16), &MIXED, &candidates);
    let (correlation, error) = (rank_correlation(&times), mean_error(&times));
    assert!(correlation >= 0.98, "rank correlation {correlation}");
    assert!(error <= 0.03, "mean error {error}");
}

#[test]
fn estimates_rank_plans_where_collectives_slow_computation_down() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    let stack = Stack { beside_collectives: 2.0, ..Stack::default() };
    let times = times(&graph, &h100(16).under(stack), &MIXED, &candidates);
    let (correlation, error) = (rank_correlation(&times), mean_error(&times));
    assert!(correlation >= 0.98, "rank correlation {correlation}");
    assert!(error <= 0.03, "mean error {error}");
}

#[test]
fn estimates_rank_plans_with_tied_weights_and_slow_links() {
    let graph =
        model("llama:layers=6,hidden=512,heads=8,kv_heads=4,seq=512,vocab=4096,ffn=1408,tied=true");
    let cluster = Cluster::parse("v100-16g:4x4").expect("a preset");
    let settings = Settings {
        precision: Precision { compute: shardloom_plan::Number::Fp16, ..Precision::MIXED },
        ..MIXED
    };
    let candidates: Vec<Candidate> =
        sample(candidates(16, 32), 24).into_iter().filter(|it| it.tp <= 4).collect();
    let times = times(&graph, &cluster, &settings, &candidates);
    let (correlation, error) = (rank_correlation(&times), mean_error(&times));
    assert!(correlation >= 0.98, "rank correlation {correlation}");
    assert!(error <= 0.05, "mean error {error}");
}

#[test]
fn estimates_rank_plans_where_lanes_do_not_overlap() {
    let graph = gpt(8, false);
    let settings = Settings { precision: Precision::FP32, bucket_bytes: 100_000, ..MIXED };
    let candidates = sample(candidates(8, 32), 16);
    let times = times(&graph, &cores(8), &settings, &candidates);
    let (correlation, error) = (rank_correlation(&times), mean_error(&times));
    assert!(correlation >= 0.98, "rank correlation {correlation}");
    assert!(error <= 0.05, "mean error {error}");
}

/// Keys and values pass between nodes where a sample's devices fill more than one.
#[test]
fn estimates_rank_plans_with_context_parallelism() {
    let own = "llama:layers=6,hidden=512,heads=8,kv_heads=4,seq=4096,vocab=4096,ffn=1408";
    let positions = "gpt:layers=6,hidden=512,heads=8,seq=2048,vocab=4096";
    for (text, cluster) in [(own, h100(16)), (positions, Cluster::parse("h100-80g:4x4").unwrap())] {
        let graph = model(text);
        let of = |cp| sample(candidates_of_context(cp, 16, 32), 24);
        let candidates: Vec<Candidate> =
            [2, 4, 8].into_iter().flat_map(of).filter(|it| it.tp <= 4).collect();
        assert!(candidates.len() > 60, "{} plans", candidates.len());
        let times = times(&graph, &cluster, &MIXED, &candidates);
        let (correlation, error) = (rank_correlation(&times), mean_error(&times));
        assert!(correlation >= 0.98, "{text}: rank correlation {correlation}");
        assert!(error <= 0.04, "{text}: mean error {error}");
    }
}

/// Parameters of some blocks, and of none of the head.
fn frozen(blocks: &[&str]) -> Settings {
    let names = |names: &&str| ParameterGroup { frozen: true, ..ParameterGroup::named(names) };
    Settings { frozen: blocks.iter().map(names).collect(), ..MIXED }
}

/// All below some block, whose stages have no backward passes and begin the next step while others still work on the one
/// before, which estimates know nothing of; some between; some parameters of each.
#[test]
fn estimates_rank_plans_of_which_some_parameters_are_frozen() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let trunk = ["embedding.*", "block.?.*", "block.10.*"];
    for (blocks, least, most) in
        [(&trunk[..], 0.95, 0.1), (&["block.[5-9].*"], 0.98, 0.02), (&["block.*.up.*"], 0.98, 0.02)]
    {
        let candidates = sample(candidates(16, 64), 24);
        let times = times(&graph, &h100(16), &frozen(blocks), &candidates);
        let (correlation, error) = (rank_correlation(&times), mean_error(&times));
        assert!(correlation >= least, "{blocks:?}: rank correlation {correlation}");
        assert!(error <= most, "{blocks:?}: mean error {error}");
    }
}

/// What leaves a node is what is left after the ranks that share have added up theirs.
#[test]
fn estimates_rank_plans_of_which_some_replicas_share() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    for (cluster, most) in [(h100(16), 0.04), (Cluster::parse("h100-80g:4x4").unwrap(), 0.04)] {
        let shares = |it: Candidate| {
            let parts = if it.dp >= 8 { [2, 4] } else { [2, 2] };
            parts.map(|parts| Candidate { sharing: it.dp / parts, ..it })
        };
        let all = candidates(16, 64).into_iter().filter(|it| it.zero > 0 && it.dp >= 4);
        let candidates = sample(all.flat_map(shares).collect(), 24);
        assert!(candidates.len() > 60, "{} plans", candidates.len());
        let times = times(&graph, &cluster, &MIXED, &candidates);
        let (correlation, error) = (rank_correlation(&times), mean_error(&times));
        assert!(correlation >= 0.98, "rank correlation {correlation}");
        assert!(error <= most, "mean error {error}");
    }
}

/// The estimate charges a skip to every cut between its ends, where the program sends it once.
#[test]
fn estimates_rank_plans_whose_stages_long_skips_connect() {
    let graph = model("u-transformer:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    let times = times(&graph, &h100(16), &MIXED, &candidates);
    let (correlation, error) = (rank_correlation(&times), mean_error(&times));
    assert!(correlation >= 0.98, "rank correlation {correlation}");
    assert!(error <= 0.05, "mean error {error}");
}

#[test]
fn estimates_take_measured_collectives_where_there_are_any() {
    let graph = gpt(4, false);
    let settings = Settings { precision: Precision::FP32, algorithm: Algorithm::Direct, ..MIXED };
    let mut groups = cores(4).groups().to_vec();
    for members in [2, 4] {
        for kind in ["all-reduce", "reduce-scatter", "all-gather"] {
            let curve = Curve::new(vec![(1e3, 1e-3), (1e6, 2e-2)]).expect("a curve");
            let name = format!("direct.{kind}.{members}");
            groups[0].profile.device.rates.insert(name, curve);
        }
    }
    let measured = Cluster::new(groups).expect("a cluster");
    let candidates = sample(candidates(4, 8), 8);
    let with = times(&graph, &measured, &settings, &candidates);
    let without = times(&graph, &cores(4), &settings, &candidates);
    assert!(mean_error(&with) <= 0.05, "mean error {}", mean_error(&with));
    let slower = with.iter().zip(&without).filter(|(with, without)| with.0 > without.0 + 1e-4);
    assert!(slower.count() > candidates.len() / 2);
}

#[test]
fn estimates_follow_the_optimizer() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=256,vocab=8192");
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let sgd = Optimizer::sgd(0.0);
    for optimizer in [lamb, adafactor, sgd] {
        for norm in [false, true] {
            let settings = Settings { optimizer, norm, ..MIXED };
            let times = times(&graph, &h100(8), &settings, &sample(candidates(8, 8), 64));
            let error = mean_error(&times);
            assert!(error <= 0.06, "{optimizer:?}, norm {norm}: mean error {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(5),
        ..ProptestConfig::default()
    })]

    #[test]
    fn estimated_memory_is_within_a_twentieth_of_what_the_program_holds(
        (pp, dp, tp) in (0u32..3, 0u32..3, 0u32..3).prop_map(|(p, d, t)| (1 << p, 1 << d, 1 << t)),
        cp in (0u32..2).prop_map(|power| 1 << power),
        microbatch in 1u32..4,
        rounds in 1u32..4,
        zero in 0u8..4,
        parts in prop::sample::select(&[1, 2][..]),
        recompute in prop::sample::select(&ESTIMATED[..]),
        schedule in prop::sample::select(&ScheduleKind::PLAIN[..]),
        cut in prop::sample::select(&[Cut::Even, Cut::Balanced][..]),
        sequence_parallel: bool,
        tied: bool,
    ) {
        let graph = gpt(6, tied);
        let candidate = Candidate {
            pp,
            dp,
            cp,
            tp,
            sequence_parallel: sequence_parallel && tp > 1,
            zero: if dp * cp > 1 { zero } else { 0 },
            sharing: if zero > 0 && dp > 1 { dp / parts } else { dp },
            // As many positions on a device with context parallelism as without.
            microbatch: microbatch * cp,
            microbatches: rounds * pp,
            recompute,
            schedule,
            chunks: 1,
            cut,
        };
        let cluster = h100(candidate.devices() as usize);
        let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
        let estimated = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
        let program = program(&graph, &mut estimator, &MIXED, &candidate);
        for (class, estimated) in program.classes.iter().zip(&estimated) {
            let held = class.memory_use(&program, 0).peak_bytes as f64;
            let ratio = estimated / held;
            prop_assert!((0.95..=1.05).contains(&ratio), "{}: {ratio}", class.place());
        }
        let estimate = estimator.estimate(&candidate).expect("costs").expect("a layout");
        let most = estimated.iter().copied().fold(0.0, f64::max);
        prop_assert_eq!(estimate.peak_bytes, most);
    }
}

/// Blocks are tabulated as stages of their own.
#[test]
fn stages_of_one_block_are_estimated_to_the_byte() {
    let own = include_str!("../../../../examples/models/own-network.toml");
    let own = ModelSpec::from_toml(own, "own-network.toml").and_then(|spec| spec.graph());
    let llama = "llama:layers=6,hidden=64,heads=4,kv_heads=2,seq=32,vocab=128,ffn=96";
    let graphs = [own.expect("the example is a network"), gpt(5, true), model(llama)];
    let widths = [(1, 1, false), (1, 2, false), (1, 2, true), (2, 1, false), (2, 2, true)];
    for (graph, recompute) in graphs.iter().flat_map(|it| ESTIMATED.map(|policy| (it, policy))) {
        for (zero, (cp, tp, sequence_parallel)) in
            (0..4).flat_map(|it| widths.map(|width| (it, width)))
        {
            if cp > 1 && graph.dim_named("seq").is_none() {
                continue;
            }
            let candidate = Candidate {
                pp: graph.blocks().len() as u32,
                dp: 2,
                cp,
                tp,
                sequence_parallel,
                zero,
                sharing: 2,
                microbatch: 3,
                microbatches: 8,
                recompute,
                schedule: ScheduleKind::OneForwardOneBackward,
                chunks: 1,
                cut: Cut::Even,
            };
            let cluster = h100(candidate.devices() as usize);
            let mut estimator = Estimator::new(graph, &cluster, MIXED).expect("an estimator");
            let found = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
            let program = program(graph, &mut estimator, &MIXED, &candidate);
            for (class, estimated) in program.classes.iter().zip(found) {
                let held = class.memory_use(&program, 0).peak_bytes as f64;
                assert_eq!(estimated, held, "{} of {candidate:?}", class.place());
            }
        }
    }
}

#[test]
fn a_layout_that_cannot_be_has_no_estimate_and_wrong_settings_have_an_error() {
    let graph = gpt(4, false);
    let cluster = h100(8);
    let candidate = Candidate {
        pp: 2,
        dp: 1,
        cp: 1,
        tp: 2,
        sequence_parallel: false,
        zero: 0,
        sharing: 1,
        microbatch: 1,
        microbatches: 4,
        recompute: Recompute::None,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        cut: Cut::Even,
    };
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    assert!(estimator.estimate(&candidate).expect("costs").is_some());
    for impossible in [Candidate { tp: 3, ..candidate }, Candidate { pp: 7, ..candidate }] {
        assert_eq!(estimator.estimate(&impossible).expect("no error"), None, "{impossible:?}");
    }
    let wrong = Settings { bucket_bytes: 0, ..MIXED };
    let mut estimator = Estimator::new(&graph, &cluster, wrong).expect("an estimator");
    let error = estimator.estimate(&candidate).expect_err("a bucket holds something");
    assert!(error.to_string().starts_with("sync.bucket_bytes = 0"), "{error}");
}

#[test]
fn a_schedule_that_has_no_estimate_is_refused_by_name() {
    let graph = gpt(6, false);
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let candidate = candidates(4, 8).swap_remove(0);
    for schedule in ScheduleKind::ALL {
        let estimated = estimator.estimate(&Candidate { schedule, ..candidate });
        match ScheduleKind::SEARCHED.contains(&schedule) {
            true => assert!(estimated.is_ok(), "{schedule:?}: {estimated:?}"),
            false => {
                let message = estimated.expect_err("no estimate").to_string();
                let expected = format!("schedule {} has no estimate", schedule.name());
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
}

#[test]
fn recomputation_that_depends_on_the_stage_is_refused_by_name() {
    let graph = gpt(6, false);
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let candidate = candidates(4, 8).swap_remove(0);
    let staged = Candidate { recompute: Recompute::Stage, ..candidate };
    let message = estimator.estimate(&staged).expect_err("no estimate").to_string();
    assert_eq!(message, "recomputation stage has no estimate; simulate its program");
    assert!(estimator.least_bytes(&staged).is_err() && estimator.least_seconds(&staged).is_err());
}

/// As the simulator counts them, from the first backward pass of a step on; shares of them as if from the begin of
/// their bucket's, which is the whole model's here.
#[test]
fn gradients_that_come_late_are_estimated_within_a_twentieth_and_shares_of_them_within_a_tenth() {
    let spec = "gpt:layers=6,hidden=64,heads=8,seq=128,vocab=512";
    let graph = model(spec);
    let mut stack = Stack::default();
    stack.memory.late_gradients = true;
    for (pp, microbatches) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 6)] {
        for (schedule, zero) in [
            (ScheduleKind::OneForwardOneBackward, 0),
            (ScheduleKind::OneForwardOneBackward, 2),
            (ScheduleKind::Afab, 0),
        ] {
            let candidate = Candidate {
                pp,
                dp: 2,
                cp: 1,
                tp: 1,
                sequence_parallel: false,
                zero,
                sharing: 2,
                microbatch: 2,
                microbatches,
                recompute: Recompute::None,
                schedule,
                chunks: 1,
                cut: Cut::Even,
            };
            let cluster = h100(candidate.devices() as usize).under(stack.clone());
            let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
            let found = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
            let program = program(&graph, &mut estimator, &MIXED, &candidate);
            let simulation = simulate(&graph, &cluster, &program, Options::default());
            let tracks = simulation.expect("it runs").timeline.tracks;
            for (track, estimated) in tracks.iter().zip(&found) {
                let ratio = estimated / track.peak_bytes as f64;
                let most = if zero == 2 { 1.1 } else { 1.05 };
                assert!((0.95..=most).contains(&ratio), "{}: {ratio}, {candidate:?}", track.place);
            }
            let most = found.iter().copied().fold(0.0, f64::max);
            let bound = estimator.bound(&candidate).expect("costs").expect("a layout");
            let least = estimator.least_bytes(&candidate).expect("costs").expect("a layout");
            assert!(bound.peak_bytes <= most * (1.0 + 1e-9), "{bound:?} {most} {candidate:?}");
            assert!(least <= most * (1.0 + 1e-9), "{least} {most} {candidate:?}");
        }
    }
}

#[test]
fn bounds_are_never_above_estimates() {
    let graph = gpt(6, false);
    let cluster = h100(16);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    for candidate in candidates(16, 64) {
        let estimate = estimator.estimate(&candidate).expect("costs").expect("a layout");
        let bytes = estimator.least_bytes(&candidate).expect("costs").expect("a layout");
        let seconds = estimator.least_seconds(&candidate).expect("costs").expect("a layout");
        let slack = 1.0 + 1e-9;
        assert!(bytes <= estimate.peak_bytes * slack, "{bytes} {estimate:?} {candidate:?}");
        assert!(seconds <= estimate.step_seconds * slack, "{seconds} {estimate:?} {candidate:?}");
    }
}

#[test]
fn a_balanced_cut_gives_a_heavy_head_fewer_neighbours() {
    let graph = model("gpt:layers=14,hidden=256,heads=4,seq=128,vocab=51200");
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let mut candidate = Candidate {
        pp: 4,
        dp: 1,
        cp: 1,
        tp: 1,
        sequence_parallel: false,
        zero: 0,
        sharing: 1,
        microbatch: 4,
        microbatches: 8,
        recompute: Recompute::None,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        cut: Cut::Even,
    };
    let even = estimator.cuts(&candidate).expect("costs").expect("a layout");
    assert_eq!(even, [0, 4, 8, 12, 16]);
    let slow = estimator.estimate(&candidate).expect("costs").expect("a layout");
    candidate.cut = Cut::Balanced;
    let balanced = estimator.cuts(&candidate).expect("costs").expect("a layout");
    assert!(balanced[4] - balanced[3] < 4, "{balanced:?}");
    let fast = estimator.estimate(&candidate).expect("costs").expect("a layout");
    assert!(fast.step_seconds < slow.step_seconds);
}

/// Estimated over simulated seconds of two replicas with so many micro-batches of one sample.
fn ratio_of_replicas(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    (zero, schedule, microbatches): (u8, ScheduleKind, u32),
) -> f64 {
    let candidate = Candidate {
        pp: 1,
        dp: 2,
        cp: 1,
        tp: 1,
        sequence_parallel: false,
        zero,
        sharing: 2,
        microbatch: 1,
        microbatches,
        recompute: Recompute::None,
        schedule,
        chunks: 1,
        cut: Cut::Even,
    };
    let (estimated, simulated) = times(graph, cluster, settings, &[candidate])[0];
    estimated / simulated
}

#[test]
fn slow_reductions_of_every_pass_are_hidden_by_the_next_forward_pass_where_there_is_one() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=512,vocab=8192");
    // One card for each node: gradients take longer to reduce than to compute.
    let cluster = Cluster::parse("h100-80g:2x1").expect("a preset");
    for schedule in ScheduleKind::PLAIN {
        let ratio = ratio_of_replicas(&graph, &cluster, &MIXED, (2, schedule, 16));
        assert!((0.94..=1.06).contains(&ratio), "{schedule:?}: {ratio}");
    }
}

#[test]
fn copies_of_shards_are_estimated_where_lanes_do_not_overlap() {
    let graph = gpt(4, false);
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.device.memory_bytes_per_second /= 10.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    for zero in 0..=3 {
        let ratio = ratio_of_replicas(&graph, &cluster, &settings, (zero, ScheduleKind::Afab, 2));
        assert!((0.99..=1.01).contains(&ratio), "ZeRO-{zero}: {ratio}");
    }
}

/// Each value crosses the cuts from its producer to its last reader.
#[test]
fn messages_over_slow_links_are_estimated() {
    let mut groups = Cluster::parse("h100-80g:2x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 100.0;
    node.uplink_bytes_per_second /= 100.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    for text in [
        "gpt:layers=4,hidden=512,heads=8,seq=512,vocab=1024",
        "u-transformer:layers=6,hidden=512,heads=8,seq=512,vocab=1024",
    ] {
        // As few micro-batches as stages, and more.
        let candidates = [2, 8].map(|microbatches| Candidate {
            pp: 2,
            dp: 1,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            zero: 0,
            sharing: 1,
            microbatch: 1,
            microbatches,
            recompute: Recompute::None,
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            cut: Cut::Even,
        });
        let times = times(&model(text), &cluster, &MIXED, &candidates);
        for ((estimated, simulated), tolerance) in times.into_iter().zip([0.1, 0.06]) {
            let ratio = estimated / simulated;
            assert!((ratio - 1.0).abs() <= tolerance, "{text}: {ratio}");
        }
    }
}

/// One replica with so many stages and this tensor-parallel width, micro-batches of one sample.
fn pipeline(pp: u32, tp: u32, microbatches: u32) -> Candidate {
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

fn assert_as_simulated(times: &[(f64, f64)], tolerance: f64) {
    for (estimated, simulated) in times {
        let ratio = estimated / simulated;
        assert!((ratio - 1.0).abs() <= tolerance, "{ratio}: {times:?}");
    }
}

/// With nothing to communicate there is nothing to overlap: every instruction counts.
#[test]
fn a_step_of_a_single_device_is_estimated_as_it_is_simulated() {
    let graph = gpt(4, false);
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    for optimizer in [MIXED.optimizer, adafactor, Optimizer::sgd(0.9)] {
        for recompute in Recompute::BY_BLOCK {
            let settings = Settings { optimizer, norm: false, ..MIXED };
            let candidate = Candidate { recompute, ..pipeline(1, 1, 3) };
            assert_as_simulated(&times(&graph, &h100(1), &settings, &[candidate]), 1e-6);
        }
    }
}

/// All ranks read their gradients, and add up one number of 64 bits.
#[test]
fn waiting_for_the_norm_takes_a_sum_of_one_number_and_a_pass_over_gradients() {
    let graph = gpt(4, false);
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.node.intra.bytes_per_second = 1e4;
    let cluster = Cluster::new(groups).expect("a cluster");
    let candidate = pipeline(1, 2, 2);
    let [without, with] = [false, true].map(|norm| {
        let settings = Settings { precision: Precision::FP32, norm, ..MIXED };
        let mut estimator =
            Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
        estimator.estimate(&candidate).expect("costs").expect("a layout").step_seconds
    });
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    let mut estimator = Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
    let program = program(&graph, &mut estimator, &settings, &candidate);
    let elements: usize = program.classes[0].buckets.iter().map(|it| it.elements).sum();
    // Half of the number goes each way, twice.
    let sum = 2.0 * (2e-6 + 4.0 / 1e4);
    let read = 4.0 * elements as f64 / 8e9;
    let found = with - without;
    assert!((found / (sum + read) - 1.0).abs() < 1e-6, "{found} is not {sum} + {read}");
}

/// The second stage of each mesh counts too.
#[test]
fn a_mesh_passes_over_the_gradients_of_all_of_its_stages_for_the_norm() {
    let graph = gpt(10, false);
    let mut groups = cores(2).groups().to_vec();
    let slow = Curve::new(vec![(1.0, 1e-5)]).expect("a curve");
    groups[0].profile.device.rates.insert("norm".to_owned(), slow);
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    for (schedule, chunks) in
        [(ScheduleKind::OneForwardOneBackward, 1), (ScheduleKind::Interleaved, 2)]
    {
        let candidate = Candidate { schedule, chunks, ..pipeline(2, 1, 4) };
        assert_as_simulated(&times(&graph, &cluster, &settings, &[candidate]), 0.02);
    }
}

/// Over links so slow that sums of the embedding are most of a step.
#[test]
fn replicas_that_share_optimizer_state_add_up_shares_of_tied_weights() {
    let graph = model("gpt:layers=4,hidden=256,heads=4,seq=64,vocab=16384,tied=true");
    let mut groups = Cluster::parse("h100-80g:4x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 50.0;
    node.uplink_bytes_per_second /= 50.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    for zero in [0, 1] {
        let candidate = Candidate { dp: 2, sharing: 2, zero, ..pipeline(2, 1, 4) };
        assert_as_simulated(&times(&graph, &cluster, &MIXED, &[candidate]), 0.05);
    }
}

/// Over slow links, which bring little but the weights of frozen blocks.
#[test]
fn sharded_weights_that_are_frozen_are_gathered_as_others_are() {
    let graph = model("gpt:layers=8,hidden=512,heads=8,seq=64,vocab=1024");
    let mut groups = Cluster::parse("h100-80g:2x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 10.0;
    node.uplink_bytes_per_second /= 10.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = frozen(&["block.[1-7].*"]);
    let candidate = Candidate { dp: 2, sharing: 2, zero: 3, ..pipeline(1, 1, 2) };
    assert_as_simulated(&times(&graph, &cluster, &settings, &[candidate]), 0.1);
}

/// Over links so slow that sums of a tensor-parallel group take longer than products.
#[test]
fn passes_at_the_same_time_hide_no_more_of_each_other_than_they_compute() {
    let graph = model("gpt:layers=6,hidden=512,heads=8,seq=256,vocab=1024");
    let mut groups = h100(4).groups().to_vec();
    groups[0].profile.node.intra.bytes_per_second /= 1000.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    let candidate =
        Candidate { schedule: ScheduleKind::DualPipeV, chunks: 2, ..pipeline(2, 2, 16) };
    assert_as_simulated(&times(&graph, &cluster, &MIXED, &[candidate]), 0.05);
}

/// Nothing is freed before all have gone forward, also of so many that only some rounds of them are run.
#[test]
fn where_all_go_forward_first_each_micro_batch_is_held_besides_those_before() {
    let graph = gpt(4, false);
    let cluster = h100(2);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let mut peak = |microbatches| {
        let candidate = Candidate { schedule: ScheduleKind::Afab, ..pipeline(2, 1, microbatches) };
        estimator.estimate(&candidate).expect("costs").expect("a layout").peak_bytes
    };
    let (four, eight, thousands) = (peak(4), peak(8), peak(4004));
    let each = (eight - four) / 4.0;
    assert!(each > 0.0);
    assert_eq!(thousands, four + 4000.0 * each);
}

/// Each round of statistics of a split bucket is added up in its tensor-parallel group; who holds a whole
/// bucket knows all of it. An embedding that tensor parallelism divides has no whole bucket.
#[test]
fn statistics_are_added_up_by_those_who_share_a_bucket() {
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let settings = Settings {
        precision: Precision::FP32,
        optimizer: lamb,
        norm: false,
        bucket_bytes: 1,
        ..MIXED
    };
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.node.intra.latency_seconds = 1e-2;
    let cluster = Cluster::new(groups).expect("a cluster");
    for vocab in [128, 129] {
        let text = "llama:layers=1,hidden=64,heads=4,kv_heads=4,seq=32,ffn=96";
        let graph = model(&format!("{text},vocab={vocab}"));
        assert_as_simulated(&times(&graph, &cluster, &settings, &[pipeline(1, 2, 1)]), 0.01);
    }
}

/// On nodes of eight, the third group of three has its last member in the second node, and shares the way
/// out of it with the sixth. Groups of sixteen have two nodes to themselves.
#[test]
fn tensor_parallel_groups_are_estimated_as_those_that_straddle_nodes() {
    let config = "gpt:layers=2,hidden=768,seq=256,ffn=3072,vocab=3072";
    for (tp, dp, heads) in [(3, 8, 6), (16, 2, 16)] {
        let graph = model(&format!("{config},heads={heads}"));
        let candidate = Candidate { dp, sharing: dp, ..pipeline(1, tp, 4) };
        let cluster = narrow((tp * dp) as usize);
        assert_as_simulated(&times(&graph, &cluster, &MIXED, &[candidate]), 0.02);
    }
}

/// Both are under way before the first comes back, so the second is behind by passes and not by messages.
#[test]
fn two_micro_batches_on_four_stages_do_not_wait_for_each_others_messages() {
    let graph = model("gpt:layers=6,hidden=512,heads=8,seq=512,vocab=1024");
    let mut groups = Cluster::parse("h100-80g:4x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 20.0;
    node.uplink_bytes_per_second /= 20.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    assert_as_simulated(&times(&graph, &cluster, &MIXED, &[pipeline(4, 1, 2)]), 0.06);
}

#[test]
fn gathers_of_updated_weights_hold_up_the_step_where_links_are_slow() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=512,vocab=8192");
    let cluster = Cluster::parse("h100-80g:2x1").expect("a preset");
    for norm in [false, true] {
        let settings = Settings { norm, ..MIXED };
        let ratio = ratio_of_replicas(&graph, &cluster, &settings, (1, ScheduleKind::Afab, 1));
        assert!((0.97..=1.03).contains(&ratio), "norm {norm}: {ratio}");
    }
}

/// Two blocks use the embedding, which is most of the model.
#[test]
fn a_stage_that_uses_a_parameter_twice_holds_it_once() {
    let vocab = 8192;
    let held = |tied: bool| {
        let text = "llama:layers=2,hidden=64,heads=4,kv_heads=4,seq=32,ffn=96";
        let graph = model(&format!("{text},vocab={vocab},tied={tied}"));
        let cluster = h100(1);
        let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
        let estimate = estimator.estimate(&pipeline(1, 1, 1)).expect("costs").expect("a layout");
        estimate.peak_bytes
    };
    // Weights, gradients, a master copy and two moments: 2 + 4 + 4 + 8 bytes of each parameter.
    assert_eq!(held(false) - held(true), 18.0 * 64.0 * f64::from(vocab));
}

#[test]
fn the_least_memory_grows_with_what_each_sample_leaves_behind() {
    let graph = gpt(6, false);
    let cluster = h100(2);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let candidate = pipeline(2, 1, 8);
    let program = program(&graph, &mut estimator, &MIXED, &candidate);
    let buckets = program.classes.iter().flat_map(|class| &class.buckets);
    let parameters: usize = buckets.map(|bucket| bucket.elements).sum();
    // 2 + 4 + 4 + 8 bytes of each parameter, on two devices.
    let always = 18.0 * parameters as f64 / 2.0;
    let [one, four] = [1, 4].map(|microbatch| {
        let found = estimator.least_bytes(&Candidate { microbatch, ..candidate });
        found.expect("costs").expect("a layout") - always
    });
    assert!(one > 0.0 && (four / one - 4.0).abs() < 1e-9, "{one} of one sample, {four} of four");
}

/// The faster devices have more memory.
#[test]
fn of_unlike_devices_the_slowest_and_the_least_memory_count_for_all() {
    let graph = gpt(4, false);
    let slow = cores(2).groups()[0].clone();
    let mut slow = NodeGroup { nodes: 2, devices_per_node: 1, ..slow };
    slow.profile.node.devices = 1;
    let mut fast = slow.clone();
    let device = &mut fast.profile.device;
    device.name = "fast".into();
    device.memory_bytes *= 2;
    device.memory_bytes_per_second *= 3.0;
    device.peak_flops.fp32 = device.peak_flops.fp32.map(|flops| 4.0 * flops);
    device.lanes_overlap = true;
    let one = |group: &NodeGroup| NodeGroup { nodes: 1, ..group.clone() };
    let alike = Cluster::new(vec![slow.clone()]).expect("a cluster");
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    for groups in [[one(&slow), one(&fast)], [one(&fast), one(&slow)]] {
        let unlike = Cluster::new(groups.to_vec()).expect("a cluster");
        let [mut alike, mut unlike] = [&alike, &unlike].map(|cluster| {
            Estimator::new(&graph, cluster, settings.clone()).expect("an estimator")
        });
        assert_eq!(unlike.memory_bytes(), 8_000_000_000);
        for candidate in candidates(2, 4) {
            let [alike, unlike] = [&mut alike, &mut unlike]
                .map(|it| it.estimate(&candidate).expect("costs").expect("a layout"));
            assert_eq!(unlike, alike, "{candidate:?}");
        }
    }
}

/// Blocks of a weight and a bias, of which each of two replicas updates one.
#[test]
fn shards_of_a_single_number_take_what_launching_their_updates_takes() {
    let graph = model("mlp:inputs=1,hidden=1,layers=4,classes=2");
    let settings = Settings { norm: false, bucket_bytes: 1, ..MIXED };
    let candidates = [1, 2].map(|zero| Candidate { dp: 2, zero, sharing: 2, ..pipeline(1, 1, 1) });
    assert_as_simulated(&times(&graph, &h100(2), &settings, &candidates), 1e-6);
}

/// While the loss, which has no weights, goes backward, those of the block before it come.
#[test]
fn a_loss_by_itself_hides_the_gather_of_the_weights_before_it() {
    let text = r#"
        [model]
        name = "loss-apart"
        [dims]
        seq = 1024
        even = 2048
        odd = 2048
        vocab = 4096
        [[input]]
        name = "features"
        kind = "real"
        axes = ["seq", "even"]
        [[input]]
        name = "targets"
        kind = "index"
        axes = ["seq"]
        [[block]]
        name = "first"
        [[block.op]]
        kind = "contract"
        inputs = ["features"]
        weight = { axes = ["even", "odd"], init = { normal = 0.02 } }
        [[block]]
        name = "second"
        [[block.op]]
        kind = "contract"
        inputs = ["first"]
        weight = { axes = ["odd", "even"], init = { normal = 0.02 } }
        [[block]]
        name = "head"
        [[block.op]]
        kind = "contract"
        inputs = ["second"]
        weight = { axes = ["vocab", "even"], init = { normal = 0.02 } }
        [[block]]
        name = "loss"
        [[block.op]]
        kind = "cross-entropy"
        inputs = ["head", "targets"]
    "#;
    let graph = ModelSpec::from_toml(text, "loss-apart.toml").and_then(|spec| spec.graph());
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    let settings = Settings { norm: false, ..MIXED };
    let candidate = Candidate { dp: 2, zero: 3, sharing: 2, microbatch: 4, ..pipeline(1, 1, 1) };
    let times = times(&graph, &h100(2), &settings, &[candidate]);
    assert_as_simulated(&times, 1e-6);
}
