//! Numbers that a project takes before there is a plan of them, and the plans that it writes.

use shardloom_exchange::{ExchangeError, Machines, Project, cuts_itself, export, own_cuts, takes};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    AttentionKind, Axis, LossScale, Mesh, Number, Optimizer, Plan, Precision, Recompute,
    ScheduleKind, Sync, Uniform, even_cuts,
};

use crate::plans::{SMALL_LLAMA, numbers};

/// One of these, by a number that is used up.
fn one_of<T: Copy>(things: &[T], state: &mut u64) -> T {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    things[(*state >> 33) as usize % things.len()]
}

fn drawn(state: &mut u64) -> (Uniform, usize) {
    let mesh =
        Mesh::of(one_of(&[1, 2, 4], state), one_of(&[1, 1, 2], state), one_of(&[1, 2], state));
    let mesh = mesh.sharing_within(one_of(&[1, 2, 4], state)).unwrap_or(mesh);
    let compute = one_of(&[Number::Bf16, Number::Bf16, Number::Fp16], state);
    let gradients = one_of(&[Number::Fp32, Number::Fp32, compute], state);
    let made = Uniform {
        pp: one_of(&[1, 2, 4], state),
        mesh,
        sequence_parallel: one_of(&[false, true], state),
        schedule: one_of(
            &[
                ScheduleKind::OneForwardOneBackward,
                ScheduleKind::OneForwardOneBackward,
                ScheduleKind::Afab,
                ScheduleKind::Interleaved,
                ScheduleKind::ZeroBubbleH1,
                ScheduleKind::ZeroBubbleV,
            ],
            state,
        ),
        recompute: one_of(
            &[
                Recompute::None,
                Recompute::None,
                Recompute::Selective,
                Recompute::Block,
                Recompute::Stage,
                Recompute::Full,
            ],
            state,
        ),
        sync: Sync { zero: one_of(&[0, 1, 2, 3], state), ..Sync::default() },
        precision: one_of(
            &[Precision::FP32, Precision { compute, gradients, ..Precision::MIXED }],
            state,
        ),
        optimizer: one_of(
            &[Optimizer::default(), Optimizer::default(), Optimizer::sgd(0.9)],
            state,
        ),
        clip_norm: one_of(&[None, Some(1.0)], state),
        ..numbers()
    };
    let chunks = match made.schedule {
        ScheduleKind::Interleaved | ScheduleKind::ZeroBubbleV => 2,
        _ => 1,
    };
    (made, chunks)
}

/// The plan of numbers whose stages are cut evenly, or as the project cuts them; none if there is none.
fn plan_of(
    project: Project,
    (spec, graph): (&ModelSpec, &Graph),
    numbers: &Uniform,
    chunks: usize,
) -> Option<Plan> {
    let places = numbers.places(chunks).ok()?;
    let cuts = match cuts_itself(project) {
        true => own_cuts(project, spec, numbers.pp)?,
        false => even_cuts(graph.blocks().len(), numbers.pp * chunks),
    };
    let pipelines = numbers.pipelines(&places, &cuts);
    let cluster = format!("h100-80g:{}", numbers.pp * numbers.mesh.size());
    let mut plan = numbers.plan_of(graph, &spec.to_string(), &cluster, pipelines);
    plan.attention = AttentionKind::Fused;
    let is_half = numbers.precision.compute == Number::Fp16;
    plan.loss_scale = is_half.then(LossScale::dynamic);
    plan.validate(&plan.graph_of(graph), plan.least_devices()).ok()?;
    Some(plan)
}

/// The key of what a project has no word for; of anything else, all that is said.
fn key(error: &ExchangeError) -> String {
    let said = error.to_string();
    let rest = said.split_once(" has no word for ").map_or(&said[..], |(_, rest)| rest);
    rest.split_once(" = ").map_or(rest, |(key, _)| key).to_owned()
}

#[test]
fn a_project_takes_numbers_whose_plan_it_writes_and_no_others() {
    let spec = ModelSpec::parse(SMALL_LLAMA).expect("a model");
    let graph = spec.graph().expect("a graph");
    let (mut state, mut taken, mut refused) = (7, [0; 5], [0; 5]);
    for _ in 0..250 {
        let (numbers, chunks) = drawn(&mut state);
        for (index, project) in Project::ALL.into_iter().enumerate() {
            let Some(plan) = plan_of(project, (&spec, &graph), &numbers, chunks) else { continue };
            let machines = Machines { nodes: 1, devices: plan.device_count() };
            let written = export(project, &plan, &spec, &graph, machines).map(|_| ());
            let before = takes(project, &spec, &numbers, chunks);
            let [written, before] = [&written, &before].map(|it| it.as_ref().err().map(key));
            assert_eq!(before, written, "{project}, {chunks} chunks of {numbers:?}");
            let count = if written.is_some() { &mut refused } else { &mut taken };
            count[index] += 1;
        }
    }
    let enough = |count: [usize; 5]| count.iter().all(|&it| it > 5);
    assert!(enough(taken) && enough(refused), "{taken:?} taken, {refused:?} refused");
}

/// The number or word behind a name in a text of lines `name=value,` or `"name": value,` or `name: value`.
fn said<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let quoted = format!("\"{name}\"");
    text.lines().map(str::trim).find_map(|line| {
        let rest = line.strip_prefix(&quoted).or_else(|| line.strip_prefix(name))?;
        let value = rest.trim_start().strip_prefix(['=', ':'])?;
        Some(value.trim().trim_end_matches(',').trim_matches('"'))
    })
}

#[test]
fn torchtitan_is_told_the_widths_of_every_mesh_and_what_zero_means_of_them() {
    let spec = ModelSpec::parse(SMALL_LLAMA).expect("a model");
    let graph = spec.graph().expect("a graph");
    let project = Project::Torchtitan;
    for case in 0..4 * 2 * 3 * 2 * 2 * 2 {
        let pick = |index: u32, of: u32| index % of;
        let zero = pick(case, 4) as u8;
        let tp = [1, 2][pick(case / 4, 2) as usize];
        let (groups, sharers) = [(1, 4), (2, 2), (1, 1)][pick(case / 8, 3) as usize];
        let cp = [1, 2][pick(case / 24, 2) as usize];
        let sequence_parallel = pick(case / 48, 2) == 1;
        let microbatches = [1, 4][pick(case / 96, 2) as usize];
        let mesh = Mesh::of(sharers, cp, tp).with(Axis::REPLICA, groups);
        let numbers = Uniform {
            mesh,
            sequence_parallel,
            microbatches,
            recompute: Recompute::None,
            sync: Sync { zero, ..Sync::default() },
            ..numbers()
        };
        let name =
            format!("zero {zero}, {groups} x {sharers}, cp {cp}, tp {tp}, {sequence_parallel}");
        let Some(plan) = plan_of(project, (&spec, &graph), &numbers, 1) else { continue };
        let machines = Machines { nodes: 1, devices: plan.device_count() };
        let exported = match export(project, &plan, &spec, &graph, machines) {
            Ok(exported) => exported,
            Err(error) => {
                // Replicas that hold all have no context parallelism, and optimizer states alone are not sharded.
                assert!((zero == 0 && cp > 1) || zero == 1, "{name}: {error}");
                continue;
            }
        };
        let has_sharers = sharers * cp > 1;
        assert!(zero != 1 || !has_sharers, "{name} is written");
        let text =
            &exported.files.iter().find(|it| it.text.contains("_degree=")).expect("words").text;
        let shards = zero > 1 && has_sharers;
        let (replicate, shard) = if shards { (groups, sharers) } else { (groups * sharers, 1) };
        for (word, value) in [
            ("data_parallel_replicate_degree", replicate.to_string()),
            ("data_parallel_shard_degree", shard.to_string()),
            ("tensor_parallel_degree", tp.to_string()),
            ("context_parallel_degree", cp.to_string()),
            ("pipeline_parallel_degree", "1".to_owned()),
            // Nothing is to be split there.
            (
                "enable_sequence_parallel",
                if sequence_parallel || tp == 1 { "True" } else { "False" }.to_owned(),
            ),
            (
                "fsdp_reshard_after_forward",
                if shards && zero == 3 { "always" } else { "never" }.to_owned(),
            ),
        ] {
            assert_eq!(said(text, word), Some(&value[..]), "{name}: {word} in\n{text}");
        }
        let unsaid = exported.unsaid.iter().any(|it| it.key == "sync.bucket_bytes");
        assert_eq!(unsaid, groups * sharers * cp > 1, "{name}: buckets");
    }
}

#[test]
fn deepspeed_keeps_no_small_parameters_whole_where_parameters_are_sharded() {
    let spec = ModelSpec::parse(SMALL_LLAMA).expect("a model");
    let graph = spec.graph().expect("a graph");
    for (zero, dp) in (0..4).flat_map(|zero| [1, 4].map(|dp| (zero, dp))) {
        for gradients in [Number::Bf16, Number::Fp32] {
            let numbers = Uniform {
                mesh: Mesh::of(dp, 1, 1),
                recompute: Recompute::None,
                sync: Sync { zero, ..Sync::default() },
                precision: Precision { gradients, ..Precision::MIXED },
                ..numbers()
            };
            let project = Project::DeepSpeed;
            let plan = plan_of(project, (&spec, &graph), &numbers, 1).expect("a plan");
            let machines = Machines { nodes: 1, devices: plan.device_count() };
            let exported = export(project, &plan, &spec, &graph, machines);
            let own = if dp == 1 { 0 } else { zero };
            let Ok(exported) = exported else {
                assert_eq!((own, gradients, dp), (0, Number::Fp32, 4), "{:?}", exported.err());
                continue;
            };
            let words: serde_json::Value =
                serde_json::from_str(&exported.files[0].text).expect("it is JSON");
            let zero = &words["zero_optimization"];
            let least = u8::from(gradients == Number::Fp32);
            assert_eq!(zero["stage"], own.max(least), "{own} of {gradients:?} on {dp}");
            let keeps = zero.get("stage3_param_persistence_threshold").map(|it| it.as_u64());
            assert_eq!(keeps, (own == 3).then_some(Some(0)), "{own}");
        }
    }
}

#[test]
fn nanotron_is_told_the_batch_of_one_replica() {
    let spec = ModelSpec::parse(SMALL_LLAMA).expect("a model");
    let graph = spec.graph().expect("a graph");
    let project = Project::Nanotron;
    for (dp, microbatches) in [1, 2, 4].into_iter().flat_map(|dp| [1, 2, 16].map(|it| (dp, it))) {
        let (global_batch, recompute) = (64, Recompute::None);
        let mesh = Mesh::of(dp, 1, 1);
        let numbers = Uniform { mesh, microbatches, global_batch, recompute, ..numbers() };
        let plan = plan_of(project, (&spec, &graph), &numbers, 1).expect("a plan");
        let machines = Machines { nodes: 1, devices: plan.device_count() };
        let exported = export(project, &plan, &spec, &graph, machines).expect("it is written");
        let number = |word: &str| -> usize {
            let found = said(&exported.files[0].text, word).expect(word);
            found.parse().unwrap_or_else(|_| panic!("{word}: {found}"))
        };
        let [replicas, micro, accumulated] =
            ["dp", "micro_batch_size", "batch_accumulation_per_replica"].map(number);
        assert_eq!((replicas, accumulated), (dp as usize, microbatches));
        assert_eq!(replicas * micro * accumulated, global_batch);
    }
}

/// Width / heads is 16; of four heads with keys and values of their own, or of two.
#[test]
fn heads_of_another_width_are_refused_and_as_many_ranks_as_heads_are_not() {
    let written = |project: Project, words: &str, tp: u32| {
        let text = format!("llama:layers=8,hidden=64,heads=4,ffn=256,seq=64,vocab=128{words}");
        let spec = ModelSpec::parse(&text).expect("a model");
        let graph = spec.graph().expect("a graph");
        let (mesh, recompute) = (Mesh::of(2, 1, tp), Recompute::None);
        let numbers = Uniform { mesh, sequence_parallel: tp > 1, recompute, ..numbers() };
        let plan = plan_of(project, (&spec, &graph), &numbers, 1)?;
        let machines = Machines { nodes: 1, devices: plan.device_count() };
        Some(export(project, &plan, &spec, &graph, machines).map(|_| ()).map_err(|it| key(&it)))
    };
    for project in [Project::Torchtitan, Project::Nanotron] {
        for (width, is_usual) in [(8, false), (16, true), (32, false)] {
            let found = written(project, &format!(",head_dim={width}"), 1).expect("a plan");
            let expected = if is_usual { Ok(()) } else { Err("model".to_owned()) };
            assert_eq!(found, expected, "{project}, {width}");
        }
        for tp in [1, 2, 4] {
            assert_eq!(written(project, "", tp), Some(Ok(())), "{project}, tp {tp}");
        }
        for tp in [1, 2] {
            assert_eq!(written(project, ",kv_heads=2", tp), Some(Ok(())), "{project}, tp {tp}");
        }
    }
}
