//! Memory that is estimated beside what programs hold.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_cluster::Stack;
use shardloom_graph::ModelSpec;
use shardloom_plan::{Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator};
use shardloom_sim::{Options, simulate};

use super::candidates::pipeline;
use super::simulated::{MIXED, frozen, model, program};
use crate::scenario::{gpt, h100};

/// Recomputation that can be estimated.
const ESTIMATED: [Recompute; 4] =
    [Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block];

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
    let own = include_str!("../../../../../examples/models/own-network.toml");
    let own = ModelSpec::from_toml(own, "own-network.toml").and_then(|spec| spec.graph());
    let llama = "llama:layers=6,hidden=64,heads=4,kv_heads=2,seq=32,vocab=128,ffn=96";
    let masked = model(llama).with_document_mask().expect("its attention is causal");
    let graphs = [own.expect("the example is a network"), gpt(5, true), model(llama), masked];
    let widths = [(1, 1, false), (1, 2, false), (1, 2, true), (2, 1, false), (2, 2, true)];
    for (graph, recompute) in graphs.iter().flat_map(|it| ESTIMATED.map(|policy| (it, policy))) {
        for (zero, (cp, tp, sequence_parallel)) in
            (0..4).flat_map(|it| widths.map(|width| (it, width)))
        {
            if cp > 1 && graph.dim_named("seq").is_none() {
                continue;
            }
            let candidate = Candidate {
                dp: 2,
                cp,
                sequence_parallel,
                zero,
                sharing: 2,
                microbatch: 3,
                recompute,
                ..pipeline(graph.blocks().len() as u32, tp, 8)
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

/// Their weights are there, sharded where those of others are, and nothing else of them.
#[test]
fn frozen_weights_count_and_their_gradients_and_states_do_not() {
    let graph = model("gpt:layers=6,hidden=64,heads=4,seq=4,vocab=32");
    for (zero, names) in (0..4).flat_map(|zero| {
        let frozen: [&[&str]; 2] = [&["block.[0-4].*"], &["block.5.*", "embedding.*"]];
        frozen.map(|names| (zero, names))
    }) {
        let settings = frozen(names);
        let candidate = Candidate { dp: 2, zero, sharing: 2, microbatch: 2, ..pipeline(1, 1, 2) };
        let cluster = h100(candidate.devices() as usize);
        let mut estimator =
            Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
        let found = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
        let program = program(&graph, &mut estimator, &settings, &candidate);
        let held = program.classes[0].memory_use(&program, 0).peak_bytes as f64;
        let ratio = found[0] / held;
        assert!((0.95..=1.05).contains(&ratio), "{names:?} with ZeRO-{zero}: {ratio}");
    }
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
                dp: 2,
                zero,
                sharing: 2,
                microbatch: 2,
                schedule,
                ..pipeline(pp, 1, microbatches)
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
