//! Several stages on a device and several pipelines over the same devices train like the serial run.

use crate::support::trained::Trained;
use crate::support::{Samples, graph, trainer};
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, DeviceList, LayoutRules, Mesh, Optimizer, Pipeline, Plan, Recompute, ScheduleKind,
    Stage, Sync, Uniform, even_cut,
};
use shardloom_program::{Body, BodyKind, lower};

/// Largest allowed relative difference to the serial run's losses, and to how far its parameters moved.
const TOLERANCE: f64 = 1e-4;
const SEQ: usize = 16;
const VOCAB: usize = 64;

/// Six blocks each: a GPT with dropout whose head is tied to the embedding, and a Llama.
fn graphs() -> [Graph; 2] {
    let sizes = format!("layers=6,hidden=32,heads=4,seq={SEQ},vocab={VOCAB}");
    [
        graph(&format!("gpt:{sizes},dropout=0.1,tied=true")),
        graph(&format!("llama:{sizes},kv_heads=2,ffn=64")),
    ]
}

fn serial() -> Uniform {
    let sync = Sync { bucket_bytes: 40_000, ..Sync::default() };
    Uniform { schedule: ScheduleKind::Afab, sync, ..crate::support::serial() }
}

/// A plan whose stages live where `places` says, for each pipeline and stage.
fn placed(graph: &Graph, uniform: &Uniform, places: &[Vec<usize>]) -> Plan {
    let mut plan = uniform.plan(graph, "model", "local");
    let (size, blocks) = (uniform.mesh.size() as u32, graph.blocks().len());
    let pipeline = |places: &Vec<usize>| {
        let stages = places.len();
        let stage = |(index, &place): (usize, &usize)| Stage {
            blocks: (even_cut(blocks, stages, index), even_cut(blocks, stages, index + 1)),
            mesh: uniform.mesh,
            devices: DeviceList((place as u32 * size..(place as u32 + 1) * size).collect()),
            recompute: None,
            layout: None,
        };
        Pipeline::of(places.iter().enumerate().map(stage).collect())
    };
    plan.pipeline = places.iter().map(pipeline).collect();
    plan
}

/// Descent that shows a factor in the gradients, which AdamW and clipping do not see.
fn with_momentum(uniform: Uniform) -> Uniform {
    let optimizer = Optimizer::sgd(0.9);
    Uniform { optimizer, clip_norm: None, ..uniform }
}

fn run(graph: &Graph, plan: &Plan) -> Trained {
    let (rate, steps) = if is_sgd(plan) { (0.02, 5) } else { (6e-3, 8) };
    let mut trainer = trainer(graph, plan, Samples::patterned(64, SEQ, VOCAB as u32), rate);
    let trained = Trained::in_rows(&mut trainer, &vec![1; steps]);
    let planned = trainer.program().classes().flat_map(|(_, class)| {
        let peak = |position| class.memory_use(trainer.program(), position).peak_bytes;
        (0..class.mesh.size()).map(peak)
    });
    let planned: Vec<u64> = planned.collect();
    // Kernels' scratch comes on top where it falls on the peak.
    for (&counted, planned) in trainer.peak_bytes_per_rank().iter().zip(planned) {
        let near = planned..planned + planned / 100;
        assert!(near.contains(&counted), "{counted} of {planned}\n{}", plan.to_toml());
    }
    trained
}

fn is_sgd(plan: &Plan) -> bool {
    matches!(plan.optimizer, Optimizer::Sgd { .. })
}

/// The serial run.
fn reference(graph: &Graph, uniform: &Uniform) -> Trained {
    let reference = run(graph, &uniform.plan(graph, "model", "local"));
    let far = reference.distance();
    assert!(far > 0.1, "the parameters move far, not {far}");
    reference
}

fn assert_like_serial(graph: &Graph, plan: &Plan, reference: &Trained) {
    let trained = run(graph, plan);
    trained.assert_losses(reference, TOLERANCE, &plan.to_toml());
    // AdamW makes steps out of rounding errors where a gradient is zero but for these.
    if is_sgd(plan) {
        trained.assert_moved(reference, TOLERANCE, &plan.to_toml());
    }
}

/// The first stage has the embedding alone, the last the head with its loss, and layers are cut unevenly.
#[test]
fn stages_without_layers_train_like_the_serial_run() {
    for graph in graphs() {
        let reference = reference(&graph, &serial());
        let blocks = graph.blocks().len();
        for (schedule, places) in [
            (ScheduleKind::OneForwardOneBackward, vec![0, 1, 2, 3]),
            (ScheduleKind::Afab, vec![0, 1, 2, 3]),
            (ScheduleKind::ZeroBubbleH1, vec![0, 1, 2, 3]),
            (ScheduleKind::Interleaved, vec![0, 1, 0, 1]),
            (ScheduleKind::ZeroBubbleV, vec![0, 1, 1, 0]),
        ] {
            for (mesh, zero, sequence_parallel) in meshes() {
                let uniform = Uniform {
                    pp: 4,
                    mesh,
                    sequence_parallel,
                    microbatches: 4,
                    schedule,
                    recompute: if zero == 1 { Recompute::Block } else { Recompute::Selective },
                    sync: Sync { zero, ..serial().sync },
                    ..serial()
                };
                let mut plan = placed(&graph, &uniform, std::slice::from_ref(&places));
                let cuts = [0, 1, 3, blocks - 1, blocks];
                for (stage, cut) in plan.pipeline[0].stage.iter_mut().zip(cuts.windows(2)) {
                    stage.blocks = (cut[0], cut[1]);
                }
                assert_like_serial(&graph, &plan, &reference);
            }
        }
    }
}

/// Data and tensor parallelism inside stages.
fn meshes() -> [(Mesh, u8, bool); 5] {
    let mesh = |dp, tp| Mesh::of(dp, 1, tp);
    [
        (mesh(1, 1), 0, false),
        (mesh(1, 2), 0, true),
        (mesh(2, 1), 1, false),
        (mesh(2, 1), 2, false),
        (mesh(2, 1), 3, false),
    ]
}

#[test]
fn stages_in_any_place_train_like_the_serial_run() {
    let arranged = |arrangement: Arrangement, devices, chunks| {
        arrangement.places(devices, chunks).unwrap_or_else(|error| panic!("{error}"))
    };
    let places = [
        arranged(Arrangement::Looped, 2, 2),
        arranged(Arrangement::Wave, 2, 2),
        arranged(Arrangement::Wave, 2, 4),
        arranged(Arrangement::Bidirectional, 2, 2),
        arranged(Arrangement::Bidirectional, 4, 4),
        vec![vec![0, 0, 0]],
        vec![vec![0, 1], vec![0, 1], vec![1, 0], vec![1, 1]],
    ];
    for graph in graphs() {
        let reference = reference(&graph, &serial());
        for places in &places {
            for (mesh, zero, sequence_parallel) in meshes() {
                if mesh.size() > 1 && places.iter().flatten().any(|&place| place > 1) {
                    continue;
                }
                let recompute = if zero == 1 { Recompute::Full } else { Recompute::None };
                let uniform = Uniform {
                    mesh,
                    sequence_parallel,
                    microbatches: 4,
                    recompute,
                    sync: Sync { zero, ..serial().sync },
                    ..serial()
                };
                assert_like_serial(&graph, &placed(&graph, &uniform, places), &reference);
            }
        }
    }
}

#[test]
fn replicas_that_take_micro_batches_in_turn_train_like_the_serial_run() {
    use ScheduleKind::{Afab, OneForwardOneBackward};
    for graph in graphs() {
        let reference = reference(&graph, &serial());
        for replicas in [&[2, 1][..], &[1, 2], &[2, 2], &[2, 1, 2], &[4, 2], &[1, 4]] {
            let places = Arrangement::taking_turns(replicas).expect("few turns");
            for (mesh, zero, sequence_parallel) in meshes() {
                if mesh.size() > 1 && replicas.iter().sum::<usize>() > 3 {
                    continue;
                }
                let uniform = Uniform {
                    mesh,
                    sequence_parallel,
                    microbatches: 4,
                    schedule: if zero == 3 { Afab } else { OneForwardOneBackward },
                    sync: Sync { zero, ..serial().sync },
                    ..serial()
                };
                assert_like_serial(&graph, &placed(&graph, &uniform, &places), &reference);
            }
        }
    }
}

fn flushing_kinds() -> impl Iterator<Item = ScheduleKind> {
    let kinds = ScheduleKind::ALL.into_iter();
    kinds.filter(|kind| kind.flushes() && *kind != ScheduleKind::Table)
}

/// Trains a model under every schedule with a flush on every mesh with every policy of recomputation; where
/// `in_pairs`, with as many of these as it takes for every two choices to meet.
fn check_schedules_with_a_flush(graph: &Graph, in_pairs: bool) {
    let [adaptive, plain] = [serial(), with_momentum(serial())];
    let references = [&adaptive, &plain].map(|uniform| reference(graph, uniform));
    for (kind, schedule) in flushing_kinds().enumerate() {
        for (place, (mesh, zero, sequence_parallel)) in meshes().into_iter().enumerate() {
            for (policy, recompute) in Recompute::ALL.into_iter().enumerate() {
                if in_pairs && (kind + place) % Recompute::ALL.len() != policy {
                    continue;
                }
                let uniform = |optimizer: &Uniform| Uniform {
                    pp: if mesh.size() > 1 { 2 } else { 4 },
                    mesh,
                    sequence_parallel,
                    microbatches: if mesh.dp() > 1 { 4 } else { 8 },
                    schedule,
                    recompute,
                    sync: Sync { zero, ..serial().sync },
                    ..optimizer.clone()
                };
                let plan = |from: &Uniform| uniform(from).plan(graph, "model", "local");
                if recompute == Recompute::None {
                    assert_like_serial(graph, &plan(&adaptive), &references[0]);
                }
                assert_like_serial(graph, &plan(&plain), &references[1]);
            }
        }
    }
}

#[test]
fn every_schedule_with_a_flush_trains_the_first_model_like_the_serial_run() {
    let [first, _] = graphs();
    check_schedules_with_a_flush(&first, false);
}

#[test]
fn every_schedule_with_a_flush_trains_the_second_model_like_the_serial_run() {
    let [_, second] = graphs();
    check_schedules_with_a_flush(&second, true);
}

#[test]
fn more_pipelines_more_stages_and_fewer_microbatches_train_like_the_serial_run() {
    use ScheduleKind::{Chimera, ChimeraDoubling, DualPipe, Hanayo, Interleaved};
    let mesh = |dp, tp| Mesh::of(dp, 1, tp);
    // Devices, stages on each, micro-batches, the mesh of each.
    let cases = [
        // More than one pair of pipelines, one unit or two, and micro-batches for half a unit.
        (Chimera, 4, 4, 4, mesh(1, 1)),
        (Chimera, 4, 4, 8, mesh(1, 1)),
        (Chimera, 8, 4, 8, mesh(1, 1)),
        (Chimera, 8, 8, 8, mesh(1, 1)),
        (Chimera, 8, 4, 4, mesh(1, 1)),
        (ChimeraDoubling, 4, 4, 8, mesh(1, 1)),
        // Fewer micro-batches than devices.
        (Chimera, 4, 2, 2, mesh(1, 1)),
        (Chimera, 8, 2, 4, mesh(1, 1)),
        // Copies with replicas.
        (Chimera, 4, 2, 4, mesh(2, 1)),
        (Chimera, 4, 4, 4, mesh(2, 1)),
        (Chimera, 4, 2, 4, mesh(1, 2)),
        (Chimera, 2, 2, 4, mesh(2, 2)),
        (ChimeraDoubling, 2, 2, 4, mesh(2, 2)),
        (DualPipe, 2, 2, 4, mesh(2, 2)),
        (DualPipe, 4, 2, 8, mesh(1, 2)),
        (Hanayo, 2, 4, 4, mesh(2, 2)),
        (Interleaved, 2, 4, 4, mesh(2, 2)),
    ];
    for graph in graphs() {
        let serial = with_momentum(serial());
        let reference = reference(&graph, &serial);
        for (schedule, pp, chunks, microbatches, mesh) in cases {
            for zero in 0..if mesh.dp() > 1 { 4 } else { 1 } {
                let uniform = Uniform {
                    pp,
                    mesh,
                    sequence_parallel: mesh.tp() > 1 && zero % 2 == 1,
                    microbatches,
                    schedule,
                    sync: Sync { zero, ..serial.sync },
                    ..serial.clone()
                };
                let plan = uniform.plan_in_chunks(&graph, "model", "local", chunks);
                let plan = plan.unwrap_or_else(|error| panic!("{error}"));
                assert_like_serial(&graph, &plan, &reference);
            }
        }
    }
}

#[test]
fn pipelines_of_chimera_that_share_micro_batches_unevenly_train_like_the_serial_run() {
    for graph in graphs() {
        let serial = with_momentum(Uniform { global_batch: 15, ..serial() });
        let reference = reference(&graph, &serial);
        // Devices, pipelines, and micro-batches.
        for (pp, pipelines, microbatches) in [(2, 2, 3), (4, 2, 3), (4, 2, 5), (4, 4, 5)] {
            let uniform =
                Uniform { pp, microbatches, schedule: ScheduleKind::Chimera, ..serial.clone() };
            let plan = uniform.plan_in_chunks(&graph, "model", "local", pipelines);
            let plan = plan.unwrap_or_else(|error| panic!("{error}"));
            assert_like_serial(&graph, &plan, &reference);
            let spared = Plan { recompute: Recompute::Stage, recompute_last: false, ..plan };
            assert_like_serial(&graph, &spared, &reference);
        }
    }
}

#[test]
fn copies_of_sharded_stages_are_added_up_between_passes() {
    for graph in graphs() {
        let reference = reference(&graph, &serial());
        for zero in 0..4 {
            let uniform = Uniform {
                pp: 4,
                mesh: Mesh::of(2, 1, 1),
                microbatches: 4,
                schedule: ScheduleKind::Chimera,
                sync: Sync { zero, ..serial().sync },
                ..serial()
            };
            let plan = uniform.plan(&graph, "model", "local");
            let program = lower(&graph, &plan, 8);
            let program = program.unwrap_or_else(|error| panic!("{error}"));
            let between = |body: &Body| body.kind == BodyKind::Synchronisation;
            assert!(program.classes.iter().any(|class| class.bodies.iter().any(between)));
            assert_like_serial(&graph, &plan, &reference);
        }
    }
}

#[test]
fn any_order_that_can_run_trains_like_the_serial_run() {
    let [graph, _] = graphs();
    let serial = with_momentum(serial());
    let reference = reference(&graph, &serial);
    let uniform = Uniform { pp: 2, microbatches: 4, ..serial };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.schedule = ScheduleKind::Table;
    plan.order =
        vec!["F2 F0 I2 F1 F3 W2 B0 I3 I1 W1 W3".into(), "F2 B2 F0 I0 F1 F3 I3 B1 W3 W0".into()];
    assert_like_serial(&graph, &plan, &reference);
}

#[test]
fn pipelines_with_unequal_shares_train_like_the_serial_run() {
    for graph in graphs() {
        let serial = with_momentum(Uniform { global_batch: 12, ..serial() });
        let reference = reference(&graph, &serial);
        for (places, shares) in [
            (vec![vec![0, 2], vec![1, 3]], vec![5, 1]),
            (vec![vec![0], vec![1], vec![2]], vec![1, 3, 2]),
        ] {
            for schedule in [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward] {
                let uniform = Uniform { schedule, microbatches: 6, ..serial.clone() };
                let mut plan = placed(&graph, &uniform, &places);
                for (pipeline, &share) in plan.pipeline.iter_mut().zip(&shares) {
                    pipeline.microbatches = Some(share);
                }
                assert_like_serial(&graph, &plan, &reference);
                // Those of a pipeline are those that its ranks run.
                let program = lower(&graph, &plan, 8).unwrap_or_else(|error| panic!("{error}"));
                for (_, class) in program.classes() {
                    let pipeline = usize::from(class.stages[0].instance.pipeline);
                    let forwards = class
                        .entries()
                        .filter(|entry| class.body_of(entry).kind == BodyKind::Forward);
                    assert_eq!(forwards.count(), shares[pipeline]);
                }
            }
        }
    }
}

#[test]
fn stages_with_layouts_of_their_own_train_like_the_serial_run() {
    let rules = |text: &str| LayoutRules::try_from(text.to_owned()).expect("rules");
    // The embedding is held by both stages of the first, whose head is tied to it.
    let [_, llama] = graphs();
    let serial = with_momentum(serial());
    let reference = reference(&llama, &serial);
    for (first, second) in [
        ("batch:dp, heads:tp, ffn:tp", "batch:dp, vocab:tp, ffn:tp, seq:tp"),
        ("batch:tp, batch:dp", "seq:dp, heads:tp, ffn:tp, vocab:tp"),
        ("seq:tp, batch:dp", "batch:tp, seq:dp"),
    ] {
        for zero in 0..4 {
            let sync = Sync { zero, ..serial.sync };
            let (mesh, microbatches) = (Mesh::of(2, 1, 2), 2);
            let uniform = Uniform { pp: 2, mesh, microbatches, sync, ..serial.clone() };
            let mut plan = uniform.plan(&llama, "model", "local");
            for (stage, layout) in plan.pipeline[0].stage.iter_mut().zip([first, second]) {
                stage.layout = Some(rules(layout));
            }
            assert_like_serial(&llama, &plan, &reference);
        }
    }
}
