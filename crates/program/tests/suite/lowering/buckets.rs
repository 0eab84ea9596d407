//! How often gradients are reduced and weights gathered, and over whom.

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{
    Axis, DeviceList, Mesh, Number, ParameterGroup, Plan, Precision, Recompute, Sync, Uniform,
};
use shardloom_program::{
    Action, BodyKind, Bucket, BucketId, Class, ClassId, Collective, Content, Extent, Format, Group,
    Instruction, Keep, ParamId, Shape, View, Window, lower,
};
use std::collections::{BTreeMap, BTreeSet};

use super::invariants::check_invariants;
use super::model::{body, gpt, llama, mesh, program, single};

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
            class.buckets().filter(|(_, it)| it.partial == [Axis::TP]).map(|(id, _)| id).collect();
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

/// The first and the last parameter of each bucket of a class.
fn ends(graph: &Graph, class: &Class) -> Vec<[String; 2]> {
    let name = |param: Option<&ParamId>| {
        let param = param.expect("a bucket has parameters");
        graph.value(class.params[param.0 as usize].value).name.clone()
    };
    let buckets = class.buckets.iter().map(|bucket| &bucket.params);
    buckets.map(|params| [params.first(), params.last()].map(name)).collect()
}

#[test]
fn a_bucket_that_may_end_within_a_block_is_full_with_the_parameter_that_fills_it_from_the_last_on()
{
    let graph = llama();
    let of = |pp, bucket_bytes, zero| {
        let sync = Sync { bucket_bytes, zero, splits_blocks: true, ..Sync::default() };
        let plan = Uniform { sync, pp, mesh: mesh(2, 1, 1), global_batch: 2, ..single() };
        program(&graph, &plan)
    };
    // Matrices of the feed-forward network, tables and heads have 2048 elements each, all four of attention 3072.
    // In fp32 gate and up just fill a bucket; head and final norm do so only with the matrix before them.
    for zero in [0, 2] {
        let program = of(1, 4096 * 4, zero);
        let full = [
            ["embedding.token", "block.0.ffn_norm.gain"],
            ["block.0.ffn.gate.weight", "block.0.ffn.up.weight"],
            ["block.0.ffn.down.weight", "block.1.ffn_norm.gain"],
            ["block.1.ffn.gate.weight", "block.1.ffn.up.weight"],
            ["block.1.ffn.down.weight", "block.2.ffn_norm.gain"],
            ["block.2.ffn.gate.weight", "block.2.ffn.up.weight"],
            ["block.2.ffn.down.weight", "head.weight"],
        ];
        assert_eq!(ends(&graph, &program.classes[0]), full);
        check_invariants(&program);
    }
    // Of two stages the second begins with block 1 or later, and with it a bucket, however empty the one behind.
    let program = of(2, 4096 * 4, 0);
    let [first, second] = [0, 1].map(|class| ends(&graph, &program.classes[class]));
    let cut = &second[0][0];
    assert!(cut.ends_with("attention_norm.gain"), "{cut}");
    assert!(
        first
            .iter()
            .all(|[_, last]| !last.starts_with(cut.trim_end_matches("attention_norm.gain")))
    );
    // Each parameter fills the smallest, and none a larger one than all.
    assert_eq!(of(1, 1, 0).classes[0].buckets.len(), graph.parameters().count());
    assert_eq!(of(1, 1 << 30, 0).classes[0].buckets.len(), 1);
}

#[test]
fn blocks_share_a_bucket_that_their_gradients_just_fill() {
    let graph = two_tables().expect("a valid model");
    for number in [Number::Fp32, Number::Bf16] {
        let precision = Precision { gradients: number, ..single().precision };
        let gradients = 2 * TABLE * number.bytes();
        for (bucket_bytes, buckets) in [(gradients, 1), (gradients - 1, 2)] {
            let sync = Sync { bucket_bytes, ..single().sync };
            let program = program(&graph, &Uniform { sync, precision, ..single() });
            let found = program.classes[0].buckets.len();
            assert_eq!(found, buckets, "{bucket_bytes} bytes of {number:?}");
        }
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

/// The names of a bucket's parameters.
fn names<'a>(graph: &'a Graph, class: &Class, bucket: &Bucket) -> Vec<&'a str> {
    let value = |id: &ParamId| class.params[id.0 as usize].value;
    bucket.params.iter().map(|id| graph.value(value(id)).name.as_str()).collect()
}

#[test]
fn groups_of_parameters_are_kept_equal_each_in_its_own_way() {
    let graph = gpt(false);
    let uniform = Uniform { mesh: mesh(2, 1, 2), global_batch: 8, microbatches: 4, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.sync.bucket_bytes = 1 << 30;
    let (algorithm, gradients) = (Some(Algorithm::Direct), Some(Number::Bf16));
    plan.parameters = vec![
        ParameterGroup { zero: Some(3), ..ParameterGroup::named("block.*.ffn.*") },
        ParameterGroup { zero: Some(1), gradients, ..ParameterGroup::named("block.{0,2}.*") },
        // What the first has stays there.
        ParameterGroup { zero: Some(2), algorithm, ..ParameterGroup::named("block.1.*") },
    ];
    let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
    check_invariants(&program);
    let class = &program.classes[0];
    let replicas: Vec<&Bucket> =
        class.buckets.iter().filter(|it| !it.replicas.is_empty()).collect();
    let stages = reductions(class);
    let mut seen = BTreeMap::new();
    for (id, bucket) in (0u32..).map(BucketId).zip(&class.buckets) {
        let tensor = |view: View| class.tensor(view.tensor);
        let held = &bucket.held.replicated;
        let gathers = held.weights != held.used;
        let shares = tensor(held.expect_gradients().reduced).shape == Shape::Flat(Extent::Share);
        let updates_share = held.updated.window == Window::Share || gathers;
        let zero = [updates_share, shares, gathers].iter().filter(|&&it| it).count();
        let all = |pick: &dyn Fn(&str) -> bool| names(&graph, class, bucket).into_iter().all(pick);
        let ffn = |name: &str| name.contains(".ffn.");
        let other = |numbers: &[&str]| {
            let numbers: Vec<String> = numbers.iter().map(|it| format!("block.{it}.")).collect();
            move |name: &str| !ffn(name) && numbers.iter().any(|it| name.starts_with(it))
        };
        let format = tensor(held.expect_gradients().reduced).format;
        let (belongs, expected) = match zero {
            3 => (all(&ffn), Format::F32),
            1 => (all(&other(&["0", "2"])), Format::Bf16),
            2 => (all(&other(&["1"])), Format::F32),
            _ => (all(&|name| !name.starts_with("block.")), Format::F32),
        };
        assert!(belongs, "ZeRO-{zero}: {:?}", names(&graph, class, bucket));
        assert_eq!(format, expected, "ZeRO-{zero}");
        let times = if zero >= 2 { 4 } else { 1 };
        assert_eq!(stages[&id], (times, if zero > 0 { times } else { 0 }), "ZeRO-{zero}");
        *seen.entry(zero).or_insert(0) += bucket.params.len();
    }
    assert_eq!(replicas.len(), class.buckets.len());
    // Feed-forward layers have four parameters, the rest of a block twelve, and three blocks.
    let rest = class.params.len() - 3 * 16;
    assert_eq!(seen, BTreeMap::from([(3, 12), (1, 24), (2, 12), (0, rest)]));
    let direct = class.bodies.iter().flat_map(|body| &body.instructions).filter(|instruction| {
        let bucket = reduction(class, instruction).map(|(bucket, ..)| class.bucket(bucket));
        let Some(bucket) = bucket else { return false };
        let Action::Collective { algorithm, ref group, .. } = instruction.action else {
            return false;
        };
        let is_second = names(&graph, class, bucket)[0].starts_with("block.1.")
            && !names(&graph, class, bucket)[0].contains(".ffn.");
        assert_eq!(algorithm == Algorithm::Direct, is_second, "{group:?}");
        is_second
    });
    assert!(direct.count() > 0);
}

#[test]
fn a_group_that_says_nothing_new_has_buckets_of_its_own_and_else_the_same() {
    let graph = llama();
    let uniform = Uniform { mesh: mesh(2, 1, 1), global_batch: 8, microbatches: 4, ..single() };
    for zero in 0..4 {
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.sync = Sync { zero, bucket_bytes: 1 << 30, ..plan.sync };
        let bytes = |plan: &Plan| {
            let program = lower(&graph, plan, 2).unwrap_or_else(|error| panic!("{error}"));
            check_invariants(&program);
            let class = &program.classes[0];
            let elements: usize = class.buckets.iter().map(|it| it.elements).sum();
            (class.buckets.len(), elements, class.params.len())
        };
        let (alone, elements, params) = bytes(&plan);
        plan.parameters = vec![ParameterGroup::named("*gain")];
        let (apart, same_elements, same_params) = bytes(&plan);
        assert_eq!((elements, params), (same_elements, same_params));
        assert!(apart > alone, "ZeRO-{zero}: {apart} buckets where {alone} were");
    }
}

#[test]
fn axes_that_split_the_batch_or_only_positions_keep_replicas_whatever_their_names() {
    let graph = gpt(false);
    let [row, column] = ["row", "column"].map(|name| Axis::named(name).expect("a name"));
    let uniform = Uniform { global_batch: 16, microbatches: 4, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.axes = vec![column, row];
    for (layout, expected) in [
        // The norms' gains, along what splits operators only.
        ("batch:row, heads:column, ffn:column, vocab:column, seq:column", vec![row]),
        ("batch:row, seq:column", vec![column, row]),
        ("batch:row, batch:column, vocab:column", vec![column, row]),
    ] {
        plan.layout = layout.to_owned().try_into().expect("rules");
        let stage = &mut plan.pipeline[0].stage[0];
        stage.mesh = Mesh::SINGLE.with(column, 2).with(row, 2);
        stage.devices = DeviceList((0..4).collect());
        plan.sync.zero = 1;
        let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{layout}: {error}"));
        check_invariants(&program);
        let class = &program.classes[0];
        let is_norm = |bucket: &&Bucket| names(&graph, class, bucket)[0].contains("norm");
        for bucket in class.buckets.iter().filter(is_norm) {
            assert_eq!(bucket.replicas, expected, "{layout}");
            let others = if expected.len() == 1 { vec![column] } else { vec![] };
            assert_eq!(bucket.partial, others, "{layout}");
        }
        assert!(class.buckets.iter().any(|bucket| is_norm(&bucket)));
    }
}

#[test]
fn a_group_of_parameters_begins_a_new_bucket_in_every_stage() {
    let graph = gpt(false);
    let uniform =
        Uniform { pp: 2, mesh: mesh(2, 1, 1), global_batch: 8, microbatches: 4, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    // One layer, and two.
    plan.pipeline[0].stage[0].blocks = (0, 2);
    plan.pipeline[0].stage[1].blocks = (2, graph.blocks().len());
    let layers = |layers: usize| {
        let mut plan = plan.clone();
        let ffn = ParameterGroup::named("*.ffn.*");
        let elements: usize = {
            let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
            let params = program.classes[0].params.iter();
            let of_first = params.filter(|it| graph.value(it.value).name.contains(".ffn."));
            of_first.map(|it| it.shape.iter().product::<usize>()).sum()
        };
        let bytes = layers * elements * plan.precision.gradients.bytes();
        plan.parameters = vec![ParameterGroup { bucket_bytes: Some(bytes), ..ffn }];
        let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
        check_invariants(&program);
        let of_group = |class: &Class| {
            let named = |bucket: &&Bucket| names(&graph, class, bucket)[0].contains(".ffn.");
            class.buckets.iter().filter(named).count()
        };
        program.classes.iter().map(of_group).collect::<Vec<_>>()
    };
    assert_eq!(layers(1), [1, 2]);
    assert_eq!(layers(2), [1, 1]);
}

/// Gradients of norms are added up over four replicas, and values over two tensor-parallel ranks.
#[test]
fn a_group_that_inner_groups_do_not_divide_takes_a_ring() {
    let graph = gpt(false);
    let uniform = Uniform { mesh: mesh(4, 1, 2), global_batch: 8, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.sync.algorithm = Algorithm::MultiStar { inner: 4 };
    let program = lower(&graph, &plan, 8).unwrap_or_else(|error| panic!("{error}"));
    check_invariants(&program);
    let mut seen = BTreeMap::new();
    for instruction in program.classes[0].bodies.iter().flat_map(|body| &body.instructions) {
        if let Action::Collective { group: Group::Mesh(axes), algorithm, .. } = &instruction.action
        {
            *seen.entry((axes.clone(), algorithm.to_string())).or_insert(0) += 1;
        }
    }
    let seen: Vec<(Vec<Axis>, String)> = seen.into_keys().collect();
    let of = |axis, algorithm: &str| (vec![axis], algorithm.to_owned());
    assert_eq!(seen, [of(Axis::DP, "multi-star:4"), of(Axis::TP, "ring")]);
}

#[test]
fn inner_groups_that_divide_no_group_are_refused_by_name() {
    let graph = gpt(false);
    let uniform = Uniform { mesh: mesh(4, 1, 2), global_batch: 8, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.sync.algorithm = Algorithm::Hierarchical { inner: 3 };
    let error = lower(&graph, &plan, 8).expect_err("3 divides neither 4 nor 2").to_string();
    assert!(error.contains("sync.algorithm = hierarchical:3"), "{error}");
}
