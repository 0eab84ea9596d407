//! Programs of servers and workers: what they hold and send, and every order in which requests may come.

use std::sync::Arc;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Mesh, Optimizer, Plan, Precision, Servers, Staleness, Sync, Uniform, Updates, Weights,
};
use shardloom_program::verify::{Violation, explore, verify};
use shardloom_program::{
    Action, BodyId, Carried, Class, ClassId, Client, Content, Control, Instruction, Keep, Point,
    Program, Route, Serve, When, Write, lower,
};

fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model")
}

fn small() -> Graph {
    graph("mlp:inputs=2,hidden=2,layers=2,classes=2")
}

/// So many workers of one micro-batch each, and servers.
fn plan(graph: &Graph, workers: u32, servers: Servers) -> Plan {
    uniform(workers, servers).plan(graph, "model", "local")
}

fn uniform(workers: u32, servers: Servers) -> Uniform {
    Uniform {
        mesh: Mesh::of(workers, 1, 1),
        global_batch: workers as usize,
        sync: Sync { servers: Some(servers), bucket_bytes: 16, ..Sync::default() },
        ..Uniform::default()
    }
}

fn program(workers: u32, count: u32, staleness: u32) -> Program {
    program_within(workers, count, Staleness::Within(staleness))
}

fn program_within(workers: u32, count: u32, staleness: Staleness) -> Program {
    let graph = small();
    let plan = plan(&graph, workers, Servers::of(count, staleness));
    lower(&graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn elements(class: &Class) -> usize {
    class.buckets.iter().map(|bucket| bucket.elements).sum()
}

#[test]
fn servers_hold_optimizer_state_and_own_weights_and_workers_hold_copies() {
    for (workers, count) in [(1, 1), (2, 1), (3, 2)] {
        let program = program(workers, count, 1);
        assert_eq!(verify(&program), Ok(()));
        assert_eq!(program.ranks() as u32, workers + count);
        let whole = elements(&program.classes[0]);
        let (of_workers, of_servers) = program.classes.split_at(workers as usize);
        for class in of_workers {
            // Weights and gradients, four bytes each, and nothing else that lasts.
            assert_eq!(class.persistent_bytes(0).total() as usize, 2 * 4 * whole);
            assert!(class.buckets.iter().all(|bucket| !bucket.owned_here));
        }
        // Adam's two moments besides.
        let held: u64 = of_servers.iter().map(|class| class.persistent_bytes(0).total()).sum();
        assert_eq!(held as usize, 4 * 4 * whole);
        assert_eq!(of_servers.iter().map(elements).sum::<usize>(), whole);
        for (id, class) in program.classes() {
            let is_server = id.0 >= workers;
            assert_eq!(class.serves().is_some(), is_server);
            for (tensor, spec) in class.tensors() {
                let saved = matches!(spec.keep, Keep::State(_)) && program.owns(id, tensor);
                let lasts = matches!(spec.content, Content::Weight | Content::OptimizerState(_));
                assert_eq!(saved, is_server && lasts, "{}", spec.name);
            }
        }
    }
}

#[test]
fn a_worker_sends_and_gets_the_model_once_a_step() {
    for (workers, count) in [(2, 1), (3, 2)] {
        let program = program(workers, count, 0);
        let whole = 4 * elements(&program.classes[0]) as u64;
        let sent = |class: u32| program.sent_bytes(ClassId(class), 0);
        assert!((0..workers).all(|worker| sent(worker) == whole));
        let of_servers: u64 = (workers..workers + count).map(sent).sum();
        assert_eq!(of_servers, u64::from(workers) * whole);
    }
}

#[test]
fn in_every_order_of_requests_nobody_waits_for_ever_and_the_bound_holds_and_is_reached() {
    for (workers, count, staleness) in
        [(2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 9), (2, 2, 1), (3, 1, 1)]
    {
        let steps = 3;
        let program = program(workers, count, staleness);
        let bound = i64::from(staleness);
        let explored = explore(&program, steps, Staleness::Within(staleness))
            .unwrap_or_else(|error| panic!("{error}"));
        // Nobody is further ahead than the step before the last, after which all wait for all.
        assert_eq!(explored.staleness, bound.min(i64::from(steps) - 1), "bound {bound}");
        assert!(explored.states > 50, "{explored:?}");
    }
}

/// Changes what the first server does.
fn serving(mut program: Program, how: impl FnOnce(&mut Serve)) -> Program {
    let class = program.classes.iter_mut().find(|class| class.serves().is_some());
    match &mut class.expect("it has a server").control[..] {
        [Control::Serve(serve)] => how(serve),
        other => panic!("{other:?}"),
    }
    program
}

#[test]
fn a_server_that_does_not_wait_for_slow_workers_is_rejected() {
    let program = serving(program(2, 1, 1), |serve| serve.clients[0].handlers[1].when = When::Sent);
    let found = explore(&program, 3, Staleness::Within(1)).expect_err("it runs ahead");
    assert!(matches!(found, Violation::Staleness { .. }), "{found}");
}

#[test]
fn without_a_bound_nobody_waits_for_a_slower_worker_until_the_end_of_a_row() {
    for (workers, count) in [(2, 1), (2, 2), (3, 1)] {
        let program = program_within(workers, count, Staleness::Unbounded);
        assert_eq!(verify(&program), Ok(()));
        let explored = explore(&program, 3, Staleness::Unbounded);
        let explored = explored.unwrap_or_else(|violation| panic!("{violation}"));
        // Before its last step a worker may have had all of the others'.
        assert_eq!(explored.staleness, 2);
        let found = explore(&program, 3, Staleness::Within(1)).expect_err("nothing bounds it");
        assert!(matches!(found, Violation::Staleness { steps: 2, bound: 1, .. }), "{found}");
    }
}

#[test]
fn without_staleness_a_server_adds_gradients_up_and_updates_once_for_all_workers() {
    for (workers, count) in [(2, 1), (3, 2), (4, 1)] {
        let program = program(workers, count, 0);
        assert_eq!(verify(&program), Ok(()));
        let whole = elements(&program.classes[0]);
        let of_servers = &program.classes[workers as usize..];
        // Weights, the sum of gradients, Adam's two moments, and the gradients of one worker.
        let held: u64 = of_servers.iter().map(|class| class.persistent_bytes(0).total()).sum();
        assert_eq!(held as usize, 5 * 4 * whole);
        for class in of_servers {
            let clients = &class.serves().expect("a server").clients;
            assert!(clients.iter().all(|it| it.handlers[0].when == When::InTurn));
            let count = |is: fn(&Action) -> bool| {
                let all = class.bodies.iter().flat_map(|body| &body.instructions);
                all.filter(|it| is(&it.action)).count()
            };
            let buckets = class.buckets.len();
            assert_eq!(count(|it| *it == Action::Optimizer), buckets);
            assert_eq!(count(|it| *it == Action::Add), (workers as usize - 1) * buckets);
        }
    }
}

#[test]
fn gradients_that_overwrite_those_of_others_or_are_added_twice_are_rejected() {
    let good = program(3, 1, 0);
    let server = good.classes.len() - 1;
    for body in 0..good.classes[server].bodies.len() {
        let instructions = &good.classes[server].bodies[body].instructions;
        let adds = |it: &&Instruction| it.action == Action::Add;
        let Some(at) = instructions.iter().position(|it| adds(&it)) else { continue };
        let changed = |how: fn(&mut Vec<Instruction>, usize)| {
            let mut program = good.clone();
            how(&mut program.classes[server].bodies[body].instructions, at);
            verify(&program).expect_err("a worker's gradients count once")
        };
        let found = changed(|instructions, at| {
            let sum = instructions[at].writes[0];
            instructions[0].writes[0] = Write::set(sum.to);
        });
        assert!(found.iter().any(|it| matches!(it, Violation::Lost { .. })), "{found:#?}");
        let found = changed(|instructions, at| instructions.push(instructions[at].clone()));
        assert!(found.iter().any(|it| matches!(it, Violation::ReducedTwice { .. })), "{found:#?}");
    }
}

#[test]
fn a_looser_bound_than_is_asked_for_is_rejected() {
    let found =
        explore(&program(2, 1, 2), 4, Staleness::Within(1)).expect_err("it allows two steps");
    assert!(matches!(found, Violation::Staleness { bound: 1, .. }), "{found}");
}

#[test]
fn a_server_that_sends_the_weights_before_it_has_updated_is_rejected() {
    let swapped = serving(program(2, 1, 0), |serve| {
        let [push, pull] = serve.clients[0].handlers[..] else { panic!("two handlers") };
        serve.clients[0].handlers = vec![pull, push];
    });
    let found =
        explore(&swapped, 3, Staleness::Within(0)).expect_err("its own gradients are missing");
    assert!(matches!(found, Violation::Staleness { steps: 1, bound: 0, .. }), "{found}");
}

#[test]
fn a_client_whose_clock_stands_still_is_rejected() {
    let program = serving(program(2, 1, 0), |serve| serve.clients[1].handlers[0].publishes = false);
    let found = explore(&program, 3, Staleness::Within(0)).expect_err("the other waits for it");
    assert!(matches!(found, Violation::Waits { .. } | Violation::Staleness { .. }), "{found}");
    let found = verify(&program).expect_err("it ends no step");
    assert!(found.iter().any(|it| matches!(it, Violation::Service { .. })), "{found:?}");
}

/// What a server does for one client may follow directly what it does for any other.
#[test]
fn an_answer_that_does_not_wait_for_those_of_another_client_is_rejected() {
    for workers in [2, 3] {
        let program = program(workers, 1, 1);
        let server = program.classes.len() - 1;
        let class = &program.classes[server];
        let serve = class.serves().expect("a server");
        let client = |body: BodyId| {
            let does = |client: &Client| client.handlers.iter().any(|it| it.run.body == body);
            serve.clients.iter().position(does).expect("all is done for some client")
        };
        let mut count = 0;
        for (body, spec) in (0..).map(BodyId).zip(&class.bodies) {
            for (at, instruction) in spec.instructions.iter().enumerate() {
                for (number, point) in instruction.after.iter().enumerate() {
                    let Point::Latest(other, _) = *point else { continue };
                    if client(other) == client(body) {
                        continue;
                    }
                    let mut mutated = program.clone();
                    let body = &mut mutated.classes[server].bodies[body.0 as usize];
                    body.instructions[at].after.remove(number);
                    let found = verify(&mutated).expect_err("nothing else orders them");
                    let races = |it: &Violation| matches!(it, Violation::Race { .. });
                    assert!(found.iter().all(races), "{found:#?}");
                    count += 1;
                }
            }
        }
        assert!(count >= 4 * workers as usize, "{count}");
    }
}

#[test]
fn what_servers_cannot_go_with_is_refused_by_name() {
    let graph = small();
    let good = plan(&graph, 2, Servers::of(1, Staleness::Within(0)));
    let changed = |how: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        how(&mut plan);
        plan
    };
    let scaled = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(8) };
    let uniform =
        Uniform { sync: Sync::default(), ..uniform(2, Servers::of(1, Staleness::Within(0))) };
    let wide = uniform.plan(&graph, "model", "local");
    let split = Uniform { pp: 2, mesh: Mesh::SINGLE, ..uniform }.plan(&graph, "model", "local");
    for (plan, key) in [
        (changed(&|it| it.sync.zero = 1), "sync.zero"),
        (changed(&|it| it.clip_norm = Some(1.0)), "clip_norm"),
        (changed(&|it| it.skip_non_finite = true), "skip_non_finite"),
        (changed(&|it| it.updates = Updates::Round), "updates"),
        (changed(&|it| it.weights = Weights::Stash), "weights.rule"),
        (changed(&|it| it.precision = Precision::MIXED), "precision"),
        (
            changed(&|it| {
                it.optimizer = scaled;
                it.sync.servers = Some(Servers::of(1, Staleness::Unbounded));
            }),
            "optimizer.reference_batch",
        ),
        (
            changed(&|it| it.sync.servers = Some(Servers::of(99, Staleness::Within(0)))),
            "ranges of parameters",
        ),
        (Plan { pipeline: split.pipeline, ..good.clone() }, "pipeline.stage"),
        (Plan { pipeline: wide.pipeline, ..good.clone() }, "pipeline.stage.mesh"),
        (
            changed(&|it| it.sync.servers = Some(Servers::of(0, Staleness::Within(0)))),
            "sync.servers.count = 0",
        ),
    ] {
        let devices = plan.device_count();
        let error = lower(&graph, &plan, devices).expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    let error = lower(&graph, &good, 2).expect_err("no device for the server").to_string();
    assert!(error.contains("sync.servers.count"), "{error}");
}

/// Also where so many steps are within the bound.
#[test]
fn weights_after_the_last_step_that_lack_gradients_are_rejected() {
    let bounded = program(2, 1, 5);
    explore(&bounded, 2, Staleness::Within(5)).unwrap_or_else(|violation| panic!("{violation}"));
    let at_once = serving(bounded, |serve| serve.clients[0].handlers[1].when = When::Sent);
    let found = explore(&at_once, 2, Staleness::Within(5))
        .expect_err("a row ends with all gradients applied");
    assert!(matches!(found, Violation::Staleness { bound: 0, .. }), "{found}");
}

#[test]
fn parameters_are_cut_between_servers_where_an_update_is_by_element() {
    let graph = small();
    for (optimizer, cuts) in [
        (Optimizer::default(), true),
        (Optimizer::sgd(0.0), true),
        (Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.0 }, false),
    ] {
        let servers = Servers::of(2, Staleness::Unbounded);
        let mut plan = plan(&graph, 2, servers);
        plan.optimizer = optimizer;
        // Two elements: less than any parameter.
        plan.sync.bucket_bytes = 8;
        let program = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(verify(&program), Ok(()));
        let params = program.classes[2..].iter().flat_map(|class| &class.params);
        assert_eq!(params.into_iter().any(|param| !param.is_whole()), cuts, "{optimizer:?}");
        let held: usize = program.classes[2..].iter().map(elements).sum();
        assert_eq!(held, elements(&program.classes[0]));
    }
}

#[test]
fn servers_that_hold_other_elements_than_workers_send_are_rejected() {
    let graph = small();
    let servers = Servers::of(2, Staleness::Within(1));
    let mut plan = plan(&graph, 2, servers);
    plan.sync.bucket_bytes = 8;
    let good = lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"));
    let rejected = |how: &dyn Fn(&mut Program)| {
        let mut program = good.clone();
        how(&mut program);
        let found = verify(&program).expect_err("elements go astray");
        assert!(found.iter().any(|it| matches!(it, Violation::Served { .. })), "{found:#?}");
    };
    let cut = |class: &Class| class.params.iter().position(|param| param.part.start > 0);
    let server = good.classes.iter().position(|it| cut(it).is_some()).expect("one is cut");
    let param = cut(&good.classes[server]).expect("it is cut");
    // The elements before them.
    rejected(&|program| {
        let part = &mut program.classes[server].params[param].part;
        *part = part.start - 1..part.end - 1;
    });
    let moves = |carried: fn(&Carried) -> bool, from_start: bool| {
        let shifted = |route: &Route| carried(&route.carried) && end(route, from_start) > 0;
        let at = good.routes.iter().position(shifted).expect("a range that begins later");
        rejected(&|program| {
            let message = &mut Arc::make_mut(&mut program.routes[at].messages)[0];
            let end = if from_start { &mut message.source } else { &mut message.target };
            end.start[0] -= 1;
        });
    };
    moves(|it| matches!(it, Carried::Gradients(_)), true);
    moves(|it| matches!(it, Carried::Weights(_)), false);
    // A range that nobody holds, and one that two hold.
    rejected(&|program| program.classes[0].buckets[0].served.truncate(1));
    rejected(&|program| {
        let served = &mut program.classes[0].buckets[0].served;
        let again = served[0].clone();
        served.push(again);
    });
}

/// Where a route begins in the worker's bucket.
fn end(route: &Route, from_start: bool) -> usize {
    let message = &route.messages[0];
    if from_start { message.source.start[0] } else { message.target.start[0] }
}
