//! Plans beyond the regular grid of the master test: uneven stages, stages of different meshes, context
//! parallelism, other optimizers and algorithms, other models, unusual layouts and odd numbers. All
//! train like the serial run.

use std::time::Duration;

use crate::support::{Samples, gpt, graph, llama, losses, mesh, serial, trainer};
use shardloom_collectives::Algorithm;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::op::Activation;
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{
    DeviceList, LayoutRules, Mesh, Optimizer, Pipeline, Plan, Recompute, ScheduleKind, Stage, Sync,
    Uniform,
};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{Error, OnNonFinite, RunClock, Settings, Trainer};

const STEPS: usize = 8;

/// Largest allowed relative difference to the serial run's loss.
const TOLERANCE: f64 = 1e-4;

fn zero(stage: u8) -> Sync {
    Sync { zero: stage, bucket_bytes: 40_000, ..Sync::default() }
}

fn plan(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "local")
}

/// `uniform` with stages of these numbers of blocks on these meshes.
fn staged(graph: &Graph, uniform: &Uniform, stages: &[(usize, Mesh)]) -> Plan {
    let mut plan = plan(graph, uniform);
    let (mut block, mut device) = (0, 0);
    let stage = stages
        .iter()
        .map(|&(blocks, mesh)| {
            let size = mesh.size() as u32;
            let devices = DeviceList((device..device + size).collect());
            let stage = Stage::new((block, block + blocks), mesh, devices);
            block += blocks;
            device += size;
            stage
        })
        .collect();
    plan.pipeline = vec![Pipeline::of(stage)];
    plan
}

/// `plan` under other layout rules.
fn laid_out(mut plan: Plan, rules: &str) -> Plan {
    plan.layout = LayoutRules::try_from(rules.to_owned()).expect("valid rules");
    plan
}

fn run(graph: &Graph, plan: &Plan, learning_rate: f64) -> Vec<f64> {
    losses(&mut trainer(graph, plan, Samples::patterned(64, 16, 64), learning_rate), STEPS)
}

fn same(reference: &[f64], losses: &[f64], what: &str) {
    for (step, (loss, expected)) in losses.iter().zip(reference).enumerate() {
        let difference = (loss - expected).abs() / expected;
        assert!(difference < TOLERANCE, "{what}: step {step} has loss {loss}, serially {expected}");
    }
}

/// Checks that all `plans` train like the serial run of the first one's batch, clipping and optimizer.
fn check(graph: &Graph, plans: &[(String, Plan)], learning_rate: f64) {
    let first = &plans[0].1;
    let reference = Uniform {
        global_batch: first.global_batch,
        optimizer: first.optimizer,
        clip_norm: first.clip_norm,
        ..serial()
    };
    let reference = run(graph, &plan(graph, &reference), learning_rate);
    assert!(
        reference[STEPS - 1] < 0.995 * reference[0],
        "{:?} learns: {reference:?}",
        first.optimizer
    );
    for (what, plan) in plans {
        same(&reference, &run(graph, plan, learning_rate), what);
    }
}

fn optimizers() -> [(Optimizer, f64); 4] {
    let weight_decay = 0.1;
    let (beta1, beta2, epsilon) = (0.9, 0.95, 1e-8);
    [
        (Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01, reference_batch: None }, 0.5),
        (Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }, 3e-3),
        (Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }, 5e-2),
        (
            Optimizer::Adafactor {
                decay_exponent: 0.8,
                clip: 1.0,
                least_parameter_rms: 1e-3,
                weight_decay,
            },
            3e-2,
        ),
    ]
}

/// Rows of padding have weights, which no loss, gradient or norm sees; the third of three ranks has nothing else.
#[test]
fn a_padded_vocabulary_trains_like_one_without_padding() {
    for line in [
        "gpt:layers=2,hidden=36,heads=6,seq=16,vocab=64,tied=true",
        "llama:layers=2,hidden=36,heads=6,ffn=36,seq=16,vocab=64",
    ] {
        let padded = graph(&format!("{line},padded_vocab=96"));
        let reference = run(&graph(line), &plan(&graph(line), &serial()), 1e-2);
        for uniform in [
            serial(),
            Uniform { mesh: mesh(1, 1, 3), sync: zero(1), ..serial() },
            Uniform { pp: 2, mesh: mesh(2, 1, 2), microbatches: 2, sync: zero(3), ..serial() },
        ] {
            let losses = run(&padded, &plan(&padded, &uniform), 1e-2);
            same(&reference, &losses, &format!("{line}: {uniform:?}"));
        }
    }
}

#[test]
fn every_optimizer_under_every_zero_stage_with_and_without_clipping() {
    let graph = gpt();
    for (optimizer, learning_rate) in optimizers() {
        for clip_norm in [None, Some(0.5)] {
            let plans: Vec<(String, Plan)> = (0..4)
                .map(|stage| {
                    let uniform = Uniform {
                        mesh: mesh(2, 1, 2),
                        sequence_parallel: stage % 2 == 0,
                        microbatches: 2,
                        sync: zero(stage),
                        optimizer,
                        clip_norm,
                        ..serial()
                    };
                    (format!("{uniform:?}"), plan(&graph, &uniform))
                })
                .collect();
            check(&graph, &plans, learning_rate);
        }
    }
}

#[test]
fn every_optimizer_across_a_pipeline_that_ties_its_ends() {
    let graph = gpt();
    for (optimizer, learning_rate) in optimizers() {
        let plans: Vec<(String, Plan)> = (0..4)
            .map(|stage| {
                let uniform = Uniform {
                    pp: 2,
                    mesh: mesh(2, 1, 2),
                    microbatches: 4,
                    sync: zero(stage),
                    optimizer,
                    ..serial()
                };
                (format!("{uniform:?}"), plan(&graph, &uniform))
            })
            .collect();
        check(&graph, &plans, learning_rate);
    }
}

#[test]
fn every_algorithm() {
    let graph = llama();
    let mut plans = vec![];
    for (name, stages) in [
        ("direct", 0..4),
        ("ring", 0..4),
        ("halving-doubling", 0..4),
        ("binary-tree", 0..1),
        ("double-binary-tree", 0..1),
        ("star", 0..1),
        ("hierarchical:2", 0..4),
        ("two-level-star:2", 0..1),
        ("multi-star:2", 0..1),
        ("binary-tree-star:2", 0..1),
        ("multi-binary-tree-star:2", 0..1),
    ] {
        for stage in stages {
            let algorithm: Algorithm = name.parse().unwrap_or_else(|error| panic!("{error}"));
            let meshes = [mesh(2, 1, 2), mesh(3, 1, 1), mesh(6, 1, 1)];
            let meshes = meshes.into_iter().filter(|it| algorithm.among(it.dp()) == algorithm);
            for mesh in meshes {
                let uniform = Uniform {
                    mesh,
                    sequence_parallel: mesh.tp() > 1,
                    global_batch: 12,
                    microbatches: 2,
                    sync: Sync { algorithm, ..zero(stage) },
                    ..serial()
                };
                plans.push((format!("{uniform:?}"), plan(&graph, &uniform)));
            }
        }
    }
    check(&graph, &plans, 3e-3);
}

#[test]
fn uneven_stages() {
    let graph = graph("gpt:layers=3,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true");
    let mut plans = vec![];
    for cut in [vec![1, 4], vec![4, 1], vec![1, 3, 1], vec![2, 1, 2], vec![1, 1, 1, 1, 1]] {
        for schedule in ScheduleKind::PLAIN {
            for recompute in Recompute::ALL {
                let stages: Vec<(usize, Mesh)> =
                    cut.iter().map(|&blocks| (blocks, Mesh::SINGLE)).collect();
                let uniform = Uniform { microbatches: 4, schedule, recompute, ..serial() };
                let plan = staged(&graph, &uniform, &stages);
                plans.push((format!("{cut:?} {schedule:?} {recompute:?}"), plan));
            }
        }
    }
    check(&graph, &plans, 3e-3);
}

#[test]
fn stages_of_different_meshes() {
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    let (one, four) = (Mesh::SINGLE, mesh(1, 1, 4));
    let mut plans = vec![];
    for meshes in [
        vec![mesh(1, 1, 2), mesh(2, 1, 1)],
        vec![mesh(2, 1, 1), mesh(1, 1, 2)],
        vec![four, mesh(1, 1, 2)],
        vec![mesh(1, 1, 2), four],
        vec![mesh(2, 1, 2), one, mesh(4, 1, 1)],
        vec![one, mesh(2, 2, 1), mesh(1, 1, 2)],
        vec![mesh(2, 1, 1), mesh(4, 1, 1)],
    ] {
        for sequence_parallel in [false, true] {
            for stage in 0..4 {
                let uniform =
                    Uniform { sequence_parallel, microbatches: 2, sync: zero(stage), ..serial() };
                let blocks: &[usize] = if meshes.len() == 2 { &[2, 2] } else { &[1, 2, 1] };
                let stages: Vec<(usize, Mesh)> =
                    blocks.iter().copied().zip(meshes.iter().copied()).collect();
                let plan = staged(&graph, &uniform, &stages);
                let meshes: Vec<String> = meshes.iter().map(ToString::to_string).collect();
                plans.push((format!("{} {uniform:?}", meshes.join(" then ")), plan));
            }
        }
    }
    check(&graph, &plans, 3e-3);
}

#[test]
fn tied_ends_of_equal_meshes_around_a_different_middle() {
    let graph = gpt();
    let mut plans = vec![];
    for stage in 0..4 {
        for recompute in Recompute::ALL {
            let uniform = Uniform { microbatches: 2, sync: zero(stage), recompute, ..serial() };
            let ends = mesh(2, 1, 2);
            let plan = staged(&graph, &uniform, &[(1, ends), (2, mesh(2, 1, 1)), (1, ends)]);
            plans.push((format!("{uniform:?}"), plan));
        }
    }
    check(&graph, &plans, 3e-3);
}

#[test]
fn context_parallelism() {
    for graph in [gpt(), llama()] {
        let mut plans = vec![];
        for (pp, mesh) in [
            (1, mesh(1, 2, 1)),
            (1, mesh(1, 4, 1)),
            (1, mesh(2, 2, 1)),
            (1, mesh(1, 2, 2)),
            (2, mesh(1, 2, 2)),
            (1, mesh(2, 2, 2)),
        ] {
            for stage in 0..4 {
                for recompute in Recompute::ALL {
                    let uniform = Uniform {
                        pp,
                        mesh,
                        sequence_parallel: mesh.tp() > 1 && stage % 2 == 0,
                        microbatches: 2,
                        recompute,
                        sync: zero(stage),
                        ..serial()
                    };
                    plans.push((format!("{uniform:?}"), plan(&graph, &uniform)));
                }
            }
        }
        check(&graph, &plans, 3e-3);
    }
}

#[test]
fn a_gradient_that_is_partial_without_replicas_is_reduced_once() {
    // Sequence parallelism leaves norm gains partial over tp. Without data parallelism ZeRO-2 has
    // nothing to shard, and must not reduce what earlier micro-batches already reduced.
    let graph = gpt();
    let plans: Vec<(String, Plan)> = (0..4)
        .map(|stage| {
            let uniform = Uniform {
                mesh: mesh(1, 1, 2),
                sequence_parallel: true,
                microbatches: 4,
                sync: zero(stage),
                ..serial()
            };
            (format!("{uniform:?}"), plan(&graph, &uniform))
        })
        .collect();
    check(&graph, &plans, 3e-3);
}

/// A network of which two normalisations share their gain, and each has its own bias.
fn shared_gain() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("shared gain");
    let [seq, vocab, model] =
        [("seq", 16), ("vocab", 64), ("model", 32)].map(|(name, size)| net.dim(name, size));
    let (seq, vocab, model) = (seq?, vocab?, model?);
    net.block("embedding");
    let tokens = net.targets("tokens", &[seq])?;
    let targets = net.targets("targets", &[seq])?;
    let table = net.parameter("table", &[vocab, model], 1, Init::Normal { std: 0.2 })?;
    let embedded = net.embed("embedded", tokens, table)?;
    net.block("first");
    let gain = net.parameter("gain", &[model], 0, Init::Constant(1.0))?;
    let bias = net.parameter("first bias", &[model], 0, Init::Constant(0.0))?;
    let first = net.layer_norm("first", embedded, gain, bias, 1e-5)?;
    let active = net.pointwise("active", first, Activation::Gelu)?;
    net.block("second");
    let bias = net.parameter("second bias", &[model], 0, Init::Constant(0.0))?;
    let second = net.layer_norm("second", active, gain, bias, 1e-5)?;
    net.block("head");
    let head = net.parameter("head", &[model, vocab], 1, Init::Normal { std: 0.2 })?;
    let logits = net.contract("logits", second, head, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn a_gain_that_two_normalisations_share_without_their_biases() {
    let graph = shared_gain().expect("a valid model");
    let plans: Vec<(String, Plan)> = [(1, 2), (2, 2), (4, 4)]
        .map(|(pp, microbatches)| {
            let optimizer = Optimizer::sgd(0.0);
            let uniform = Uniform { pp, microbatches, optimizer, clip_norm: None, ..serial() };
            (format!("{uniform:?}"), plan(&graph, &uniform))
        })
        .into();
    check(&graph, &plans, 2.0);
}

/// Plans that split GPT over these meshes by these rules, under every ZeRO stage.
fn layouts(graph: &Graph, layouts: &[(&str, Mesh)]) -> Vec<(String, Plan)> {
    let mut plans = vec![];
    for &(rules, mesh) in layouts {
        for stage in 0..4 {
            let uniform = Uniform { mesh, microbatches: 2, sync: zero(stage), ..serial() };
            let plan = laid_out(plan(graph, &uniform), rules);
            plans.push((format!("{rules:?} on {mesh}, ZeRO-{stage}"), plan));
        }
    }
    plans
}

#[test]
fn layouts_that_split_only_some_operators() {
    let graph = gpt();
    let layouts = layouts(
        &graph,
        &[
            ("batch:dp, heads:tp", mesh(2, 1, 2)),
            ("batch:dp, ffn:tp", mesh(2, 1, 2)),
            ("batch:dp, vocab:tp", mesh(2, 1, 2)),
            ("batch:dp, head_dim:tp, ffn:tp", mesh(2, 1, 2)),
            ("batch:dp, model:tp", mesh(1, 1, 2)),
        ],
    );
    check(&graph, &layouts, 3e-3);
}

#[test]
fn layouts_whose_loss_is_split_over_tp_or_whole_along_dp_and_cp() {
    let graph = gpt();
    let layouts = layouts(
        &graph,
        &[
            ("batch:dp, batch:tp", mesh(2, 1, 2)),
            ("batch:dp, heads:tp, ffn:tp, seq:tp", mesh(2, 1, 2)),
            ("seq:tp", mesh(1, 1, 4)),
            ("heads:cp, ffn:cp, batch:dp", mesh(2, 2, 1)),
            ("heads:dp, ffn:dp, vocab:dp", mesh(2, 1, 1)),
            ("heads:cp, ffn:cp, vocab:tp, seq:tp", mesh(1, 2, 2)),
        ],
    );
    check(&graph, &layouts, 3e-3);
}

#[test]
fn odd_numbers() {
    let graph = graph("gpt:layers=4,hidden=36,heads=3,seq=15,vocab=63,dropout=0.1");
    let reference = Uniform { global_batch: 30, ..serial() };
    let samples = || Samples::patterned(70, 15, 63);
    let expected = losses(&mut trainer(&graph, &plan(&graph, &reference), samples(), 3e-3), STEPS);
    for (pp, mesh, microbatches) in
        [(3, mesh(3, 1, 1), 5), (3, mesh(1, 1, 3), 5), (2, mesh(1, 3, 1), 3), (5, mesh(1, 1, 1), 3)]
    {
        for schedule in ScheduleKind::PLAIN {
            for stage in 0..4 {
                let sequence_parallel = mesh.tp() > 1 && stage > 1;
                let sync = Sync { bucket_bytes: 1, ..zero(stage) };
                let recompute = Recompute::ALL[usize::from(stage) % 3];
                let uniform = Uniform {
                    pp,
                    mesh,
                    microbatches,
                    schedule,
                    sequence_parallel,
                    sync,
                    recompute,
                    ..reference.clone()
                };
                let plan = plan(&graph, &uniform);
                let losses = losses(&mut trainer(&graph, &plan, samples(), 3e-3), STEPS);
                same(&expected, &losses, &format!("{uniform:?}"));
            }
        }
    }
}

/// Random vectors with the class that a fixed linear map gives them.
struct Vectors {
    features: Vec<Vec<f32>>,
    classes: Vec<[u32; 1]>,
}

impl Vectors {
    fn new(samples: usize, inputs: usize, classes: usize) -> Vectors {
        let mut state = 99u32;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let map: Vec<Vec<f32>> =
            (0..classes).map(|_| (0..inputs).map(|_| next()).collect()).collect();
        let features: Vec<Vec<f32>> =
            (0..samples).map(|_| (0..inputs).map(|_| next()).collect()).collect();
        let class = |x: &Vec<f32>| {
            let score = |row: &Vec<f32>| -> f32 { row.iter().zip(x).map(|(a, b)| a * b).sum() };
            let best = (0..classes).max_by(|&a, &b| score(&map[a]).total_cmp(&score(&map[b])));
            [best.expect("there are classes") as u32]
        };
        let classes = features.iter().map(class).collect();
        Vectors { features, classes }
    }
}

impl Source for Vectors {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let index = position as usize % self.features.len();
        Ok(match input {
            "features" => Some(Field::Reals(&self.features[index])),
            "targets" => Some(Field::Indices(&self.classes[index])),
            _ => None,
        })
    }

    fn validation_len(&self) -> u64 {
        self.features.len() as u64
    }
}

fn classifier(graph: &Graph, plan: &Plan) -> Result<Trainer, Error> {
    let settings = Settings {
        seed: 7,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-2 }).expect("a positive rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    let source = Box::new(Vectors::new(96, 12, 8));
    Trainer::new(graph.clone(), plan, plan.device_count(), source, settings)
}

#[test]
fn a_perceptron_of_features() {
    let graph = graph("mlp:inputs=12,hidden=24,layers=4,classes=8");
    let run = |uniform: &Uniform| {
        let mut trainer = classifier(&graph, &plan(&graph, uniform)).expect("a valid plan");
        losses(&mut trainer, STEPS)
    };
    let reference = Uniform { global_batch: 24, ..serial() };
    let expected = run(&reference);
    assert!(expected[STEPS - 1] < 0.9 * expected[0], "the model learns: {expected:?}");
    for (pp, mesh) in [
        (1, mesh(2, 1, 1)),
        (1, mesh(1, 1, 4)),
        (1, mesh(3, 1, 2)),
        (2, mesh(2, 1, 2)),
        (3, mesh(2, 1, 1)),
        (5, mesh(1, 1, 1)),
    ] {
        for recompute in Recompute::ALL {
            for stage in 0..4 {
                let uniform = Uniform {
                    pp,
                    mesh,
                    microbatches: 4,
                    recompute,
                    sync: Sync { bucket_bytes: 2000, ..zero(stage) },
                    ..reference.clone()
                };
                same(&expected, &run(&uniform), &format!("{uniform:?}"));
            }
        }
    }
}

#[test]
fn recomputation_changes_no_bit() {
    // Every operator that runs again draws the same random numbers and rounds the same way.
    for graph in [gpt(), llama()] {
        for (pp, mesh, sequence_parallel) in [
            (1, Mesh::SINGLE, false),
            (2, mesh(1, 1, 2), true),
            (2, mesh(2, 1, 2), false),
            (1, mesh(2, 2, 1), false),
        ] {
            // That of the last stage.
            let own = std::cell::Cell::new(None);
            let digest = |recompute| {
                let uniform = Uniform {
                    pp,
                    mesh,
                    sequence_parallel,
                    microbatches: 2,
                    recompute,
                    sync: zero(3),
                    ..serial()
                };
                let mut plan = plan(&graph, &uniform);
                plan.pipeline[0].stage[pp - 1].recompute = own.get();
                let mut trainer = trainer(&graph, &plan, Samples::patterned(64, 16, 64), 3e-3);
                losses(&mut trainer, 4);
                trainer.weights_digest().unwrap_or_else(|error| panic!("{error}"))
            };
            let kept = digest(Recompute::None);
            assert_eq!(digest(Recompute::Selective), kept, "{} on {mesh}", graph.name());
            assert_eq!(digest(Recompute::Full), kept, "{} on {mesh}", graph.name());
            own.set(Some(Recompute::Stage));
            assert_eq!(digest(Recompute::Selective), kept, "{} on {mesh}", graph.name());
        }
    }
}
