//! Passes that overlap: the pieces of both, in turn, are the passes.

use std::collections::BTreeMap;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{Action, Body, BodyKind, Class, Instruction, Program, Queue, lower};
use shardloom_schedule::{Action as ScheduleAction, Schedule, StageMap};

fn graph(tied: bool) -> Graph {
    let spec = format!("gpt:layers=6,hidden=16,heads=4,seq=8,vocab=32,tied={tied}");
    ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn plan(graph: &Graph, schedule: ScheduleKind, (dp, tp): (u32, u32), zero: u8) -> Plan {
    let uniform = Uniform {
        pp: 2,
        mesh: Mesh::of(dp, 1, tp),
        sequence_parallel: zero == 1,
        global_batch: 8 * dp as usize,
        microbatches: 8,
        schedule,
        recompute: Recompute::Selective,
        sync: Sync { zero, ..Sync::default() },
        ..Uniform::default()
    };
    let plan = uniform.plan_in_chunks(graph, "model", "local", 2);
    plan.unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn schedule(plan: &Plan) -> Schedule {
    let arrangement = plan.schedule.arrangement().expect("it says where stages live");
    StageMap::arranged(arrangement, 2, 2, plan.microbatches)
        .and_then(|map| Schedule::build(plan.schedule, map, &plan.pass_times))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The same plan with one pass after the other.
fn one_after_the_other(plan: &Plan) -> Plan {
    let Schedule { map, orders } = schedule(plan);
    let line = |(device, order): (usize, &Vec<ScheduleAction>)| {
        let passes = order.iter().flat_map(|action| action.passes());
        let passes: Vec<String> =
            passes.map(|pass| map.text(device, ScheduleAction::Alone(pass))).collect();
        passes.join(" ")
    };
    let order = orders.iter().enumerate().map(line).collect();
    Plan { schedule: ScheduleKind::Table, order, ..plan.clone() }
}

/// The names of a class's entries, and what each pass comes to.
fn passes(class: &Class) -> (Vec<String>, BTreeMap<String, Vec<Instruction>>) {
    let (mut names, mut passes) = (vec![], BTreeMap::<String, Vec<Instruction>>::new());
    for entry in class.entries() {
        let body = class.body_of(entry);
        names.push(body.label(entry.microbatch));
        // Where they wait for each other, and the numbers of queues, depend on where they stand.
        let instructions = body.instructions.iter().cloned();
        let apart =
            instructions.map(|it| Instruction { queue: Queue::Compute, after: vec![], ..it });
        passes.entry(names[names.len() - 1].clone()).or_default().extend(apart);
    }
    (names, passes)
}

const BOTH: [ScheduleKind; 2] = [ScheduleKind::DualPipe, ScheduleKind::DualPipeV];

#[test]
fn the_pieces_of_overlapped_passes_are_the_passes() {
    for schedule in BOTH {
        for tied in [false, true] {
            for (mesh, zero) in [((1, 2), 0), ((2, 2), 1), ((2, 2), 2), ((2, 2), 3)] {
                let graph = graph(tied);
                let plan = plan(&graph, schedule, mesh, zero);
                let program = lowered(&graph, &plan);
                let apart = lowered(&graph, &one_after_the_other(&plan));
                let mut more = 0;
                for (class, other) in program.classes.iter().zip(&apart.classes) {
                    assert_eq!(class.tensors, other.tensors);
                    let ((names, found), (whole, expected)) = (passes(class), passes(other));
                    assert_eq!(found, expected, "{schedule:?} {mesh:?} zero {zero}");
                    more += names.len() - whole.len();
                }
                // Tied weights are gathered on both ends of the model, which share a device.
                assert!(more > 0 || (tied && zero == 3), "some passes are cut");
            }
        }
    }
}

#[test]
fn pieces_alternate_and_end_with_collectives() {
    let graph = graph(false);
    for kind in BOTH {
        let plan = plan(&graph, kind, (1, 2), 0);
        let program = lowered(&graph, &plan);
        let apart = lowered(&graph, &one_after_the_other(&plan));
        let Schedule { map, orders } = schedule(&plan);
        for (device, order) in orders.iter().enumerate() {
            let class = &program.classes[device];
            let (_, whole) = passes(&apart.classes[device]);
            let is_pass = |body: &Body| body.kind != BodyKind::Synchronisation;
            let items = class.entries().map(|it| (class.body_of(it), it.microbatch));
            let mut items = items.filter(|(body, _)| is_pass(body));
            for action in order {
                let names = action.passes().map(|pass| map.pass_text(device, pass));
                let lengths: Vec<usize> = names.map(|name| whole[&name].len()).collect();
                let mut pieces: Vec<&Body> = vec![];
                while pieces.iter().map(|it| it.instructions.len()).sum::<usize>()
                    < lengths.iter().sum()
                {
                    pieces.push(items.next().expect("the action goes on").0);
                }
                if lengths.len() == 1 {
                    assert_eq!(pieces.len(), 1, "a pass alone is whole");
                    continue;
                }
                let forward = |it: &&&Body| it.kind == BodyKind::Forward;
                let forwards = pieces.iter().filter(forward).count();
                let backwards = pieces.len() - forwards;
                // Each block has two collectives each way.
                assert!(forwards > 2 && backwards > 2, "{forwards} and {backwards} pieces");
                let (mut forward_done, mut backward_done) = (0usize, 0usize);
                for piece in &pieces {
                    let (done, of) = match piece.kind {
                        BodyKind::Forward => (&mut forward_done, forwards),
                        _ => (&mut backward_done, backwards),
                    };
                    *done += 1;
                    let exchanges = piece
                        .instructions
                        .last()
                        .is_some_and(|last| matches!(last.action, Action::Collective { .. }));
                    assert!(exchanges || *done == of, "a piece ends with a collective");
                    // Neither is further ahead of its share than by a piece.
                    let apart = (forward_done * backwards).abs_diff(backward_done * forwards);
                    assert!(apart <= forwards.max(backwards), "{forward_done}, {backward_done}");
                }
            }
        }
    }
}

#[test]
fn what_gathers_weights_that_the_other_uses_is_not_cut() {
    // Both ends of a model with tied weights lie on each device, and ZeRO-3 gathers them for each.
    let pieces = |tied| {
        let graph = graph(tied);
        let plan = plan(&graph, ScheduleKind::DualPipe, (2, 2), 3);
        let overlapping = lowered(&graph, &plan).classes[0].control.len();
        overlapping - lowered(&graph, &one_after_the_other(&plan)).classes[0].control.len()
    };
    assert!(pieces(false) > pieces(true), "{} and {}", pieces(false), pieces(true));
}

#[test]
fn without_collectives_inside_passes_nothing_is_cut() {
    for kind in BOTH {
        let graph = graph(false);
        let plan = plan(&graph, kind, (2, 1), 2);
        let (program, apart) =
            (lowered(&graph, &plan), lowered(&graph, &one_after_the_other(&plan)));
        assert_eq!(program, apart);
    }
}

/// Of two backward passes the second reduces what the first still adds to.
#[test]
fn what_reduces_gradients_that_the_other_adds_to_is_not_cut() {
    let graph = graph(false);
    for zero in 0..=3 {
        let overlapping = plan(&graph, ScheduleKind::DualPipe, (2, 2), zero);
        let uniform = Uniform {
            mesh: Mesh::of(2, 1, 2),
            sequence_parallel: zero == 1,
            global_batch: 4,
            microbatches: 2,
            schedule: ScheduleKind::Afab,
            recompute: Recompute::Selective,
            sync: overlapping.sync,
            ..Uniform::default()
        };
        let alone = uniform.plan(&graph, "model", "local");
        let bodies = |order: &str| {
            let order = vec![order.to_owned()];
            let plan = Plan { schedule: ScheduleKind::Table, order, ..alone.clone() };
            let program = lowered(&graph, &plan);
            assert_eq!(verify(&program), Ok(()), "ZeRO-{zero}");
            let backward = |entry: &&shardloom_program::Entry| {
                program.classes[0].body_of(entry).kind == BodyKind::Backward
            };
            program.classes[0].entries().filter(backward).count()
        };
        assert_eq!(bodies("F0 F1 B0 B1"), 2);
        assert_eq!(bodies("F0 F1 B0+B1"), 2, "ZeRO-{zero}");
        // A forward pass has nothing to do with gradients, and is cut beside a backward pass.
        assert!(zero == 3 || bodies("F0 B0+F1 B1") > 2, "ZeRO-{zero}");
    }
}
