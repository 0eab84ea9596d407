//! The choices, and the plans that they make.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, Averaging, Axis, AxisSet, Communication, Compression, Corrections, DeviceList,
    LossScale, Mesh, Negotiation, Number, Optimizer, ParameterGroup, Pipeline, Plan, Precision,
    Prediction, Push, Ranges, Recompute, ScheduleKind, SendOrder, Servers, Share, Staleness,
    Summation, Sync, Uniform, Updates, Weights,
};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{Blueprint, OnNonFinite, Settings, Trainer};

use super::data::Data;
use super::pairs::{Covering, Pair, Row, all_pairs, covering};
use crate::support::{mesh, serial};

/// Samples of a step.
pub const BATCH: usize = 8;

/// The order of passes, the weights that they run with, and when stages update.
#[derive(Clone, Copy, Debug)]
struct Way {
    schedule: ScheduleKind,
    /// Replicas of stages that take micro-batches in turn, if not one of each.
    replicas: &'static [usize],
    weights: Weights,
    updates: Updates,
    /// Micro-batches of pipelines on devices of their own, if there are several of these.
    shares: &'static [usize],
    /// Servers of one worker, or synchronous ones of two: their answers have one order.
    servers: Option<Servers>,
    /// How replicas with weights of their own are averaged.
    averaging: Option<Averaging>,
    /// Servers that sum for two.
    summation: Option<Summation>,
    /// How replicas agree on the order of their reductions.
    negotiation: Option<Negotiation>,
}

const NONE: Corrections = Corrections {
    anneal_steps: None,
    discrepancy: None,
    synchronous_steps: 0,
    spike: None,
    prediction: None,
};

/// All schedules with all rules that they have, and all corrections one by one and together.
fn ways() -> Vec<Way> {
    let way = |schedule, weights| {
        let updates = Updates::Step;
        Way {
            schedule,
            replicas: &[],
            shares: &[],
            weights,
            updates,
            servers: None,
            averaging: None,
            summation: None,
            negotiation: None,
        }
    };
    let flushing = ScheduleKind::ALL.into_iter().filter(|it| it.flushes());
    let mut ways: Vec<Way> = flushing.map(|it| way(it, Weights::Flush)).collect();
    let turns: &[usize] = &[2, 1];
    let flush = way(ScheduleKind::OneForwardOneBackward, Weights::Flush);
    ways.push(Way { replicas: turns, ..flush });
    let newest = Weights::Newest { corrections: NONE };
    for weights in [Weights::Stash, Weights::VerticalSync, Weights::DoubleBuffer, newest] {
        let chain = way(ScheduleKind::PipeDream, weights);
        ways.push(chain);
        ways.push(Way { replicas: turns, ..chain });
        if matches!(weights, Weights::Stash | Weights::VerticalSync) {
            ways.push(Way { updates: Updates::Round, ..chain });
            ways.push(Way { updates: Updates::Round, replicas: turns, ..chain });
        }
    }
    let t1 = Corrections { anneal_steps: Some(6), ..NONE };
    let t2 = Corrections { discrepancy: Some(0.135), ..NONE };
    let along_update = Corrections { prediction: Some(Prediction::Weights), ..NONE };
    let along_velocity = Corrections { prediction: Some(Prediction::Velocity), ..NONE };
    for corrections in [
        NONE,
        t1,
        t2,
        Corrections { synchronous_steps: 2, ..NONE },
        Corrections { spike: Some(1.0), ..NONE },
        along_update,
        along_velocity,
        Corrections { anneal_steps: Some(6), synchronous_steps: 1, ..t2 },
        Corrections { spike: Some(1.0), ..along_velocity },
        Corrections { anneal_steps: Some(6), discrepancy: Some(0.2), ..along_update },
    ] {
        ways.push(way(ScheduleKind::PipeMare, Weights::Newest { corrections }));
    }
    let both = Corrections { discrepancy: Some(0.135), ..along_update };
    let weights = Weights::Newest { corrections: both };
    ways.push(Way { replicas: turns, ..way(ScheduleKind::PipeDream, weights) });
    ways.push(Way { servers: Some(Servers::of(2, Staleness::Within(1))), ..flush });
    ways.push(Way { servers: Some(Servers::of(2, Staleness::SYNCHRONOUS)), ..flush });
    let deltas = Servers { push: Push::Deltas, ..Servers::of(2, Staleness::SYNCHRONOUS) };
    ways.push(Way { servers: Some(deltas), ..flush });
    ways.push(Way { shares: &[3, 1], ..flush });
    for (schedule, averaging) in [
        (ScheduleKind::OneForwardOneBackward, Averaging::local_sgd(2)),
        (ScheduleKind::ZeroBubbleH1, Averaging::local_sgd(1)),
        (ScheduleKind::Interleaved, Averaging::SYNCHRONOUS),
        (ScheduleKind::ZeroBubbleH1, Averaging { until: Some(4), ..Averaging::SYNCHRONOUS }),
        (ScheduleKind::Chimera, Averaging { every: 2, ..Averaging::SYNCHRONOUS }),
    ] {
        ways.push(Way { averaging: Some(averaging), ..way(schedule, Weights::Flush) });
    }
    let (ranges, share) = (Ranges::Equal, Share::Part(0.4));
    let summed = Summation { ranges, share, ..Summation::of(2) };
    ways.push(Way { summation: Some(summed), ..flush });
    let by_next_use = Summation { order: SendOrder::NextUse, ..Summation::of(1) };
    ways.push(Way { summation: Some(by_next_use), ..flush });
    let colocated = Summation { share, colocated: true, ..by_next_use };
    ways.push(Way { summation: Some(colocated), ..flush });
    let held = Servers { colocated: true, ..Servers::of(0, Staleness::SYNCHRONOUS) };
    ways.push(Way { servers: Some(held), ..flush });
    // What is reduced as one would show in the sums of most algorithms, and depends on time.
    let negotiation = Some(Negotiation { cycle_seconds: 0.0, fusion_bytes: 0 });
    for schedule in [ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubbleH1] {
        ways.push(Way { negotiation, ..way(schedule, Weights::Flush) });
    }
    ways
}

/// What the mesh of a stage is, and whether what is not split by tensor parallelism is split by sequence.
fn layouts() -> [(Mesh, bool); 9] {
    let two = Mesh::of(2, 2, 1).sharing_within(1).expect("two replicas");
    [
        (Mesh::SINGLE, false),
        (Mesh::of(2, 1, 1), false),
        (Mesh::of(1, 1, 2), false),
        (Mesh::of(1, 1, 2), true),
        (Mesh::of(1, 2, 1), false),
        (Mesh::of(2, 1, 2), true),
        (Mesh::of(2, 2, 1), false),
        (Mesh::of(1, 2, 2), true),
        // Replicas of whose ranks only the context-parallel ones share.
        (two, false),
    ]
}

/// What replicas share, from nothing to everything, by the stages of ZeRO, and at last all of them everything and the
/// context-parallel ones a second copy of the weights.
const ZERO_STAGES: usize = 5;
const SECOND_COPY: usize = 4;

/// Optimizers with the learning rates that they learn with.
fn optimizers() -> [(Optimizer, f64); 6] {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-8, 0.1);
    let (decay_exponent, clip, least_parameter_rms) = (0.8, 1.0, 1e-3);
    let sgd = |momentum, reference_batch| Optimizer::Sgd {
        momentum,
        weight_decay: 0.01,
        reference_batch,
    };
    [
        (sgd(0.0, None), 0.1),
        (sgd(0.9, None), 0.02),
        (sgd(0.9, Some(32)), 0.1),
        (Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }, 3e-3),
        (Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }, 1e-2),
        (Optimizer::Adafactor { decay_exponent, clip, least_parameter_rms, weight_decay }, 1e-2),
    ]
}

/// Recomputation, whether the last micro-batch is computed twice too, and what first stages do instead.
const RECOMPUTATION: [(Recompute, bool, Option<Recompute>); 6] = [
    (Recompute::None, true, None),
    (Recompute::Selective, true, None),
    (Recompute::Full, true, None),
    (Recompute::Stage, true, None),
    (Recompute::Stage, false, None),
    (Recompute::None, false, Some(Recompute::Full)),
];

/// The norm that gradients are clipped to, and whether updates with any that are not finite are left out. With
/// that alone the loss is scaled, but where compression keeps what it leaves out.
const GUARDS: [(Option<f64>, bool); 4] =
    [(None, false), (Some(0.5), false), (None, true), (Some(0.5), true)];

/// Tied ends; fewer key heads, where attention is fused and within documents; long skips; no sequence, and features of which some are no numbers; features beside
/// categories; recurrences with a projection.
const MODELS: [&str; 6] = [
    "gpt:layers=3,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1,tied=true",
    "llama:layers=3,hidden=16,heads=4,kv_heads=2,ffn=32,seq=8,vocab=32",
    "u-transformer:layers=4,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1",
    "mlp:inputs=8,hidden=12,layers=4,classes=4",
    "dlrm:dense=8,rows=2x32-100,embed=8,bottom=12,top=12-10",
    "lstm:layers=3,hidden=16,embed=8,projection=8,seq=8,vocab=32,dropout=0.1",
];

/// The model whose attention is fused and within documents.
const FUSED: usize = 1;

const ALGORITHMS: [&str; 4] = ["direct", "ring", "halving-doubling", "binary-tree"];

/// How replicas compress their gradients, or that those of tables are rows.
const COMPRESSIONS: [&str; 7] =
    ["none", "bf16", "fp16-feedback", "one-bit", "top-k:8", "power-sgd:1", SPARSE];

const SPARSE: &str = "sparse";

/// Bytes of a bucket of parameters.
const BUCKETS: [usize; 2] = [40_000, 1_000];

/// What some parameters do otherwise: nothing; ZeRO-3 and ZeRO-1 side by side, in buckets of their own.
fn groups() -> [Vec<ParameterGroup>; 3] {
    let algorithm = Some(Algorithm::Ring);
    let block = ParameterGroup { zero: Some(3), algorithm, ..ParameterGroup::named("*.1.*") };
    let (zero, bucket_bytes) = (Some(1), Some(2_000));
    let weights = ParameterGroup::named("*weight");
    // One block's in two pieces on a server, other weights among the workers of servers that sum.
    let cut = ParameterGroup { servers: Some(vec![0; 2]), ..ParameterGroup::named("*.1.*") };
    let by_workers = ParameterGroup { servers: Some(vec![]), algorithm, ..weights.clone() };
    [
        vec![],
        vec![block, ParameterGroup { zero, algorithm, bucket_bytes, ..weights }],
        vec![cut, by_workers],
    ]
}

/// In which formats is computed, and gradients are summed.
const FORMATS: [Precision; 3] =
    [Precision::FP32, Precision::MIXED, Precision { gradients: Number::Bf16, ..Precision::MIXED }];

/// Who carries collectives out.
const COMMUNICATION: [Communication; 2] = [Communication::InLine, Communication::Thread];

/// How mesh axes are named and ordered: as usual; with names of their own, replicas on adjacent ranks.
const AXES: usize = 2;

/// How the learning rate goes on: a run that loses count of its steps has another.
const CURVES: usize = 2;

/// What is frozen: nothing; the first half of the parameters, so that the first stages have no gradients; every second
/// one, so that passes have some of what they give dropped.
const FROZEN: usize = 3;

/// The parameters that are frozen.
fn frozen(graph: &Graph, choice: usize) -> Option<ParameterGroup> {
    let parameters = graph.values().filter(|(_, node)| node.parameter().is_some());
    let names: Vec<&str> = parameters.map(|(_, node)| node.name.as_str()).collect();
    let those: Vec<&str> = match choice {
        0 => return None,
        1 => names[..names.len() / 2].to_vec(),
        _ => names.into_iter().step_by(2).collect(),
    };
    Some(ParameterGroup { frozen: true, ..ParameterGroup::of_all(&those) })
}

/// Factors by their places in a row; the others are not named.
const WAY: usize = 0;
const LAYOUT: usize = 1;
const OPTIMIZER: usize = 2;
const GUARD: usize = 4;
const VALIDATION: usize = 5;
const MODEL: usize = 6;
const ALGORITHM: usize = 7;
const GROUPS: usize = 10;
const COMPRESSION: usize = 12;
const ZERO: usize = 13;
const FORMAT: usize = 14;
const COMMUNICATES: usize = 15;
const FREEZES: usize = 16;

static WORDS: LazyLock<Words> = LazyLock::new(Words::new);
static COVERING: LazyLock<(Vec<Combination<'static>>, Vec<Pair>)> =
    LazyLock::new(|| WORDS.covering());

/// Combinations with every two words that go together, found once for all tests.
pub fn combinations() -> &'static [Combination<'static>] {
    &COVERING.0
}

/// Everything that is chosen.
struct Words {
    ways: Vec<Way>,
    graphs: Vec<Graph>,
}

impl Words {
    fn new() -> Words {
        let mut graphs = MODELS.map(crate::support::graph);
        let masked = graphs[FUSED].with_document_mask().expect("its attention is causal");
        graphs[FUSED] = masked.with_fused_attention();
        Words { ways: ways(), graphs: graphs.into() }
    }

    fn choices(&self) -> [usize; 17] {
        [
            self.ways.len(),
            layouts().len(),
            optimizers().len(),
            RECOMPUTATION.len(),
            GUARDS.len(),
            // Whether updates are validated afterwards.
            2,
            MODELS.len(),
            ALGORITHMS.len(),
            BUCKETS.len(),
            CURVES,
            groups().len(),
            AXES,
            COMPRESSIONS.len(),
            ZERO_STAGES,
            FORMATS.len(),
            COMMUNICATION.len(),
            FROZEN,
        ]
    }

    /// Combinations with every two words that go together, and the pairs that do not.
    fn covering(&self) -> (Vec<Combination<'_>>, Vec<Pair>) {
        let valid = |row: &Row| {
            let Some(combination) = self.combination(row) else { return false };
            let Combination { graph, plan, .. } = &combination;
            shardloom_program::lower(graph, plan, plan.device_count()).is_ok()
        };
        let choices = self.choices();
        let refused = all_pairs(&choices).into_iter().filter(|&pair| self.refused(pair)).collect();
        let Covering { rows, impossible } = covering(&choices, &refused, valid);
        let made = rows.iter().filter_map(|row| self.combination(row)).collect();
        (made, impossible)
    }

    /// Whether plans refuse both choices of a pair together.
    fn refused(&self, pair: Pair) -> bool {
        let ((first, one), (second, other)) = pair;
        match (first, second) {
            (WAY, second) => {
                let way = self.ways[one];
                let corrections = way.weights.corrections();
                let moves = corrections.discrepancy.is_some() || corrections.prediction.is_some();
                let momentum = corrections.spike.is_some()
                    || corrections.prediction == Some(Prediction::Velocity);
                let rounds = way.updates == Updates::Round;
                let held = way.servers.is_some();
                let one_by_one = way.servers.is_some_and(|it| {
                    it.staleness != Staleness::SYNCHRONOUS || it.push == Push::Deltas
                });
                let served = held || way.summation.is_some();
                let apart = way.averaging.is_some();
                let negotiated = way.negotiation.is_some();
                match second {
                    // Workers are one device, and the answers to several have no one order.
                    LAYOUT if served => layouts()[other].0 != Mesh::SINGLE,
                    // Of one replica nothing is averaged that could end.
                    LAYOUT if way.averaging.is_some_and(|it| it.until.is_some()) => {
                        layouts()[other].0.dp() == 1
                    }
                    // Updates are of a worker's part of the batch.
                    OPTIMIZER if one_by_one || apart => matches!(
                        optimizers()[other].0,
                        Optimizer::Sgd { reference_batch: Some(_), .. }
                    ),
                    // What is moved is whole, and what each replica has of its own.
                    ZERO if other == SECOND_COPY => {
                        apart || negotiated || served || way.weights != Weights::Flush
                    }
                    ZERO => (moves || apart || negotiated || served) && other > 0,
                    GROUPS if other == 2 => way.summation.is_none(),
                    GROUPS => (moves || served || apart || negotiated) && other > 0,
                    OPTIMIZER => {
                        let optimizer = optimizers()[other].0;
                        let has =
                            matches!(optimizer, Optimizer::Sgd { momentum, .. } if momentum > 0.0);
                        momentum && !has
                    }
                    // There is no norm of all gradients.
                    GUARD => (rounds || held || apart) && GUARDS[other] != (None, false),
                    // Requests are sums.
                    COMPRESSION if negotiated => {
                        !["none", "bf16", "fp16-feedback"].contains(&COMPRESSIONS[other])
                    }
                    // Workers send servers what they have, and replicas apart no gradients.
                    COMPRESSION if COMPRESSIONS[other] == SPARSE => held,
                    COMPRESSION => (served || apart) && other > 0,
                    // Servers hold weights in fp32 only, and corrections move such.
                    FORMAT => (held || moves) && other > 0,
                    COMMUNICATES => negotiated && COMMUNICATION[other] != Communication::Thread,
                    // Servers hold all parameters alike.
                    FREEZES => held && other > 0,
                    VALIDATION => other == 1 && way.weights != Weights::Flush,
                    // Both holders of a parameter are updated as often.
                    MODEL => {
                        rounds && !way.replicas.is_empty() && MODELS[other].contains("tied=true")
                    }
                    _ => false,
                }
            }
            // There is no sequence to split.
            (LAYOUT, MODEL) => {
                let has_none = ["mlp", "dlrm"].iter().any(|it| MODELS[other].starts_with(it));
                layouts()[one].0.width(Axis::CP) > 1 && has_none
            }
            // The second copy is among fewer than the first, and more than one.
            (LAYOUT, ZERO) if other == SECOND_COPY => {
                let mesh = layouts()[one].0;
                mesh.width(Axis::CP) == 1 || mesh.dp() == 1
            }
            (MODEL, ZERO) if other == SECOND_COPY => {
                ["mlp", "dlrm"].iter().any(|it| MODELS[one].starts_with(it))
            }
            // Servers sum, of workers that are one device and update all weights.
            (LAYOUT, GROUPS) => other == 2 && layouts()[one].0 != Mesh::SINGLE,
            (GROUPS, ZERO) => one == 2 && other > 0,
            // All replicas update all weights.
            (COMPRESSION, ZERO) => one > 0 && other > 0,
            (GROUPS, COMPRESSION) => one > 0 && other > 0 && COMPRESSIONS[other] != SPARSE,
            (ALGORITHM, COMPRESSION) => {
                // Rows of tables on servers nobody gathers.
                let gathers = ["one-bit", "top-k:8"].contains(&COMPRESSIONS[other]);
                ALGORITHMS[one] == "binary-tree" && gathers
            }
            // They have no table that nothing but embeddings reads.
            (MODEL, COMPRESSION) => {
                let has_none = MODELS[one].contains("tied=true") || MODELS[one].starts_with("mlp");
                has_none && COMPRESSIONS[other] == SPARSE
            }
            // What is left out is added up in fp32.
            (COMPRESSION, FORMAT) => {
                let is_compressed = !matches!(COMPRESSIONS[one], "none" | SPARSE);
                is_compressed && FORMATS[other].gradients != Number::Fp32
            }
            (ALGORITHM, ZERO) => ALGORITHMS[one] == "binary-tree" && other > 0,
            _ => false,
        }
    }

    /// The combination of a row, if a plan can say it.
    fn combination(&self, row: &Row) -> Option<Combination<'_>> {
        let way = self.ways[row[WAY]];
        let (mesh, sequence_parallel) = layouts()[row[LAYOUT]];
        let (zero, second_copy_over) = match row[ZERO] {
            SECOND_COPY => (3, AxisSet::of(&[Axis::CP])),
            stage => (stage as u8, None),
        };
        let (optimizer, learning_rate) = optimizers()[row[OPTIMIZER]];
        let (recompute, recompute_last, of_first) = RECOMPUTATION[row[3]];
        let (clip_norm, skip_non_finite) = GUARDS[row[GUARD]];
        let graph = &self.graphs[row[MODEL]];
        let on_one_device = way.schedule.arrangement().map_or(1, Arrangement::least_chunks);
        let chain = if on_one_device == 1 { 3 } else { 2 };
        let served = way.servers.is_some() || way.summation.is_some();
        let pp = match (served, way.replicas.len()) {
            (true, _) => 1,
            (false, 0) => chain,
            (false, stages) => stages,
        };
        if served && mesh != Mesh::SINGLE {
            return None;
        }
        let corrections = way.weights.corrections();
        let moves = corrections.discrepancy.is_some() || corrections.prediction.is_some();
        if moves && row[FORMAT] > 0 {
            return None;
        }
        // Of which each worker has so many micro-batches.
        let has_two_workers = way.summation.is_some()
            || way.servers.is_some_and(|it| it.staleness == Staleness::SYNCHRONOUS);
        let (mesh, microbatches) = if has_two_workers { (Mesh::of(2, 1, 1), 2) } else { (mesh, 4) };
        let uniform = Uniform {
            pp,
            mesh,
            sequence_parallel,
            global_batch: BATCH,
            microbatches,
            schedule: way.schedule,
            recompute,
            sync: Sync {
                algorithm: ALGORITHMS[row[ALGORITHM]].parse().ok()?,
                zero,
                bucket_bytes: BUCKETS[row[8]],
                splits_blocks: zero < 3 && row[ALGORITHM] % 2 == 1,
                all_reduces: zero == 1 && row[8] > 0,
                shard_over: None,
                second_copy_over,
                servers: way.servers,
                compression: match COMPRESSIONS[row[COMPRESSION]] {
                    SPARSE => Compression::None,
                    how => how.parse().ok()?,
                },
                averaging: way.averaging,
                summation: way.summation,
                negotiation: way.negotiation,
                sparse: COMPRESSIONS[row[COMPRESSION]] == SPARSE && way.summation.is_none(),
            },
            optimizer,
            clip_norm,
            precision: FORMATS[row[FORMAT]],
        };
        let mut plan = uniform.plan(graph, "model", "local");
        if way.schedule == ScheduleKind::Table {
            let order =
                ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"];
            plan.order = order.map(str::to_owned).into();
        }
        if !way.replicas.is_empty() {
            plan.pipeline = in_turn(&plan, way.replicas);
        }
        if !way.shares.is_empty() {
            plan.pipeline = apart(&plan.pipeline[0], way.shares);
        }
        plan.communication = COMMUNICATION[row[COMMUNICATES]];
        (plan.weights, plan.updates) = (way.weights, way.updates);
        plan.recompute_last = recompute_last;
        plan.keeps_gathered = row[3] % 2 == 1;
        for pipeline in &mut plan.pipeline {
            pipeline.stage[0].recompute = of_first;
        }
        plan.skip_non_finite = skip_non_finite;
        plan.post_validation = row[VALIDATION] == 1;
        plan.parameters = groups()[row[GROUPS]].clone();
        if let Some(summation) = way.summation.filter(|_| COMPRESSIONS[row[COMPRESSION]] == SPARSE)
        {
            let tables: Vec<&str> =
                graph.tables().map(|it| graph.value(it).name.as_str()).collect();
            let (sparse, servers) = (Some(true), Some(vec![summation.servers - 1]));
            let of_tables = ParameterGroup { sparse, servers, ..ParameterGroup::of_all(&tables) };
            plan.parameters.insert(0, of_tables);
        }
        if (clip_norm, skip_non_finite) == (None, true) {
            let residual = plan.syncs().any(|sync| sync.compression.keeps_residual());
            let scale = match plan.flushes() && !plan.post_validation {
                true => LossScale::Dynamic { initial: 4.0, growth_interval: 2 },
                false => LossScale::Constant { scale: 4.0 },
            };
            plan.loss_scale = (!residual).then_some(scale);
        }
        if let Some(frozen) = frozen(graph, row[FREEZES]) {
            plan.parameters.insert(0, frozen);
        }
        if row[11] == 1 {
            rename_axes(&mut plan);
        }
        plan.validate(graph, plan.device_count()).ok()?;
        let peak = learning_rate;
        let curve = match row[9] {
            0 => Curve::Constant { peak },
            _ => Curve::Cosine { peak, warmup_steps: 1, total_steps: 8, floor: peak / 10.0 },
        };
        Some(Combination { row: row.clone(), graph, plan, curve })
    }
}

/// Gives axes other names, the slowest first where it was last.
fn rename_axes(plan: &mut Plan) {
    let names = [
        (Axis::TP, "model"),
        (Axis::CP, "tokens"),
        (Axis::REPLICA, "apart"),
        (Axis::DP, "samples"),
    ];
    let names = names.map(|(axis, name)| (axis, Axis::named(name).expect("a short name")));
    plan.axes = names.map(|(_, name)| name).into();
    let named = |axis: Axis| names.iter().find(|(usual, _)| *usual == axis).expect("it is usual").1;
    for rule in &mut plan.layout.0 {
        rule.axis = named(rule.axis);
    }
    for over in [&mut plan.sync.shard_over, &mut plan.sync.second_copy_over] {
        let axes = over.map(|over| over.iter().map(named).collect::<Vec<_>>());
        *over = axes.and_then(|axes| AxisSet::of(&axes));
    }
    for stage in plan.pipeline.iter_mut().flat_map(|pipeline| &mut pipeline.stage) {
        let width = |axis| stage.mesh.width(axis) as u32;
        stage.mesh =
            names.iter().fold(Mesh::SINGLE, |mesh, &(axis, name)| mesh.with(name, width(axis)));
    }
}

/// The pipelines of stages whose replicas take micro-batches in turn.
fn in_turn(plan: &Plan, replicas: &[usize]) -> Vec<Pipeline> {
    let places = Arrangement::taking_turns(replicas).unwrap_or_default();
    let pipeline = |devices: &Vec<usize>| {
        let mut stage = plan.pipeline[0].stage.clone();
        for (stage, &device) in stage.iter_mut().zip(devices) {
            let size = stage.mesh.size() as u32;
            let first = device as u32 * size;
            stage.devices = DeviceList((first..first + size).collect());
        }
        Pipeline::of(stage)
    };
    places.iter().map(pipeline).collect()
}

/// Pipelines on devices of their own, each with so many micro-batches.
fn apart(pipeline: &Pipeline, shares: &[usize]) -> Vec<Pipeline> {
    let size: usize = pipeline.stage.iter().map(|stage| stage.devices.0.len()).sum();
    let copy = |(index, &share): (usize, &usize)| {
        let mut copy = pipeline.clone();
        copy.microbatches = Some(share);
        for device in copy.stage.iter_mut().flat_map(|stage| &mut stage.devices.0) {
            *device += (index * size) as u32;
        }
        copy
    };
    shares.iter().enumerate().map(copy).collect()
}

/// A model and a way of training it.
pub struct Combination<'a> {
    row: Row,
    pub graph: &'a Graph,
    pub plan: Plan,
    pub curve: Curve,
}

impl Combination<'_> {
    /// The number of its model among [`MODELS`].
    pub fn model(&self) -> usize {
        self.row[MODEL]
    }

    /// The number of its formats among [`FORMATS`].
    pub fn format(&self) -> usize {
        self.row[FORMAT]
    }

    /// The same with the model and the optimizer of another, if a plan can say it.
    pub fn with_state_of(&self, other: &Combination<'_>) -> Option<Combination<'static>> {
        let mut row = self.row.clone();
        [MODEL, OPTIMIZER].into_iter().for_each(|it| row[it] = other.row[it]);
        WORDS.combination(&row)
    }

    /// A run from weights of its own.
    pub fn start(&self) -> Trainer {
        self.start_of(self.blueprint())
    }

    /// Likewise, with another learning rate.
    pub fn start_with(&self, curve: Curve) -> Trainer {
        self.start_of(self.blueprint_with(curve))
    }

    /// A run of what [`Combination::blueprint`] has made before.
    pub fn start_of(&self, blueprint: Blueprint) -> Trainer {
        let started = Trainer::start(blueprint, Box::new(self.data()));
        started.unwrap_or_else(|error| panic!("{error} in {self}"))
    }

    /// What runs are made of, each of several processes its part of one too.
    pub fn blueprint(&self) -> Blueprint {
        self.blueprint_with(self.curve)
    }

    fn blueprint_with(&self, curve: Curve) -> Blueprint {
        let (graph, settings) = (self.graph.clone(), self.settings(curve));
        let made = Blueprint::new(graph, &self.plan, self.plan.device_count(), settings);
        made.unwrap_or_else(|error| panic!("{error} in {self}"))
    }

    /// The parameters that stay as they are.
    pub fn frozen(&self) -> BTreeSet<&str> {
        self.plan.frozen(self.graph).expect("names are patterns")
    }

    /// Whether it freezes nothing of which `other` has several replicas' own.
    pub fn can_read_own_of(&self, other: &Combination<'_>) -> bool {
        other.own_replicas() == 1 || self.frozen().is_subset(&other.frozen())
    }

    /// How many replicas have weights of their own, which are saved for each of them.
    pub fn own_replicas(&self) -> usize {
        let axes = self.plan.averaged_axes(self.graph);
        self.plan.stages().map(|(_, stage)| stage.mesh.span(&axes)).max().unwrap_or(1)
    }

    /// Whether workers update by themselves, and save an optimizer's state each.
    pub fn pushes_deltas(&self) -> bool {
        self.plan.sync.servers.is_some_and(|it| it.push == Push::Deltas)
    }

    pub fn data(&self) -> Data {
        Data::new(self.graph, self.plan.skip_non_finite)
    }

    fn settings(&self, curve: Curve) -> Settings {
        let on_non_finite = match self.plan.skip_non_finite {
            true => OnNonFinite::Skip,
            false => OnNonFinite::Stop,
        };
        let learning_rate = LearningRate::new(curve).expect("a positive rate");
        Settings { on_non_finite, learning_rate, ..crate::support::settings(curve) }
    }
}

impl std::fmt::Display for Combination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {:?} under\n{}", self.graph.name(), self.curve, self.plan.to_toml())
    }
}

/// The serial run's plan of the same batch.
pub fn serial_plan(graph: &Graph) -> Plan {
    let uniform = Uniform { global_batch: BATCH, clip_norm: None, mesh: mesh(1, 1, 1), ..serial() };
    uniform.plan(graph, "model", "local")
}

#[test]
fn only_what_plans_refuse_together_is_in_no_run() {
    let refused: Vec<Pair> =
        all_pairs(&WORDS.choices()).into_iter().filter(|&pair| WORDS.refused(pair)).collect();
    assert_eq!(COVERING.1, refused);
}
