//! Bytes sent: what the fabric counts is what the program says, to the byte, and both are the published
//! formulas where sizes divide.

use crate::support::{Samples, graph, losses, mesh, serial, stage_parameters, trainer};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Arrangement, Optimizer, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::{Program, Rank, lower};
use shardloom_sim::{Options, simulate};

const SEQ: usize = 16;
const HIDDEN: usize = 32;
const VOCAB: usize = 64;
const SAMPLES: usize = 8;
/// Bytes of a number.
const REAL: usize = 4;

fn gpt(layers: usize, tied: bool) -> Graph {
    graph(&format!(
        "gpt:layers={layers},hidden={HIDDEN},heads=4,seq={SEQ},vocab={VOCAB},dropout=0.1,tied={tied}"
    ))
}

fn single() -> Uniform {
    Uniform {
        global_batch: SAMPLES,
        sync: Sync { bucket_bytes: 1 << 30, ..Sync::default() },
        clip_norm: None,
        ..serial()
    }
}

/// Bytes each rank sends in one step, by the program.
fn planned(program: &Program) -> Vec<u64> {
    let sent = |rank| {
        let (class, position) = program.locate(Rank(rank));
        program.sent_bytes(class, position)
    };
    (0..program.ranks() as u32).map(sent).collect()
}

fn planned_for(graph: &Graph, uniform: &Uniform) -> Vec<u64> {
    let plan = uniform.plan(graph, "model", "local");
    planned(&lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}")))
}

/// Checks that each of some steps sends what the program says.
fn check_counted(graph: &Graph, uniform: &Uniform) {
    let plan = uniform.plan(graph, "model", "local");
    let samples = Samples::patterned(32, graph.targets_per_sample(), VOCAB as u32);
    let mut trainer = trainer(graph, &plan, samples, 1e-3);
    let planned = planned(trainer.program());
    for step in 1..=3 {
        losses(&mut trainer, 1);
        let expected: Vec<u64> = planned.iter().map(|bytes| step * bytes).collect();
        assert_eq!(trainer.sent_bytes_per_rank(), expected, "step {step} of {uniform:?}");
    }
}

#[test]
fn every_rank_sends_what_the_program_says_in_every_step() {
    let graphs =
        [gpt(2, true), graph("llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq=16,vocab=64")];
    for graph in &graphs {
        for (pp, mesh) in [
            (1, mesh(2, 1, 2)),
            (1, mesh(3, 1, 1)),
            (2, mesh(2, 1, 2)),
            (2, mesh(1, 2, 2)),
            (4, mesh(1, 1, 2)),
        ] {
            for zero in 0..4 {
                let uniform = Uniform {
                    pp,
                    mesh,
                    global_batch: 12,
                    microbatches: 2,
                    sequence_parallel: mesh.tp() > 1 && zero % 2 == 0,
                    recompute: Recompute::ALL[usize::from(zero) % 3],
                    sync: Sync { zero, bucket_bytes: 10_000, ..Sync::default() },
                    clip_norm: (zero > 1).then_some(1.0),
                    ..single()
                };
                check_counted(graph, &uniform);
            }
        }
    }
}

fn kinds() -> impl Iterator<Item = ScheduleKind> {
    ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table)
}

#[test]
fn every_schedule_sends_what_the_program_says_in_every_step() {
    let graph = gpt(2, true);
    for (index, schedule) in kinds().enumerate() {
        for zero in 0..4 {
            let uniform = Uniform {
                pp: 2,
                mesh: mesh(2, 1, 2),
                microbatches: 4,
                sequence_parallel: zero % 2 == 0,
                schedule,
                recompute: Recompute::ALL[(index + usize::from(zero)) % 3],
                sync: Sync { zero, bucket_bytes: 10_000, ..Sync::default() },
                ..single()
            };
            check_counted(&graph, &uniform);
        }
    }
}

#[test]
fn every_algorithm_and_optimizer_sends_what_the_program_says() {
    let graph = gpt(1, true);
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-8, 0.0);
    let optimizers = [
        Optimizer::Sgd { momentum: 0.9, weight_decay, reference_batch: None },
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay,
        },
    ];
    // Groups of three are one inner group here, of replicas; tensor-parallel pairs take rings.
    for (algorithm, stages) in [
        ("direct", 4),
        ("halving-doubling", 4),
        ("binary-tree", 1),
        ("double-binary-tree", 1),
        ("star", 1),
        ("hierarchical:3", 4),
        ("multi-binary-tree-star:3", 1),
    ] {
        for zero in 0..stages {
            for optimizer in optimizers {
                let algorithm = algorithm.parse().unwrap_or_else(|error| panic!("{error}"));
                let uniform = Uniform {
                    mesh: mesh(3, 1, 2),
                    global_batch: 12,
                    microbatches: 2,
                    sequence_parallel: true,
                    optimizer,
                    sync: Sync { zero, algorithm, ..single().sync },
                    ..single()
                };
                check_counted(&graph, &uniform);
            }
        }
    }
}

/// What a simulation in which one rank stands for all says that they send, against what ranks count while they
/// train.
#[test]
fn all_ranks_together_send_what_a_folded_simulation_says() {
    let graph = gpt(1, false);
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    let mut cases = vec![("star", 3, 2, Some(1.0)), ("binary-tree", 5, 1, Some(1.0))];
    for replicas in [3, 5, 6, 7] {
        for algorithm in
            ["direct", "ring", "halving-doubling", "binary-tree", "double-binary-tree", "star"]
        {
            cases.push((algorithm, replicas, 1, None));
        }
    }
    for algorithm in ["hierarchical:3", "multi-star:2", "binary-tree-star:2", "two-level-star:3"] {
        cases.push((algorithm, 6, 1, None));
    }
    for (name, replicas, tp, clip_norm) in cases {
        let algorithm = name.parse().unwrap_or_else(|error| panic!("{error}"));
        let uniform = Uniform {
            mesh: mesh(replicas, 1, tp),
            global_batch: replicas as usize,
            clip_norm,
            sync: Sync { algorithm, ..single().sync },
            ..single()
        };
        let plan = uniform.plan(&graph, "model", "local");
        let samples = Samples::patterned(32, graph.targets_per_sample(), VOCAB as u32);
        let mut trainer = trainer(&graph, &plan, samples, 1e-3);
        let options = Options { steps: 1, folded: true };
        let simulated = simulate(&graph, &cluster, trainer.program(), options);
        let simulated = simulated.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(simulated.timeline.tracks.len(), 1, "one rank stands for all");
        losses(&mut trainer, 1);
        let sent: u64 = trainer.sent_bytes_per_rank().iter().sum();
        let all = simulated.timeline.tracks[0].sent_bytes_by_all();
        assert_eq!(all, sent, "{name} among {replicas} replicas");
        if clip_norm.is_none() {
            let gradients = REAL as u64 * graph.parameter_count();
            assert_eq!(sent, 2 * u64::from(replicas - 1) * gradients, "{name}");
        }
    }
}

#[test]
fn data_parallelism_sends_the_published_multiples_of_the_parameters() {
    for dp in [2u32, 4] {
        let graph = gpt(2, false);
        let psi = graph.parameter_count() as usize;
        let d = dp as usize;
        let embedding = (VOCAB + SEQ) * HIDDEN;
        for microbatches in [1, 2] {
            // Elements sent, in units of (d - 1) / d.
            let expected = |zero| match zero {
                // An all-reduce is a reduce-scatter and an all-gather.
                0 => 2 * psi,
                // Gradients scattered, updated parameters gathered.
                1 => 2 * psi,
                // Gradients are scattered for every micro-batch, because only shards are kept.
                2 => (microbatches + 1) * psi,
                // Gathered before forward, gathered again before backward, scattered. The embedding's
                // backward pass reads no weights, so these are gathered only once.
                _ => microbatches * (3 * psi - embedding),
            };
            for zero in 0..4 {
                let uniform = Uniform {
                    mesh: mesh(dp, 1, 1),
                    microbatches,
                    sync: Sync { zero, ..single().sync },
                    ..single()
                };
                let bytes = (REAL * expected(zero) * (d - 1) / d) as u64;
                let planned = planned_for(&graph, &uniform);
                assert_eq!(planned, vec![bytes; d], "ZeRO-{zero}, {microbatches} micro-batches");
                check_counted(&graph, &uniform);
            }
        }
    }
}

#[test]
fn zero_3_gathers_a_tied_embedding_once_more_for_the_head() {
    let graph = gpt(2, true);
    let psi = graph.parameter_count() as usize;
    let embedding = (VOCAB + SEQ) * HIDDEN;
    let uniform =
        Uniform { mesh: mesh(2, 1, 1), sync: Sync { zero: 3, ..single().sync }, ..single() };
    // Forward for the lookup and for the head; backward for the head only.
    let bytes = (REAL * (3 * psi + embedding) / 2) as u64;
    assert_eq!(planned_for(&graph, &uniform), [bytes, bytes]);
}

/// What one layer adds to what each rank sends in one step.
fn per_layer(uniform: &Uniform) -> Vec<usize> {
    let sent = |layers| planned_for(&gpt(layers, false), uniform);
    sent(3).iter().zip(sent(2)).map(|(more, less)| (more - less) as usize).collect()
}

#[test]
fn a_tensor_parallel_layer_sends_8bsh_per_microbatch() {
    for tp in [2u32, 4] {
        for microbatches in [1, 4] {
            let t = tp as usize;
            // b s h over the whole step, in all micro-batches.
            let bsh = SAMPLES * SEQ * HIDDEN;
            let uniform = Uniform { mesh: mesh(1, 1, tp), microbatches, ..single() };
            assert_eq!(per_layer(&uniform), vec![REAL * 8 * bsh * (t - 1) / t; t]);
            // Sequence parallelism moves the same, gathers two normalised inputs again, and once per
            // step reduces the gradients of what is whole: two gains and four biases.
            let uniform = Uniform { sequence_parallel: true, ..uniform };
            let gradients = 2 * 6 * HIDDEN;
            let expected = REAL * ((8 + 2) * bsh + gradients) * (t - 1) / t;
            assert_eq!(per_layer(&uniform), vec![expected; t]);
            check_counted(&gpt(2, false), &uniform);
        }
    }
}

#[test]
fn a_context_parallel_layer_gathers_keys_and_values_twice_and_scatters_their_gradients() {
    let c = 2;
    let bsh = SAMPLES * SEQ * HIDDEN;
    let parameters = (gpt(3, false).parameter_count() - gpt(2, false).parameter_count()) as usize;
    let uniform = Uniform { mesh: mesh(1, c as u32, 1), microbatches: 2, ..single() };
    let expected = REAL * (6 * bsh + 2 * parameters) * (c - 1) / c;
    assert_eq!(per_layer(&uniform), vec![expected; c]);
    check_counted(&gpt(2, false), &uniform);
}

#[test]
fn a_pipeline_sends_bsh_down_and_bsh_up_at_every_boundary() {
    let bsh = (REAL * SAMPLES * SEQ * HIDDEN) as u64;
    let graph = gpt(2, false);
    let uniform = Uniform { pp: 4, microbatches: 4, ..single() };
    assert_eq!(planned_for(&graph, &uniform), [bsh, 2 * bsh, 2 * bsh, bsh]);
    check_counted(&graph, &uniform);

    // Every tensor-parallel rank sends its own copy; under sequence parallelism its own part. What the
    // layers send besides is subtracted.
    for sequence_parallel in [false, true] {
        let uniform = Uniform { mesh: mesh(1, 1, 2), sequence_parallel, ..single() };
        let whole = planned_for(&graph, &uniform);
        let stages = planned_for(&graph, &Uniform { pp: 2, ..uniform });
        let share = if sequence_parallel { bsh / 2 } else { bsh };
        assert_eq!(stages[0] + stages[2] - whole[0], 2 * share);
        assert_eq!(stages[1] + stages[3] - whole[1], 2 * share);
    }
}

/// What device `device` sends to stages on others in one step, in units of the activations of all samples
/// at one boundary; a gradient has their size.
fn boundaries(schedule: ScheduleKind, devices: usize, chunks: usize, device: usize) -> f64 {
    let is_end = |device: usize, of: usize| device == 0 || device == of - 1;
    let end = is_end(device, devices);
    match schedule.arrangement().unwrap_or(Arrangement::Chain) {
        Arrangement::Chain | Arrangement::TakingTurns => {
            if end {
                1.0
            } else {
                2.0
            }
        }
        // p v - 1 boundaries between p v stages; the first sends no gradient, the last no activation.
        Arrangement::Looped => (2 * chunks - usize::from(end)) as f64,
        // p - 1 boundaries on each way down or up, as a turn is on one device.
        Arrangement::Wave => (if end { chunks } else { 2 * chunks }) as f64,
        // As many as one pipeline's; in two of the pipelines a device is first or last if it is where
        // pipelines of one direction begin.
        Arrangement::Bidirectional => {
            let ends =
                if is_end(device % (2 * devices / chunks), 2 * devices / chunks) { 2 } else { 0 };
            (2 * chunks - ends) as f64 / chunks as f64
        }
    }
}

/// What device `device` sends so that copies of its stages get each other's gradients: a ring over all
/// that have one.
fn copies(graph: &Graph, plan: &Plan, device: usize) -> usize {
    let pipelines = plan.pipeline.len();
    let stages = plan.pipeline.iter().flat_map(|pipeline| &pipeline.stage);
    let own = stages.filter(|stage| stage.devices.0 == [device as u32]);
    let own: usize = own.map(|stage| stage_parameters(graph, stage)).sum();
    2 * (pipelines - 1) * own / pipelines
}

#[test]
fn every_schedule_sends_the_published_boundaries_and_copies() {
    let bsh = (SAMPLES * SEQ * HIDDEN) as f64;
    let graph = gpt(14, false);
    for schedule in kinds() {
        let chunks: &[usize] = match schedule {
            ScheduleKind::Interleaved => &[2, 3, 4],
            ScheduleKind::Hanayo | ScheduleKind::Chimera => &[2, 4],
            _ => &[schedule.arrangement().map_or(1, Arrangement::least_chunks)],
        };
        for &chunks in chunks {
            let devices = 4;
            let uniform = Uniform { pp: devices, microbatches: 8, schedule, ..single() };
            let plan = uniform
                .plan_in_chunks(&graph, "model", "local", chunks)
                .unwrap_or_else(|error| panic!("{error}"));
            let mut trainer = trainer(&graph, &plan, Samples::patterned(32, SEQ, 64), 1e-3);
            trainer.train_steps(3).unwrap_or_else(|error| panic!("{error}"));
            let expected = (0..devices).map(|device| {
                let messages = bsh * boundaries(schedule, devices, chunks, device);
                3 * (REAL * (messages as usize + copies(&graph, &plan, device))) as u64
            });
            let expected: Vec<u64> = expected.collect();
            assert_eq!(trainer.sent_bytes_per_rank(), expected, "{schedule:?} in {chunks}");
        }
    }
}
