//! The times and the memory that schedules are made for, against what they are made of.

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::partition::{LayerProfile, profile};
use shardloom_methods::pass_times;
use shardloom_plan::{Plan, Precision, ScheduleKind, Uniform};
use shardloom_program::lower;

const MICROBATCH: usize = 4;
const MICROBATCHES: usize = 4;

fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024");
    spec.and_then(|spec| spec.graph()).expect("a model")
}

fn plan(graph: &Graph, pp: usize, schedule: ScheduleKind) -> Plan {
    let uniform = Uniform {
        pp,
        global_batch: MICROBATCH * MICROBATCHES,
        microbatches: MICROBATCHES,
        schedule,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    uniform.plan(graph, "gpt", "a100-80g")
}

#[test]
fn passes_of_one_device_take_what_its_blocks_do_and_halves_of_whole_backward_passes_are_alike() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    let plan = plan(&graph, 1, ScheduleKind::OneForwardOneBackward);
    let times = pass_times(&graph, &cluster, &plan).expect("it simulates");
    let blocks = profile(&graph, &cluster, DeviceId(0), (Precision::MIXED, &[]), MICROBATCH);
    let all = LayerProfile::of_stage(&blocks.expect("a profile"));
    let near = |microseconds: f64, seconds: f64| {
        let error = microseconds / (1e6 * seconds) - 1.0;
        assert!(error.abs() < 0.01, "{microseconds} microseconds, and {seconds} seconds");
    };
    near(times.forward, all.forward_seconds);
    near(times.input + times.weight, all.backward_seconds);
    assert_eq!(times.input, times.weight);
    assert_eq!((times.message, times.kept), (0.0, 1.0));
}

#[test]
fn what_weight_gradients_need_is_rounded_up_to_thousandths_of_what_a_forward_pass_leaves() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:2").expect("a preset"));
    let plan = plan(&graph, 2, ScheduleKind::ZeroBubbleH1);
    let kept = pass_times(&graph, &cluster, &plan).expect("it simulates").kept;
    let program = lower(&graph, &plan, 2).expect("a program");
    let shares = program.classes.iter().map(|class| class.kept_share(&program, 0));
    let share = shares.fold(0.0, f64::max);
    assert!(share > 0.0 && share < 1.0, "{share}");
    assert!(kept >= share && kept < share + 1e-3, "{kept} for {share}");
    assert_eq!(kept, (kept * 1e3).round() / 1e3);
}

/// A micro-batch's activations, in two bytes each, over the link of a node.
#[test]
fn a_message_takes_what_the_link_takes_for_the_activations_of_a_micro_batch() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:4").expect("a preset"));
    let link = &cluster.groups()[0].profile.node.intra;
    let seconds = link.transfer_seconds((MICROBATCH * 128 * 256 * 2) as f64);
    for pp in [2, 4] {
        let plan = plan(&graph, pp, ScheduleKind::ZeroBubbleH1);
        let message = pass_times(&graph, &cluster, &plan).expect("it simulates").message;
        let error = message / (1e6 * seconds) - 1.0;
        assert!(error.abs() < 0.01, "{message} microseconds, and {seconds} seconds");
    }
}

/// The last of three stages is alone on its node.
#[test]
fn the_device_whose_messages_are_slowest_counts() {
    let cluster = Cluster::parse("a100-80g:2+a100-80g:1").expect("presets");
    let graph = graph();
    let node = &cluster.groups()[0].profile.node;
    let bytes = (MICROBATCH * 128 * 256 * 2) as f64;
    let [within, between] = [&node.intra, &node.inter].map(|link| link.transfer_seconds(bytes));
    assert!(between > 2.0 * within, "{between} and {within} seconds");
    let plan = plan(&graph, 3, ScheduleKind::ZeroBubbleH1);
    let message = pass_times(&graph, &cluster, &plan).expect("it simulates").message;
    let error = message / (1e6 * between) - 1.0;
    assert!(error.abs() < 0.01, "{message} microseconds, and {between} seconds");
}

/// Four stages, of which a device has two.
#[test]
fn the_passes_of_a_device_are_those_of_all_of_its_stages() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:2").expect("a preset"));
    let times = |chunks: usize, schedule| {
        let uniform = Uniform {
            pp: 2,
            global_batch: MICROBATCH * MICROBATCHES,
            microbatches: MICROBATCHES,
            schedule,
            precision: Precision::MIXED,
            ..Uniform::default()
        };
        let plan = uniform.plan_in_chunks(&graph, "gpt", "a100-80g", chunks).expect("a plan");
        pass_times(&graph, &cluster, &plan).expect("it simulates")
    };
    let one = times(1, ScheduleKind::ZeroBubbleH1);
    let two = times(2, ScheduleKind::ZeroBubbleV);
    // The same blocks in all on two devices; stages may be cut less evenly.
    let sums = [one, two].map(|it| it.forward + it.input + it.weight);
    assert!((sums[1] / sums[0] - 1.0).abs() < 0.3, "{sums:?}");
    assert!(one.input > 0.0 && one.weight > 0.0 && one.input != one.weight);
}

/// A device has a stage of each of two pipelines, and a micro-batch goes through one of them.
#[test]
fn passes_of_two_pipelines_count_as_those_of_one() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:2").expect("a preset"));
    let one = pass_times(&graph, &cluster, &plan(&graph, 2, ScheduleKind::OneForwardOneBackward));
    let uniform = Uniform {
        pp: 2,
        global_batch: MICROBATCH * MICROBATCHES,
        microbatches: MICROBATCHES,
        schedule: ScheduleKind::Chimera,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    let both = uniform.plan_in_chunks(&graph, "gpt", "a100-80g", 2).expect("a plan");
    assert_eq!(both.pipeline.len(), 2);
    let both = pass_times(&graph, &cluster, &both);
    let [one, both] = [one, both].map(|it| it.expect("it simulates"));
    // The mean of both stages, which is at most what the slower takes, and all of what the faster does not.
    for (one, both) in [(one.forward, both.forward), (one.input, both.input)] {
        assert!(both <= 1.01 * one && both > 0.5 * one, "{both} of two pipelines, {one} of one");
    }
}
