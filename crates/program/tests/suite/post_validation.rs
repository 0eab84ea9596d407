//! Where updates are tested, and what a step does over if one was wrong.

use std::collections::BTreeMap;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Arrangement, DeviceList, Mesh, Optimizer, ParameterGroup, PassTimes, Plan, Precision,
    ScheduleKind, StageReplicas, Uniform, Weights, pipelines_in_turn,
};
use shardloom_program::buffers::BufferPlan;
use shardloom_program::{
    Action, BodyKind, Class, Content, Control, Entry, Group, Guard, Instruction, MemoryTracker,
    Program, RouteId, Write, lower,
};
use shardloom_schedule::{Action as ScheduleAction, Schedule, StageMap, Succession};

const STAGES: usize = 4;

fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=14,hidden=16,heads=2,seq=16,vocab=64");
    spec.and_then(|spec| spec.graph()).expect("a model")
}

fn plan(graph: &Graph, schedule: ScheduleKind, mesh: Mesh) -> Plan {
    let uniform = Uniform {
        pp: STAGES,
        mesh,
        global_batch: 16,
        microbatches: 8,
        schedule,
        clip_norm: Some(1.0),
        ..Uniform::default()
    };
    Plan { post_validation: true, ..uniform.plan(graph, "gpt", "cluster") }
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).expect("the plan fits")
}

fn flushing() -> impl Iterator<Item = ScheduleKind> {
    let kinds = ScheduleKind::ALL.into_iter().filter(|it| *it != ScheduleKind::Table);
    kinds.filter(|it| it.flushes())
}

/// The place of the test in a class's control; the guard stands behind it.
fn test(class: &Class) -> usize {
    let tests = |entry: &Entry| class.body_of(entry).kind == BodyKind::Test;
    let is_test = |part: &Control| matches!(part, Control::Run(entry) if tests(entry));
    let mut found = class.control.iter().enumerate().filter(|(_, part)| is_test(part));
    match (found.next(), found.next()) {
        (Some((at, Control::Run(entry))), None) if entry.shift == -1 => at,
        other => panic!("tests: {other:?}"),
    }
}

/// A class's guard, which all ranks take alike.
fn guard(class: &Class) -> &Guard {
    match &class.control[test(class) + 1] {
        Control::Guard(guard) if guard.agreed == Group::World => guard,
        other => panic!("{other:?} behind the test"),
    }
}

/// Whether a class updates before it knows the norm of all gradients.
fn updates_early(class: &Class) -> bool {
    class.tensors.iter().any(|tensor| tensor.content == Content::Backup)
}

/// How often each route is gone for each micro-batch.
type Runs = BTreeMap<(RouteId, Option<u32>), usize>;

#[test]
fn a_step_that_begins_anew_receives_all_that_is_sent() {
    let graph = graph();
    for schedule in flushing() {
        let program = lowered(&graph, &plan(&graph, schedule, Mesh::SINGLE));
        let (mut sent, mut received) = (Runs::new(), Runs::new());
        for class in &program.classes {
            for item in class.entries() {
                for instruction in &class.body_of(item).instructions {
                    let (runs, route) = match instruction.action {
                        Action::Send { route } => (&mut sent, route),
                        Action::Receive { route } => (&mut received, route),
                        _ => continue,
                    };
                    *runs.entry((route, item.microbatch)).or_default() += 1;
                }
            }
        }
        assert_eq!(sent, received, "{schedule:?}");
        assert!(sent.values().any(|&runs| runs == 2), "{schedule:?} sends nothing twice");
    }
}

#[test]
fn only_forward_passes_run_before_the_test_and_again_after_it() {
    let graph = graph();
    for schedule in flushing() {
        let program = lowered(&graph, &plan(&graph, schedule, Mesh::SINGLE));
        for (index, class) in program.classes.iter().enumerate() {
            let before: Vec<Entry> = class.unguarded().copied().take(test(class)).collect();
            assert!(before.len() <= 2 * (STAGES - 1 - index) * class.stages.len());
            assert!(before.iter().all(|it| class.body_of(it).kind == BodyKind::Forward));
            let again = guard(class).otherwise.iter().filter(|entry| entry.shift == 0);
            let receives = |action: &Action| matches!(action, Action::Receive { .. });
            let whole = again.filter(|entry| {
                let body = class.body_of(entry);
                let received = body.instructions.iter().all(|it| receives(&it.action));
                body.kind == BodyKind::Forward && !received
            });
            let whole: Vec<Entry> = whole.copied().collect();
            assert_eq!(whole, before, "{schedule:?}");
        }
        // The first waits longest for the norm to come back.
        assert!(test(&program.classes[0]) > 0, "{schedule:?}");
    }
}

/// Micro-batches that come by several pipelines come to one stage.
#[test]
fn replicas_that_take_turns_get_no_further_before_the_test_than_stages_of_one_pipeline() {
    let graph = graph();
    let replicas = |devices: &[u32]| devices.iter().map(|&it| DeviceList(vec![it])).collect();
    let stage = |blocks, devices| {
        let replicas: Vec<DeviceList> = replicas(devices);
        StageReplicas { blocks, mesh: Mesh::SINGLE, replicas }
    };
    let mut plan = plan(&graph, ScheduleKind::Afab, Mesh::SINGLE);
    plan.pipeline = pipelines_in_turn(&[stage((0, 8), &[0]), stage((8, 16), &[1, 2])])
        .unwrap_or_else(|error| panic!("{error}"));
    let program = lowered(&graph, &plan);
    let before: Vec<usize> = program.classes.iter().map(test).collect();
    // Two for each class after it.
    assert_eq!(before, [4, 2, 0]);
}

#[test]
fn all_classes_but_the_last_keep_what_they_update_until_the_norm_is_back() {
    let graph = graph();
    let mesh = Mesh::of(2, 1, 1);
    let program = lowered(&graph, &plan(&graph, ScheduleKind::ZeroBubbleH2, mesh));
    for (index, class) in program.classes.iter().enumerate() {
        let last = index + 1 == program.classes.len();
        let instructions = || class.entries().flat_map(|it| &class.body_of(it).instructions);

        let buckets = class.buckets.len();
        assert_eq!(updates_early(class), !last);
        let copies = instructions().filter(|it| backs_up(class, it)).count();
        assert_eq!(copies, if last { 0 } else { buckets });
        let updates = instructions().filter(|it| matches!(it.action, Action::Optimizer)).count();
        assert_eq!(updates, if last { buckets } else { 2 * buckets });
        let ends = class.unguarded().last().map(|entry| class.body_of(entry).kind);
        assert_eq!(ends, Some(BodyKind::Epilogue));
    }
}

#[test]
fn without_a_norm_or_a_second_class_there_is_nothing_to_test() {
    let graph = graph();
    let plain = |plan: &Plan| Plan { post_validation: false, ..plan.clone() };
    let pipeline = plan(&graph, ScheduleKind::ZeroBubbleH1, Mesh::SINGLE);
    let unclipped = Plan { clip_norm: None, ..pipeline.clone() };
    assert_eq!(lowered(&graph, &unclipped), lowered(&graph, &plain(&unclipped)));
    let mut single = pipeline;
    single.schedule = ScheduleKind::OneForwardOneBackward;
    single.pipeline[0].stage.truncate(1);
    single.pipeline[0].stage[0].blocks = (0, graph.blocks().len());
    assert_eq!(lowered(&graph, &single), lowered(&graph, &plain(&single)));
}

#[test]
fn without_flush_there_is_no_time_to_test() {
    let graph = graph();
    let plan = plan(&graph, ScheduleKind::PipeDream, Mesh::SINGLE);
    assert_eq!(plan.weights, Weights::Stash);
    let error = lower(&graph, &plan, STAGES).expect_err("it has no flush").to_string();
    assert!(error.starts_with("post_validation = true: "), "{error}");
}

/// Whether an instruction copies what an update is about to change.
fn backs_up(class: &Class, instruction: &Instruction) -> bool {
    let content = |write: &Write| class.tensor(write.to.tensor).content;
    instruction.writes.iter().any(|write| content(write) == Content::Backup)
}

#[test]
fn every_position_keeps_its_own_share_of_what_it_updates() {
    let graph = graph();
    // Adam's two moments and the weight, or its master copy, four bytes each.
    for (zero, precision) in [(0, Precision::FP32), (1, Precision::FP32), (2, Precision::MIXED)] {
        let mesh = Mesh::of(3, 1, 1);
        let mut plan = plan(&graph, ScheduleKind::ZeroBubbleH1, mesh);
        (plan.global_batch, plan.sync.zero, plan.precision) = (24, zero, precision);
        let program = lowered(&graph, &plan);
        let mut uneven = false;
        for class in program.classes.iter().filter(|class| updates_early(class)) {
            for (id, bucket) in class.buckets() {
                let (least, longer) = (bucket.elements / 3, bucket.elements % 3);
                uneven |= zero > 0 && longer > 0;
                for position in 0..3 {
                    let elements = match zero {
                        0 => bucket.elements,
                        _ => least + usize::from(position < longer),
                    };
                    let bytes = 12 * elements as u64;
                    let mut tracker = MemoryTracker::new(class, position);
                    let held = tracker.live_bytes();
                    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
                    let backup = |it: &&Instruction| {
                        backs_up(class, it)
                            && class.tensor(it.writes[0].to.tensor).bucket == Some(id)
                    };
                    tracker.begin(instructions.clone().find(backup).expect("it is kept"), None);
                    let kept = tracker.live_bytes() - held;
                    assert_eq!(kept, bytes, "{} of {position}", bucket.name);
                    let release = |it: &&Instruction| it.action == Action::Free;
                    tracker.end(instructions.clone().find(release).expect("it ends"), None);
                    assert_eq!(tracker.live_bytes(), held);
                }
            }
        }
        assert!(uneven || zero == 0, "shares of all positions are equal");
    }
}

#[test]
fn masters_or_weights_are_kept_as_the_group_of_parameters_has_them() {
    let graph = graph();
    for own in [false, true] {
        let mut plan = plan(&graph, ScheduleKind::ZeroBubbleH1, Mesh::SINGLE);
        plan.precision = Precision { master: !own, ..Precision::MIXED };
        let ffn = ParameterGroup { master: Some(own), ..ParameterGroup::named("*.ffn.*") };
        plan.parameters = vec![ffn];
        let program = lowered(&graph, &plan);
        let mut found = [0, 0];
        for class in program.classes.iter().filter(|class| updates_early(class)) {
            for (id, bucket) in class.buckets() {
                let value = class.param(bucket.params[0]).value;
                let in_group = graph.value(value).name.contains(".ffn.");
                let has_master = in_group == own;
                // Adam's two moments in fp32, and the master weights or else those in bf16.
                let expected = bucket.elements * if has_master { 12 } else { 10 };
                let copies = class.tensors().filter(|(_, tensor)| {
                    tensor.content == Content::Backup && tensor.bucket == Some(id)
                });
                let bytes: u64 = copies.map(|(copy, _)| class.tensor_bytes(copy, 0)).sum();
                assert_eq!(bytes, expected as u64, "{}: master {has_master}", bucket.name);
                found[usize::from(has_master)] += 1;
            }
        }
        assert!(found.iter().all(|&buckets| buckets > 0), "{found:?}");
    }
}

#[test]
fn the_place_of_a_copy_holds_the_largest_share_of_any_position() {
    let graph = graph();
    // Rows and columns of every parameter that a position owns part of, so that shares differ.
    let optimizer = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let mut later_is_larger = false;
    for dp in [2, 3, 5, 7] {
        let mut plan = plan(&graph, ScheduleKind::ZeroBubbleH1, Mesh::of(dp, 1, 1));
        (plan.global_batch, plan.sync.zero, plan.optimizer) = (8 * dp as usize, 1, optimizer);
        let program = lowered(&graph, &plan);
        for class in program.classes.iter().filter(|class| updates_early(class)) {
            let buffers = BufferPlan::new(&program, class);
            for run in program.cursor(class, 1).runs(true) {
                let body = run.entry.body;
                for (index, instruction) in (0u32..).zip(&class.body(body).instructions) {
                    if !backs_up(class, instruction) {
                        continue;
                    }
                    let row = buffers.row(&run);
                    for copy in instruction.writes.iter().map(|write| write.to.tensor) {
                        let place = buffers.find(body, row, index, copy);
                        let place = buffers.place(place.expect("a copy has a place"));
                        let of = |position| class.tensor_bytes(copy, position);
                        let bytes: Vec<u64> = (0..dp as usize).map(of).collect();
                        assert_eq!(Some(&place.bytes), bytes.iter().max(), "{bytes:?}");
                        later_is_larger |= place.bytes > bytes[0];
                    }
                }
            }
        }
    }
    assert!(later_is_larger, "the first position's share is always the largest");
}

#[test]
fn only_where_stages_wait_for_the_norm_orders_are_made_for_steps_that_wait_for_each_other() {
    let graph = graph();
    let times =
        PassTimes { forward: 4.0, input: 1.0, weight: 9.0, message: 3.0, ..PassTimes::default() };
    let validated = Plan {
        global_batch: 18,
        microbatches: 18,
        pass_times: times,
        ..plan(&graph, ScheduleKind::ZeroBubbleH1, Mesh::SINGLE)
    };
    let waiting = Plan { post_validation: false, ..validated.clone() };
    let unclipped = Plan { clip_norm: None, ..waiting.clone() };
    let written = |plan: &Plan, succession| {
        let map = StageMap::arranged(Arrangement::Chain, STAGES, 1, 18).expect("a map");
        let built = Schedule::build_for(plan.schedule, map, &times, succession).expect("an order");
        let text = |(device, actions): (usize, &Vec<ScheduleAction>)| {
            let actions = actions.iter().map(|&action| built.map.text(device, action));
            actions.collect::<Vec<_>>().join(" ")
        };
        let order = built.orders.iter().enumerate().map(text).collect();
        lowered(&graph, &Plan { schedule: ScheduleKind::Table, order, ..plan.clone() })
    };
    for (plan, succession, other) in [
        (&validated, Succession::Own, Succession::Common),
        (&unclipped, Succession::Own, Succession::Common),
        (&waiting, Succession::Common, Succession::Own),
    ] {
        assert!(lowered(&graph, plan) == written(plan, succession));
        assert!(lowered(&graph, plan) != written(plan, other));
    }
}
