//! What lowering makes of pipelines: who sends what to whom, what waits on a device, what the halves of a
//! backward pass do, and on how old weights passes run.

use std::collections::BTreeSet;

use shardloom_collectives::{Algorithm, Kind, Member, plan as collective};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, ModelSpec, OpKind};
use shardloom_plan::{
    Arrangement, Corrections, DeviceList, Plan, ScheduleKind, Uniform, Updates, Weights,
};
use shardloom_program::{Action, Body, BodyKind, Class, ClassId, Group, Message, Program, lower};

const SEQ: usize = 8;
const HIDDEN: usize = 16;
const MICROBATCHES: usize = 8;
/// Bytes of a boundary: one sample of a micro-batch in float32.
const BOUNDARY: u64 = (SEQ * HIDDEN * 4) as u64;

fn graph() -> Graph {
    // With embedding and head sixteen blocks.
    let spec = format!("gpt:layers=14,hidden={HIDDEN},heads=2,seq={SEQ},vocab=32");
    ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn uniform(schedule: ScheduleKind, pp: usize) -> Uniform {
    Uniform {
        pp,
        global_batch: MICROBATCHES,
        microbatches: MICROBATCHES,
        schedule,
        ..Uniform::default()
    }
}

fn lowered(plan: &Plan) -> Program {
    lower(&graph(), plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn program(schedule: ScheduleKind, pp: usize, chunks: usize) -> Program {
    let plan = uniform(schedule, pp).plan_in_chunks(&graph(), "model", "local", chunks);
    lowered(&plan.unwrap_or_else(|error| panic!("{error}")))
}

/// Bytes in messages between stages, over all ranks of a step.
fn message_bytes(program: &Program) -> u64 {
    let of_class = |(id, class): (ClassId, &Class)| -> u64 {
        let bodies = class.entries().map(|entry| class.body_of(entry));
        let sends = bodies.flat_map(|body| &body.instructions);
        sends
            .filter(|it| matches!(it.action, Action::Send { .. }))
            .map(|it| program.instruction_sent_bytes(id, 0, it))
            .sum()
    };
    program.classes().map(of_class).sum()
}

/// What a chain of so many devices sends: every boundary there and back.
fn chain_bytes(devices: usize) -> u64 {
    2 * (devices as u64 - 1) * MICROBATCHES as u64 * BOUNDARY
}

#[test]
fn interleaving_sends_as_often_as_there_are_chunk_boundaries() {
    for (devices, chunks) in [(2, 2), (4, 2), (4, 4)] {
        let sent = message_bytes(&program(ScheduleKind::Interleaved, devices, chunks));
        assert_eq!(sent, chain_bytes(devices * chunks), "{devices} devices, {chunks} chunks");
    }
}

#[test]
fn waves_send_at_each_boundary_but_the_turns() {
    for (devices, chunks) in [(2, 2), (4, 2), (4, 4)] {
        let sent = message_bytes(&program(ScheduleKind::Hanayo, devices, chunks));
        assert_eq!(
            sent,
            chunks as u64 * chain_bytes(devices),
            "{devices} devices, {chunks} chunks"
        );
    }
}

#[test]
fn pipelines_in_both_directions_send_no_more_between_stages() {
    for kind in [ScheduleKind::Chimera, ScheduleKind::DualPipe] {
        let devices = 4;
        assert_eq!(message_bytes(&program(kind, devices, 2)), chain_bytes(devices), "{kind:?}");
    }
}

/// Of four pipelines two run each way, whatever their numbers.
#[test]
fn a_class_names_the_stages_of_pipelines_that_run_the_reverse_way() {
    let places = |schedule, chunks| -> Vec<String> {
        let program = program(schedule, 4, chunks);
        program.classes().map(|(_, class)| class.place()).collect()
    };
    let four = ["0, 2, 3<, 1<", "1, 3, 2<, 0<", "2, 0, 1<, 3<", "3, 1, 0<, 2<"];
    assert_eq!(places(ScheduleKind::Chimera, 4), four.map(|names| format!("stages {names}")));
    let two = ["0, 3<", "1, 2<", "2, 1<", "3, 0<"];
    assert_eq!(places(ScheduleKind::Chimera, 2), two.map(|names| format!("stages {names}")));
    let waves = ["0, 7", "1, 6", "2, 5", "3, 4"];
    assert_eq!(places(ScheduleKind::ZeroBubbleV, 2), waves.map(|names| format!("stages {names}")));
}

#[test]
fn both_copies_of_a_stage_add_up_their_gradients_once_a_step() {
    let program = program(ScheduleKind::Chimera, 4, 2);
    let single = self::program(ScheduleKind::OneForwardOneBackward, 4, 1);
    for (id, class) in program.classes() {
        let partner = ClassId(3 - id.0);
        let mut reduced = 0;
        for entry in class.entries() {
            for instruction in &class.body_of(entry).instructions {
                let Action::Collective { group, .. } = &instruction.action else { continue };
                let Group::Classes(both) = group else { panic!("{group:?} without replicas") };
                assert!(both.contains(&id) && both.contains(&partner) && both.len() == 2);
                reduced += class.view_range(instruction.reads[0], 0).len();
            }
        }
        let elements = |class: &Class| class.buckets.iter().map(|it| it.elements).sum::<usize>();
        assert_eq!(reduced, elements(class));
        let (own, theirs) = (single.class(id), single.class(partner));
        assert_eq!(reduced, elements(own) + elements(theirs), "down and up stage of device {id:?}");
    }
}

#[test]
fn what_stays_on_a_device_is_handed_over_without_a_message_or_a_copy() {
    let program = program(ScheduleKind::ZeroBubbleV, 2, 2);
    let last = &program.classes[1];
    for kind in [BodyKind::Forward, BodyKind::BackwardInput] {
        let bodies = last.bodies.iter().filter(|body| body.kind == kind);
        let copies = bodies.flat_map(|body| &body.instructions);
        let copies: Vec<_> = copies.filter(|it| matches!(it.action, Action::Copy)).collect();
        assert!(copies.len() >= 2, "one stage hands over, the other takes");
        let moved = copies.iter().filter(|copy| copy.is_move()).count();
        assert!(moved >= 2, "{kind:?}: {copies:?}");
    }
    let route = |class: u32| program.routes.iter().filter(move |it| it.from == ClassId(class));
    assert!(route(1).all(|route| route.to == ClassId(0)));
}

/// The bodies of one stage of the first class, whole and in halves: a table may have both.
fn halves() -> (Program, Body, Body, Body) {
    let mut plan = uniform(ScheduleKind::OneForwardOneBackward, 2).plan(&graph(), "model", "local");
    plan.microbatches = 2;
    plan.schedule = ScheduleKind::Table;
    plan.order = vec!["F0 F1 B0 I1 W1".into(), "F0 B0 F1 I1 W1".into()];
    let program = lowered(&plan);
    let class = &program.classes[1];
    let body = |kind| class.bodies.iter().find(|body| body.kind == kind).cloned();
    let found = [BodyKind::Backward, BodyKind::BackwardInput, BodyKind::BackwardWeight].map(body);
    let [Some(whole), Some(input), Some(weight)] = found else { panic!("all three are used") };
    (program, whole, input, weight)
}

#[test]
fn the_second_half_has_the_weight_gradients_of_matrix_products_and_no_messages() {
    let graph = graph();
    let (_, whole, input, weight) = halves();
    let products = |body: &Body| {
        let product = |action: &Action| {
            matches!(*action, Action::Kernel { op, pass: Pass::Weight, .. }
                if matches!(graph.op(op).kind, OpKind::Contract { .. }))
        };
        body.instructions.iter().filter(|it| product(&it.action)).count()
    };
    assert_eq!(products(&input), 0);
    assert!(products(&weight) > 0);
    assert_eq!(products(&weight), products(&whole));
    let sends = |body: &Body| {
        body.instructions.iter().filter(|it| matches!(it.action, Action::Send { .. })).count()
    };
    assert_eq!((sends(&whole), sends(&input), sends(&weight)), (1, 1, 0));
    let computes = |body: &Body| {
        body.instructions.iter().filter(|it| matches!(it.action, Action::Kernel { .. })).count()
    };
    assert_eq!(computes(&whole), computes(&input) + computes(&weight));
}

#[test]
fn a_stage_holds_more_between_the_halves_than_after_both() {
    let (program, ..) = halves();
    let class = &program.classes[1];
    let mut tracker = shardloom_program::MemoryTracker::new(class, 0);
    let mut after = vec![];
    for entry in class.entries() {
        for instruction in &class.body_of(entry).instructions {
            tracker.begin(instruction, entry.microbatch);
            tracker.end(instruction, entry.microbatch);
        }
        after.push((class.body_of(entry).kind, tracker.live_bytes()));
    }
    let at = |kind| after.iter().rfind(|it| it.0 == kind).expect("it runs").1;
    let held = class.persistent_bytes(0).total();
    assert!(at(BodyKind::Forward) > at(BodyKind::BackwardInput));
    assert!(at(BodyKind::BackwardInput) > held);
    assert_eq!(at(BodyKind::BackwardWeight), held);
}

/// For each class the ages of its forwards and backwards, where all of a kind have one.
fn ages(weights: Weights, microbatches: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let uniform = Uniform { microbatches, ..uniform(ScheduleKind::PipeDream, 4) };
    let mut plan = uniform.plan(&graph(), "model", "local");
    plan.weights = weights;
    let program = lowered(&plan);
    let of = |class: &Class, kind| -> Vec<u32> {
        let entries = class.entries().filter(|entry| class.body_of(entry).kind == kind);
        entries.map(|entry| entry.age).collect()
    };
    let both = |class| (of(class, BodyKind::Forward), of(class, BodyKind::Backward));
    program.classes.iter().map(both).collect()
}

#[test]
fn old_weights_are_as_old_as_the_papers_say() {
    // n - 1 - s updates between a forward and its backward, n = 4.
    let stash: Vec<_> = (0..4).map(|stage| (vec![0], vec![3 - stage])).collect();
    assert_eq!(ages(Weights::Stash, 1), stash);
    // All stages use what the first used: n - 1 updates old at the backward pass.
    let vertical: Vec<_> = (0..4).map(|stage| (vec![stage], vec![3])).collect();
    assert_eq!(ages(Weights::VerticalSync, 1), vertical);
    // One update old; forwards of the next step run with the newest.
    let double: Vec<_> = (0..4)
        .map(|stage| {
            let next_step = 3 - stage;
            let forwards = (0..4).map(|it| u32::from(it < 4 - next_step)).collect();
            (forwards, vec![1; 4])
        })
        .collect();
    assert_eq!(ages(Weights::DoubleBuffer, 4), double);
}

#[test]
fn late_gradients_are_as_late_as_the_papers_say() {
    let delays = |schedule, microbatches| -> Vec<f64> {
        let uniform = Uniform { microbatches, ..uniform(schedule, 4) };
        let program = lowered(&uniform.plan(&graph(), "model", "local"));
        program.classes.iter().map(|class| class.delay).collect()
    };
    assert_eq!(delays(ScheduleKind::PipeDream, 1), [3.0, 2.0, 1.0, 0.0]);
    assert_eq!(delays(ScheduleKind::PipeMare, 1), [6.0, 4.0, 2.0, 0.0]);
    assert_eq!(delays(ScheduleKind::PipeMare, 4), [1.5, 1.0, 0.5, 0.0]);
    assert_eq!(delays(ScheduleKind::OneForwardOneBackward, 4), [0.0; 4]);
}

#[test]
fn a_parameter_of_several_stages_is_updated_as_the_latest_of_their_gradients() {
    let spec = format!("gpt:layers=14,hidden={HIDDEN},heads=2,seq={SEQ},vocab=32,tied=true");
    let graph = ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a valid model");
    let uniform = Uniform { microbatches: 1, ..uniform(ScheduleKind::PipeMare, 4) };
    let plan = uniform.plan(&graph, "model", "local");
    let program = lower(&graph, &plan, plan.device_count()).expect("a program");
    let delays = |class: &Class| -> Vec<f64> {
        let buckets = class.buckets().filter(|(_, bucket)| !bucket.classes.is_empty());
        buckets.map(|(id, _)| program.update_delay(class, id)).collect()
    };
    // The first stage and the last hold the table: its gradients are 6 updates late on the one, and none on the other.
    assert_eq!(
        program.classes.iter().map(delays).collect::<Vec<_>>(),
        [vec![6.0], vec![], vec![], vec![6.0]]
    );
    for class in &program.classes {
        let own = class.buckets().filter(|(_, bucket)| bucket.classes.is_empty());
        for (id, _) in own {
            assert_eq!(program.update_delay(class, id), class.delay);
        }
    }
}

#[test]
fn a_device_with_stages_of_several_pipelines_has_the_mean_of_their_delays() {
    let uniform = Uniform { microbatches: 2, ..uniform(ScheduleKind::Chimera, 2) };
    let mut plan = uniform.plan_in_chunks(&graph(), "model", "local", 2).expect("two pipelines");
    plan.schedule = ScheduleKind::Table;
    plan.weights = Weights::Newest { corrections: Corrections::default() };
    // The first device runs ahead in the one pipeline, and does not in the other.
    plan.order = vec!["F2 B0 F1< B1<".into(), "F0 F1< B0 B1<".into()];
    let delays: Vec<f64> = lowered(&plan).classes.iter().map(|class| class.delay).collect();
    assert_eq!(delays, [0.5, 0.0]);
}

#[test]
fn a_schedule_is_refused_on_places_that_are_not_its_own() {
    let mut plan = uniform(ScheduleKind::Interleaved, 2).plan(&graph(), "model", "local");
    plan.schedule = ScheduleKind::Hanayo;
    let error = lower(&graph(), &plan, 2).expect_err("a wave goes to and fro");
    assert_eq!(
        error.to_string(),
        "schedule: hanayo wants its stages on devices 0 1 1 0, and they are on 0 1 0 1"
    );
}

#[test]
fn a_written_order_that_runs_ahead_has_a_rule_for_old_weights_and_no_other_has() {
    let lowered = |order: [&str; 2], weights: Weights| {
        let mut plan =
            uniform(ScheduleKind::OneForwardOneBackward, 2).plan(&graph(), "model", "local");
        (plan.microbatches, plan.schedule, plan.weights) = (1, ScheduleKind::Table, weights);
        plan.order = order.map(String::from).to_vec();
        lower(&graph(), &plan, 2)
    };
    let (ahead, flushed) = (["F1 B0", "F0 B0"], ["F0 B0", "F0 B0"]);
    let program = lowered(ahead, Weights::Stash).expect("PipeDream, written down");
    assert_eq!((program.ahead, program.classes[0].versions()), (1, 2));
    assert!(lowered(flushed, Weights::Flush).is_ok());
    let refusal = |order, weights| lowered(order, weights).expect_err("unfit").to_string();
    let message = refusal(ahead, Weights::Flush);
    assert!(message.contains("weights.rule = flush: some device runs ahead"), "{message}");
    let message = refusal(flushed, Weights::Stash);
    assert!(message.contains("weights.rule = stash: no device runs ahead"), "{message}");
    let message = refusal(["F4000000000 B0", "F0 B0"], Weights::Stash);
    assert!(message.contains("runs 4000000000 steps ahead"), "{message}");
}

/// Stages whose replicas take micro-batches in turn, updated after each round, of a model whose head may
/// be tied to the embedding.
fn in_turns(replicas: &[usize], tied: bool) -> Result<Program, String> {
    in_turns_with(replicas, tied, Weights::Stash)
}

/// Likewise, by another rule for old weights.
fn in_turns_with(replicas: &[usize], tied: bool, weights: Weights) -> Result<Program, String> {
    let spec = format!("gpt:layers=4,hidden={HIDDEN},heads=2,seq={SEQ},vocab=32,tied={tied}");
    let graph = ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a valid model");
    let places = Arrangement::taking_turns(replicas).expect("few turns");
    let uniform = uniform(ScheduleKind::PipeDream, replicas.len());
    let uniform = Uniform { microbatches: 12, global_batch: 12, ..uniform };
    let mut plan = uniform.plan(&graph, "model", "local");
    let mut chain = plan.pipeline.remove(0);
    for devices in &places {
        for (stage, &device) in chain.stage.iter_mut().zip(devices) {
            stage.devices = DeviceList(vec![device as u32]);
        }
        plan.pipeline.push(chain.clone());
    }
    (plan.updates, plan.weights) = (Updates::Round, weights);
    lower(&graph, &plan, plan.device_count()).map_err(|error| error.to_string())
}

#[test]
fn a_stage_in_several_pipelines_is_one_copy_and_replicas_add_up_their_gradients() {
    for replicas in [&[2, 1][..], &[1, 2], &[2, 3, 1]] {
        let program = in_turns(replicas, false).expect("a program");
        assert_eq!(program.ranks(), replicas.iter().sum::<usize>());
        let mut classes = program.classes();
        for (stage, &count) in replicas.iter().enumerate() {
            let copies: Vec<(ClassId, &Class)> = classes.by_ref().take(count).collect();
            let ids: Vec<ClassId> = copies.iter().map(|&(id, _)| id).collect();
            for (replica, (_, class)) in copies.iter().enumerate() {
                let place = match count {
                    1 => format!("stage {stage}"),
                    _ => format!("stage {stage}, replica {replica}"),
                };
                assert_eq!(class.place(), place);
                assert_eq!(class.updates() as usize, 12 / count);
                let different: BTreeSet<_> = class.params.iter().map(|it| it.value).collect();
                assert_eq!(different.len(), class.params.len(), "{place} has one copy");
                for bucket in &class.buckets {
                    assert_eq!(bucket.classes, if count > 1 { ids.clone() } else { vec![] });
                }
                let updates = class.entries().filter(|entry| entry.microbatch.is_none());
                assert_eq!(updates.count(), 12 / count);
            }
        }
    }
}

#[test]
fn a_parameter_of_stages_that_update_at_different_times_is_refused() {
    assert!(in_turns(&[2, 2], true).is_ok());
    let error = in_turns(&[1, 2], true).expect_err("12 and 6 updates a step");
    assert!(error.contains("embedding") && error.contains("12 and 6 times"), "{error}");
}

/// How old the weights of each forward and each last pass are, counted: of steps in the middle of many, as
/// stage, whether it is a forward, micro-batch, updates before it, and the entry's own age.
fn counted_ages(program: &Program) -> Vec<(usize, bool, u32, u32, u32)> {
    let steps = 2 * program.ahead + 3;
    let mut counted = vec![];
    for class in &program.classes {
        let stage = usize::from(class.stages[0].instance.stage);
        let mut updates = 0;
        for run in program.cursor(class, steps).runs(true) {
            match class.body_of(&run.entry).kind {
                BodyKind::Epilogue => updates += 1,
                kind => {
                    let microbatch = run.microbatch.expect("passes have one");
                    let forward = kind == BodyKind::Forward;
                    counted.push((stage, forward, microbatch, updates, run.entry.age));
                }
            }
        }
    }
    // Earlier ones would need weights from before the first step.
    let filled = program.microbatches as u32 * (program.ahead + 1);
    counted.into_iter().filter(|(_, _, microbatch, ..)| *microbatch >= filled).collect()
}

#[test]
fn in_rounds_vertical_sync_runs_every_stage_on_the_gradients_of_the_same_micro_batches() {
    let mut rounded = 0;
    for replicas in [&[2, 1][..], &[1, 2], &[2, 3, 1], &[3, 2], &[1, 3, 2]] {
        let program = in_turns_with(replicas, false, Weights::VerticalSync).expect("a program");
        let counted = counted_ages(&program);
        for &(stage, _, microbatch, updates, age) in &counted {
            let input = counted.iter().find(|&&(stage, forward, other, ..)| {
                (stage, forward, other) == (0, true, microbatch)
            });
            let &(_, _, _, input_updates, _) = input.expect("the first stage runs all");
            // Each update of a stage brings the gradients of as many micro-batches as it has replicas.
            let brought = input_updates as usize * replicas[0];
            rounded += usize::from(!brought.is_multiple_of(replicas[stage]));
            let version = (brought / replicas[stage]) as u32;
            assert_eq!(age, updates - version, "stage {stage} of {replicas:?}: {microbatch}");
        }
    }
    assert!(rounded > 0, "stages never have to leave out what the first has already");
}

#[test]
fn in_rounds_a_stash_keeps_each_forward_s_weights_for_its_backward() {
    for replicas in [&[2, 1][..], &[2, 3, 1]] {
        let program = in_turns_with(replicas, false, Weights::Stash).expect("a program");
        let counted = counted_ages(&program);
        for &(stage, forward, microbatch, updates, age) in &counted {
            let of_forward = counted.iter().find(|&&(other, forward, its, ..)| {
                (other, forward, its) == (stage, true, microbatch)
            });
            let &(_, _, _, before, _) = of_forward.expect("every micro-batch has a forward");
            let expected = if forward { 0 } else { updates - before };
            assert_eq!(age, expected, "stage {stage} of {replicas:?}: {microbatch}");
        }
    }
}

#[test]
fn two_versions_are_refused_where_some_stage_would_run_further_ahead_than_one_step() {
    for stages in [2, 3, 4] {
        for microbatches in 1..=stages {
            let uniform = Uniform {
                microbatches,
                global_batch: microbatches,
                ..uniform(ScheduleKind::PipeDream, stages)
            };
            let mut plan = uniform.plan(&graph(), "model", "local");
            plan.weights = Weights::DoubleBuffer;
            let found = lower(&graph(), &plan, stages);
            // The first stage begins the forward pass of micro-batch k + stages after the backward pass of
            // k, and before the update with k's gradient if k is not the last of its step.
            let ahead = (stages + microbatches - 2) / microbatches;
            match found {
                Ok(program) => {
                    assert!(ahead <= 1, "{stages} stages, {microbatches} micro-batches");
                    assert!(program.classes.iter().all(|class| class.versions() <= 2));
                }
                Err(error) => {
                    assert!(ahead > 1, "{stages} stages, {microbatches} micro-batches");
                    let said = format!("some stage runs {ahead} steps ahead");
                    assert!(error.to_string().contains(&said), "{error} and not {said}");
                }
            }
        }
    }
}

#[test]
fn each_owner_of_a_stage_sends_its_own_part_of_a_reduction() {
    let program = in_turns(&[2, 3, 1], false).expect("a program");
    let mut unlike = 0;
    for (id, class) in program.classes() {
        let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
        for instruction in instructions {
            let Action::Collective { group: Group::Classes(owners), .. } = &instruction.action
            else {
                continue;
            };
            let elements = class.view_range(instruction.reads[0], 0).len();
            let list = collective(Kind::AllReduce, Algorithm::Ring, owners.len() as u32, elements)
                .expect("a ring of all sizes");
            let sends = |member: usize| (4 * list.sent_elements(Member(member as u32))) as u64;
            let own = owners.iter().position(|&owner| owner == id).expect("it is one of them");
            assert_eq!(program.instruction_sent_bytes(id, 0, instruction), sends(own));
            unlike += usize::from(sends(own) != sends(0));
        }
    }
    assert!(unlike > 0, "all owners send as much as the first");
}

/// Thousands of stages have millions of messages, which their routes do not each hold.
#[test]
fn boundaries_alike_have_one_list_of_messages_each_way() {
    let program = program(ScheduleKind::OneForwardOneBackward, 8, 1);
    assert_eq!(program.routes.len(), 2 * 7);
    let mut lists: Vec<*const Message> =
        program.routes.iter().map(|it| it.messages.as_ptr()).collect();
    lists.sort_unstable();
    lists.dedup();
    // Meshes and layouts are the same on both sides, so that there and back are too.
    assert_eq!(lists.len(), 1);
}
