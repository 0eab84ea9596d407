//! Memory: the most that each rank's allocator counts is what the program says.

use crate::support::two_nodes::cluster;
use crate::support::{Samples, graph, losses, serial, trainer, trainer_with_clock};
use shardloom_data::Table;
use shardloom_graph::Graph;
use shardloom_plan::{DeviceList, Mesh, Optimizer, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::timeline::{Activity, Picos, Track};
use shardloom_program::{Action, Class, Instruction, Program, Rank};
use shardloom_train::RunClock;

const SEQ: usize = 64;
const VOCAB: usize = 128;
const MICROBATCHES: usize = 4;

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
        global_batch: 16,
        microbatches: MICROBATCHES,
        sync: Sync { bucket_bytes: 100_000, ..Sync::default() },
        ..serial()
    }
}

/// Trains some steps and gives for each rank what the program says and what was counted.
fn measure_plan(graph: &Graph, plan: &Plan) -> Vec<(u64, u64)> {
    let mut trainer = trainer(graph, plan, Samples::patterned(32, SEQ, VOCAB as u32), 1e-3);
    losses(&mut trainer, 2);
    let program = trainer.program();
    let peaks = trainer.peak_bytes_per_rank().iter().zip(0u32..);
    let measured = peaks.map(|(&counted, rank)| {
        let (id, position) = program.locate(Rank(rank));
        (program.class(id).memory_use(program, position).peak_bytes, counted)
    });
    let measured = measured.collect();
    let most = MICROBATCHES as u64 * messages(program);
    let under_way = trainer.peak_under_way_bytes();
    assert!(under_way <= most, "{under_way} bytes on their way, at most {most}");
    measured
}

fn measure(graph: &Graph, uniform: &Uniform) -> Vec<(u64, u64)> {
    measure_plan(graph, &uniform.plan(graph, "model", "local"))
}

/// Bytes that all ranks send to other stages in one micro-batch.
fn messages(program: &Program) -> u64 {
    let bytes = |(id, class): (_, &Class)| -> u64 {
        let instructions = class.bodies[..2].iter().flat_map(|body| &body.instructions);
        let sends = instructions.filter(|it| matches!(it.action, Action::Send { .. }));
        let sends: Vec<&Instruction> = sends.collect();
        let positions = 0..class.mesh.size();
        positions
            .flat_map(|position| {
                sends.iter().map(move |it| program.instruction_sent_bytes(id, position, it))
            })
            .sum()
    };
    program.classes().map(bytes).sum()
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
                        mesh: Mesh::of(dp, cp, tp),
                        sequence_parallel,
                        recompute,
                        sync: Sync { zero, ..single().sync },
                        ..single()
                    };
                    for (planned, counted) in measure(&graph, &uniform) {
                        assert_eq!(counted, planned, "{} with {uniform:?}", graph.name());
                    }
                }
            }
        }
    }
}

#[test]
fn in_a_pipeline_the_peak_is_the_programs_to_the_byte() {
    for graph in graphs(4) {
        for schedule in ScheduleKind::PLAIN {
            for (pp, dp, tp, sequence_parallel) in
                [(2, 2, 1, false), (2, 1, 2, true), (6, 1, 1, false)]
            {
                for recompute in [Recompute::None, Recompute::Selective] {
                    // With as many stages as blocks the first stage holds only the embedding.
                    let uniform = Uniform {
                        pp,
                        mesh: Mesh::of(dp, 1, tp),
                        sequence_parallel,
                        schedule,
                        recompute,
                        ..single()
                    };
                    for (planned, counted) in measure(&graph, &uniform) {
                        assert_eq!(counted, planned, "{} with {uniform:?}", graph.name());
                    }
                }
            }
        }
    }
}

#[test]
fn between_stages_of_different_meshes_the_peak_is_the_programs_to_the_byte() {
    let [_, graph] = &graphs(2);
    let uniform = Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), ..single() };
    for (first, second) in [((2, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 1), (2, 1)), ((2, 1), (1, 1))]
    {
        let mut plan = uniform.plan(graph, "model", "local");
        let stages = &mut plan.pipeline[0].stage;
        let mut next = 0;
        for (stage, (dp, tp)) in stages.iter_mut().zip([first, second]) {
            stage.mesh = Mesh::of(dp, 1, tp);
            let devices = stage.mesh.size() as u32;
            stage.devices = DeviceList((next..next + devices).collect());
            next += devices;
        }
        for (planned, counted) in measure_plan(graph, &plan) {
            assert_eq!(counted, planned, "{first:?} then {second:?}");
        }
    }
}

/// The largest message of each rank, added up.
fn largest_messages(program: &Program) -> u64 {
    let largest = |rank| {
        let (class, position) = program.locate(Rank(rank));
        let routes = program.routes.iter().filter(|route| route.from == class);
        let sent = routes
            .flat_map(|route| route.sent_by(position).map(|message| route.message_bytes(message)));
        sent.max().unwrap_or(0)
    };
    (0..program.ranks() as u32).map(largest).sum()
}

/// Under either clock: whatever is sent was under way, alone or beside others.
#[test]
fn as_much_as_the_largest_message_is_under_way_at_some_time_and_nothing_where_nothing_is_sent() {
    let graph = &graphs(2)[1];
    for (pp, mesh) in
        [(1, Mesh::of(2, 1, 2)), (2, Mesh::SINGLE), (2, Mesh::of(2, 1, 2)), (4, Mesh::SINGLE)]
    {
        let plan = Uniform { pp, mesh, ..single() }.plan(graph, "model", "local");
        for clock in [RunClock::Wall, RunClock::Virtual(cluster())] {
            let samples = Samples::patterned(32, SEQ, VOCAB as u32);
            let mut trainer = trainer_with_clock(graph, &plan, samples, 1e-3, clock);
            losses(&mut trainer, 1);
            let least = largest_messages(trainer.program());
            let most = MICROBATCHES as u64 * messages(trainer.program());
            let found = trainer.peak_under_way_bytes();
            assert!((least..=most).contains(&found), "{found}, not {least} to {most}, with {pp}");
            assert_eq!(found > 0, pp > 1);
        }
    }
}

#[test]
fn every_optimizers_state_is_counted() {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-8, 0.0);
    let optimizers = [
        Optimizer::Sgd { momentum: 0.0, weight_decay, reference_batch: None },
        Optimizer::Sgd { momentum: 0.9, weight_decay, reference_batch: None },
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
                mesh: Mesh::of(2, 1, 1),
                optimizer,
                sync: Sync { zero, ..single().sync },
                ..single()
            };
            for (planned, counted) in measure(&graphs(1)[0], &uniform) {
                assert_eq!(counted, planned, "{uniform:?}");
            }
        }
    }
}

/// What each rank's allocator counted at most, with stages on four devices and so many micro-batches of
/// four samples.
fn peaks(schedule: ScheduleKind, microbatches: usize) -> Vec<u64> {
    let uniform = Uniform {
        pp: 4,
        schedule,
        microbatches,
        global_batch: 4 * microbatches,
        clip_norm: None,
        ..single()
    };
    let plan = uniform.plan(&graphs(6)[0], "model", "local");
    let mut trainer = trainer(&graphs(6)[0], &plan, Samples::patterned(64, SEQ, 128), 1e-3);
    losses(&mut trainer, 2);
    trainer.peak_bytes_per_rank().to_vec()
}

#[test]
fn the_peak_of_1f1b_does_not_depend_on_the_number_of_micro_batches() {
    let four = peaks(ScheduleKind::OneForwardOneBackward, 4);
    assert_eq!(peaks(ScheduleKind::OneForwardOneBackward, 8), four);
    assert_eq!(peaks(ScheduleKind::OneForwardOneBackward, 16), four);
}

#[test]
fn the_peak_of_afab_grows_by_as_much_with_every_micro_batch() {
    let [four, eight, sixteen] = [4, 8, 16].map(|many| peaks(ScheduleKind::Afab, many));
    for ((&four, &eight), &sixteen) in four.iter().zip(&eight).zip(&sixteen) {
        // Activations are most of it: the peak all but doubles.
        assert!(eight > four + four / 2, "{four} and {eight}");
        assert_eq!(sixteen - eight, 2 * (eight - four));
    }
}

/// Features of a sample and width of a perceptron's layers, and samples of its micro-batch.
const WIDTH: usize = 64;
const SAMPLES: usize = 16;

/// Bytes that lived, as the first rank's allocator counted, at the end of each send of one recorded
/// step, and after the step. The first rank sends at the end of every forward pass.
fn live_after_sends(plan: &Plan, graph: &Graph, microbatches: usize) -> (Vec<u64>, u64) {
    let rows = 2 * microbatches * SAMPLES;
    let table = Table::from_rows(
        (0..rows * WIDTH).map(|at| (at % 7) as f32).collect(),
        (0..rows as u32).map(|row| row % 8).collect(),
        0.0,
        1,
    );
    let mut trainer = trainer(graph, plan, table.expect("rows"), 1e-3);
    let (_, timeline) = trainer.step_recorded().unwrap_or_else(|error| panic!("{error}"));
    let Track { intervals, memory, .. } = &timeline.tracks[0];
    let live = |at: Picos| {
        let before = memory.iter().take_while(|(time, _)| *time <= at);
        before.last().expect("something was allocated by then").1
    };
    let sends = intervals.iter().filter(|it| it.activity == Activity::Send);
    let (_, after) = memory.last().expect("the step freed what it allocated");
    (sends.map(|send| live(send.end)).collect(), *after)
}

#[test]
fn interleaved_keeps_chunks_times_devices_and_devices_less_one_chunks_activations_on_rank_0() {
    for (devices, chunks, rounds) in [(2, 2, 2), (2, 3, 3), (4, 2, 2), (4, 2, 4)] {
        // Two blocks in every chunk, all alike on the first rank.
        let layers = 2 * devices * chunks - 1;
        let graph = graph(&format!("mlp:inputs={WIDTH},hidden={WIDTH},layers={layers},classes=8"));
        let microbatches = rounds * devices;
        let uniform = Uniform {
            pp: devices,
            schedule: ScheduleKind::Interleaved,
            microbatches,
            global_batch: SAMPLES * microbatches,
            clip_norm: None,
            ..single()
        };
        let plan = uniform
            .plan_in_chunks(&graph, "model", "local", chunks)
            .unwrap_or_else(|error| panic!("{error}"));
        let (live, persistent) = live_after_sends(&plan, &graph, microbatches);
        // Before its first backward pass the first rank runs as many micro-batches as there are devices
        // through each of its chunks, and then all but one of as many through the first chunk again.
        let kept = |chunk: usize| match chunk {
            0 => live[0] - persistent,
            _ => live[chunk * devices] - live[chunk * devices - 1],
        };
        let passes = |chunk: usize| devices + if chunk == 0 { devices - 1 } else { 0 };
        assert_eq!((0..chunks).map(passes).sum::<usize>(), devices * chunks + devices - 1);
        // A layer's input in bytes: the first chunk's comes with the batch and is not kept.
        let input = (4 * SAMPLES * WIDTH) as u64;
        assert!(kept(0) >= input, "{}", kept(0));
        assert!((1..chunks).all(|chunk| kept(chunk) == kept(0) + input), "{live:?}");
        let most = live.iter().max().expect("sends") - persistent;
        let expected = (0..chunks).map(|chunk| passes(chunk) as u64 * kept(chunk)).sum::<u64>();
        assert_eq!(most, expected, "{devices} {chunks} {microbatches}");
    }
}
