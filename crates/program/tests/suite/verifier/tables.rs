//! Programs in which tables lie on servers are sound, and rejected where an instruction of it is left out, done twice
//! or in another order, is about other rows, or goes another way.

use std::sync::Arc;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Optimizer, ParameterGroup, Plan, Recompute, Summation, Sync, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{Action, Carried, Class, Content, Instruction, Program, Window, lower};

use super::programs::gpt;

fn group(names: &str, servers: &[u32]) -> ParameterGroup {
    ParameterGroup { servers: Some(servers.to_vec()), ..ParameterGroup::named(names) }
}

fn table(servers: &[u32]) -> ParameterGroup {
    ParameterGroup { sparse: Some(true), ..group("embedding.token", servers) }
}

/// So many workers, and a table on these servers; the rest is summed as the groups say.
fn plan(
    graph: &Graph,
    (workers, servers): (u32, &[u32]),
    rest: Vec<ParameterGroup>,
    clip_norm: Option<f64>,
) -> Plan {
    let count = 1 + servers.iter().max().expect("a server");
    let uniform = Uniform {
        mesh: Mesh::of(workers, 1, 1),
        sync: Sync { summation: Some(Summation::of(count)), ..Sync::default() },
        global_batch: 24,
        microbatches: 2,
        clip_norm,
        ..Uniform::default()
    };
    let parameters = [table(servers)].into_iter().chain(rest).collect();
    Plan { parameters, ..uniform.plan(graph, "model", "local") }
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two workers, and a table in three pieces on two servers.
fn program() -> Program {
    let graph = gpt(false);
    lowered(&graph, &plan(&graph, (2, &[0, 1, 0]), vec![group("*", &[])], Some(1.0)))
}

#[test]
fn tables_on_servers_are_sound() {
    let graph = gpt(false);
    for workers in [1, 2, 3, 4] {
        for servers in [&[0][..], &[0, 1], &[1, 0, 1]] {
            for rest in [vec![group("*", &[])], vec![], vec![group("*norm*", &[])]] {
                for clip_norm in [None, Some(1.0)] {
                    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
                        for recompute in [Recompute::None, Recompute::Full, Recompute::Block] {
                            let plan = plan(&graph, (workers, servers), rest.clone(), clip_norm);
                            let plan = Plan { optimizer, recompute, ..plan };
                            let program = lowered(&graph, &plan);
                            assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
                            let of = program.classes.iter().filter(|it| it.holds_tables());
                            assert!(of.count() > 0);
                        }
                    }
                }
            }
        }
    }
}

/// Whether an instruction has to do with rows of a table that servers hold.
fn is_of_rows(program: &Program, class: &Class, instruction: &Instruction) -> bool {
    match instruction.action {
        Action::LoadRows { .. } | Action::FindRows | Action::TakeRows | Action::SumRows => true,
        Action::Send { route } | Action::Receive { route } => program.route(route).moves_rows(),
        Action::Optimizer | Action::Norm => class.holds_tables(),
        _ => false,
    }
}

/// Where such instructions stand, by class, body and number.
fn places(program: &Program) -> Vec<(usize, usize, usize)> {
    let mut places = vec![];
    for (id, class) in program.classes.iter().enumerate() {
        for (body, spec) in class.bodies.iter().enumerate() {
            let all = spec.instructions.iter().enumerate();
            let those = all.filter(|(_, it)| is_of_rows(program, class, it));
            places.extend(those.map(|(index, _)| (id, body, index)));
        }
    }
    places
}

fn changed(program: &Program, change: impl FnOnce(&mut Program)) -> Result<(), Vec<Violation>> {
    let mut program = program.clone();
    change(&mut program);
    program.assign_queues();
    verify(&program)
}

#[test]
fn what_is_left_out_or_done_twice_is_found() {
    let program = program();
    let places = places(&program);
    // Of each of two workers in training, and of the first in evaluation: rows loaded, asked for, received; of each
    // server what answers that.
    assert!(places.len() > 50, "{} instructions", places.len());
    for (class, body, index) in places {
        let instruction = program.classes[class].bodies[body].instructions[index].clone();
        let what = format!("{:?} of {class}, {body}", instruction.action);
        let without = changed(&program, |it| {
            let removed = it.classes[class].bodies[body].instructions.remove(index);
            // What was there until then is free as before.
            if let Some(before) =
                it.classes[class].bodies[body].instructions.get_mut(index.max(1) - 1)
            {
                before.frees.extend(removed.frees);
            }
        });
        assert!(without.is_err(), "without {what}");
        let twice = changed(&program, |it| {
            let again = Instruction { frees: vec![], ..instruction.clone() };
            it.classes[class].bodies[body].instructions.insert(index, again);
        });
        assert!(twice.is_err(), "twice {what}");
    }
}

#[test]
fn rows_of_other_workers_samples_or_pieces_are_found() {
    let program = program();
    let rejected = |change: &dyn Fn(&mut Program)| {
        assert!(changed(&program, |it| change(it)).is_err());
    };
    for (class, body, index) in places(&program) {
        let instruction = &program.classes[class].bodies[body].instructions[index];
        if let Action::LoadRows { microbatches, .. } = &instruction.action {
            assert_eq!(microbatches.len(), 2);
            let is_evaluated =
                program.classes[class].evaluation.iter().any(|it| it.0 as usize == body);
            for other in [&microbatches[..1], &[0, 1, 2, 3]] {
                let other = other.to_vec();
                let outcome = changed(&program, |it| {
                    let load = &mut it.classes[class].bodies[body].instructions[index];
                    if let Action::LoadRows { microbatches, .. } = &mut load.action {
                        *microbatches = other;
                    }
                });
                // In an evaluation they are those of its micro-batch.
                assert_eq!(outcome.is_err(), !is_evaluated);
            }
        }
        // The part of the rows of all that is another worker's.
        for read in 0..instruction.reads.len() {
            if let Window::Elements { start, end } = instruction.reads[read].window {
                let each = end - start;
                let other = if start == 0 { each } else { 0 };
                let window = Window::Elements { start: other, end: other + each };
                rejected(&|it| {
                    it.classes[class].bodies[body].instructions[index].reads[read].window = window;
                });
            }
        }
    }
    let routes = (0..program.routes.len()).filter(|&it| program.routes[it].moves_rows());
    let routes: Vec<usize> = routes.collect();
    // Two workers, three pieces, three ways each.
    assert_eq!(routes.len(), 18);
    for route in routes {
        rejected(&|it| {
            let message = &mut Arc::make_mut(&mut it.routes[route].messages)[0];
            message.source.extent[0] -= 1;
            message.target.extent[0] -= 1;
        });
        rejected(&|it| {
            it.routes[route].carried = match it.routes[route].carried {
                Carried::Lookups(bucket, piece) => Carried::Lookups(bucket, (piece + 1) % 3),
                Carried::LookedUp(bucket, piece) => Carried::LookedUp(bucket, (piece + 1) % 3),
                Carried::RowGradients(bucket, piece) => {
                    Carried::RowGradients(bucket, (piece + 1) % 3)
                }
                other => other,
            };
        });
        rejected(&|it| it.routes[route].messages = [].into());
    }
    let table = |it: &mut Program| -> usize {
        let buckets = &it.classes[0].buckets;
        buckets.iter().position(|bucket| bucket.is_looked_up()).expect("a table")
    };
    rejected(&|it| {
        let at = table(it);
        it.classes[0].buckets[at].served.truncate(2);
    });
    rejected(&|it| {
        let at = table(it);
        it.classes[0].buckets[at].served[0].range.end -= 1;
        it.classes[0].buckets[at].served[1].range.start -= 1;
    });
    rejected(&|it| {
        let at = table(it);
        let served = &mut it.classes[0].buckets[at].served;
        let (one, other) = (served[0].server, served[1].server);
        (served[0].server, served[1].server) = (other, one);
    });
}

/// A server that updates before it answers has rows of the step after.
#[test]
fn servers_that_answer_after_their_update_are_found() {
    let program = program();
    let servers = (0..program.classes.len()).filter(|&it| program.classes[it].holds_tables());
    for server in servers {
        assert_eq!(program.classes[server].control.len(), 3);
        for [one, other] in [[0, 2], [1, 2]] {
            let outcome = changed(&program, |it| it.classes[server].control.swap(one, other));
            assert!(outcome.is_err(), "{one} and {other}");
        }
    }
    let held = program.classes.iter().flat_map(|class| class.tensors.iter());
    assert!(held.filter(|it| it.content == Content::Lookups).count() == 2);
}

/// A worker has room for the rows that differ of those that it reads: no more than it reads, nor than there are.
#[test]
fn workers_have_room_for_as_many_rows_as_they_read_or_as_a_table_has() {
    let spec = ModelSpec::parse("gpt:layers=1,hidden=8,heads=2,seq=8,vocab=64");
    let graph = spec.and_then(|spec| spec.graph()).expect("a valid model");
    // Of two workers each reads a row for each of 8 positions of its samples.
    for (global_batch, room) in [(4, 2 * 8), (16, 64), (24, 64)] {
        let plan = plan(&graph, (2, &[0, 1]), vec![group("*", &[])], None);
        let program = lowered(&graph, &Plan { global_batch, ..plan });
        for worker in &program.classes[..2] {
            let held = worker.tensors().filter(|(_, it)| it.content == Content::Lookups);
            let rooms: Vec<&[usize]> = held.map(|(_, it)| it.local_shape()).collect();
            assert_eq!(rooms, [[room]], "{global_batch} samples");
        }
    }
}
