//! Every buffer of training and evaluation has its place before the first step: whatever runs, the system
//! is asked for none.

use crate::support::{Samples, graph, serial, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{
    Corrections, DeviceList, Mesh, Optimizer, Pipeline, Plan, Prediction, Recompute, ScheduleKind,
    Stage, Sync, Uniform, Weights,
};
use shardloom_train::RunClock;

const SGD: Optimizer = Optimizer::sgd(0.9);

fn gpt() -> Graph {
    graph("gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1,tied=true")
}

fn uniform() -> Uniform {
    let sync = Sync { bucket_bytes: 10_000, ..Sync::default() };
    Uniform { pp: 2, global_batch: 8, microbatches: 4, sync, ..serial() }
}

/// Trains rows of steps and evaluates between them, under both clocks.
fn assert_asks_for_nothing(graph: &Graph, plan: &Plan) {
    let modelled = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
    for clock in [RunClock::Wall, modelled] {
        let said = format!("{clock:?}\n{}", plan.to_toml());
        let samples = Samples::patterned(32, 8, 32);
        let mut trainer = trainer_with_clock(graph, plan, samples, 1e-3, clock);
        for steps in [1, 4] {
            let trained = trainer.train_steps(steps);
            trained.unwrap_or_else(|error| panic!("{error}\n{said}"));
            assert_eq!(trainer.system_allocations(), 0, "in {steps} steps of {said}");
            let loss = trainer.validate(6).unwrap_or_else(|error| panic!("{error}\n{said}"));
            assert!(loss.is_some());
            assert_eq!(trainer.system_allocations(), 0, "in evaluation of {said}");
        }
    }
}

#[test]
fn under_every_schedule_the_system_is_asked_for_nothing() {
    let graph = gpt();
    for schedule in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        for pp in [2, 4] {
            let uniform = Uniform { pp, schedule, microbatches: 8, ..uniform() };
            let clip_norm = schedule.flushes().then_some(1.0);
            let uniform = Uniform { clip_norm, ..uniform };
            assert_asks_for_nothing(&graph, &uniform.plan(&graph, "model", "local"));
        }
    }
}

#[test]
fn under_every_rule_for_weights_the_system_is_asked_for_nothing() {
    let graph = gpt();
    let corrections = |discrepancy, prediction, synchronous_steps| Weights::Newest {
        corrections: Corrections {
            discrepancy,
            prediction,
            synchronous_steps,
            ..Corrections::default()
        },
    };
    let rules = [
        (ScheduleKind::PipeDream, Weights::Stash),
        (ScheduleKind::PipeDream, Weights::VerticalSync),
        (ScheduleKind::PipeDream, Weights::DoubleBuffer),
        (ScheduleKind::PipeMare, corrections(Some(0.135), None, 2)),
        (ScheduleKind::PipeMare, corrections(None, Some(Prediction::Velocity), 0)),
        (ScheduleKind::PipeMare, corrections(None, Some(Prediction::Weights), 1)),
    ];
    for (schedule, weights) in rules {
        let uniform = Uniform {
            pp: 4,
            schedule,
            optimizer: SGD,
            clip_norm: None,
            recompute: Recompute::Selective,
            ..uniform()
        };
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.weights = weights;
        assert_asks_for_nothing(&graph, &plan);
    }
}

#[test]
fn with_every_way_of_splitting_the_system_is_asked_for_nothing() {
    let llama = graph("llama:layers=4,hidden=16,heads=4,kv_heads=2,ffn=32,seq=8,vocab=32");
    for graph in [gpt(), llama] {
        for (dp, cp, tp, sequence_parallel) in
            [(2, 1, 1, false), (1, 2, 1, false), (1, 1, 2, false), (1, 1, 2, true), (2, 1, 2, true)]
        {
            for zero in (0..4).take(if dp > 1 { 4 } else { 1 }) {
                let recompute = if zero % 2 == 0 { Recompute::None } else { Recompute::Full };
                let uniform = Uniform {
                    mesh: Mesh::of(dp, cp, tp),
                    sequence_parallel,
                    recompute,
                    sync: Sync { zero, ..uniform().sync },
                    ..uniform()
                };
                assert_asks_for_nothing(&graph, &uniform.plan(&graph, "model", "local"));
            }
        }
    }
}

#[test]
fn with_statistics_and_unlike_meshes_the_system_is_asked_for_nothing() {
    // Tied weights want equal meshes.
    let graph = graph("gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1,tied=false");
    let statistics = [
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.0,
        },
        SGD,
    ];
    for optimizer in statistics {
        for meshes in [((2, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 1), (2, 2))] {
            let mut plan = Uniform { optimizer, ..uniform() }.plan(&graph, "model", "local");
            let (first, second) = meshes;
            let mesh = |(dp, tp)| Mesh::of(dp, 1, tp);
            let (first, second) = (mesh(first), mesh(second));
            let blocks = graph.blocks().len();
            let stage = |blocks, mesh: Mesh, from: usize| {
                let devices = (from as u32..(from + mesh.size()) as u32).collect();
                Stage::new(blocks, mesh, DeviceList(devices))
            };
            let stages = vec![stage((0, 3), first, 0), stage((3, blocks), second, first.size())];
            plan.pipeline = vec![Pipeline::of(stages)];
            assert_asks_for_nothing(&graph, &plan);
        }
    }
}
