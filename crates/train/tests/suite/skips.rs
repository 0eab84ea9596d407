//! Long skips: a U-shaped transformer computes what its blocks and joins say, and trains the same
//! wherever the two ends of its skips lie.

use std::collections::BTreeMap;

use crate::support::trained::Trained;
use crate::support::{Samples, graph, losses, mesh, serial, trainer};
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, DeviceList, LayoutRules, Optimizer, Pipeline, Plan, Recompute, ScheduleKind,
    Stage, Sync, Uniform, Weights as Versions, even_cut,
};
use shardloom_train::Trainer;

const SEQ: usize = 16;
const HIDDEN: usize = 32;
const VOCAB: usize = 64;

/// The family's blocks of six layers: an embedding, two encoders, two in the middle, two decoders, a
/// head.
fn u_transformer(layers: usize, dropout: f32) -> Graph {
    graph(&format!(
        "u-transformer:layers={layers},hidden={HIDDEN},heads=4,seq={SEQ},vocab={VOCAB},dropout={dropout}"
    ))
}

fn samples() -> Samples {
    Samples::patterned(64, SEQ, VOCAB as u32)
}

fn whole(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "local")
}

/// A plan of one pipeline whose stages live where `places` says.
fn placed(graph: &Graph, uniform: &Uniform, places: &[usize]) -> Plan {
    let mut plan = whole(graph, uniform);
    let (size, blocks) = (uniform.mesh.size() as u32, graph.blocks().len());
    let stages = places.len();
    let stage = |(index, &place): (usize, &usize)| Stage {
        blocks: (even_cut(blocks, stages, index), even_cut(blocks, stages, index + 1)),
        mesh: uniform.mesh,
        devices: DeviceList((place as u32 * size..(place as u32 + 1) * size).collect()),
        recompute: None,
        layout: None,
    };
    plan.pipeline = vec![Pipeline::of(places.iter().enumerate().map(stage).collect())];
    plan
}

fn arranged(arrangement: Arrangement, chunks: usize) -> Vec<usize> {
    arrangement.places(2, chunks).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// Checks that the most each rank ever held is what its program says.
fn assert_peaks(trainer: &Trainer, plan: &Plan) {
    let planned = trainer.program().classes().flat_map(|(_, class)| {
        let peak = |position| class.memory_use(trainer.program(), position).peak_bytes;
        (0..class.mesh.size()).map(peak)
    });
    let planned: Vec<u64> = planned.collect();
    assert_eq!(trainer.peak_bytes_per_rank(), planned, "peaks\n{}", plan.to_toml());
}

fn run(graph: &Graph, plan: &Plan) -> Trained {
    let mut trainer = trainer(graph, plan, samples(), 0.02);
    let trained = Trained::in_rows(&mut trainer, &[1; 6]);
    assert_peaks(&trainer, plan);
    trained
}

/// With momentum and without clipping, which would hide a factor in gradients.
fn plain() -> Uniform {
    let optimizer = Optimizer::sgd(0.9);
    Uniform { optimizer, clip_norm: None, ..serial() }
}

fn reference(graph: &Graph) -> Trained {
    let reference = run(graph, &whole(graph, &plain()));
    let far = reference.distance();
    assert!(far > 0.2, "the parameters move far, not {far}");
    reference
}

fn assert_like(reference: &Trained, graph: &Graph, plan: &Plan) {
    let trained = run(graph, plan);
    trained.assert_losses(reference, 1e-4, &plan.to_toml());
    trained.assert_moved(reference, 1e-4, &plan.to_toml());
}

fn pipelined(recompute: Recompute) -> Uniform {
    Uniform {
        microbatches: 4,
        schedule: ScheduleKind::Afab,
        recompute,
        sync: Sync { bucket_bytes: 40_000, ..Sync::default() },
        ..plain()
    }
}

#[test]
fn split_over_stages_it_trains_like_the_serial_run_and_frees_every_skip() {
    let graph = u_transformer(6, 0.1);
    let reference = reference(&graph);
    for recompute in Recompute::ALL {
        for schedule in ScheduleKind::ALL.into_iter().filter(|it| it.flushes()) {
            let one_stage = schedule.arrangement().is_none_or(|it| it == Arrangement::Chain);
            let sizes: &[usize] = match schedule {
                ScheduleKind::Table => continue,
                _ if one_stage => &[2, 4, 8],
                // Both ends of every skip come to lie on one device, or on two.
                _ => &[2, 4],
            };
            for &pp in sizes {
                let microbatches = if pp == 4 { 8 } else { 4 };
                let uniform = Uniform { pp, microbatches, schedule, ..pipelined(recompute) };
                assert_like(&reference, &graph, &whole(&graph, &uniform));
            }
        }
        for places in [
            arranged(Arrangement::Looped, 2),
            arranged(Arrangement::Wave, 2),
            arranged(Arrangement::Wave, 4),
            vec![0, 0, 0],
        ] {
            assert_like(&reference, &graph, &placed(&graph, &pipelined(recompute), &places));
        }
    }
}

#[test]
fn data_tensor_context_and_sequence_parallelism_train_like_the_serial_run() {
    let graph = u_transformer(5, 0.1);
    let reference = reference(&graph);
    for (mesh, sequence_parallel, zero) in [
        (mesh(2, 1, 1), false, 0),
        (mesh(2, 1, 1), false, 3),
        (mesh(1, 2, 1), false, 0),
        (mesh(1, 1, 2), false, 0),
        (mesh(1, 1, 2), true, 0),
        (mesh(2, 1, 2), true, 2),
    ] {
        for recompute in Recompute::ALL {
            for pp in [1, 2] {
                let sync = Sync { zero, bucket_bytes: 40_000, ..Sync::default() };
                let uniform = Uniform { pp, mesh, sequence_parallel, sync, ..pipelined(recompute) };
                assert_like(&reference, &graph, &whole(&graph, &uniform));
            }
        }
    }
}

#[test]
fn stages_of_different_meshes_train_like_the_serial_run() {
    let graph = u_transformer(5, 0.1);
    let reference = reference(&graph);
    let meshes = [mesh(2, 1, 1), mesh(1, 1, 1), mesh(1, 1, 2)];
    let mut plan = whole(&graph, &Uniform { pp: 3, ..pipelined(Recompute::None) });
    let mut next = 0;
    for (stage, mesh) in plan.pipeline[0].stage.iter_mut().zip(meshes) {
        stage.mesh = mesh;
        let devices = mesh.size() as u32;
        stage.devices = DeviceList((next..next + devices).collect());
        next += devices;
    }
    assert_like(&reference, &graph, &plan);
}

/// A rule may split what default rules leave whole: each device then has half of the projection.
#[test]
fn the_projection_of_a_join_can_be_split_along_the_joined_width() {
    let graph = u_transformer(5, 0.0);
    let reference = reference(&graph);
    for rules in ["model.2:tp, heads:tp, ffn:tp, vocab:tp", "heads:tp, ffn:tp, model.2:tp, seq:tp"]
    {
        let uniform = Uniform { mesh: mesh(1, 1, 2), ..pipelined(Recompute::None) };
        let mut plan = whole(&graph, &uniform);
        plan.layout = LayoutRules::try_from(rules.to_owned()).expect("valid rules");
        assert_like(&reference, &graph, &plan);
    }
}

/// Schedules on so many devices, and how many values and gradients of six layers with two skips, from
/// blocks 0 and 1 to blocks 5 and 4, each device sends to others.
fn ways() -> Vec<(ScheduleKind, usize, Vec<u64>)> {
    use Arrangement::{Bidirectional, Looped, Wave};
    let sizes = |schedule: ScheduleKind| match schedule.arrangement() {
        // Down as in a chain and up as in its mirror image, half of the micro-batches each.
        Some(Bidirectional) => vec![(2, vec![3, 3])],
        // Of block 0 there are two readers on the other device.
        Some(Looped) => vec![(2, vec![5, 5])],
        // Both ends of a skip are on one device.
        Some(Wave) => vec![(2, vec![2, 2]), (4, vec![2, 4, 4, 2])],
        // Of two stages the result of block 2 and two skips, and as many gradients; of four, the first
        // stage sends block 0's result to the next and to the last, and so on.
        _ => vec![(2, vec![3, 3]), (4, vec![2, 3, 3, 2])],
    };
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    kinds
        .flat_map(|kind| sizes(kind).into_iter().map(move |(pp, values)| (kind, pp, values)))
        .collect()
}

/// torchgpipe's portals (Kim et al. 2020, section 3.2.2): a skip costs the bytes of its value once on the
/// way there and once on the way back, whatever lies between.
#[test]
fn each_rank_sends_the_values_that_others_read_from_it_once() {
    let layers = 6;
    let graph = u_transformer(layers, 0.1);
    let value = (4 * 8 * SEQ * HIDDEN) as u64;
    for (schedule, pp, values) in ways() {
        let uniform = Uniform { pp, microbatches: 8, schedule, ..pipelined(Recompute::None) };
        let mut plan = whole(&graph, &uniform);
        let rules: &[Versions] = match schedule {
            ScheduleKind::PipeDream => {
                &[Versions::Stash, Versions::VerticalSync, Versions::DoubleBuffer]
            }
            _ => &[schedule.usual_weights()],
        };
        for &rule in rules {
            plan.weights = rule;
            let mut trainer = trainer(&graph, &plan, samples(), 1e-3);
            let steps = 2 * trainer.program().ahead + 1;
            trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
            // Where each device has a copy of the whole model, gradients cross besides.
            let copies = if plan.pipeline.len() == 2 { 4 * graph.parameter_count() } else { 0 };
            let bytes = |values: &u64| u64::from(steps) * (values * value + copies);
            let bytes: Vec<u64> = values.iter().map(bytes).collect();
            assert_eq!(trainer.sent_bytes_per_rank(), bytes, "{schedule:?} on {pp}, {rule:?}");
            assert_peaks(&trainer, &plan);
        }
    }
    // Beside a GPT in the same stages, a skip adds its value at each end and nothing between.
    let gpt = gpt(layers, 0.1);
    let sent = |graph: &Graph| {
        let uniform = Uniform { pp: 8, clip_norm: None, ..pipelined(Recompute::None) };
        let mut trainer = trainer(graph, &whole(graph, &uniform), samples(), 1e-3);
        losses(&mut trainer, 1);
        trainer.sent_bytes_per_rank().to_vec()
    };
    let more: Vec<u64> = sent(&graph).iter().zip(sent(&gpt)).map(|(u, gpt)| u - gpt).collect();
    let ends = [0, value, value, 0, 0, value, value, 0];
    assert_eq!(more, ends, "two skips, from blocks 0 and 1 to blocks 5 and 4");
}

fn gpt(layers: usize, dropout: f32) -> Graph {
    graph(&format!(
        "gpt:layers={layers},hidden={HIDDEN},heads=4,seq={SEQ},vocab={VOCAB},dropout={dropout}"
    ))
}

type Weights = BTreeMap<String, Vec<f32>>;

fn weights(trainer: &mut Trainer) -> Weights {
    trainer.weights().unwrap_or_else(|error| panic!("{error}"))
}

fn trainer_from(graph: &Graph, weights: Weights, optimizer: Optimizer, rate: f64) -> Trainer {
    let uniform = Uniform { optimizer, clip_norm: None, ..serial() };
    let mut trainer = trainer(graph, &whole(graph, &uniform), samples(), rate);
    trainer.set_weights(weights).unwrap_or_else(|error| panic!("{error}"));
    trainer
}

/// The loss of the first batch.
fn loss(graph: &Graph, weights: &Weights) -> f64 {
    let mut trainer = trainer_from(graph, weights.clone(), Optimizer::default(), 1e-9);
    losses(&mut trainer, 1)[0]
}

/// Has each join pass on `x`, what the block before made, times `before`, and the skip times `skip`.
fn set_joins(weights: &mut Weights, layers: usize, before: f32, skip: f32) {
    for decoder in layers - (layers - 1) / 2..layers {
        let projection = weights.get_mut(&format!("block.{decoder}.skip.weight"));
        let projection = projection.expect("every decoder projects");
        for (index, element) in projection.iter_mut().enumerate() {
            let (row, column) = (index / HIDDEN, index % HIDDEN);
            *element = match row % HIDDEN == column {
                true if row < HIDDEN => before,
                true => skip,
                false => 0.0,
            };
        }
    }
}

#[test]
fn joins_that_pass_on_one_operand_make_it_a_gpt_of_the_blocks_on_that_way() {
    for layers in [5, 6] {
        let skips = (layers - 1) / 2;
        let graph = u_transformer(layers, 0.0);
        let initial = weights(&mut trainer(&graph, &whole(&graph, &serial()), samples(), 1e-3));
        // A GPT of some of its blocks.
        let gpt_of = |blocks: &[usize]| -> f64 {
            let gpt = gpt(blocks.len(), 0.0);
            let gpt_weights = gpt
                .parameters()
                .map(|(_, value)| {
                    let renamed = blocks.iter().enumerate().find_map(|(own, block)| {
                        let rest = value.name.strip_prefix(&format!("block.{own}."))?;
                        Some(format!("block.{block}.{rest}"))
                    });
                    let from = renamed.unwrap_or_else(|| value.name.clone());
                    (value.name.clone(), initial[&from].clone())
                })
                .collect();
            loss(&gpt, &gpt_weights)
        };
        // Without the skips all blocks follow each other; with nothing but the skips the way leads
        // from the outermost encoder straight to the last decoder.
        let all: Vec<usize> = (0..layers).collect();
        for (before, skip, blocks) in [(1.0, 0.0, all), (0.0, 1.0, vec![0, layers - 1])] {
            let mut changed = initial.clone();
            set_joins(&mut changed, layers, before, skip);
            let (got, want) = (loss(&graph, &changed), gpt_of(&blocks));
            let difference = (got - want).abs() / want;
            assert!(difference < 1e-6, "{layers} layers, {skips} skips: {got}, a GPT's is {want}");
        }
        // With the weights that it starts with it is another function.
        assert!((loss(&graph, &initial) - gpt_of(&(0..layers).collect::<Vec<_>>())).abs() > 1e-4);
    }
}

/// Plain gradient descent by one small step says what the gradient is; the loss a little way along it and
/// against it says what it should be.
#[test]
fn the_gradient_of_every_parameter_is_the_central_difference_of_the_loss() {
    const RATE: f64 = 1.0;
    let graph = u_transformer(4, 0.0);
    let mut initial = weights(&mut trainer(&graph, &whole(&graph, &serial()), samples(), 1e-3));
    // Larger weights than one starts with, so that each matters.
    for (name, values) in &mut initial {
        let scale = if name.ends_with("weight") { 6.0 } else { 1.0 };
        values.iter_mut().for_each(|value| *value *= scale);
    }
    let sgd = Optimizer::sgd(0.0);
    let mut stepped = trainer_from(&graph, initial.clone(), sgd, RATE);
    losses(&mut stepped, 1);
    let after = weights(&mut stepped);
    for (name, before) in &initial {
        let gradient: Vec<f64> = before
            .iter()
            .zip(&after[name])
            .map(|(&before, &after)| (f64::from(before) - f64::from(after)) / RATE)
            .collect();
        let squared: f64 = gradient.iter().map(|each| each * each).sum();
        // All of a query's scores rise alike with the keys' bias, which the softmax does not see.
        if name.ends_with("key.bias") {
            assert!(squared < 1e-12, "{name} has a gradient");
            continue;
        }
        assert!(squared > 1e-6, "{name} has no gradient");
        // A change of the loss large beside its rounding, small beside its curvature.
        let way = 2e-3 / squared;
        let moved = |sign: f64| {
            let mut weights = initial.clone();
            let values = weights.get_mut(name).expect("a parameter");
            for (value, gradient) in values.iter_mut().zip(&gradient) {
                *value = (f64::from(*value) + sign * way * gradient) as f32;
            }
            loss(&graph, &weights)
        };
        let slope = (moved(1.0) - moved(-1.0)) / (2.0 * way);
        let difference = (slope - squared).abs() / squared;
        assert!(difference < 0.02, "{name}: slope {slope}, squared gradient {squared}");
    }
}
