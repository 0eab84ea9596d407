//! Memory: the most that each rank's allocator counts is what the program says.

mod support;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::{Action, Class, Program, Rank};
use support::{Samples, losses, trainer};

const SEQ: usize = 64;
const VOCAB: usize = 128;
const MICROBATCHES: usize = 4;

fn graph(spec: &str) -> Graph {
    let spec = ModelSpec::parse(spec).expect("a valid model");
    spec.graph().expect("a valid model")
}

/// Models whose activations take more than their parameters, at four samples a micro-batch.
fn graphs(layers: usize) -> [Graph; 2] {
    let sizes = format!("layers={layers},hidden=64,heads=4,seq={SEQ},vocab={VOCAB}");
    [
        graph(&format!("gpt:{sizes},dropout=0.1,tied=true")),
        graph(&format!("llama:{sizes},kv_heads=2,ffn=128")),
    ]
}

fn single() -> Uniform {
    Uniform {
        pp: 1,
        mesh: Mesh::SINGLE,
        sequence_parallel: false,
        global_batch: 16,
        microbatches: MICROBATCHES,
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::None,
        sync: Sync { bucket_bytes: 100_000, ..Sync::default() },
        precision: Precision::FP32,
        optimizer: Optimizer::default(),
        clip_norm: Some(1.0),
    }
}

/// Bytes that `position` sends to other stages in one micro-batch.
fn messages(program: &Program, class: &Class, position: usize) -> u64 {
    let (id, _) = program.locate(Rank(class.first_rank.0));
    let instructions = class.bodies[..2].iter().flat_map(|body| &body.instructions);
    instructions
        .filter(|it| matches!(it.action, Action::Send { .. }))
        .map(|it| program.instruction_sent_bytes(id, position, it))
        .sum()
}

/// Trains some steps and gives for each rank what the program says, what was counted, and the most that
/// messages on their way can add.
fn measure(graph: &Graph, uniform: &Uniform) -> Vec<(u64, u64, u64)> {
    let plan = uniform.plan(graph, "model", "local");
    let mut trainer = trainer(graph, &plan, Samples::patterned(32, SEQ, VOCAB as u32), 1e-3);
    losses(&mut trainer, 2);
    let program = trainer.program();
    let peaks = trainer.peak_bytes_per_rank().iter().zip(0u32..);
    peaks
        .map(|(&counted, rank)| {
            let (id, position) = program.locate(Rank(rank));
            let class = program.class(id);
            let planned = class.memory_use(program, position).peak_bytes;
            (planned, counted, MICROBATCHES as u64 * messages(program, class, position))
        })
        .collect()
}

#[test]
fn without_a_pipeline_the_peak_is_the_programs_to_the_byte() {
    for graph in graphs(2) {
        for (dp, cp, tp, sequence_parallel) in [
            (1, 1, 1, false),
            (2, 1, 1, false),
            (1, 2, 1, false),
            (1, 1, 2, false),
            (1, 1, 2, true),
            (2, 1, 2, true),
        ] {
            for zero in (0..4).take(if dp > 1 { 4 } else { 1 }) {
                for recompute in Recompute::ALL {
                    let uniform = Uniform {
                        mesh: Mesh { dp, cp, tp },
                        sequence_parallel,
                        recompute,
                        sync: Sync { zero, ..single().sync },
                        ..single()
                    };
                    for (planned, counted, _) in measure(&graph, &uniform) {
                        assert_eq!(counted, planned, "{} with {uniform:?}", graph.name());
                    }
                }
            }
        }
    }
}

#[test]
fn in_a_pipeline_only_messages_on_their_way_come_on_top_and_they_are_few() {
    for graph in graphs(4) {
        for schedule in ScheduleKind::ALL {
            for (dp, tp, sequence_parallel) in [(2, 1, false), (1, 2, true)] {
                for recompute in [Recompute::None, Recompute::Selective] {
                    let uniform = Uniform {
                        pp: 2,
                        mesh: Mesh { dp, cp: 1, tp },
                        sequence_parallel,
                        schedule,
                        recompute,
                        ..single()
                    };
                    for (planned, counted, transit) in measure(&graph, &uniform) {
                        let what = format!("{} with {uniform:?}", graph.name());
                        assert!(counted >= planned, "{what}: {counted} of {planned}");
                        let most = planned + transit;
                        assert!(counted <= most, "{what}: {counted}, at most {most}");
                        let excess = counted as f64 / planned as f64 - 1.0;
                        assert!(excess < 0.05, "{what}: {counted} is {excess} above {planned}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_optimizers_state_is_counted() {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-8, 0.0);
    let optimizers = [
        Optimizer::Sgd { momentum: 0.0, weight_decay },
        Optimizer::Sgd { momentum: 0.9, weight_decay },
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay,
        },
    ];
    for optimizer in optimizers {
        for zero in 0..4 {
            let uniform = Uniform {
                mesh: Mesh { dp: 2, cp: 1, tp: 1 },
                optimizer,
                sync: Sync { zero, ..single().sync },
                ..single()
            };
            for (planned, counted, _) in measure(&graphs(1)[0], &uniform) {
                assert_eq!(counted, planned, "{uniform:?}");
            }
        }
    }
}
