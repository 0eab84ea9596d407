//! The profile of a graph's blocks against the simulation of the same graph on the same device.

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::{Extents, Graph, ModelSpec, OpId};
use shardloom_methods::partition::{LayerProfile, Level, StageTime, pipedream, profile};
use shardloom_plan::{ParameterGroup, Precision, ScheduleKind, Uniform};
use shardloom_program::{BodyKind, lower};
use shardloom_sim::{CostModel, Options, simulate};

const MICROBATCH: usize = 4;

fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024");
    spec.expect("a model").graph().expect("its graph")
}

fn profiled(graph: &Graph, cluster: &Cluster) -> Vec<LayerProfile> {
    profile(graph, cluster, DeviceId(0), (Precision::MIXED, &[]), MICROBATCH).expect("a profile")
}

#[test]
fn blocks_take_together_what_a_simulated_step_computes_without_its_update() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    let whole = Uniform {
        global_batch: MICROBATCH,
        schedule: ScheduleKind::Afab,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    let program = lower(&graph, &whole.plan(&graph, "gpt", "a100-80g:1"), 1).expect("a program");
    let simulation = simulate(&graph, &cluster, &program, Options::default()).expect("a step");
    let costs = CostModel::new(&graph, &cluster, &program);
    let (class, only) = program.classes().next().expect("one class");
    let updates = only.bodies.iter().filter(|body| body.kind == BodyKind::Epilogue);
    let update: f64 = updates
        .flat_map(|body| &body.instructions)
        .map(|it| costs.local_seconds(class, 0, it).expect("a known device"))
        .sum();
    let blocks: f64 = profiled(&graph, &cluster).iter().map(LayerProfile::seconds).sum();
    let busy = simulation.summary().ranks[0].busy_seconds;
    // The simulation counts whole picoseconds, some thousand times.
    assert!((blocks + update - busy).abs() < 1e-6 * busy, "{blocks} + {update}, not {busy}");
}

#[test]
fn sizes_are_those_of_the_architecture() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    let layers = profiled(&graph, &cluster);
    assert_eq!(layers.len(), graph.blocks().len());
    // Between blocks flows one tensor of 4 samples, 128 positions and 256 features in bf16.
    let (last, others) = layers.split_last().expect("blocks");
    assert!(others.iter().all(|layer| layer.output_bytes == (4 * 128 * 256 * 2) as f64));
    assert_eq!(last.output_bytes, 0.0);
    // Every layer has 12 h² weights and some vectors; gradients are fp32.
    let middle = layers[layers.len() / 2];
    let weights = 12.0 * 256.0 * 256.0;
    assert!((1.0..1.02).contains(&(middle.parameter_bytes / 2.0 / weights)));
    assert_eq!(middle.gradient_bytes, 2.0 * middle.parameter_bytes);
    assert_eq!(
        LayerProfile { output_bytes: 0.0, ..layers[3] },
        LayerProfile { output_bytes: 0.0, ..layers[4] }
    );
    assert!(middle.backward_seconds > middle.forward_seconds && middle.kept_bytes > 0.0);
    // What a layer keeps is proportional to the micro-batch, its weights are not.
    let twice = profile(&graph, &cluster, DeviceId(0), (Precision::MIXED, &[]), 2 * MICROBATCH);
    let twice = twice.expect("a profile")[layers.len() / 2];
    assert_eq!(twice.kept_bytes, 2.0 * middle.kept_bytes);
    assert_eq!(twice.parameter_bytes, middle.parameter_bytes);
}

/// What a decoder reads of an encoder passes all cuts between them, beside what flows from block to block.
#[test]
fn a_skip_crosses_every_cut_between_its_ends() {
    let spec = ModelSpec::parse("u-transformer:layers=6,hidden=64,heads=4,seq=32,vocab=128");
    let graph = spec.expect("a model").graph().expect("its graph");
    let layers = profiled(&graph, &Cluster::parse("a100-80g:1").expect("a preset"));
    let one = (MICROBATCH * 32 * 64 * 2) as f64;
    let sent: Vec<f64> = layers.iter().map(|layer| layer.output_bytes / one).collect();
    // An embedding, two encoders, two blocks in the middle, two decoders, a head: skips from block 1 to 6 and from
    // 2 to 5, each beside what the next block reads but for the first cut behind its encoder, where it is that.
    assert_eq!(sent, [1.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0]);
}

#[test]
fn a_stage_is_the_sum_of_its_layers_and_ends_with_the_last_output() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    let layers = profiled(&graph, &cluster);
    let stage = LayerProfile::of_stage(&layers[..3]);
    assert_eq!(
        stage.seconds(),
        layers[..3].iter().map(|it| it.forward_seconds).sum::<f64>()
            + layers[..3].iter().map(|it| it.backward_seconds).sum::<f64>()
    );
    assert_eq!(stage.output_bytes, layers[2].output_bytes);
}

#[test]
fn a_graph_on_two_nodes_is_partitioned_over_all_their_devices() {
    let (graph, cluster) = (graph(), Cluster::parse("h100-80g:2x4").expect("a preset"));
    let layers = profiled(&graph, &cluster);
    let levels = [
        Level { components: 4, bytes_per_second: 300e9 },
        Level { components: 2, bytes_per_second: 40e9 },
    ];
    let found = pipedream(&layers, &levels, StageTime::Published).expect("a partition");
    let mut workers: Vec<usize> = found.stages.iter().flat_map(|it| it.workers.clone()).collect();
    workers.sort_unstable();
    assert_eq!(workers, (0..8).collect::<Vec<_>>());
    let serial: f64 = layers.iter().map(LayerProfile::seconds).sum();
    assert!(found.bottleneck_seconds >= serial / 8.0 * (1.0 - 1e-9));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    assert!(profile(&graph, &cluster, DeviceId(1), (Precision::MIXED, &[]), 1).is_err());
    assert!(profile(&graph, &cluster, DeviceId(0), (Precision::MIXED, &[]), 0).is_err());
}

#[test]
fn frozen_parameters_are_held_and_have_no_gradients_to_exchange() {
    let (graph, cluster) = (graph(), Cluster::parse("a100-80g:1").expect("a preset"));
    let group = ParameterGroup { frozen: true, ..ParameterGroup::named("block.0.*") };
    let of = |frozen: &[ParameterGroup]| {
        profile(&graph, &cluster, DeviceId(0), (Precision::MIXED, frozen), 4).expect("a profile")
    };
    let (all, some) = (of(&[]), of(&[group]));
    // The first block of layers stands behind the embedding.
    for (block, (all, some)) in all.iter().zip(&some).enumerate() {
        assert_eq!(all.parameter_bytes, some.parameter_bytes, "block {block}");
        let exchanged = if block == 1 { 0.0 } else { all.gradient_bytes };
        assert_eq!(some.gradient_bytes, exchanged, "block {block}");
    }
    assert!(all[1].gradient_bytes > 0.0);
}

/// A device is what it is in whatever company.
#[test]
fn each_device_of_a_cluster_is_timed_as_one_of_its_kind_alone() {
    let graph = graph();
    let mixed = Cluster::parse("h100-80g:2+v100-16g:2+a100-80g:1").expect("presets");
    let formats = (Precision::FP32, &[][..]);
    let kinds = ["h100-80g:1", "h100-80g:1", "v100-16g:1", "v100-16g:1", "a100-80g:1"];
    for (device, kind) in (0..).zip(kinds) {
        let found = profile(&graph, &mixed, DeviceId(device), formats, MICROBATCH);
        let alone = Cluster::parse(kind).expect("a preset");
        let alone = profile(&graph, &alone, DeviceId(0), formats, MICROBATCH);
        assert_eq!(found.expect("a profile"), alone.expect("a profile"), "device {device}");
    }
}

/// What a block computes with, however often, is held once there; and once in each block that reads it.
#[test]
fn a_block_holds_each_parameter_that_it_reads_once() {
    let cluster = Cluster::parse("a100-80g:1").expect("a preset");
    let mut shared = 0;
    for text in [
        "gpt:layers=2,hidden=64,heads=4,seq=16,vocab=64,tied=true",
        "u-transformer:layers=4,hidden=64,heads=4,seq=16,vocab=128",
        "lstm:layers=2,hidden=32,embed=16,seq=4,vocab=64",
        "mlp:inputs=8,hidden=16,layers=3,classes=4",
    ] {
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let extents = Extents::global(&graph, MICROBATCH);
        let layers = profiled(&graph, &cluster);
        for (index, layer) in layers.iter().enumerate() {
            let mut elements = 0;
            for (_, value) in graph.parameters() {
                let reads = |op: &&OpId| graph.op(**op).block.index() == index;
                if value.consumers.iter().any(|op| reads(&op)) {
                    elements += extents.shape(&value.axes).iter().product::<usize>();
                    shared += usize::from(!value.consumers.iter().all(|op| reads(&op)));
                }
            }
            assert_eq!(layer.parameter_bytes, (2 * elements) as f64, "{text}: block {index}");
            assert_eq!(layer.gradient_bytes, (4 * elements) as f64, "{text}: block {index}");
        }
    }
    assert!(shared > 0, "the tied embedding is in two blocks");
}
