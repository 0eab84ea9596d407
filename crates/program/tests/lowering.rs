//! What lowering makes of a plan: which collectives, how often, over how many elements; what is kept
//! and what runs again; and what must hold of every program.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_collectives::Kind;
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init, ModelSpec, Reduction};
use shardloom_plan::{
    Axis, DeviceList, LayoutRules, Mesh, Optimizer, Pipeline, Plan, Precision, Recompute,
    ScheduleKind, Stage, Sync, Uniform,
};
use shardloom_program::{
    Action, BodyKind, BucketId, Cargo, Change, Class, ClassId, Group, Instruction, Operand,
    Program, SlotId, StreamItem, lower,
};

const LAYERS: usize = 3;
const SEQ: usize = 16;
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const VOCAB: usize = 64;
const SAMPLES: usize = 2;

fn graph(spec: &str) -> Graph {
    let spec = ModelSpec::parse(spec).expect("a valid model");
    spec.graph().expect("a valid model")
}

fn gpt(tied: bool) -> Graph {
    graph(&format!(
        "gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={SEQ},vocab={VOCAB},dropout=0.1,tied={tied}"
    ))
}

fn llama() -> Graph {
    graph("llama:layers=3,hidden=32,heads=8,kv_heads=4,ffn=64,seq=16,vocab=64")
}

fn mesh(dp: u32, cp: u32, tp: u32) -> Mesh {
    Mesh { dp, cp, tp }
}

fn single() -> Uniform {
    Uniform {
        pp: 1,
        mesh: Mesh::SINGLE,
        sequence_parallel: false,
        global_batch: SAMPLES,
        microbatches: 1,
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::None,
        sync: Sync { bucket_bytes: 1, ..Sync::default() },
        precision: Precision::MIXED,
        optimizer: Optimizer::default(),
        clip_norm: None,
    }
}

fn program(graph: &Graph, uniform: &Uniform) -> Program {
    let plan = uniform.plan(graph, "model", "local");
    lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn body(class: &Class, kind: BodyKind) -> &[Instruction] {
    let found = class.bodies.iter().find(|body| body.kind == kind);
    &found.expect("every class has a body of each kind").instructions
}

/// The changes of layout in a body whose tensor's name begins with `prefix`.
fn changes(class: &Class, kind: BodyKind, prefix: &str) -> Vec<Change> {
    let read = |instruction: &Instruction| match instruction.reads[0] {
        Operand::Slot(slot) => class.slot(slot).name.clone(),
        other => panic!("{other:?} changes its layout"),
    };
    body(class, kind)
        .iter()
        .filter_map(|instruction| match instruction.action {
            Action::Redistribute { change, .. } => Some((change, read(instruction))),
            _ => None,
        })
        .filter(|(_, name)| name.starts_with(prefix))
        .map(|(change, _)| change)
        .collect()
}

fn count(changes: &[Change], wanted: impl Fn(&Change) -> bool) -> usize {
    changes.iter().filter(|change| wanted(change)).count()
}

const SUM: Change = Change::AllReduce(Reduction::Sum);
const SCATTER: Change = Change::ReduceScatter { axis: 1, reduction: Reduction::Sum };
const GATHER: Change = Change::AllGather { axis: 1 };

#[test]
fn tensor_parallel_layers_all_reduce_twice_forward_and_twice_backward() {
    for tp in [2, 4] {
        let program = program(&gpt(false), &Uniform { mesh: mesh(1, 1, tp), ..single() });
        let class = &program.classes[0];
        for layer in 0..LAYERS {
            let block = format!("block.{layer}.");
            assert_eq!(changes(class, BodyKind::Forward, &block), [SUM, SUM]);
            assert_eq!(changes(class, BodyKind::Backward, &block), [SUM, SUM]);
        }
        // The embedding's lookup; backward, the head's share of its input's gradient.
        assert_eq!(changes(class, BodyKind::Forward, "embedding"), [SUM]);
        assert_eq!(changes(class, BodyKind::Backward, "embedding"), []);
        assert_eq!(changes(class, BodyKind::Backward, "final_norm"), [SUM]);
        let all = changes(class, BodyKind::Backward, "");
        assert_eq!(all.len(), 2 * LAYERS + 1);
    }
}

#[test]
fn grouped_queries_need_no_more_all_reduces() {
    let program = program(&llama(), &Uniform { mesh: mesh(1, 1, 4), ..single() });
    let class = &program.classes[0];
    assert_eq!(changes(class, BodyKind::Forward, "block.1."), [SUM, SUM]);
    assert_eq!(changes(class, BodyKind::Backward, "block.1."), [SUM, SUM]);
}

#[test]
fn sequence_parallel_layers_scatter_and_gather_and_gather_again_what_was_not_kept() {
    let uniform = Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, ..single() };
    let program = program(&gpt(false), &uniform);
    let class = &program.classes[0];
    for layer in 0..LAYERS {
        let block = format!("block.{layer}.");
        let forward = changes(class, BodyKind::Forward, &block);
        assert_eq!(forward, [GATHER, SCATTER, GATHER, SCATTER]);
        // Backward the two swap roles; and the norms' results, kept in shards, are gathered once more
        // for the weight gradients of the projections that read them.
        let backward = changes(class, BodyKind::Backward, &block);
        assert_eq!(count(&backward, |&change| change == SCATTER), 2);
        assert_eq!(count(&backward, |&change| change == GATHER), 2 + 2);
        assert_eq!(backward.len(), 6);
    }
    assert_eq!(changes(class, BodyKind::Forward, "embedding"), [SCATTER]);
    assert_eq!(changes(class, BodyKind::Backward, "embedding"), [GATHER]);
    assert_eq!(changes(class, BodyKind::Forward, "final_norm"), [GATHER]);
    let head = changes(class, BodyKind::Backward, "final_norm");
    assert_eq!(count(&head, |&change| change == SCATTER), 1);
    assert_eq!(count(&head, |&change| change == GATHER), 1);
    assert_eq!(head.len(), 2);
}

#[test]
fn a_split_vocabulary_costs_three_numbers_per_token_and_not_the_logits() {
    let program = program(&gpt(true), &Uniform { mesh: mesh(1, 1, 4), ..single() });
    let class = &program.classes[0];
    let max = Change::AllReduce(Reduction::Max);
    assert_eq!(changes(class, BodyKind::Forward, "loss.max"), [max]);
    assert_eq!(changes(class, BodyKind::Forward, "loss.sum"), [SUM, SUM]);
    assert_eq!(changes(class, BodyKind::Forward, "head"), []);
    assert_eq!(changes(class, BodyKind::Backward, "head"), []);
    let statistics: Vec<_> = body(class, BodyKind::Forward)
        .iter()
        .filter(|it| matches!(it.reads[..], [Operand::Slot(slot)] if class.slot(slot).name.starts_with("loss.")))
        .filter_map(|it| program.exchange(class, 0, it))
        .collect();
    assert_eq!(statistics.len(), 3);
    for exchange in statistics {
        assert_eq!(exchange.kind, Kind::AllReduce);
        assert_eq!((exchange.elements, exchange.element_bytes), (SAMPLES * SEQ, 4));
    }
}

#[test]
fn context_parallelism_gathers_keys_and_values_and_scatters_their_gradients() {
    let program = program(&gpt(false), &Uniform { mesh: mesh(1, 2, 1), ..single() });
    let class = &program.classes[0];
    let block = |kind| changes(class, kind, "block.1.");
    assert_eq!(block(BodyKind::Forward), [GATHER, GATHER]);
    let backward = block(BodyKind::Backward);
    assert_eq!(count(&backward, |&change| change == SCATTER), 2);
    // Keys and values are kept in shards.
    assert_eq!(count(&backward, |&change| change == GATHER), 2);
    assert_eq!(backward.len(), 4);
}

/// How often each bucket is reduced over its replicas in one step, and how often of these to shards.
fn reductions(class: &Class) -> BTreeMap<BucketId, (usize, usize)> {
    let mut counts: BTreeMap<BucketId, (usize, usize)> = BTreeMap::new();
    for StreamItem { body, .. } in &class.stream {
        for instruction in &class.body(*body).instructions {
            if let Action::Reduce { bucket, group, scatter } = &instruction.action
                && *group == Group::Mesh(class.bucket(*bucket).replicas.clone())
            {
                let count = counts.entry(*bucket).or_default();
                count.0 += 1;
                count.1 += usize::from(*scatter);
            }
        }
    }
    counts
}

#[test]
fn gradients_are_reduced_once_per_step_and_sharded_ones_once_per_microbatch() {
    for (zero, times, scattered) in [(0, 1, 0), (1, 1, 1), (2, 4, 4), (3, 4, 4)] {
        for (pp, recompute) in [(1, Recompute::None), (2, Recompute::Full)] {
            let uniform = Uniform {
                pp,
                mesh: mesh(2, 1, 2),
                sequence_parallel: true,
                global_batch: 8,
                microbatches: 4,
                recompute,
                sync: Sync { zero, ..single().sync },
                ..single()
            };
            let program = program(&gpt(true), &uniform);
            for class in &program.classes {
                let counts = reductions(class);
                let all: Vec<BucketId> = class.buckets().map(|(id, _)| id).collect();
                assert_eq!(counts.keys().copied().collect::<Vec<_>>(), all, "ZeRO-{zero}");
                for count in counts.values() {
                    assert_eq!(*count, (times, scattered), "ZeRO-{zero}");
                }
            }
        }
    }
}

#[test]
fn whole_gradients_that_are_partial_over_tp_are_reduced_once_per_step_in_every_zero_stage() {
    // Without data parallelism there is nothing to shard, and sequence parallelism leaves norm gains
    // partial.
    for zero in 0..4 {
        let uniform = Uniform {
            mesh: mesh(1, 1, 2),
            sequence_parallel: true,
            global_batch: 8,
            microbatches: 4,
            sync: Sync { zero, ..single().sync },
            ..single()
        };
        let program = program(&gpt(false), &uniform);
        let class = &program.classes[0];
        let mut counts: BTreeMap<BucketId, usize> = BTreeMap::new();
        for StreamItem { body, .. } in &class.stream {
            for instruction in &class.body(*body).instructions {
                if let Action::Reduce { bucket, .. } = instruction.action {
                    *counts.entry(bucket).or_default() += 1;
                }
            }
        }
        let partial: Vec<BucketId> =
            class.buckets().filter(|(_, it)| it.partial == [Axis::Tp]).map(|(id, _)| id).collect();
        assert!(!partial.is_empty());
        assert_eq!(counts, partial.into_iter().map(|id| (id, 1)).collect(), "ZeRO-{zero}");
    }
}

#[test]
fn tied_embeddings_at_both_ends_of_a_pipeline_are_added_up_once_per_step() {
    for tied in [true, false] {
        for zero in 0..4 {
            let uniform = Uniform {
                pp: 3,
                mesh: mesh(2, 1, 1),
                global_batch: 8,
                microbatches: 4,
                sync: Sync { zero, ..single().sync },
                ..single()
            };
            let program = program(&gpt(tied), &uniform);
            let ends = Group::Homes(vec![ClassId(0), ClassId(2)]);
            for (id, class) in program.classes() {
                let between = |instruction: &&Instruction| matches!(&instruction.action, Action::Reduce { group, scatter: false, .. } if *group == ends);
                let instructions =
                    class.stream.iter().flat_map(|it| &class.body(it.body).instructions);
                let expected = usize::from(tied && id != ClassId(1));
                assert_eq!(instructions.filter(between).count(), expected, "{id:?} ZeRO-{zero}");
            }
        }
    }
}

#[test]
fn zero_3_gathers_each_block_once_per_pass_and_never_holds_more_than_two() {
    for (tp, recompute) in [(1, Recompute::None), (2, Recompute::Selective), (2, Recompute::Full)] {
        for graph in [gpt(true), gpt(false), llama()] {
            let uniform = Uniform {
                mesh: mesh(2, 1, tp),
                sequence_parallel: tp > 1,
                recompute,
                sync: Sync { zero: 3, ..single().sync },
                ..single()
            };
            let program = program(&graph, &uniform);
            let class = &program.classes[0];
            let block_of = |instruction: &Instruction| match instruction.action {
                Action::Compute { op, .. } => graph.op(op).block,
                ref other => panic!("{other:?} reads a weight"),
            };
            for body in &class.bodies {
                let mut gathered: BTreeSet<BucketId> = BTreeSet::new();
                let mut gathers: BTreeMap<BucketId, usize> = BTreeMap::new();
                let mut blocks = BTreeMap::<BucketId, BTreeSet<_>>::new();
                // The most blocks' worth of buckets that are held.
                let mut most = 0;
                let mut largest = 0;
                for instruction in &body.instructions {
                    match instruction.action {
                        Action::Gather { bucket } if body.kind != BodyKind::Epilogue => {
                            assert!(gathered.insert(bucket), "{bucket:?} is gathered twice");
                            *gathers.entry(bucket).or_default() += 1;
                        }
                        Action::Release { bucket } => {
                            assert!(gathered.remove(&bucket), "{bucket:?} is released unheld");
                        }
                        _ => {}
                    }
                    for read in &instruction.reads {
                        let Operand::Weight(param) = *read else { continue };
                        let bucket = class.param(param).bucket;
                        assert!(gathered.contains(&bucket), "{bucket:?} is read unheld");
                        blocks.entry(bucket).or_default().insert(block_of(instruction));
                    }
                    let elements = |id: &BucketId| class.bucket(*id).elements;
                    most = most.max(gathered.iter().map(elements).sum());
                }
                assert_eq!(gathered, BTreeSet::new(), "all is released in the end");
                for (bucket, blocks) in &blocks {
                    assert_eq!(gathers[bucket], blocks.len(), "once for each block that uses it");
                }
                for block in blocks.values().flatten() {
                    let uses = blocks.iter().filter(|(_, used)| used.contains(block));
                    let elements = uses.map(|(&id, _)| class.bucket(id).elements).sum::<usize>();
                    largest = largest.max(elements);
                }
                assert!(most <= 2 * largest, "{most} elements are held, a block has {largest}");
                let expected = body.kind != BodyKind::Epilogue;
                assert_eq!(!gathers.is_empty(), expected, "{:?}", body.kind);
            }
        }
    }
}

#[test]
fn tied_weights_of_neighbouring_blocks_are_gathered_once_and_held() {
    let graph = tied_neighbours().expect("a valid model");
    let uniform =
        Uniform { mesh: mesh(2, 1, 1), sync: Sync { zero: 3, ..single().sync }, ..single() };
    let program = program(&graph, &uniform);
    let class = &program.classes[0];
    for kind in [BodyKind::Forward, BodyKind::Backward, BodyKind::Evaluation] {
        let all = body(class, kind).iter();
        let gathers = all.filter(|it| matches!(it.action, Action::Gather { .. })).count();
        assert_eq!(gathers, 1, "{kind:?}");
    }
    check_invariants(&program);
}

/// A table that two neighbouring blocks use.
fn tied_neighbours() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("tied");
    let (seq, model, vocab) = (net.dim("seq", 4)?, net.dim("model", 8)?, net.dim("vocab", 16)?);
    net.block("embedding");
    let (tokens, targets) = (net.targets("tokens", &[seq])?, net.targets("targets", &[seq])?);
    let table = net.parameter("table", &[vocab, model], 1, Init::Normal { std: 0.02 })?;
    let embedded = net.embed("embedding", tokens, table)?;
    net.block("head");
    let logits = net.contract("head", embedded, table, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// Bytes that a forward pass leaves behind in values whose names begin with `prefix`.
fn kept_bytes(class: &Class, prefix: &str) -> usize {
    let mut live: BTreeSet<SlotId> = BTreeSet::new();
    for instruction in body(class, BodyKind::Forward) {
        for write in &instruction.writes {
            if let Operand::Slot(slot) = write.to {
                live.insert(slot);
            }
        }
        for slot in &instruction.frees {
            live.remove(slot);
        }
    }
    let named = live.into_iter().map(|slot| class.slot(slot));
    named.filter(|slot| slot.name.starts_with(prefix)).map(|slot| slot.bytes).sum()
}

#[test]
fn a_layer_keeps_what_korthikanti_counts() {
    let (s, b, h, a) = (SEQ, SAMPLES, HIDDEN, HEADS);
    let sbh = s * b * h;
    // Beyond the paper's terms: two norms' means and deviations, two 32-bit numbers per token each.
    let statistics = 2 * 8 * s * b;
    // Of attention the paper counts 5 bytes per probability: the softmax, the mask and the product of
    // both. The product is made again from the other two here, which leaves 3.
    let core = 3 * a * s * s * b;
    let kept = |t: u32, sequence_parallel, recompute| {
        let uniform = Uniform { mesh: mesh(1, 1, t), sequence_parallel, recompute, ..single() };
        kept_bytes(&program(&gpt(true), &uniform).classes[0], "block.1.")
    };
    let (none, selective, full) = (Recompute::None, Recompute::Selective, Recompute::Full);
    assert_eq!(kept(1, false, none), 34 * sbh + core + statistics);
    assert_eq!(kept(1, false, selective), 34 * sbh + statistics);
    assert_eq!(kept(1, false, full), 2 * sbh);
    for t in [2, 4] {
        let width = t as usize;
        assert_eq!(kept(t, false, none), 10 * sbh + 24 * sbh / width + core / width + statistics);
        assert_eq!(kept(t, false, selective), 10 * sbh + 24 * sbh / width + statistics);
        assert_eq!(kept(t, false, full), 2 * sbh);
        assert_eq!(kept(t, true, none), (34 * sbh + core + statistics) / width);
        assert_eq!(kept(t, true, selective), (34 * sbh + statistics) / width);
        assert_eq!(kept(t, true, full), 2 * sbh / width);
    }
}

#[test]
fn a_whole_model_keeps_its_layers_the_embeddings_mask_and_what_the_head_needs() {
    let (s, b, h, v) = (SEQ, SAMPLES, HIDDEN, VOCAB);
    for t in [1, 2, 4] {
        let sequence_parallel = t > 1;
        let uniform = Uniform { mesh: mesh(1, 1, t), sequence_parallel, ..single() };
        let program = program(&gpt(false), &uniform);
        let class = &program.classes[0];
        let t = t as usize;
        // The embedding's mask; the input of the first layer and of the head.
        let ends = (s * b * h + 4 * s * b * h) / t;
        // Logits in the compute precision (the paper has 4 bytes); the final norm's statistics.
        let head = 2 * s * b * v / t + 8 * s * b / t;
        // Maximum and sum over the whole vocabulary, on every rank.
        let loss = 8 * s * b;
        let layers = LAYERS * kept_bytes(class, "block.1.");
        assert_eq!(kept_bytes(class, ""), layers + ends + head + loss);
    }
}

#[test]
fn a_stage_without_the_head_keeps_its_layers_times_the_micro_batches_in_flight() {
    let uniform = Uniform { pp: 2, global_batch: 8, microbatches: 4, ..single() };
    let program = program(&gpt(false), &uniform);
    let class = &program.classes[0];
    let persistent = class.persistent_bytes(&program, 0).total();
    let kept = kept_bytes(class, "") as u64;
    let peak = class.memory_use(&program, 0).peak_bytes;
    // Two in flight, and what the passes need meanwhile, which is less than one keeps.
    assert!((persistent + 2 * kept..persistent + 3 * kept).contains(&peak));
}

/// The operators that a backward pass runs again, with how often.
fn repeated(program: &Program, graph: &Graph, class: &Class) -> BTreeMap<String, usize> {
    assert_eq!(program.ranks(), class.mesh.size());
    let mut counts = BTreeMap::new();
    for instruction in body(class, BodyKind::Backward) {
        if let Action::Compute { op, pass: Pass::Forward, again, .. } = instruction.action {
            assert!(again, "a backward pass runs no operator forward for the first time");
            *counts.entry(graph.op(op).name.clone()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn selective_recomputation_repeats_the_core_of_attention_and_nothing_else() {
    for (graph, core) in [(gpt(true), &["probs", "context"][..]), (llama(), &["probs"])] {
        let uniform = Uniform { mesh: mesh(1, 1, 2), recompute: Recompute::Selective, ..single() };
        let program = program(&graph, &uniform);
        let names = (0..LAYERS).flat_map(|layer| {
            core.iter().map(move |part| (format!("block.{layer}.attention.{part}"), 1))
        });
        assert_eq!(repeated(&program, &graph, &program.classes[0]), names.collect());
    }
}

#[test]
fn full_recomputation_repeats_no_operator_twice_and_none_of_the_last_block() {
    for graph in [gpt(true), llama()] {
        for sequence_parallel in [false, true] {
            let uniform = Uniform {
                mesh: mesh(1, 1, 2),
                recompute: Recompute::Full,
                sequence_parallel,
                ..single()
            };
            let program = program(&graph, &uniform);
            let counts = repeated(&program, &graph, &program.classes[0]);
            assert!(counts.values().all(|&count| count == 1), "{counts:?}");
            for (_, op) in graph.ops() {
                let block = &graph.blocks()[op.block.index()].name;
                if block == "head" {
                    assert!(!counts.contains_key(&op.name), "{}", op.name);
                } else if op.kind.in_attention_core() || op.name.ends_with("norm") {
                    assert!(counts.contains_key(&op.name), "{} runs again", op.name);
                }
            }
        }
    }
}

#[test]
fn without_recomputation_nothing_runs_again() {
    let graph = gpt(true);
    let program = program(&graph, &Uniform { mesh: mesh(2, 1, 2), ..single() });
    let class = &program.classes[0];
    let forward =
        |it: &&Instruction| matches!(it.action, Action::Compute { pass: Pass::Forward, .. });
    assert_eq!(body(class, BodyKind::Backward).iter().filter(forward).count(), 0);
}

/// Checks what must hold of every program, by following each class from an empty pipeline to an empty
/// one: tensors are written before they are read and freed after, exactly once; every operator goes
/// forward once per micro-batch, and every parameter's gradient is written; and messages tile what they
/// bring.
fn check_invariants(program: &Program) {
    let steps = 1 + program.ahead;
    let (mut forwards, mut ops) = (BTreeSet::new(), BTreeSet::new());
    for class in &program.classes {
        let mut live: BTreeSet<(SlotId, Option<u32>)> = BTreeSet::new();
        let mut written = BTreeSet::new();
        for (_, StreamItem { body, microbatch, .. }) in program.unrolled(class, steps) {
            for instruction in &class.body(body).instructions {
                let at = |slot| (slot, microbatch);
                if let Action::Compute { op, pass: Pass::Forward, again: false, .. } =
                    instruction.action
                {
                    assert!(forwards.insert((op, microbatch)), "{op:?} goes forward twice");
                    ops.insert(op);
                }
                let name = |slot| &class.slot(slot).name;
                for read in &instruction.reads {
                    match *read {
                        Operand::Slot(slot) => {
                            assert!(live.contains(&at(slot)), "{} is read unwritten", name(slot));
                        }
                        Operand::Weight(_) => {}
                        Operand::Gradient(_) | Operand::Norm => panic!("passes read neither"),
                    }
                }
                for write in &instruction.writes {
                    assert!(!instruction.reads.contains(&write.to), "{instruction:?}");
                    match write.to {
                        Operand::Slot(slot) => {
                            let fresh = live.insert(at(slot));
                            assert_eq!(fresh, !write.accumulate, "{}", name(slot));
                        }
                        Operand::Gradient(param) => {
                            assert!(write.accumulate);
                            written.insert(param);
                        }
                        Operand::Weight(_) | Operand::Norm => panic!("no pass writes either"),
                    }
                }
                for &slot in &instruction.frees {
                    assert!(live.remove(&at(slot)), "{} is freed twice", name(slot));
                }
            }
        }
        assert_eq!(live, BTreeSet::new(), "steps leave nothing behind");
        assert_eq!(written.len(), class.params.len(), "every parameter has a gradient");
        let mut evaluated = BTreeSet::new();
        let bodies = class.evaluation.iter().map(|&body| class.body(body));
        for instruction in bodies.flat_map(|body| &body.instructions) {
            evaluated.extend(instruction.writes.iter().map(|write| write.to));
            for slot in &instruction.frees {
                assert!(evaluated.remove(&Operand::Slot(*slot)));
            }
        }
        assert_eq!(evaluated, BTreeSet::new(), "an evaluation leaves nothing behind");
    }
    assert_eq!(forwards.len(), ops.len() * program.microbatches * steps as usize);
    for route in &program.routes {
        let receivers = program.class(route.to).mesh.size();
        for receiver in 0..receivers {
            let parts: Vec<_> = route.received_by(receiver).map(|it| &it.target).collect();
            let elements: usize = parts.iter().map(|part| part.elements()).sum();
            let whole: usize = (0..parts[0].start.len())
                .map(|axis| parts.iter().map(|part| part.range(axis).end).max().unwrap_or(0))
                .product();
            assert_eq!(elements, whole, "the parts cover the whole");
            for (index, part) in parts.iter().enumerate() {
                let others = &parts[..index];
                assert!(others.iter().all(|other| part.intersection(other).is_none()));
            }
        }
    }
}

#[test]
fn every_program_reads_what_is_written_frees_what_it_writes_and_reduces_every_gradient() {
    for graph in [gpt(true), gpt(false), llama()] {
        for pp in [1, 2, 3] {
            for mesh in [mesh(1, 1, 1), mesh(2, 1, 1), mesh(1, 1, 4), mesh(2, 2, 2)] {
                for zero in 0..4 {
                    for recompute in Recompute::ALL {
                        let uniform = Uniform {
                            pp,
                            mesh,
                            sequence_parallel: mesh.tp > 1 && zero % 2 == 0,
                            global_batch: 8,
                            microbatches: 4,
                            recompute,
                            schedule: ScheduleKind::PLAIN[pp % 2],
                            sync: Sync { zero, ..Sync::default() },
                            ..single()
                        };
                        check_invariants(&program(&graph, &uniform));
                    }
                }
            }
        }
    }
}

#[test]
fn the_program_of_every_schedule_reads_what_is_written_and_frees_what_it_writes() {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    let kinds: Vec<ScheduleKind> = kinds.collect();
    let skips = graph("u-transformer:layers=4,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    for graph in [gpt(true), gpt(false), llama(), skips] {
        for &schedule in &kinds {
            for mesh in [mesh(1, 1, 1), mesh(2, 1, 1), mesh(2, 2, 2)] {
                for zero in 0..if mesh.dp > 1 { 4 } else { 1 } {
                    for recompute in Recompute::ALL {
                        let uniform = Uniform {
                            pp: 2,
                            mesh,
                            sequence_parallel: mesh.tp > 1 && zero % 2 == 0,
                            global_batch: 8,
                            microbatches: 4,
                            recompute,
                            schedule,
                            sync: Sync { zero, ..Sync::default() },
                            ..single()
                        };
                        check_invariants(&program(&graph, &uniform));
                    }
                }
            }
        }
    }
}

/// A value twice in one sum, and twice in two sums one after the other, in one block or in two.
fn added_twice(apart: bool) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("twice");
    let (model, vocab) = (net.dim("model", 8)?, net.dim("vocab", 16)?);
    let normal = Init::Normal { std: 0.1 };
    net.block("first");
    let x = net.features("features", &[model])?;
    let targets = net.targets("targets", &[])?;
    let w = net.parameter("first", &[model, vocab], 1, normal)?;
    let x = net.contract("contracted", x, w, None)?;
    if apart {
        net.block("second");
    }
    let twice = net.add("twice", x, x)?;
    let thrice = net.add("thrice", twice, x)?;
    let loss = net.cross_entropy("loss", thrice, targets)?;
    net.finish(loss)
}

#[test]
fn what_a_value_passes_on_twice_is_added_up_apart() {
    for apart in [false, true] {
        let graph = added_twice(apart).expect("a valid model");
        for recompute in Recompute::ALL {
            let uniform = Uniform { pp: 1 + usize::from(apart), recompute, ..single() };
            check_invariants(&program(&graph, &uniform));
        }
    }
}

/// `uniform` on stages of these numbers of blocks on these meshes.
fn staged(graph: &Graph, uniform: &Uniform, stages: &[(usize, Mesh)]) -> Plan {
    let mut plan = uniform.plan(graph, "model", "local");
    let (mut block, mut device) = (0, 0);
    let stage = stages.iter().map(|&(blocks, mesh)| {
        let size = mesh.size() as u32;
        let devices = DeviceList((device..device + size).collect());
        let stage = Stage { blocks: (block, block + blocks), mesh, devices };
        (block, device) = (block + blocks, device + size);
        stage
    });
    plan.pipeline = vec![Pipeline { stage: stage.collect() }];
    plan
}

#[test]
fn stages_of_different_meshes_send_each_receiver_its_part_once() {
    let graph = gpt(false);
    let meshes = [mesh(1, 1, 1), mesh(2, 1, 1), mesh(1, 1, 4), mesh(1, 2, 2), mesh(2, 2, 1)];
    for first in meshes {
        for second in meshes {
            for sequence_parallel in [false, true] {
                let uniform = Uniform { sequence_parallel, ..single() };
                let plan = staged(&graph, &uniform, &[(2, first), (3, second)]);
                let program = lower(&graph, &plan, plan.device_count())
                    .unwrap_or_else(|error| panic!("{first} then {second}: {error}"));
                check_invariants(&program);
                let [forward, backward] = &program.routes[..] else {
                    panic!("one value crosses, and its gradient goes back")
                };
                assert!(matches!(forward.cargo, Cargo::Value(_)));
                assert!(matches!(backward.cargo, Cargo::Gradient(_)));
                assert_eq!((forward.from, forward.to), (ClassId(0), ClassId(1)));
                assert_eq!((backward.from, backward.to), (ClassId(1), ClassId(0)));
            }
        }
    }
}

#[test]
fn tied_weights_on_stages_of_different_meshes_are_refused_with_both_meshes() {
    let graph = gpt(true);
    let plan = staged(&graph, &single(), &[(2, mesh(1, 1, 2)), (3, mesh(2, 1, 1))]);
    let error = lower(&graph, &plan, 4).expect_err("tied weights need equal meshes").to_string();
    assert_eq!(
        error,
        "parameter embedding.token lives in stages 0 and 1, whose meshes differ (tp 2 against dp 2); \
         give both the same mesh or untie the weights"
    );
}

/// A weight that is used once for every position and once for their sum.
fn shared_by_positions_and_their_sum() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("shared");
    let (seq, model) = (net.dim("seq", 4)?, net.dim("model", 8)?);
    let (inner, vocab) = (net.dim("inner", 8)?, net.dim("vocab", 16)?);
    let normal = Init::Normal { std: 0.1 };
    net.block("first");
    let x = net.features("features", &[seq, model])?;
    let targets = net.targets("targets", &[])?;
    let shared = net.parameter("shared", &[model, inner], 1, normal)?;
    let x = net.contract("each", x, shared, None)?;
    let w = net.parameter("merge", &[seq, inner, model], 2, normal)?;
    let x = net.contract("merged", x, w, None)?;
    net.block("second");
    let x = net.contract("again", x, shared, None)?;
    let w = net.parameter("head", &[vocab, inner], 1, normal)?;
    let logits = net.contract("logits", x, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn a_weight_whose_gradient_is_partial_in_one_use_and_whole_in_another_is_refused() {
    // Added up and then reduced, the whole one would count once per member.
    let graph = shared_by_positions_and_their_sum().expect("a valid model");
    let wide = mesh(1, 2, 1);
    let one = single().plan(&graph, "model", "local");
    assert!(lower(&graph, &one, 1).is_ok());
    for stages in [&[(2, wide)][..], &[(1, wide), (1, wide)]] {
        let plan = staged(&graph, &single(), stages);
        let error = lower(&graph, &plan, 4).expect_err("no single reduction is right");
        assert_eq!(
            error.to_string(),
            "parameter shared has a gradient that is partial over cp in one use and over no axis in \
             another; choose layout rules that split its uses alike"
        );
    }
}

#[test]
fn a_weight_that_is_read_in_two_layouts_is_refused_with_both() {
    let graph = shared_by_positions_and_their_sum().expect("a valid model");
    let uniform = Uniform { mesh: mesh(1, 1, 2), ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.layout = LayoutRules::try_from("seq:tp, inner:tp".to_owned()).expect("valid rules");
    let error = lower(&graph, &plan, 2).expect_err("the weight is whole and split").to_string();
    assert_eq!(
        error,
        "parameter shared is used in two layouts, [R, R] and [R, S(tp)]; choose layout rules that \
         split its uses alike"
    );
}

#[test]
fn adafactor_refuses_weights_that_are_split_inside_their_rows_or_columns() {
    let graph = gpt(false);
    let optimizer = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let uniform = Uniform { mesh: mesh(1, 1, 2), optimizer, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    assert!(lower(&graph, &plan, 2).is_ok(), "heads come first among the columns");
    plan.layout = LayoutRules::try_from("head_dim:tp, ffn:tp".to_owned()).expect("valid rules");
    let error = lower(&graph, &plan, 2).expect_err("head_dim comes second").to_string();
    assert_eq!(
        error,
        "adafactor keeps sums over the rows and columns of block.0.attention.query.weight, and the \
         layout splits it along head_dim, which is not the first axis of either; split it along \
         another dimension or choose another optimizer"
    );
    plan.optimizer = Optimizer::default();
    assert!(lower(&graph, &plan, 2).is_ok());
}
