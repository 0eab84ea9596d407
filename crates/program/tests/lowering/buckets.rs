//! How often gradients are reduced and weights gathered, and over whom.

use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{Axis, Recompute, Sync, Uniform};
use shardloom_program::{
    Action, BodyKind, BucketId, Class, ClassId, Collective, Content, Group, Instruction, Keep,
    Window,
};
use std::collections::{BTreeMap, BTreeSet};

use crate::invariants::check_invariants;
use crate::model::{body, gpt, llama, mesh, program, single};

/// The bucket whose gradients an instruction reduces, how, and over whom.
fn reduction<'a>(
    class: &Class,
    instruction: &'a Instruction,
) -> Option<(BucketId, Collective, &'a Group)> {
    let Action::Collective { kind, group, .. } = &instruction.action else { return None };
    let read = class.tensor(instruction.reads[0].tensor);
    (read.content == Content::Gradient).then_some((read.bucket?, *kind, group))
}

/// The bucket whose weights an instruction gathers for use.
fn gathered(class: &Class, instruction: &Instruction) -> Option<BucketId> {
    let Action::Collective { kind: Collective::AllGather { .. }, .. } = instruction.action else {
        return None;
    };
    let written = class.tensor(instruction.writes[0].to.tensor);
    let passing = written.content == Content::Weight && written.keep == Keep::Transient;
    passing.then_some(written.bucket?)
}

/// How often each bucket is reduced over its replicas in one step, and how often of these to shards.
fn reductions(class: &Class) -> BTreeMap<BucketId, (usize, usize)> {
    let mut counts: BTreeMap<BucketId, (usize, usize)> = BTreeMap::new();
    for entry in class.entries() {
        for instruction in &class.body_of(entry).instructions {
            let Some((bucket, kind, group)) = reduction(class, instruction) else { continue };
            if *group == Group::Mesh(class.bucket(bucket).replicas.clone()) {
                let count = counts.entry(bucket).or_default();
                count.0 += 1;
                count.1 += usize::from(matches!(kind, Collective::ReduceScatter { .. }));
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
        for entry in class.entries() {
            for instruction in &class.body_of(entry).instructions {
                if let Some((bucket, ..)) = reduction(class, instruction) {
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
            let ends = Group::Classes(vec![ClassId(0), ClassId(2)]);
            for (id, class) in program.classes() {
                let between = |instruction: &&Instruction| {
                    reduction(class, instruction).is_some_and(|(_, kind, group)| {
                        matches!(kind, Collective::AllReduce(_)) && *group == ends
                    })
                };
                let instructions = class.entries().flat_map(|it| &class.body_of(it).instructions);
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
                Action::Kernel { op, .. } => graph.op(op).block,
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
                    if let Some(bucket) = self::gathered(class, instruction) {
                        assert!(gathered.insert(bucket), "{bucket:?} is gathered twice");
                        *gathers.entry(bucket).or_default() += 1;
                    }
                    for read in &instruction.reads {
                        let Window::Param(param) = read.window else { continue };
                        let bucket = class.param(param).bucket;
                        assert!(gathered.contains(&bucket), "{bucket:?} is read unheld");
                        blocks.entry(bucket).or_default().insert(block_of(instruction));
                    }
                    let elements = |id: &BucketId| class.bucket(*id).elements;
                    most = most.max(gathered.iter().map(elements).sum());
                    for &freed in &instruction.frees {
                        let tensor = class.tensor(freed);
                        if let (Content::Weight, Some(bucket)) = (tensor.content, tensor.bucket) {
                            assert!(gathered.remove(&bucket), "{bucket:?} is freed unheld");
                        }
                    }
                }
                assert_eq!(gathered, BTreeSet::new(), "all is freed in the end");
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
        let gathers = all.filter(|it| gathered(class, it).is_some()).count();
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

#[test]
fn blocks_share_a_bucket_that_their_gradients_just_fill() {
    let graph = two_tables().expect("a valid model");
    let gradients = 2 * TABLE * single().precision.gradients.bytes();
    for (bucket_bytes, buckets) in [(gradients, 1), (gradients - 1, 2)] {
        let uniform = Uniform { sync: Sync { bucket_bytes, ..single().sync }, ..single() };
        let program = program(&graph, &uniform);
        assert_eq!(program.classes[0].buckets.len(), buckets, "{bucket_bytes} bytes");
    }
}

/// Elements of each table of [`two_tables`].
const TABLE: usize = 16 * 8;

/// Two blocks with a table each.
fn two_tables() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("untied");
    let (seq, model, vocab) = (net.dim("seq", 4)?, net.dim("model", 8)?, net.dim("vocab", 16)?);
    net.block("embedding");
    let (tokens, targets) = (net.targets("tokens", &[seq])?, net.targets("targets", &[seq])?);
    let first = net.parameter("first", &[vocab, model], 1, Init::Normal { std: 0.02 })?;
    let embedded = net.embed("embedding", tokens, first)?;
    net.block("head");
    let second = net.parameter("second", &[vocab, model], 1, Init::Normal { std: 0.02 })?;
    let logits = net.contract("head", embedded, second, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn a_bucket_is_reduced_right_after_the_last_write_to_its_gradients() {
    for (zero, tied) in [(0, false), (1, true), (2, false), (2, true), (3, false)] {
        let uniform = Uniform {
            pp: 2,
            mesh: mesh(2, 1, 2),
            sequence_parallel: true,
            global_batch: 8,
            microbatches: 4,
            sync: Sync { zero, ..single().sync },
            ..single()
        };
        let program = program(&gpt(tied), &uniform);
        let mut found = 0;
        for (class, body) in
            program.classes.iter().flat_map(|it| it.bodies.iter().map(move |b| (it, b)))
        {
            for (index, instruction) in body.instructions.iter().enumerate() {
                let Some((bucket, _, Group::Mesh(_))) = reduction(class, instruction) else {
                    continue;
                };
                let writes = |it: &Instruction| {
                    it.writes.iter().any(|write| match write.to.window {
                        Window::Param(param) => class.param(param).bucket == bucket,
                        _ => false,
                    })
                };
                let last = body.instructions.iter().rposition(writes);
                // The epilogue reduces what no pass does.
                let Some(last) = last else { continue };
                assert!(
                    last < index,
                    "ZeRO-{zero}: {} is written later",
                    class.bucket(bucket).name
                );
                let between = &body.instructions[last + 1..index];
                let synchronises = |it: &&Instruction| {
                    reduction(class, it).is_some() || gathered(class, it).is_some()
                };
                let computes = between.iter().find(|it| !synchronises(it));
                assert_eq!(computes, None, "ZeRO-{zero}: {}", class.bucket(bucket).name);
                found += 1;
            }
        }
        assert!(found > 4, "ZeRO-{zero}: {found} reductions in passes");
    }
}
