//! Programs in which each group of parameters says whether servers sum its gradients, and which: what is cut where,
//! what every link carries, and what the verifier says of programs in which a gradient has two ways or none.

use shardloom_collectives::{Algorithm, chunk};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Mesh, ParameterGroup, Plan, Ranges, ScheduleKind, Share, Summation, Sync, Uniform,
};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, Bucket, Class, ClassId, Group, Instruction, Program, ProgramError, View, Window, lower,
};

fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a model")
}

fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=8,tied=true")
}

/// Parameters of these names by these servers.
fn group(names: &str, servers: &[u32]) -> ParameterGroup {
    ParameterGroup { servers: Some(servers.to_vec()), ..ParameterGroup::named(names) }
}

/// Parameters of these names by the workers, with this algorithm.
fn by_workers(names: &str, algorithm: Algorithm) -> ParameterGroup {
    ParameterGroup { algorithm: Some(algorithm), ..group(names, &[]) }
}

fn plan(graph: &Graph, workers: u32, servers: u32, groups: Vec<ParameterGroup>) -> Plan {
    let summation = Some(Summation::of(servers));
    let uniform = Uniform {
        mesh: Mesh::of(workers, 1, 1),
        global_batch: 2 * workers as usize,
        microbatches: 2,
        sync: Sync { summation, bucket_bytes: 120, ..Sync::default() },
        ..Uniform::default()
    };
    let mut plan = uniform.plan(graph, "model", "local");
    plan.parameters = groups;
    plan
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Large matrices on both servers, in three pieces; norms by a ring; the rest of the attention by the second
/// server; what is left as the plan has it for all.
fn mixed() -> Vec<ParameterGroup> {
    vec![
        group("*ffn*weight", &[1, 0, 1]),
        by_workers("*norm*", Algorithm::Ring),
        group("*attention*", &[1]),
    ]
}

/// The buckets that hold a parameter of such a name.
fn buckets<'c>(graph: &Graph, class: &'c Class, part: &str) -> Vec<&'c Bucket> {
    let holds = |bucket: &&Bucket| {
        let mut names =
            bucket.params.iter().map(|&it| graph.value(class.param(it).value).name.as_str());
        names.any(|name| name.contains(part))
    };
    class.buckets.iter().filter(holds).collect()
}

#[test]
fn programs_of_any_groups_are_sound() {
    let graphs = [gpt(), graph("mlp:inputs=8,hidden=8,layers=3,classes=4")];
    let all = |servers: &[u32]| vec![group("*", servers)];
    let mut count = 0;
    for graph in &graphs {
        for workers in [1, 2, 4] {
            let mut choices = vec![
                (1, all(&[0])),
                (2, all(&[0, 1])),
                (2, all(&[1, 1, 0, 1, 0])),
                (3, vec![group("*bias", &[2]), by_workers("*", Algorithm::Ring)]),
                (1, vec![by_workers("*bias", Algorithm::BinaryTree)]),
                (2, vec![group("*weight", &[]), group("*", &[0, 1])]),
            ];
            if graph.values().any(|(_, value)| value.name.contains("norm")) {
                choices.push((2, mixed()));
            }
            for (servers, groups) in choices {
                for schedule in [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward] {
                    for clip_norm in [None, Some(1.0)] {
                        for share in [Share::Part(1.0), Share::Part(0.4), Share::Balanced] {
                            let ranges = Ranges::Equal;
                            let mut plan = plan(graph, workers, servers, groups.clone());
                            plan.schedule = schedule;
                            plan.clip_norm = clip_norm;
                            plan.sync.summation =
                                Some(Summation { ranges, share, ..Summation::of(servers) });
                            let devices = plan.device_count();
                            // A server of which no group speaks may have nothing to do.
                            let program = match lower(graph, &plan, devices) {
                                Ok(program) => program,
                                Err(ProgramError::TooManyServers { .. }) => continue,
                                Err(error) => panic!("{error}\n{}", plan.to_toml()),
                            };
                            assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
                            count += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(count >= 380, "{count}");
}

/// It sums other parameters, and takes part in the norm of all gradients, of which it has no use.
#[test]
fn a_server_without_a_table_beside_one_that_has_one_is_sound() {
    let graph = graph("lstm:layers=1,hidden=8,embed=8,seq=4,vocab=64,sampled_softmax=8");
    let table = ParameterGroup { sparse: Some(true), ..group("embedding.token", &[0]) };
    for clip_norm in [None, Some(1.0)] {
        let mut plan = plan(&graph, 2, 2, vec![table.clone(), group("*", &[1])]);
        plan.clip_norm = clip_norm;
        let program = lowered(&graph, &plan);
        let [with_table, without] = [2, 3].map(|class| &program.classes[class]);
        assert!(with_table.holds_tables() && !without.holds_tables() && without.sums());
        assert_eq!(verify(&program), Ok(()), "clipped to {clip_norm:?}");
    }
}

#[test]
fn pieces_are_rows_of_each_parameter_and_go_to_the_servers_that_are_listed() {
    let graph = gpt();
    let program = lowered(&graph, &plan(&graph, 2, 2, mixed()));
    let class = &program.classes[0];
    let large = buckets(&graph, class, "ffn.up.weight");
    assert_eq!(large.len(), 2);
    for bucket in large {
        let mut pieces = bucket.summed.iter();
        for &param in &bucket.params {
            let param = class.param(param);
            let (rows, columns) = (param.shape[0], param.elements() / param.shape[0]);
            for (piece, server) in [3, 2, 3].into_iter().enumerate() {
                let rows = chunk(rows, 3, piece);
                let found = pieces.next().expect("a piece");
                assert_eq!(found.server, ClassId(server));
                let start = param.offset + columns * rows.start;
                assert_eq!(found.range, start..param.offset + columns * rows.end);
            }
        }
        assert_eq!(pieces.next(), None);
        assert_eq!(bucket.summed.iter().map(|it| it.range.len()).sum::<usize>(), bucket.elements);
    }
    let others = buckets(&graph, class, "attention");
    for bucket in others.into_iter().filter(|bucket| !bucket.summed.is_empty()) {
        assert!(bucket.summed.iter().all(|it| it.server == ClassId(3)), "{:?}", bucket.summed);
        assert_eq!(bucket.summed.len(), bucket.params.len());
    }
    assert!(buckets(&graph, class, "norm").iter().all(|bucket| bucket.summed.is_empty()));
    // A parameter with fewer rows than there are pieces has a row in each.
    let few = lowered(&graph, &plan(&graph, 2, 2, vec![group("*", &[0, 1].repeat(20))]));
    let class = &few.classes[0];
    let rows = |bucket: &Bucket| -> usize {
        bucket.params.iter().map(|&it| class.param(it).shape[0].min(40)).sum()
    };
    assert!(class.buckets.iter().all(|bucket| bucket.summed.len() == rows(bucket)));
}

#[test]
fn every_bucket_is_summed_in_one_way_and_workers_take_the_algorithm_of_its_group() {
    let graph = gpt();
    let program = lowered(&graph, &plan(&graph, 2, 2, mixed()));
    for class in &program.classes[..2] {
        let bodies = class.entries().map(|entry| class.body_of(entry));
        let instructions: Vec<&Instruction> = bodies.flat_map(|it| &it.instructions).collect();
        for (id, bucket) in class.buckets() {
            let of = |view: View| class.tensor(view.tensor).bucket == Some(id);
            let sums = instructions.iter().filter_map(|it| match &it.action {
                Action::Collective { group: Group::Classes(_), algorithm, .. }
                    if of(it.reads[0]) =>
                {
                    Some(*algorithm)
                }
                _ => None,
            });
            let sent = instructions
                .iter()
                .filter(|it| matches!(it.action, Action::Send { .. }) && of(it.reads[0]));
            let (sums, sent): (Vec<Algorithm>, usize) = (sums.collect(), sent.count());
            match bucket.summed.len() {
                0 => assert_eq!((sums, sent), (vec![Algorithm::Ring], 0)),
                pieces => assert_eq!((sums, sent), (vec![], pieces)),
            }
        }
    }
}

/// A worker sends what servers sum once, and of what workers sum 2 (n - 1) / n; a server sends each worker its sums.
#[test]
fn each_link_carries_what_its_groups_come_to() {
    let graph = gpt();
    for workers in [2, 4] {
        let groups = vec![
            group("*weight", &[0, 2, 1, 1]),
            by_workers("*norm*", Algorithm::Ring),
            group("*", &[1]),
        ];
        let program = lowered(&graph, &plan(&graph, workers, 3, groups));
        let buckets = &program.classes[0].buckets;
        let mut of_server = [0; 3];
        let (mut sent, mut shared, mut rounding) = (0, 0, 0);
        for bucket in buckets {
            for piece in &bucket.summed {
                of_server[(piece.server.0 - workers) as usize] += 4 * piece.range.len() as u64;
            }
            let summed = bucket.summed.iter().map(|it| it.range.len()).sum::<usize>();
            sent += 4 * summed as u64;
            if summed == 0 {
                shared += 4 * bucket.elements as u64;
                rounding += 4 * 2 * u64::from(workers);
            } else {
                assert_eq!(summed, bucket.elements);
            }
        }
        assert!(shared > 0 && of_server.iter().all(|&bytes| bytes > 0));
        let n = u64::from(workers);
        for (id, class) in program.classes() {
            let found = program.sent_bytes(id, 0);
            match class.sums() {
                true => assert_eq!(found, n * of_server[(id.0 - workers) as usize]),
                false => {
                    let expected = sent + 2 * (n - 1) * shared / n;
                    assert!(found.abs_diff(expected) <= rounding, "{found} for {expected}");
                }
            }
        }
    }
}

/// What the verifier says of a program that was changed.
fn rejected(good: &Program, how: impl FnOnce(&mut Program)) -> Vec<Violation> {
    assert_eq!(verify(good), Ok(()));
    let mut program = good.clone();
    how(&mut program);
    program.assign_queues();
    verify(&program).expect_err("a gradient has two ways or none")
}

/// Where the workers' sums stand, of whole buckets over workers, by class, body and place.
fn sums(program: &Program, workers: usize) -> Vec<(usize, usize, usize)> {
    let is_sum = |it: &Instruction| {
        matches!(&it.action, Action::Collective { group: Group::Classes(_), .. })
    };
    let mut found = vec![];
    for (class, of_class) in program.classes[..workers].iter().enumerate() {
        for (body, of_body) in of_class.bodies.iter().enumerate() {
            let all = of_body.instructions.iter().enumerate().filter(|(_, it)| is_sum(it));
            found.extend(all.map(|(at, _)| (class, body, at)));
        }
    }
    found
}

#[test]
fn a_gradient_that_workers_do_not_sum_or_that_servers_sum_too_is_rejected() {
    let graph = gpt();
    let good = lowered(&graph, &plan(&graph, 2, 2, mixed()));
    let places = sums(&good, 2);
    // Nobody sums it.
    let found = rejected(&good, |program| {
        for &(class, body, at) in places.iter().rev() {
            program.classes[class].bodies[body].instructions.remove(at);
        }
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Unreduced { .. })), "{found:#?}");
    // It is summed once more.
    let found = rejected(&good, |program| {
        for &(class, body, at) in places.iter().rev() {
            let instructions = &mut program.classes[class].bodies[body].instructions;
            instructions.insert(at + 1, instructions[at].clone());
        }
    });
    assert!(found.iter().any(|it| matches!(it, Violation::ReducedTwice { .. })), "{found:#?}");
    // What servers sum, workers sum too.
    let found = rejected(&good, |program| {
        for class in 0..2 {
            let (_, body, at) = *places.iter().find(|it| it.0 == class).expect("a sum");
            let sum = good.classes[class].bodies[body].instructions[at].clone();
            let instructions = &mut program.classes[class].bodies[body].instructions;
            let is_send = |it: &Instruction| matches!(it.action, Action::Send { .. });
            let send = instructions.iter().rposition(is_send).expect("a piece is sent");
            let view = View { window: Window::Whole, ..instructions[send].reads[0] };
            instructions.insert(send + 1, Instruction::new(sum.action, [view], [view]));
        }
    });
    assert!(found.iter().any(|it| matches!(it, Violation::ReducedTwice { .. })), "{found:#?}");
    // A piece is said to be another server's.
    let found = rejected(&good, |program| {
        let is_cut = |bucket: &&mut Bucket| {
            bucket.summed.get(1).is_some_and(|piece| piece.server == ClassId(2))
        };
        let bucket = program.classes[0].buckets.iter_mut().find(is_cut).expect("it is cut");
        bucket.summed[1].server = ClassId(3);
    });
    assert!(found.iter().any(|it| matches!(it, Violation::Served { .. })), "{found:#?}");
}

#[test]
fn groups_whose_servers_cannot_be_are_refused_by_name() {
    let graph = gpt();
    let of = |groups| plan(&graph, 2, 2, groups);
    let without = |groups| {
        let mut plan = of(groups);
        plan.sync.summation = None;
        plan
    };
    let compression = Some("fp16".parse().expect("a compressor"));
    for (plan, key) in [
        (of(vec![group("*bias", &[0, 2])]), "parameters[0].servers = [0, 2]: there is no server 2"),
        (
            without(vec![group("*bias", &[0])]),
            "parameters[0].servers = [0]: for plans with servers",
        ),
        (without(vec![group("*bias", &[])]), "parameters[0].servers = []: for plans with servers"),
        (
            of(vec![ParameterGroup { algorithm: Some(Algorithm::Ring), ..group("*", &[0, 1]) }]),
            "parameters[0].algorithm = ring",
        ),
        (
            of(vec![ParameterGroup { compression, ..group("*", &[0, 1]) }]),
            "parameters[0].compression = fp16",
        ),
        (of(vec![group("*", &[])]), "sync.summation.servers = 2"),
        (of(vec![group("*", &[1])]), "name each of them in the servers of some group"),
    ] {
        let error = lower(&graph, &plan, plan.device_count()).expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn a_groups_own_size_of_buckets_is_the_most_of_its_pieces() {
    let graph = gpt();
    let ffn = ParameterGroup { bucket_bytes: Some(60), ..ParameterGroup::named("*ffn*") };
    let program = lowered(&graph, &plan(&graph, 2, 2, vec![ffn]));
    let class = &program.classes[0];
    let own = buckets(&graph, class, "ffn");
    assert!(!own.is_empty() && own.len() < class.buckets.len());
    for bucket in &class.buckets {
        // 60 and 120 bytes of fp32.
        let most = if own.contains(&bucket) { 15 } else { 30 };
        assert_eq!(bucket.summed.len(), bucket.elements.div_ceil(most), "{}", bucket.name);
        assert!(bucket.summed.iter().all(|piece| piece.range.len() <= most), "{}", bucket.name);
    }
}
