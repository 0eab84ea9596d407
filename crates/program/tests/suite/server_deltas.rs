//! Programs of workers that update by themselves and push what that has changed to servers.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Plan, Push, Servers, Staleness, Sync, Uniform};
use shardloom_program::verify::{Violation, explore, verify};
use shardloom_program::{
    Action, Class, ClassId, Content, Control, Instruction, Keep, Program, lower,
};

fn graph() -> Graph {
    let spec = ModelSpec::parse("mlp:inputs=2,hidden=2,layers=2,classes=2");
    spec.and_then(|spec| spec.graph()).expect("a model")
}

/// So many workers of one micro-batch each, and servers.
fn plan(workers: u32, count: u32, staleness: Staleness) -> Plan {
    let servers = Servers { push: Push::Deltas, ..Servers::of(count, staleness) };
    let sync = Sync { servers: Some(servers), bucket_bytes: 16, ..Sync::default() };
    let (mesh, global_batch) = (Mesh::of(workers, 1, 1), workers as usize);
    Uniform { mesh, global_batch, sync, ..Uniform::default() }.plan(&graph(), "model", "local")
}

fn program(workers: u32, count: u32, staleness: Staleness) -> Program {
    let plan = plan(workers, count, staleness);
    lower(&graph(), &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn elements(class: &Class) -> usize {
    class.buckets.iter().map(|bucket| bucket.elements).sum()
}

#[test]
fn workers_hold_the_optimizers_state_and_servers_weights_alone() {
    for (workers, count) in [(1, 1), (2, 1), (3, 2)] {
        let program = program(workers, count, Staleness::Unbounded);
        assert_eq!(verify(&program), Ok(()));
        let whole = elements(&program.classes[0]);
        let (of_workers, of_servers) = program.classes.split_at(workers as usize);
        for class in of_workers {
            // Weights, gradients and Adam's two moments, four bytes each.
            assert_eq!(class.persistent_bytes(0).total() as usize, 4 * 4 * whole);
        }
        let held: u64 = of_servers.iter().map(|class| class.persistent_bytes(0).total()).sum();
        assert_eq!(held as usize, 4 * whole);
        for (id, class) in program.classes() {
            let is_server = id.0 >= workers;
            for (tensor, spec) in class.tensors() {
                let saved = matches!(spec.keep, Keep::State(_)) && program.owns(id, tensor);
                let lasts = match spec.content {
                    Content::Weight => is_server,
                    Content::OptimizerState(_) => !is_server,
                    _ => false,
                };
                assert_eq!(saved, lasts, "{}", spec.name);
            }
        }
        let sent = |class: u32| program.sent_bytes(ClassId(class), 0) as usize;
        assert!((0..workers).all(|worker| sent(worker) == 4 * whole));
        let by_servers: usize = (workers..workers + count).map(sent).sum();
        assert_eq!(by_servers, workers as usize * 4 * whole);
    }
}

#[test]
fn in_every_order_of_requests_nobody_waits_for_ever_and_the_bound_holds_and_is_reached() {
    for (workers, count, staleness) in [(2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 1)] {
        let bound = Staleness::Within(staleness);
        let explored = explore(&program(workers, count, bound), 3, bound);
        let explored = explored.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(explored.staleness, i64::from(staleness), "bound {staleness}");
    }
    let explored = explore(&program(2, 1, Staleness::Unbounded), 3, Staleness::Unbounded);
    assert_eq!(explored.expect("nobody waits").staleness, 2);
}

/// Each instruction that computes or exchanges, left out and done twice, is found.
#[test]
fn a_program_with_an_instruction_left_out_or_doubled_is_rejected() {
    let good = program(2, 2, Staleness::Within(1));
    let mut tried = 0;
    for (class, body, at) in places(&good) {
        let instruction = &good.classes[class].bodies[body].instructions[at];
        let of_evaluation = good.classes[class].evaluation.iter().any(|it| it.0 as usize == body);
        // A report is said by nobody but the trainer, who asks for as many as there are.
        if of_evaluation || matches!(instruction.action, Action::Report | Action::Free) {
            continue;
        }
        tried += 1;
        let left_out = changed(&good, class, body, |instructions| {
            instructions.remove(at);
        });
        assert!(verify(&left_out).is_err(), "class {class} without {instruction:?}");
        let doubled = changed(&good, class, body, |instructions| {
            instructions.insert(at, Instruction { frees: vec![], ..instructions[at].clone() });
        });
        let repeats = matches!(instruction.action, Action::Load { .. } | Action::Kernel { .. });
        assert!(repeats || verify(&doubled).is_err(), "class {class} with twice {instruction:?}");
    }
    assert!(tried > 40, "{tried}");
}

/// What is sent is what one update has changed, and it is sent before the next.
#[test]
fn what_is_no_change_by_one_update_is_rejected() {
    let good = program(2, 1, Staleness::Within(1));
    let is_delta = |found: &[Violation]| {
        found.iter().any(|it| matches!(it, Violation::Delta { .. } | Violation::Deltas { .. }))
    };
    let (class, body, at) = places(&good)
        .find(|&(class, body, at)| {
            good.classes[class].bodies[body].instructions[at].action == Action::Difference
        })
        .expect("a worker subtracts");
    // The weights are copied once they are updated.
    let late = changed(&good, class, body, |instructions| {
        let copy = instructions[..at].iter().rposition(|it| it.action == Action::Copy);
        let copy = instructions.remove(copy.expect("they are copied"));
        instructions.insert(at - 1, copy);
    });
    assert!(is_delta(&verify(&late).expect_err("nothing has changed")));
    // What the weights were is sent, and what has changed is found afterwards.
    let early = changed(&good, class, body, |instructions| {
        let difference = instructions.remove(at);
        instructions.insert(at + 1, difference);
    });
    assert!(verify(&early).is_err());
    // Others' weights come between the copy and the difference.
    let (pull, weights) = (
        good.classes[class].control.first(),
        good.classes[class].buckets[0].held.replicated.weights,
    );
    let Some(Control::Run(pull)) = pull else { panic!("{pull:?}") };
    let pull = pull.body.0 as usize;
    let receives = |it: &Instruction| it.writes.iter().any(|write| write.to.tensor == weights);
    let instructions = &good.classes[class].bodies[pull].instructions;
    let from = instructions.iter().position(receives).expect("it gets them");
    let receive = instructions[from].clone();
    let mut mixed = good.clone();
    mixed.classes[class].bodies[pull].instructions.remove(from);
    let mixed = changed(&mixed, class, body, |instructions| instructions.insert(at, receive));
    assert!(is_delta(&verify(&mixed).expect_err("what came is no change by an update")));
}

/// Where instructions stand: class, body and place.
fn places(program: &Program) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    program.classes.iter().enumerate().flat_map(|(class, of)| {
        of.bodies
            .iter()
            .enumerate()
            .flat_map(move |(body, of)| (0..of.instructions.len()).map(move |at| (class, body, at)))
    })
}

/// The program with other instructions in a body, whose points are those of the whole anew.
fn changed(
    good: &Program,
    class: usize,
    body: usize,
    how: impl FnOnce(&mut Vec<Instruction>),
) -> Program {
    let mut program = good.clone();
    how(&mut program.classes[class].bodies[body].instructions);
    for class in &mut program.classes {
        let all = class.bodies.iter_mut().flat_map(|body| &mut body.instructions);
        all.for_each(|instruction| instruction.after.clear());
    }
    program.assign_queues();
    program
}
