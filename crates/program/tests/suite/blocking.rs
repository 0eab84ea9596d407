//! Ranks that block at every receive and every collective come through every program, and all members
//! of a group run the same collectives in the same order.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Arrangement, DeviceList, Mesh, Plan, ScheduleKind, StageReplicas, Sync, Uniform, Updates,
    Weights, pipelines_in_turn,
};
use shardloom_program::verify::{Row, run_blocking};
use shardloom_program::{
    Action, BodyKind, BucketId, Class, ClassId, Control, Entry, Group, Program, lower,
};
use shardloom_schedule::{Action as ScheduleAction, Schedule, StageMap};

fn graph(tied: bool) -> Graph {
    let spec = format!("gpt:layers=14,hidden=8,heads=2,seq=4,vocab=16,tied={tied}");
    ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn uniform(schedule: ScheduleKind, pp: usize, mesh: Mesh, zero: u8) -> Uniform {
    let microbatches = 2 * pp;
    Uniform {
        pp,
        mesh,
        sequence_parallel: mesh.tp() > 1,
        global_batch: microbatches * mesh.dp() as usize,
        microbatches,
        schedule,
        sync: Sync { zero, bucket_bytes: 2000, ..Sync::default() },
        clip_norm: schedule.flushes().then_some(1.0),
        ..Uniform::default()
    }
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs all ranks of `program`, each as far as it comes, until they are through or wait in a circle.
fn execute(program: &Program) -> Result<(), String> {
    execute_rolling_back(program, false)
}

/// Likewise, where all updates that are tested in the next step were wrong, or none was.
fn execute_rolling_back(program: &Program, wrong: bool) -> Result<(), String> {
    let row = if wrong { Row::RolledBack } else { Row::Usual };
    run_blocking(program, row).map_err(|violation| violation.to_string())
}

/// The entries between passes, each with its place in the control.
fn synchronisations(class: &Class) -> Vec<(usize, Entry)> {
    let is_one = |it: &Entry| class.body_of(it).kind == BodyKind::Synchronisation;
    let entry = |part: &Control| match part {
        Control::Run(entry) => Some(*entry).filter(is_one),
        Control::Guard(_) | Control::Serve(_) | Control::AsReceived(_) => None,
    };
    let parts = class.control.iter().enumerate();
    parts.filter_map(|(at, part)| Some((at, entry(part)?))).collect()
}

fn chimera(devices: usize) -> Program {
    let plan = uniform(ScheduleKind::Chimera, devices, Mesh::SINGLE, 0);
    let graph = graph(false);
    let plan = plan.plan_in_chunks(&graph, "model", "local", 2);
    lowered(&graph, &plan.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn blocking_ranks_come_through_every_schedule_in_every_width() {
    let mesh = |dp, tp| Mesh::of(dp, 1, tp);
    let widths =
        [(mesh(1, 1), 0), (mesh(1, 2), 0), (mesh(2, 1), 1), (mesh(2, 2), 2), (mesh(3, 1), 3)];
    let (mut lowered, mut meeting) = (vec![], vec![]);
    for schedule in ScheduleKind::ALL.into_iter().filter(|it| *it != ScheduleKind::Table) {
        let two_way = schedule.arrangement() == Some(Arrangement::Bidirectional);
        for (tied, pp) in [(false, 2), (true, 2), (false, 4), (true, 4), (false, 8), (true, 8)] {
            let graph = graph(tied);
            let least = uniform(schedule, pp, Mesh::SINGLE, 0).least_chunks();
            for chunks in least..=if two_way { pp } else { least } {
                for (mesh, zero) in widths {
                    let uniform = uniform(schedule, pp, mesh, zero);
                    let plan = uniform.plan_in_chunks(&graph, "model", "local", chunks);
                    // Not all schedules exist for all chunks, or with sharded weights.
                    let Ok(plan) = plan else { continue };
                    let Ok(program) = lower(&graph, &plan, plan.device_count()) else { continue };
                    let text = format!("{schedule:?} {pp} x {mesh}, {chunks} chunks, tied {tied}");
                    assert_eq!(execute(&program), Ok(()), "{text}");
                    lowered.push(schedule);
                    if program.classes.iter().any(|class| !synchronisations(class).is_empty()) {
                        meeting.push((schedule, chunks));
                    }
                }
            }
        }
        let programs = lowered.iter().filter(|it| **it == schedule).count();
        assert!(programs >= 6, "{schedule:?} was lowered {programs} times");
    }
    for met in [
        (ScheduleKind::Chimera, 2),
        (ScheduleKind::Chimera, 4),
        (ScheduleKind::ChimeraDoubling, 2),
        (ScheduleKind::DualPipe, 2),
    ] {
        assert!(meeting.contains(&met), "{met:?} in {meeting:?}");
    }
}

/// Widths with ZeRO stages, for what does not depend on more of them.
fn few_widths() -> [(Mesh, u8); 4] {
    let mesh = |dp, tp| Mesh::of(dp, 1, tp);
    [(mesh(1, 1), 0), (mesh(2, 1), 1), (mesh(2, 2), 2), (mesh(2, 1), 3)]
}

#[test]
fn blocking_ranks_come_through_validations_of_right_and_wrong_updates() {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for schedule in kinds.filter(|kind| kind.flushes()) {
        for (tied, pp) in [(false, 2), (true, 4)] {
            let graph = graph(tied);
            for (mesh, zero) in few_widths() {
                let plan = uniform(schedule, pp, mesh, zero).plan(&graph, "model", "local");
                let plan = Plan { post_validation: true, ..plan };
                let program = lowered(&graph, &plan);
                assert!(program.classes.iter().all(|class| class.late() == 1));
                for wrong in [false, true] {
                    let found = execute_rolling_back(&program, wrong);
                    assert_eq!(found, Ok(()), "{schedule:?} {pp} x {mesh}, wrong {wrong}");
                }
            }
        }
    }
}

#[test]
fn blocking_ranks_come_through_replicas_in_turn_and_updates_after_every_round() {
    let graph = graph(false);
    let cases = [
        (ScheduleKind::OneForwardOneBackward, Weights::Flush, Updates::Step),
        (ScheduleKind::PipeDream, Weights::Stash, Updates::Step),
        (ScheduleKind::PipeDream, Weights::Stash, Updates::Round),
        (ScheduleKind::PipeDream, Weights::VerticalSync, Updates::Round),
    ];
    for replicas in [&[1, 1][..], &[2, 1], &[1, 2], &[2, 3], &[1, 2, 1], &[2, 1, 2]] {
        for (schedule, weights, updates) in cases {
            for (mesh, zero) in few_widths() {
                let plan = in_turn(&graph, replicas, uniform(schedule, replicas.len(), mesh, zero));
                let program = lowered(&graph, &Plan { weights, updates, ..plan });
                let text = format!("{replicas:?} x {mesh}, {schedule:?}, {weights:?}, {updates:?}");
                assert_eq!(execute(&program), Ok(()), "{text}");
                let most = program.classes.iter().map(Class::updates).max();
                assert_eq!(most > Some(1), updates == Updates::Round, "{text}");
            }
        }
    }
}

/// A plan whose stages have replicas that take micro-batches in turn, twice round in a step.
fn in_turn(graph: &Graph, replicas: &[u32], uniform: Uniform) -> Plan {
    let mesh = uniform.mesh;
    let mut plan = uniform.plan(graph, "model", "local");
    let mut devices = 0u32..;
    let mut replica = || DeviceList(devices.by_ref().take(mesh.size()).collect());
    let stages = plan.pipeline[0].stage.iter().zip(replicas);
    let stages = stages.map(|(stage, &count)| StageReplicas {
        blocks: stage.blocks,
        mesh,
        replicas: (0..count).map(|_| replica()).collect(),
    });
    let stages: Vec<StageReplicas> = stages.collect();
    plan.pipeline = pipelines_in_turn(&stages).unwrap_or_else(|error| panic!("{error}"));
    plan.microbatches = 2 * plan.pipeline.len();
    plan.global_batch = plan.microbatches * mesh.dp() as usize;
    plan
}

#[test]
fn blocking_ranks_come_through_orders_that_are_written_down() {
    let kinds = [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH2,
        ScheduleKind::Chimera,
        ScheduleKind::DualPipe,
        ScheduleKind::Hanayo,
        ScheduleKind::PipeDream,
    ];
    let graph = graph(false);
    for kind in kinds {
        for (mesh, zero) in few_widths() {
            let plan = uniform(kind, 4, mesh, zero).plan(&graph, "model", "local");
            let chunks = uniform(kind, 4, mesh, zero).least_chunks();
            let arrangement = kind.arrangement().expect("these say where stages live");
            let map = StageMap::arranged(arrangement, 4, chunks, plan.microbatches);
            let built = map.and_then(|map| Schedule::build(kind, map, &plan.pass_times));
            let built = built.unwrap_or_else(|error| panic!("{error}"));
            let line = |(device, order): (usize, &Vec<ScheduleAction>)| -> String {
                let actions = order.iter().map(|&action| built.map.text(device, action));
                actions.collect::<Vec<_>>().join(" ")
            };
            let order = built.orders.iter().enumerate().map(line).collect();
            let written = Plan { schedule: ScheduleKind::Table, order, ..plan.clone() };
            let program = lowered(&graph, &written);
            assert_eq!(program, lowered(&graph, &plan), "{kind:?}");
            assert_eq!(execute(&program), Ok(()), "{kind:?} x {mesh}");
        }
    }
}

#[test]
fn a_meeting_out_of_order_is_noticed() {
    let moved = |class: usize, from: usize, to: usize| {
        let mut program = chimera(8);
        let entry = program.classes[class].control.remove(from);
        program.classes[class].control.insert(to, entry);
        execute(&program)
    };
    let program = chimera(8);
    let (at, _) = synchronisations(&program.classes[0])[0];
    assert_eq!(moved(0, at, at), Ok(()));
    // One of the two comes before anything that the other waits for.
    let stuck = moved(0, at, 0).expect_err("both wait");
    assert!(stuck.contains("waits at"), "{stuck}");
    // One of the two has the buckets in another order.
    let mut program = chimera(8);
    let body = synchronisations(&program.classes[0])[0].1.body;
    program.classes[0].bodies[body.0 as usize].instructions.reverse();
    let mixed = execute(&program).expect_err("different buckets");
    assert!(mixed.contains("meets"), "{mixed}");
}

#[test]
fn stages_are_added_up_early_but_for_those_in_the_middle_and_those_that_end_a_device() {
    let names = |class: &Class, buckets: Vec<BucketId>| -> Vec<String> {
        buckets.into_iter().map(|it| class.bucket(it).name.clone()).collect()
    };
    for devices in [4usize, 6, 8] {
        let program = chimera(devices);
        let single = uniform(ScheduleKind::OneForwardOneBackward, devices, Mesh::SINGLE, 0);
        let single = lowered(&graph(false), &single.plan(&graph(false), "model", "local"));
        for (index, class) in program.classes.iter().enumerate() {
            let entries = synchronisations(class);
            let bodies = entries.iter().map(|(_, item)| class.body(item.body));
            let early = bodies.flat_map(|body| &body.instructions).map(|it| match it.action {
                Action::Collective { group: Group::Classes(_), .. } => {
                    let tensor = class.tensor(it.reads[0].tensor);
                    tensor.bucket.expect("gradients lie in buckets")
                }
                _ => panic!("{:?} between passes", it.action),
            });
            let early = names(class, early.collect());
            // Of a device's two stages the later one is through first.
            let later = single.class(ClassId(index.max(devices - 1 - index) as u32));
            let middle = index == devices / 2 || index + 1 == devices / 2;
            let expected = match middle {
                true => vec![],
                false => names(later, later.buckets().map(|(id, _)| id).collect()),
            };
            assert_eq!(early, expected, "device {index} of {devices}");
        }
    }
}
