//! Programs of servers that sum gradients and their workers: what they hold and send, and what the verifier says
//! of programs in which elements go astray.

use std::collections::BTreeSet;
use std::sync::Arc;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Mesh, ParameterGroup, Plan, Precision, Ranges, ScheduleKind, SendOrder, Servers, Share,
    Staleness, Summation, Sync, Uniform, Updates, Weights,
};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, BodyId, BodyKind, Carried, Class, ClassId, Content, Control, Entry, Instruction, Keep,
    Point, Program, Rank, Window, lower,
};

pub(crate) fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model")
}

fn small() -> Graph {
    graph("mlp:inputs=8,hidden=8,layers=3,classes=4")
}

pub(crate) fn summation(servers: u32, ranges: Ranges, share: Share) -> Summation {
    Summation { ranges, share, ..Summation::of(servers) }
}

pub(crate) fn uniform(workers: u32, summation: Summation) -> Uniform {
    Uniform {
        mesh: Mesh::of(workers, 1, 1),
        global_batch: 2 * workers as usize,
        microbatches: 2,
        sync: Sync { summation: Some(summation), bucket_bytes: 120, ..Sync::default() },
        ..Uniform::default()
    }
}

pub(crate) fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn program(workers: u32, summation: Summation) -> Program {
    let graph = small();
    lowered(&graph, &uniform(workers, summation).plan(&graph, "model", "local"))
}

fn all(servers: u32) -> Summation {
    summation(servers, Ranges::Hashed, Share::default())
}

pub(crate) fn elements(class: &Class) -> usize {
    class.buckets.iter().map(|bucket| bucket.elements).sum()
}

const SHARES: [Share; 4] = [Share::Part(1.0), Share::Balanced, Share::Part(0.5), Share::Part(0.01)];

#[test]
fn programs_with_any_number_of_workers_and_servers_are_sound() {
    let graphs = [small(), graph("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=8,tied=true")];
    let mut count = 0;
    for graph in &graphs {
        for (workers, servers) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (2, 3)] {
            for ranges in [Ranges::Hashed, Ranges::Equal] {
                for share in SHARES {
                    let plain = uniform(workers, summation(servers, ranges, share));
                    let clipped = Uniform { clip_norm: Some(1.0), ..plain.clone() };
                    let mixed = Uniform { precision: Precision::MIXED, ..plain.clone() };
                    let schedule = ScheduleKind::OneForwardOneBackward;
                    let order = SendOrder::NextUse;
                    let by_use = Summation { order, ..summation(servers, ranges, share) };
                    let by_use = |of: &Uniform| Uniform {
                        sync: Sync { summation: Some(by_use), ..of.sync },
                        ..of.clone()
                    };
                    let scheduled = Uniform { schedule, ..plain.clone() };
                    let in_order = [plain, clipped, mixed, scheduled];
                    let by_next_use = in_order.each_ref().map(by_use);
                    let of = |of: &Uniform, servers| {
                        let of_sync = of.sync.summation.expect("servers");
                        let summation = Summation { servers, colocated: true, ..of_sync };
                        let sync = Sync { summation: Some(summation), ..of.sync };
                        Uniform { sync, ..of.clone() }
                    };
                    let beside = by_next_use.each_ref().map(|it| of(it, servers));
                    let alone = in_order.each_ref().map(|it| of(it, 0));
                    let separate = in_order.into_iter().chain(by_next_use);
                    for uniform in separate.chain(beside).chain(alone) {
                        let plan = uniform.plan(graph, "model", "local");
                        let Ok(program) = lower(graph, &plan, plan.device_count()) else {
                            continue;
                        };
                        assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
                        count += 1;
                    }
                }
            }
        }
    }
    // Only of a hundredth there may be too little for every server, and others may leave nothing to colocated ones.
    assert!(count >= 2 * 6 * 2 * 3 * 14, "{count}");
}

#[test]
fn workers_hold_all_and_servers_only_what_they_sum_until_it_is_sent() {
    for (workers, servers) in [(1, 1), (2, 1), (3, 2)] {
        let program = program(workers, all(servers));
        assert_eq!(program.ranks() as u32, workers + servers);
        for (id, class) in program.classes() {
            let is_server = id.0 >= workers;
            assert_eq!(class.sums(), is_server);
            assert!(class.serves().is_none());
            for (tensor, spec) in class.tensors() {
                let saved = matches!(spec.keep, Keep::State(_)) && program.owns(id, tensor);
                let lasts = matches!(spec.content, Content::Weight | Content::OptimizerState(_));
                // One of the workers saves.
                assert_eq!(saved, id.0 == 0 && lasts, "{}", spec.name);
                assert!(!is_server || spec.content == Content::Gradient, "{}", spec.name);
            }
            let persistent = class.persistent_bytes(0);
            if !is_server {
                // Weights, gradients, and Adam's two moments.
                assert_eq!(persistent.total() as usize, 4 * 4 * elements(class));
                continue;
            }
            assert_eq!(persistent.total(), 0);
            // A sum, and what is added to it.
            let largest = class.tensors().map(|(id, _)| class.tensor_bytes(id, 0)).max();
            let at_once = if workers == 1 { 1 } else { 2 };
            let peak = class.memory_use(&program, 0).peak_bytes;
            assert_eq!(Some(peak), largest.map(|bytes| at_once * bytes));
        }
    }
}

/// What every worker and every server sends in a step, and how much each worker sums itself, of M bytes: with k
/// servers for n workers M_c = s M / k and M_g = (1 - s) M / n.
#[test]
fn each_link_carries_what_the_closed_forms_say() {
    let graph = graph("mlp:inputs=32,hidden=32,layers=4,classes=32");
    for (workers, servers) in
        [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 3), (4, 4), (8, 3)]
    {
        for share in SHARES {
            let of = summation(servers, Ranges::Equal, share);
            let plan = uniform(workers, of).plan(&graph, "model", "local");
            let program = lowered(&graph, &plan);
            let whole = elements(&program.classes[0]) as f64;
            let (n, k) = (f64::from(workers), f64::from(servers));
            let part = share.part(workers as usize, servers);
            let (by_server, by_worker) = (part * whole / k, (1.0 - part) * whole / n);
            // Of every bucket a piece may have an element more or less.
            let rounding = program.classes[0].buckets.len() as f64;
            let is_near = |sent: u64, expected: f64, pieces: f64| {
                let apart = (sent as f64 / 4.0 - expected).abs();
                assert!(
                    apart <= rounding * pieces,
                    "{workers} workers, {servers} servers, {share}: {sent} bytes, {expected} elements"
                );
            };
            for (id, class) in program.classes() {
                let sent = program.sent_bytes(id, 0);
                match class.sums() {
                    true => is_near(sent, n * by_server, n),
                    // To servers, and to other workers what they sum and what it has summed.
                    false => {
                        is_near(sent, k * by_server + 2.0 * (n - 1.0) * by_worker, k + 2.0 * n)
                    }
                }
                if share == Share::Balanced && servers <= workers && workers > 1 {
                    let time = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k);
                    is_near(sent, time * whole, 2.0 * n + k);
                }
                if share == Share::default() && !class.sums() {
                    assert_eq!(sent as f64, 4.0 * whole);
                }
            }
        }
    }
}

#[test]
fn equal_ranges_cut_every_bucket_alike_wherever_parameters_begin() {
    let program = program(3, summation(2, Ranges::Equal, Share::default()));
    let class = &program.classes[0];
    for bucket in &class.buckets {
        let [first, second] = &bucket.summed[..] else { panic!("{:?}", bucket.summed) };
        assert_eq!((first.server, second.server), (ClassId(3), ClassId(4)));
        assert_eq!((first.range.start, second.range.end), (0, bucket.elements));
        assert_eq!(first.range.end, second.range.start);
        assert!(first.range.len().abs_diff(second.range.len()) <= 1);
    }
    let begins = |at: usize| class.params.iter().any(|param| param.offset == at);
    assert!(class.buckets.iter().any(|bucket| !begins(bucket.summed[1].range.start)));
}

#[test]
fn hashed_pieces_are_no_larger_than_is_asked_for_and_no_server_has_much_more_than_its_share() {
    let program = program(2, all(3));
    let buckets = &program.classes[0].buckets;
    let pieces = || buckets.iter().flat_map(|bucket| &bucket.summed);
    assert!(pieces().all(|piece| piece.range.len() <= 30));
    let whole = elements(&program.classes[0]);
    for server in 2..5 {
        let own = pieces().filter(|it| it.server == ClassId(server));
        let own: usize = own.map(|piece| piece.range.len()).sum();
        assert!(own > 0 && own as f64 <= 9.0 / 8.0 * whole as f64 / 3.0 + 30.0, "{own} of {whole}");
    }
}

/// The instructions of a class's last backward pass and of its epilogue.
fn passes(class: &Class) -> [Vec<&Instruction>; 2] {
    [BodyKind::Backward, BodyKind::Epilogue].map(|kind| {
        let bodies = class.entries().map(|entry| class.body_of(entry));
        let last = bodies.filter(|body| body.kind == kind).last().expect("it has one");
        last.instructions.iter().collect()
    })
}

#[test]
fn pieces_are_sent_within_the_last_backward_pass_and_sums_awaited_bucket_by_bucket() {
    let program = program(2, summation(2, Ranges::Equal, Share::Part(0.5)));
    for class in &program.classes[..2] {
        let [backward, epilogue] = passes(class);
        let bucket = |instruction: &Instruction| {
            class.tensor(instruction.operands().next().expect("an operand").tensor).bucket
        };
        let of = |instructions: &[&Instruction], is: fn(&Action) -> bool| {
            let all = instructions.iter().enumerate().filter(|(_, it)| is(&it.action));
            all.map(|(at, it)| (at, bucket(it))).collect::<Vec<_>>()
        };
        let sends = of(&backward, |it| matches!(it, Action::Send { .. }));
        assert_eq!(sends.len(), 2 * class.buckets.len());
        // Those of the last block are whole first, and other blocks are still computed then.
        assert_eq!(sends[0].1.map(|it| it.0 as usize), Some(class.buckets.len() - 1));
        let kernels = of(&backward, |it| matches!(it, Action::Kernel { .. }));
        assert!(sends[0].0 < kernels[kernels.len() / 2].0);
        // Workers sum the rest there, too.
        let rests = of(&backward, |it| matches!(it, Action::Collective { .. }));
        assert_eq!(rests.len(), class.buckets.len());
        for (at, _) in rests {
            let [view] = backward[at].reads[..] else { panic!("one view") };
            let Window::Elements { start, end } = view.window else { panic!("{view:?}") };
            let bucket = class.bucket(class.tensor(view.tensor).bucket.expect("a bucket's"));
            assert_eq!((start, end), (bucket.elements.div_ceil(2), bucket.elements));
        }
        let receives = of(&epilogue, |it| matches!(it, Action::Receive { .. }));
        let order = |all: &[(usize, _)]| all.iter().map(|&(_, bucket)| bucket).collect::<Vec<_>>();
        assert_eq!(order(&receives), order(&sends));
        let updates = of(&epilogue, |it| *it == Action::Optimizer);
        assert!(updates[0].0 < receives[2].0, "the first bucket does not wait for the second");
        // Without a norm to wait for; with it, all have come by then.
        let graph = small();
        let clipped = Uniform { clip_norm: Some(1.0), ..uniform(2, all(1)) };
        let clipped = lowered(&graph, &clipped.plan(&graph, "model", "local"));
        let [_, epilogue] = passes(&clipped.classes[0]);
        let norm = epilogue.iter().position(|it| it.action == Action::Norm).expect("a norm");
        assert_eq!(of(&epilogue[norm..], |it| matches!(it, Action::Receive { .. })), []);
    }
}

/// What the verifier says of a program that was changed.
fn rejected(good: &Program, how: impl FnOnce(&mut Program)) -> Vec<Violation> {
    assert_eq!(verify(good), Ok(()));
    let mut program = good.clone();
    how(&mut program);
    verify(&program).expect_err("elements go astray")
}

/// Two pieces of equal length of one parameter that one server sums.
fn alike(program: &Program) -> [usize; 2] {
    let of_parameter = |route: usize| {
        let route = &program.routes[route];
        let Carried::Gradients(bucket) = route.carried else { return None };
        let class = program.class(route.from);
        let range = route.messages[0].source.range(0);
        let holds = |param: &&shardloom_program::ParamId| {
            let whole = class.param(**param).range();
            whole.start <= range.start && range.end <= whole.end
        };
        let param = class.bucket(bucket).params.iter().find(holds)?;
        Some((route.from, route.to, *param, range.len()))
    };
    let routes = 0..program.routes.len();
    let pairs = routes.flat_map(|one| (0..one).map(move |other| [other, one]));
    let mut alike = pairs.filter(|pair| {
        let [one, other] = pair.map(of_parameter);
        one.is_some() && one == other
    });
    alike.next().expect("a parameter of several pieces")
}

/// Every instruction that sends or receives by one of two routes, at one end, does so by the other.
fn swap(program: &mut Program, [one, other]: [usize; 2], at: ClassId) {
    for body in &mut program.classes[at.0 as usize].bodies {
        for instruction in &mut body.instructions {
            if let Action::Send { route } | Action::Receive { route } = &mut instruction.action {
                route.0 = match route.0 as usize {
                    it if it == one => other as u32,
                    it if it == other => one as u32,
                    it => it as u32,
                };
            }
        }
    }
    program.assign_queues();
}

#[test]
fn two_equal_pieces_of_a_parameter_that_are_swapped_are_rejected() {
    for workers in [1, 3] {
        let good = program(workers, summation(1, Ranges::Hashed, Share::default()));
        let pieces = alike(&good);
        let server = good.routes[pieces[0]].to;
        // What comes to it as the one goes to the other.
        let found = rejected(&good, |program| swap(program, pieces, server));
        assert!(found.iter().any(|it| matches!(it, Violation::Summed { .. })), "{found:#?}");
        let sums = pieces.map(|at| {
            let (from, carried) = (good.routes[at].from, good.routes[at].carried);
            let start = good.routes[at].messages[0].source.start.clone();
            let back = |it: &shardloom_program::Route| {
                let is_its = matches!((it.carried, carried), (Carried::Sums(one), Carried::Gradients(other)) if one == other);
                is_its && it.to == from && it.messages[0].target.start == start
            };
            good.routes.iter().position(back).expect("the way back")
        });
        let found = rejected(&good, |program| swap(program, sums, server));
        assert!(found.iter().any(|it| matches!(it, Violation::Summed { .. })), "{found:#?}");
        // Where both ends of both say the other, it is the same program.
        let mut same = good.clone();
        swap(&mut same, pieces, server);
        swap(&mut same, sums, server);
        assert_eq!(verify(&same).is_ok(), workers == 1);
    }
}

#[test]
fn a_server_with_weights_to_which_equal_pieces_of_a_parameter_come_swapped_is_rejected() {
    let graph = small();
    for staleness in [Staleness::SYNCHRONOUS, Staleness::Within(1)] {
        let servers = Some(Servers::of(1, staleness));
        // One server's neighbouring pieces would be one range: deal them to two.
        let servers = servers.map(|it| Servers { count: 2, ..it });
        let sync = Sync { servers, bucket_bytes: 16, ..Sync::default() };
        let uniform = Uniform { sync, ..uniform(2, all(1)) };
        let good = lowered(&graph, &uniform.plan(&graph, "model", "local"));
        let pieces = alike(&good);
        let server = good.routes[pieces[0]].to;
        let found = rejected(&good, |program| swap(program, pieces, server));
        assert!(found.iter().any(|it| matches!(it, Violation::Piece { .. })), "{found:#?}");
        let worker = good.routes[pieces[0]].from;
        let back = |at: usize| {
            let route = &good.routes[at];
            (matches!(route.carried, Carried::Weights(_)) && route.to == worker).then_some(at)
        };
        let weights = pieces.map(|at| {
            let start = &good.routes[at].messages[0].source.start;
            let is_its = |it: &usize| {
                let Carried::Gradients(bucket) = good.routes[at].carried else { return false };
                good.routes[*it].carried == Carried::Weights(bucket)
                    && good.routes[*it].messages[0].target.start == *start
            };
            (0..good.routes.len()).filter_map(back).find(is_its).expect("the way back")
        });
        let found = rejected(&good, |program| swap(program, weights, server));
        assert!(found.iter().any(|it| matches!(it, Violation::Piece { .. })), "{found:#?}");
    }
}

/// Removes the first instruction of a class that is so, and gives queues anew.
fn remove(program: &mut Program, class: u32, is: impl Fn(&Instruction) -> bool) {
    let bodies = &mut program.classes[class as usize].bodies;
    let body = bodies.iter_mut().find(|body| body.instructions.iter().any(&is));
    let instructions = &mut body.expect("one has it").instructions;
    let at = instructions.iter().position(&is).expect("it is there");
    instructions.remove(at);
    program.assign_queues();
}

#[test]
fn a_piece_that_is_not_sent_summed_or_sent_back_is_rejected() {
    let good = program(2, summation(2, Ranges::Equal, Share::Part(0.7)));
    type Is = fn(&Instruction) -> bool;
    let sends: Is = |it| matches!(it.action, Action::Send { .. });
    let receives: Is = |it| matches!(it.action, Action::Receive { .. });
    let sums = |it: &Instruction| matches!(it.action, Action::Collective { .. });
    for (class, is) in [(0, sends), (1, receives), (2, sends), (3, receives)] {
        rejected(&good, |program| remove(program, class, is));
    }
    let found = rejected(&good, |program| {
        remove(program, 0, sums);
        remove(program, 1, sums);
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Unreduced { .. })), "{found:#?}");
    // A worker's gradients are left out of the sum.
    let found = rejected(&good, |program| remove(program, 2, |it| it.action == Action::Add));
    assert!(found.iter().any(|it| matches!(it, Violation::Summed { .. })), "{found:#?}");
    // The piece is neither sent nor received anywhere.
    let route = good.routes.iter().position(|it| matches!(it.carried, Carried::Sums(_)));
    let route = route.expect("a sum") as u32;
    let is_its = move |it: &Instruction| matches!(it.action, Action::Send { route: it } | Action::Receive { route: it } if it.0 == route);
    let found = rejected(&good, |program| {
        let [from, to] = [&good.routes[route as usize]].map(|it| [it.from.0, it.to.0])[0];
        remove(program, from, is_its);
        remove(program, to, is_its);
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Unreduced { .. })), "{found:#?}");
}

#[test]
fn a_piece_that_goes_to_another_server_or_is_of_other_elements_is_rejected() {
    let good = program(2, summation(2, Ranges::Equal, Share::default()));
    let first = good.routes.iter().position(|it| matches!(it.carried, Carried::Gradients(_)));
    let first = first.expect("a piece");
    let served = |found: Vec<Violation>| {
        let is =
            |it: &Violation| matches!(it, Violation::Served { .. } | Violation::Operands { .. });
        assert!(found.iter().any(is), "{found:#?}");
    };
    served(rejected(&good, |program| program.routes[first].to = ClassId(3)));
    let later = |route: &shardloom_program::Route| {
        let starts = route.messages.iter().any(|it| it.source.start.first() > Some(&0));
        matches!(route.carried, Carried::Gradients(_)) && starts
    };
    let later = good.routes.iter().position(later).expect("one that begins later");
    served(rejected(&good, |program| {
        Arc::make_mut(&mut program.routes[later].messages)[0].source.start[0] -= 1
    }));
    // A range that nobody sums, and one that two do.
    served(rejected(&good, |program| program.classes[0].buckets[0].summed.truncate(1)));
    served(rejected(&good, |program| {
        let summed = &mut program.classes[0].buckets[0].summed;
        let again = summed[0].clone();
        summed.push(again);
    }));
}

/// The second time it stands for the sum of the step behind it, of which it has nothing.
#[test]
fn a_sum_that_is_sent_twice_in_a_step_is_rejected() {
    let good = program(2, summation(1, Ranges::Equal, Share::default()));
    let found = rejected(&good, |program| {
        let body = &mut program.classes[2].bodies[0].instructions;
        let at = body.iter().position(|it| matches!(it.action, Action::Send { .. }));
        let at = at.expect("it sends");
        let again = body[at].clone();
        body[at].frees.clear();
        body.insert(at + 1, again);
        program.assign_queues();
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Summed { .. })), "{found:#?}");
}

#[test]
fn gradients_that_are_summed_twice_are_rejected() {
    let good = program(2, summation(1, Ranges::Equal, Share::Part(0.5)));
    // Elements that the server sums, among the workers too.
    let found = rejected(&good, |program| {
        for class in &mut program.classes[..2] {
            for instruction in class.bodies.iter_mut().flat_map(|body| &mut body.instructions) {
                let Action::Collective { .. } = instruction.action else { continue };
                for view in &mut instruction.reads {
                    view.window = Window::Whole;
                }
                for write in &mut instruction.writes {
                    write.to.window = Window::Whole;
                }
            }
        }
    });
    assert!(found.iter().any(|it| matches!(it, Violation::ReducedTwice { .. })), "{found:#?}");
    let found = rejected(&good, |program| {
        let body = &mut program.classes[2].bodies[0].instructions;
        let at = body.iter().position(|it| it.action == Action::Add).expect("it adds");
        let mut again = body[at].clone();
        body[at].frees.clear();
        again.frees.truncate(1);
        body.insert(at + 1, again);
        program.assign_queues();
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Summed { .. })), "{found:#?}");
}

#[test]
fn a_norm_of_which_a_worker_counts_a_part_is_rejected() {
    let graph = small();
    let clipped = Uniform { clip_norm: Some(1.0), ..uniform(2, all(1)) };
    let good = lowered(&graph, &clipped.plan(&graph, "model", "local"));
    let found = rejected(&good, |program| program.classes[1].buckets[0].owned_here = false);
    assert!(found.iter().any(|it| matches!(it, Violation::Unreduced { .. })), "{found:#?}");
}

#[test]
fn what_servers_that_sum_cannot_go_with_is_refused_by_name() {
    let graph = small();
    let good = uniform(2, all(1)).plan(&graph, "model", "local");
    let changed = |how: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        how(&mut plan);
        plan
    };
    let of = |summation| changed(&|it| it.sync.summation = Some(summation));
    let uniform = Uniform { sync: Sync::default(), ..uniform(2, all(1)) };
    let wide = uniform.plan(&graph, "model", "local");
    let split = Uniform { pp: 2, mesh: Mesh::SINGLE, ..uniform }.plan(&graph, "model", "local");
    for (plan, key) in [
        (changed(&|it| it.sync.zero = 1), "sync.zero"),
        (changed(&|it| it.updates = Updates::Round), "updates"),
        (changed(&|it| it.weights = Weights::Stash), "weights.rule"),
        (
            changed(&|it| it.sync.servers = Some(Servers::of(1, Staleness::Within(0)))),
            "and not both",
        ),
        (of(all(0)), "sync.summation.servers = 0"),
        (of(all(9999)), "sync.summation.servers = 9999"),
        (of(summation(9999, Ranges::Equal, Share::default())), "sync.summation.servers = 9999"),
        (of(summation(1, Ranges::Equal, Share::Part(0.0))), "sync.summation.share = 0"),
        (of(summation(1, Ranges::Equal, Share::Part(1.5))), "sync.summation.share = 1.5"),
        (of(summation(1, Ranges::Equal, Share::Part(f64::NAN))), "sync.summation.share = NaN"),
        (Plan { pipeline: split.pipeline, ..good.clone() }, "pipeline.stage"),
        (Plan { pipeline: wide.pipeline, ..good.clone() }, "pipeline.stage.mesh"),
    ] {
        let devices = plan.device_count();
        let error = lower(&graph, &plan, devices).expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    let error = lower(&graph, &good, 2).expect_err("no device for the server").to_string();
    assert!(error.contains("sync.summation.servers"), "{error}");
}

#[test]
fn a_body_of_a_server_that_does_something_else_is_rejected() {
    let good = program(2, all(1));
    let found = rejected(&good, |program| {
        let class = &mut program.classes[2];
        let sum = class.bodies[0].instructions[0].writes[0].to;
        let copy = Instruction::new(Action::Copy, [sum], [sum]);
        class.bodies[BodyId(0).0 as usize].instructions.insert(1, copy);
        program.assign_queues();
    });
    assert!(!found.is_empty());
}

/// Biases are whole before the halves of a backward pass that find weight gradients, and among other gradients in
/// a whole one.
#[test]
fn workers_that_come_to_buckets_in_another_order_sum_nothing_among_themselves() {
    let graph = small();
    let orders = |share: f64, second: &str| {
        let of = summation(1, Ranges::Equal, Share::Part(share));
        let uniform = Uniform { microbatches: 2, ..uniform(2, of) };
        let mut plan = uniform.plan(&graph, "model", "local");
        plan.schedule = ScheduleKind::Table;
        plan.order = vec!["F0 B0 F2 B2".into(), second.into()];
        let biases = ParameterGroup::named("*bias");
        plan.parameters = vec![ParameterGroup { bucket_bytes: Some(1000), ..biases }];
        lower(&graph, &plan, plan.device_count()).map_err(|error| error.to_string())
    };
    for (share, second) in [(0.5, "F1 B1 F3 B3"), (1.0, "F1 B1 F3 B3"), (1.0, "F1 I1 W1 F3 I3 W3")]
    {
        let program = orders(share, second).expect("a program");
        assert_eq!(verify(&program).map_err(|all| all.len()), Ok(()), "{share}, {second}");
    }
    let refused =
        orders(0.5, "F1 I1 W1 F3 I3 W3").expect_err("their sums would wait for each other");
    assert!(
        refused.contains("sync.summation.share") && refused.contains("share = 1.0"),
        "{refused}"
    );
}

/// Two workers whose pieces go in the order of their next use.
fn by_next_use() -> Program {
    program(2, Summation { order: SendOrder::NextUse, ..all(1) })
}

/// The first pass is cut where a bucket is first used, and what is sent has the place of its bucket there.
#[test]
fn updates_stand_right_before_what_uses_them_first_and_pieces_go_in_that_order() {
    let program = by_next_use();
    let worker = program.class(ClassId(0));
    let buckets = worker.buckets.len();
    let entries: Vec<&Entry> = worker.entries().collect();
    let kinds: Vec<BodyKind> = entries.iter().map(|entry| worker.body_of(entry).kind).collect();
    let parts = kinds.iter().filter(|&&kind| kind == BodyKind::PartOfUpdate).count();
    assert_eq!((parts, worker.updates()), (buckets, 1));
    assert!(!kinds.contains(&BodyKind::Epilogue));
    let mut updated = BTreeSet::new();
    for entry in entries {
        let body = worker.body_of(entry);
        let touched = body.instructions.iter().flat_map(Instruction::operands);
        let touched = touched.filter_map(|view| worker.tensor(view.tensor).bucket);
        match body.kind {
            BodyKind::PartOfUpdate => {
                assert_eq!(entry.shift, -1);
                updated.extend(touched);
            }
            // An MLP's layers are used in the order of their buckets.
            BodyKind::Forward => assert!(touched.into_iter().all(|it| updated.contains(&it))),
            _ => assert_eq!(updated.len(), buckets),
        }
    }
    for route in &program.routes {
        let place = route.priority.map(|priority| priority.place);
        match route.carried {
            Carried::Gradients(bucket) | Carried::Sums(bucket) => {
                assert_eq!(place, Some(bucket.0));
            }
            _ => assert_eq!(place, None),
        }
    }
    let sums = program.class(ClassId(2));
    assert!(matches!(&sums.control[..], [Control::AsReceived(entries)] if entries.len() > 1));
}

/// It is used by the first block, and once more by the last.
#[test]
fn the_pieces_of_a_tied_embedding_have_the_place_of_its_first_use() {
    let graph = graph("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=8,tied=true");
    let uniform = uniform(2, Summation { order: SendOrder::NextUse, ..all(1) });
    let program = lowered(&graph, &uniform.plan(&graph, "model", "local"));
    let worker = program.class(ClassId(0));
    let is_tied = |param| graph.value(worker.param(param).value).name == "embedding.token";
    let mut places = BTreeSet::new();
    for route in &program.routes {
        let Carried::Gradients(bucket) = route.carried else { continue };
        if worker.bucket(bucket).params.iter().copied().any(is_tied) {
            places.insert(route.priority.map(|priority| priority.place));
        }
    }
    assert_eq!(places, [Some(0)].into());
}

#[test]
fn a_pass_that_comes_before_the_update_of_what_it_uses_is_rejected() {
    let program = by_next_use();
    assert_eq!(verify(&program), Ok(()));
    let is_update = |part: &Control| match part {
        Control::Run(entry) => {
            program.class(ClassId(0)).body_of(entry).kind == BodyKind::PartOfUpdate
        }
        _ => false,
    };
    let control = &program.classes[0].control;
    let updates = (0..control.len() - 1).filter(|&at| is_update(&control[at]));
    let mut count = 0;
    for at in updates {
        let mut late = program.clone();
        late.classes[0].control.swap(at, at + 1);
        late.assign_queues();
        let found = verify(&late).expect_err("it reads what is not updated");
        let is_early = |it: &Violation| matches!(it, Violation::Early { .. });
        assert!(found.iter().any(is_early), "{found:?}");
        count += 1;
    }
    assert_eq!(count, program.classes[0].buckets.len());
}

#[test]
fn credits_of_pieces_that_wait_for_no_turn_are_refused() {
    let graph = small();
    let credits = std::num::NonZeroU32::new(2);
    let of = |order| uniform(2, Summation { order, credits, ..all(1) });
    let plan = |order| of(order).plan(&graph, "model", "local");
    assert_eq!(plan(SendOrder::NextUse).validate(&graph, 3), Ok(()));
    let refused = plan(SendOrder::Backward).validate(&graph, 3).expect_err("no turns");
    assert!(refused.to_string().contains("sync.summation.credits"), "{refused}");
    let lowered = lowered(&graph, &plan(SendOrder::NextUse));
    let most: BTreeSet<u32> =
        lowered.routes.iter().filter_map(|route| Some(route.priority?.most_under_way)).collect();
    assert_eq!(most, [2].into());
}

/// A sum is received once all pieces of its bucket have been sent, which are several here and follow each other.
#[test]
fn points_that_follow_each_other_are_printed_as_one() {
    let graph = small();
    let mut uniform = uniform(2, Summation { order: SendOrder::NextUse, ..all(1) });
    uniform.sync.bucket_bytes = 40;
    let program = lowered(&graph, &uniform.plan(&graph, "model", "local"));
    let text = program.text(&graph, Rank(0)).expect("there is a rank 0");
    let mut count = 0;
    for (_, _, instruction) in program.class(ClassId(0)).instructions() {
        let follow = |one: &Point, next: &Point| match (*one, *next) {
            (Point::Latest(one, first), Point::Latest(other, second)) => {
                one == other && first + 1 == second
            }
            _ => false,
        };
        for run in instruction.after.chunk_by(follow).filter(|run| run.len() > 2) {
            let [Point::Latest(_, first), .., Point::Latest(_, last)] = run else { continue };
            let printed = format!("{first} to {last} of the last backward");
            assert!(text.contains(&printed), "{printed}: {text}");
            // None within it stands by itself.
            let within = format!(" {} of the last backward", first + 1);
            assert!(!text.contains(&within), "{within}: {text}");
            count += 1;
        }
    }
    assert!(count > 3, "{count}");
}
