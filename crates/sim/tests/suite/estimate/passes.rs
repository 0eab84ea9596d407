//! What passes of stages and the messages between them take, by one cause at a time.

use std::collections::BTreeMap;

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_plan::{Optimizer, Precision, Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};

use super::candidates::{candidates, pipeline};
use super::simulated::{MIXED, assert_as_simulated, model, times};
use crate::scenario::{cores, gpt, h100, narrow};

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

/// Which an estimate leaves out: a stage loads once what says where documents begin, however many blocks read it.
#[test]
fn a_step_with_attention_within_documents_takes_what_one_without_takes_but_for_a_load() {
    let settings = Settings { norm: false, ..MIXED };
    for candidate in [pipeline(1, 1, 3), pipeline(2, 2, 4)] {
        for fuses in [false, true] {
            let load = |layers: usize| {
                let graph = match (gpt(layers, false), fuses) {
                    (graph, true) => graph.with_fused_attention(),
                    (graph, false) => graph,
                };
                let masked = graph.with_document_mask().expect("its attention is causal");
                let of = |graph| times(graph, &h100(4), &settings, &[candidate])[0];
                let [(estimated, simulated), masked] = [of(&graph), of(&masked)];
                assert_eq!(masked.0, estimated, "{candidate:?}");
                masked.1 - simulated
            };
            let [few, many] = [4, 8].map(load);
            // Fused attention loads it for the backward pass again; each load takes 4 microseconds.
            let loads = few / 4e-6 / f64::from(candidate.microbatches + candidate.pp - 1);
            let most = if fuses { 2.0 } else { 1.0 };
            assert!(loads > 0.0 && loads < most + 1e-3, "{loads} loads: {candidate:?}");
            assert!((many - few).abs() < 1e-9, "{many} for {few}: {candidate:?}");
        }
    }
}

#[test]
fn a_balanced_cut_gives_a_heavy_head_fewer_neighbours() {
    let graph = model("gpt:layers=14,hidden=256,heads=4,seq=128,vocab=51200");
    let cluster = h100(4);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let mut candidate = Candidate { microbatch: 4, ..pipeline(4, 1, 8) };
    let even = estimator.cuts(&candidate).expect("costs").expect("a layout");
    assert_eq!(even, [0, 4, 8, 12, 16]);
    let slow = estimator.estimate(&candidate).expect("costs").expect("a layout");
    candidate.cut = Cut::Balanced;
    let balanced = estimator.cuts(&candidate).expect("costs").expect("a layout");
    assert!(balanced[4] - balanced[3] < 4, "{balanced:?}");
    let fast = estimator.estimate(&candidate).expect("costs").expect("a layout");
    assert!(fast.step_seconds < slow.step_seconds);
}

/// Each value crosses the cuts from its producer to its last reader.
/// Each for the number of stages that it is for; with other numbers there is none.
#[test]
fn a_cut_of_ones_own_is_estimated_where_it_is() {
    let graph = gpt(6, false);
    let blocks = graph.blocks().len();
    for first in 1..blocks {
        let own_cuts = [(2, vec![0, first, blocks])].into();
        let settings = Settings { norm: false, own_cuts, ..MIXED };
        let cluster = h100(4);
        let mut estimator = Estimator::new(&graph, &cluster, settings.clone()).expect("settings");
        let own = |pp: u32| Candidate { cut: Cut::Own, ..pipeline(pp, 1, 4) };
        let cuts = estimator.cuts(&own(2)).expect("costs").expect("a layout");
        assert_eq!(cuts, [0, first, blocks]);
        assert_eq!(estimator.cuts(&own(4)).expect("costs"), None);
        let found = times(&graph, &cluster, &settings, &[own(2), pipeline(2, 1, 4)]);
        assert_as_simulated(&found, 0.05);
        // What one stage has more than half of, all wait for.
        if first < 2 || first + 2 > blocks {
            assert!(found[0].0 > found[1].0, "{found:?}");
        }
    }
}

/// Which are more than devices where those hold several, and as many where these run both ways.
#[test]
fn a_cut_of_ones_own_is_for_as_many_stages_as_a_pipeline_has_on_all_its_devices() {
    let graph = gpt(6, false);
    for (schedule, chunks, own) in [
        (ScheduleKind::Interleaved, 2, vec![0, 1, 4, 6, 8]),
        (ScheduleKind::Interleaved, 3, vec![0, 2, 3, 4, 5, 7, 8]),
        (ScheduleKind::ZeroBubbleV, 2, vec![0, 3, 4, 6, 8]),
        (ScheduleKind::Chimera, 2, vec![0, 5, 8]),
    ] {
        let stages = own.len() - 1;
        // Beside it one for every other number of stages.
        let others = (1..=8).filter(|&it| it != stages);
        let others = others.map(|it| (it, (0..it).chain([8]).collect::<Vec<usize>>()));
        let own_cuts: BTreeMap<usize, Vec<usize>> = others.collect();
        let candidate = Candidate { schedule, chunks, cut: Cut::Own, ..pipeline(2, 1, 4) };
        let without = Settings { own_cuts, ..MIXED };
        let cluster = h100(2);
        let cuts = |settings: &Settings| {
            let mut estimator = Estimator::new(&graph, &cluster, settings.clone());
            let estimator = estimator.as_mut().expect("settings");
            estimator.cuts(&candidate).expect("costs")
        };
        assert_eq!(cuts(&without), None, "{schedule:?}");
        let mut with = without.clone();
        with.own_cuts.insert(stages, own.clone());
        assert_eq!(cuts(&with), Some(own.clone()), "{schedule:?}");
        let alone = Settings { own_cuts: [(stages, own)].into(), ..MIXED };
        assert_as_simulated(&times(&graph, &cluster, &alone, &[candidate]), 0.1);
    }
}

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
        let candidates = [2, 8].map(|microbatches| pipeline(2, 1, microbatches));
        let times = times(&model(text), &cluster, &MIXED, &candidates);
        for ((estimated, simulated), tolerance) in times.into_iter().zip([0.1, 0.06]) {
            let ratio = estimated / simulated;
            assert!((ratio - 1.0).abs() <= tolerance, "{text}: {ratio}");
        }
    }
}

/// With cuts between all eight blocks 1, 1, 2, 3, 3, 2 and 1 tensors cross them, as skips go from the second and the
/// third to those as far from the end. One micro-batch by itself waits for all of them, there and back.
#[test]
fn messages_of_a_model_with_skips_take_what_crosses_each_cut() {
    let graph = model("u-transformer:layers=6,hidden=512,heads=8,seq=512,vocab=1024");
    let step = |stages: u32, slower: f64| {
        let mut groups = Cluster::parse("h100-80g:8x1").expect("a preset").groups().to_vec();
        let node = &mut groups[0].profile.node;
        node.inter.bytes_per_second /= slower;
        node.uplink_bytes_per_second /= slower;
        let cluster = Cluster::new(groups).expect("a cluster");
        let settings = Settings { norm: false, ..MIXED };
        let mut estimator = Estimator::new(&graph, &cluster, settings).expect("an estimator");
        let found = estimator.estimate(&pipeline(stages, 1, 1)).expect("costs");
        found.expect("a layout").step_seconds
    };
    let of_one = [(2, 3.0), (4, 1.0 + 3.0 + 2.0), (8, 13.0)]
        .map(|(stages, tensors)| (step(stages, 200.0) - step(stages, 100.0)) / (2.0 * tensors));
    assert!(of_one[0] > 0.0);
    assert!(of_one.iter().all(|it| (it / of_one[0] - 1.0).abs() < 1e-6), "{of_one:?}");
}

/// A backward pass that computes its forward pass again needs nothing for that which comes from the stage behind it.
#[test]
fn what_is_computed_again_runs_beside_a_message_only_where_lanes_overlap() {
    let graph = gpt(4, false);
    for (cluster, precision) in [(cores(2), Precision::FP32), (h100(2), Precision::MIXED)] {
        let mut groups = cluster.groups().to_vec();
        let link = &mut groups[0].profile.node.intra;
        // A message takes about as long as a pass.
        link.latency_seconds = if precision == Precision::FP32 { 2e-4 } else { 5e-5 };
        let cluster = Cluster::new(groups).expect("a cluster");
        let settings = Settings { precision, ..MIXED };
        for recompute in Recompute::BY_BLOCK {
            let candidates = [2, 8].map(|count| Candidate { recompute, ..pipeline(2, 1, count) });
            assert_as_simulated(&times(&graph, &cluster, &settings, &candidates), 0.02);
        }
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
