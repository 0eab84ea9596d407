//! Programs of servers with replicas of each other's ranges: who holds what, what keeps replicas as their owners are,
//! and who stands in for a server that is lost.

use std::collections::BTreeMap;

use shardloom_cluster::DeviceId;
use shardloom_collectives::chunk;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Plan, ServerSet, Servers, Staleness, Sync, Uniform};
use shardloom_program::verify::{Violation, explore, verify};
use shardloom_program::{
    Action, Carried, Class, ClassId, Control, Instruction, Keep, Program, Ring, Serve, When, lower,
};

fn graph() -> Graph {
    let spec = ModelSpec::parse("mlp:inputs=2,hidden=2,layers=2,classes=2");
    spec.and_then(|spec| spec.graph()).expect("a model")
}

fn plan(workers: u32, servers: Servers) -> Plan {
    let uniform = Uniform {
        mesh: Mesh::of(workers, 1, 1),
        global_batch: workers as usize,
        sync: Sync { servers: Some(servers), bucket_bytes: 16, ..Sync::default() },
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

fn with_replicas(count: u32, replicas: u32) -> Servers {
    Servers { replicas, ..Servers::of(count, Staleness::SYNCHRONOUS) }
}

fn lowered(workers: u32, servers: Servers) -> Program {
    let plan = plan(workers, servers);
    lower(&graph(), &plan, plan.least_devices()).unwrap_or_else(|error| panic!("{error}"))
}

fn elements(class: &Class, replicas: bool) -> u64 {
    let buckets = class.buckets.iter().filter(|it| it.replica_of.is_some() == replicas);
    buckets.map(|it| it.elements as u64).sum()
}

/// By element of the model, in the order of the worker's buckets: the server that owns it, and those that have
/// replicas, by their numbers.
fn holders(program: &Program) -> Vec<Vec<u32>> {
    let number = |class: ClassId| program.class(class).replica.expect("servers have numbers");
    let worker = &program.classes[0];
    let served = worker.buckets.iter().flat_map(|bucket| &bucket.served);
    let of_range = served.flat_map(|it| {
        let all = std::iter::once(it.server).chain(it.replicas.iter().copied());
        let all: Vec<u32> = all.map(number).collect();
        vec![all; it.range.len()]
    });
    of_range.collect()
}

#[test]
fn a_replica_is_weights_gradients_and_moments_and_is_saved_by_its_owner() {
    for (workers, count, replicas) in [(1, 2, 1), (2, 2, 1), (3, 3, 1), (2, 3, 2)] {
        let program = lowered(workers, with_replicas(count, replicas));
        assert_eq!(verify(&program), Ok(()));
        let whole = elements(&program.classes[0], false);
        let servers = &program.classes[workers as usize..];
        assert_eq!(servers.iter().map(|it| elements(it, false)).sum::<u64>(), whole);
        let copies: u64 = servers.iter().map(|it| elements(it, true)).sum();
        assert_eq!(copies, u64::from(replicas) * whole);
        // An owner of several workers' also has room for the gradients of one.
        let of_owner = if workers > 1 { 5 } else { 4 };
        for class in servers {
            let wanted = 4 * (of_owner * elements(class, false) + 4 * elements(class, true));
            assert_eq!(class.persistent_bytes(0).total(), wanted);
        }
        for (id, class) in program.classes() {
            for (tensor, spec) in class.tensors() {
                let Some(bucket) = spec.bucket.map(|bucket| class.bucket(bucket)) else { continue };
                if bucket.replica_of.is_some() && matches!(spec.keep, Keep::State(_)) {
                    assert!(!program.owns(id, tensor), "{}", spec.name);
                }
            }
        }
    }
}

#[test]
fn what_is_added_up_goes_to_each_replica_once_a_step_however_many_workers_there_are() {
    for (workers, count, replicas) in [(1, 2, 1), (2, 3, 1), (4, 3, 2)] {
        let program = lowered(workers, with_replicas(count, replicas));
        let whole = 4 * elements(&program.classes[0], false);
        let sent = |class: u32| program.sent_bytes(ClassId(class), 0);
        assert!((0..workers).all(|worker| sent(worker) == whole));
        for server in workers..workers + count {
            let own = 4 * elements(program.class(ClassId(server)), false);
            assert_eq!(sent(server), u64::from(workers + replicas) * own);
        }
    }
}

#[test]
fn in_every_order_of_requests_no_worker_goes_on_before_replicas_are_as_their_owners() {
    for (workers, count, replicas) in [(1, 2, 1), (2, 2, 1), (1, 3, 2)] {
        let program = lowered(workers, with_replicas(count, replicas));
        let explored = explore(&program, 2, Staleness::SYNCHRONOUS);
        let explored = explored.unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(explored.staleness, 0);
        assert!(explored.states > 20, "{explored:?}");
    }
}

/// Changes what a server does.
fn serving(program: &mut Program, server: usize) -> &mut Serve {
    match &mut program.classes[server].control[..] {
        [Control::Serve(serve)] => serve,
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_that_are_sent_before_a_replica_is_updated_are_rejected() {
    let mut program = lowered(1, with_replicas(2, 1));
    serving(&mut program, 1).clients[0].handlers[1].when = When::Sent;
    let found =
        explore(&program, 2, Staleness::SYNCHRONOUS).expect_err("a replica lacks an update");
    assert!(matches!(found, Violation::Staleness { steps: 1, bound: 0, .. }), "{found}");
}

#[test]
fn replicas_of_other_elements_or_of_part_of_the_gradients_are_rejected() {
    let good = lowered(2, with_replicas(2, 1));
    let rejected = |how: &dyn Fn(&mut Program)| {
        let mut program = good.clone();
        how(&mut program);
        verify(&program).expect_err("the replica is another")
    };
    let is_aggregated = |program: &Program, action: &Action| match action {
        Action::Send { route } => {
            matches!(program.route(*route).carried, Carried::Aggregated(_))
        }
        _ => false,
    };
    // The body in which the first server sends what it has added up, and where.
    let bodies = &good.classes[2].bodies;
    let sends = bodies.iter().enumerate().find_map(|(body, it)| {
        let at = it.instructions.iter().position(|it| is_aggregated(&good, &it.action))?;
        Some((body, at))
    });
    let (body, at) = sends.expect("it has replicas elsewhere");
    let has = |found: &[Violation], is: fn(&Violation) -> bool| {
        assert!(found.iter().any(is), "{found:#?}");
    };
    // The gradients of one worker instead of the sum.
    let found = rejected(&|program| {
        let instructions = &mut program.classes[2].bodies[body].instructions;
        let sum = instructions[at].reads[0];
        let is_of = |it: &&Instruction| it.action == Action::Add && it.writes[0].to == sum;
        let add = instructions.iter().find(is_of).expect("it adds");
        instructions[at].reads[0] = add.reads[0];
    });
    has(&found, |it| matches!(it, Violation::ReducedTwice { .. }));
    // The sum before the last worker's are in it.
    let found = rejected(&|program| {
        let instructions = &mut program.classes[2].bodies[body].instructions;
        let send = instructions.remove(at);
        let is_last =
            |it: &Instruction| it.action == Action::Add && it.writes[0].to == send.reads[0];
        let add = instructions[..at].iter().rposition(is_last).expect("it adds");
        instructions.insert(add, send);
        program.assign_queues();
    });
    has(&found, |it| matches!(it, Violation::Contributions { .. }));
    // A range whose replica is said to be of none or of another range, or is of other elements.
    let found = rejected(&|program| {
        let replica = program.classes[3].buckets.iter_mut().find(|it| it.replica_of.is_some());
        replica.expect("it has one").replica_of = None;
    });
    has(&found, |it| matches!(it, Violation::Served { .. }));
    let found = rejected(&|program| {
        let mut replicas =
            program.classes[3].buckets.iter_mut().filter_map(|it| it.replica_of.as_mut());
        replicas.next().expect("it has one").1.0 += 1;
    });
    has(&found, |it| matches!(it, Violation::Served { .. }));
    let found = rejected(&|program| {
        let class = &mut program.classes[3];
        let replica = class.buckets.iter().find(|it| it.replica_of.is_some()).expect("one");
        let param = &mut class.params[replica.params[0].0 as usize];
        param.part = param.part.start + 1..param.part.end + 1;
    });
    has(&found, |it| matches!(it, Violation::Served { .. }));
}

#[test]
fn the_ranges_of_a_lost_server_are_their_first_replicas_and_all_others_stay() {
    let (workers, count) = (2, 3);
    for replicas in [1, 2] {
        let servers = with_replicas(count, replicas);
        let before = holders(&lowered(workers, servers));
        for lost in 0..count {
            let lost_set = ServerSet::default().with(lost).expect("a small number");
            let program = lowered(workers, Servers { lost: lost_set, ..servers });
            assert_eq!(verify(&program), Ok(()));
            let after = holders(&program);
            for (before, after) in before.iter().zip(&after) {
                let left: Vec<u32> = before.iter().copied().filter(|&it| it != lost).collect();
                // Where one is gone, another that is left has a new replica, if there is one.
                assert!(after.starts_with(&left), "{before:?} became {after:?}");
                assert_eq!(after.len(), (replicas as usize + 1).min(count as usize - 1));
            }
            assert_eq!(before.len(), after.len());
            let places: BTreeMap<u32, DeviceId> = program.classes[workers as usize..]
                .iter()
                .map(|class| (class.replica.expect("a number"), class.devices[0]))
                .collect();
            let left = (0..count).filter(|&it| it != lost);
            assert_eq!(places, left.map(|it| (it, DeviceId(workers + it))).collect());
        }
    }
}

/// Pieces that follow each other on one server may have their replicas on different ones.
#[test]
fn each_piece_is_on_the_servers_that_the_ring_says() {
    let spec = ModelSpec::parse("mlp:inputs=16,hidden=16,layers=2,classes=16");
    let graph = spec.and_then(|spec| spec.graph()).expect("a model");
    let servers = with_replicas(4, 1);
    // It has as many blocks as the small one.
    let plan = plan(2, servers);
    let program = lower(&graph, &plan, plan.least_devices()).expect("a program");
    assert_eq!(verify(&program), Ok(()));
    let buckets = program.classes[0].buckets.iter().map(|bucket| bucket.elements);
    let pieces = |elements: usize| {
        // 16 bytes each.
        let count = elements.div_ceil(4);
        (0..count).map(move |piece| chunk(elements, count, piece).len())
    };
    let sizes: Vec<usize> = buckets.flat_map(pieces).collect();
    let ring = Ring::of(0..4);
    let owners = ring.owners(&sizes);
    let of_piece = |(number, &owner): (usize, &u32)| {
        let replica = ring.successors(number, owner)[0];
        vec![vec![owner, replica]; sizes[number]]
    };
    let expected: Vec<Vec<u32>> = owners.iter().enumerate().flat_map(of_piece).collect();
    let differ = expected.windows(2).filter(|pair| pair[0][0] == pair[1][0] && pair[0] != pair[1]);
    assert!(differ.count() > 3, "neighbours on one server have replicas on different ones");
    assert_eq!(holders(&program), expected);
}
