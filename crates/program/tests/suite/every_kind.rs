//! Small programs of every way of keeping replicas equal, for facts that must hold of any program.

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Averaging, Axis, AxisSet, Communication, Mesh, Negotiation, ParameterGroup, Plan, Precision,
    Push, Ranges, ScheduleKind, SendOrder, Servers, Share, Staleness, Summation, Sync, Uniform,
};
use shardloom_program::{Program, lower};

use crate::verifier::programs::gpt;

/// A program with its graph and a name for messages of failing tests.
pub struct Example {
    pub name: String,
    pub graph: Graph,
    pub plan: Plan,
    pub program: Program,
}

fn uniform(pp: usize, mesh: Mesh, sync: Sync) -> Uniform {
    Uniform {
        pp,
        mesh,
        sequence_parallel: mesh.tp() > 1,
        global_batch: 4 * mesh.dp() as usize,
        microbatches: 4,
        sync: Sync { bucket_bytes: 700, ..sync },
        ..Uniform::default()
    }
}

fn example(name: impl Into<String>, graph: Graph, plan: Plan) -> Example {
    let name = name.into();
    let program = lower(&graph, &plan, plan.least_devices());
    let program = program.unwrap_or_else(|error| panic!("{name}: {error}"));
    Example { name, graph, plan, program }
}

fn of(name: impl Into<String>, uniform: &Uniform) -> Example {
    let graph = gpt(true);
    let plan = uniform.plan(&graph, "model", "local");
    example(name, graph, plan)
}

/// Stages, replicas, splits, and the usual ways of keeping replicas equal.
pub fn without_servers() -> Vec<Example> {
    let mut examples = vec![];
    for zero in 0..=3 {
        let sync = Sync { zero, ..Sync::default() };
        let both = Uniform { clip_norm: Some(1.0), ..uniform(2, Mesh::of(2, 1, 2), sync) };
        examples.push(of(format!("zero {zero}"), &both));
        let three = Uniform {
            precision: Precision::MIXED,
            schedule: ScheduleKind::ZeroBubbleV,
            ..uniform(2, Mesh::of(3, 1, 1), sync)
        };
        examples.push(of(format!("zero {zero} of three"), &three));
    }
    for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
        let sync = Sync { zero: 1, algorithm, ..Sync::default() };
        examples.push(of(algorithm.to_string(), &uniform(1, Mesh::of(4, 1, 1), sync)));
    }
    for how in ["fp16", "bf16-feedback", "one-bit", "top-k:10", "power-sgd:1"] {
        let compression = how.parse().expect("a compression");
        let sync = Sync { compression, ..Sync::default() };
        examples.push(of(how, &uniform(1, Mesh::of(3, 1, 2), sync)));
    }
    for averaging in [Averaging::SYNCHRONOUS, Averaging::local_sgd(2), Averaging::PAIRS] {
        let sync = Sync { averaging: Some(averaging), ..Sync::default() };
        // A replica that publishes its weights is one rank.
        let is_alone = averaging == Averaging::PAIRS;
        let (pp, tp) = if is_alone { (1, 1) } else { (2, 2) };
        examples.push(of(format!("{averaging:?}"), &uniform(pp, Mesh::of(2, 1, tp), sync)));
    }
    let negotiation = Some(Negotiation { cycle_seconds: 1e-3, fusion_bytes: 3000 });
    let sync = Sync { negotiation, algorithm: Algorithm::Ring, ..Sync::default() };
    examples.push(of("negotiated", &uniform(2, Mesh::of(2, 1, 2), sync)));
    let pairs = Mesh::of(4, 1, 1).sharing_within(2).expect("two pairs");
    let sync = Sync { zero: 2, ..Sync::default() };
    examples.push(of("shares in pairs", &uniform(1, pairs, sync)));
    let second_copy_over = AxisSet::of(&[Axis::DP]);
    let sync = Sync { zero: 3, second_copy_over, ..Sync::default() };
    examples.push(of("second copies", &uniform(2, pairs, sync)));
    let bidirectional = Uniform {
        schedule: ScheduleKind::Chimera,
        clip_norm: Some(1.0),
        ..uniform(2, Mesh::of(2, 1, 1), Sync::default())
    };
    examples.push(of("both ways", &bidirectional));
    let context = uniform(1, Mesh::of(2, 2, 1), Sync { zero: 1, ..Sync::default() });
    examples.push(of("context", &context));
    let validated = Uniform {
        schedule: ScheduleKind::ZeroBubbleH2,
        clip_norm: Some(1.0),
        ..uniform(2, Mesh::of(2, 1, 1), Sync { zero: 1, ..Sync::default() })
    };
    let graph_of_all = gpt(true);
    let plan = validated.plan(&graph_of_all, "model", "local");
    examples.push(example("validated", gpt(true), Plan { post_validation: true, ..plan }));
    let threaded = uniform(2, Mesh::of(2, 1, 2), Sync { zero: 2, ..Sync::default() });
    let plan = threaded.plan(&graph_of_all, "model", "local");
    let plan = Plan { communication: Communication::Thread, ..plan };
    examples.push(example("thread", gpt(true), plan));
    let sparse = uniform(1, Mesh::of(2, 1, 2), Sync { sparse: true, ..Sync::default() });
    let plan = sparse.plan(&gpt(false), "model", "local");
    examples.push(example("sparse", gpt(false), plan));
    // An axis that splits samples stands before that of the replicas.
    let [first, second] = ["first", "second"].map(|name| Axis::named(name).expect("a name"));
    let sparse = uniform(1, Mesh::of(2, 2, 1), Sync { sparse: true, ..Sync::default() });
    let mut plan = sparse.plan(&gpt(false), "model", "local");
    plan.axes = vec![first, second];
    for rule in &mut plan.layout.0 {
        rule.axis = if rule.axis == Axis::DP { second } else { first };
    }
    plan.pipeline[0].stage[0].mesh = Mesh::SINGLE.with(first, 2).with(second, 2);
    examples.push(example("sparse on other axes", gpt(false), plan));
    let text = include_str!("../../../../examples/models/routed-experts.toml");
    let spec = ModelSpec::from_toml(text, "routed-experts.toml").expect("a valid model");
    let routed = spec.graph().expect("a valid model");
    let plan = uniform(1, Mesh::of(2, 1, 1), Sync::default()).plan(&routed, "model", "local");
    let layout = "expert:dp, batch:dp".to_owned().try_into().expect("two rules");
    examples.push(example("routed", routed, Plan { layout, ..plan }));
    examples
}

/// Workers with servers of each kind.
pub fn with_servers() -> Vec<Example> {
    let mut examples = vec![];
    let workers = |count: u32, sync: Sync| Uniform {
        global_batch: 2 * count as usize,
        microbatches: 2,
        ..uniform(1, Mesh::of(count, 1, 1), sync)
    };
    let servers = [
        Servers::of(2, Staleness::Within(1)),
        Servers { replicas: 1, ..Servers::of(3, Staleness::SYNCHRONOUS) },
        Servers { push: Push::Deltas, ..Servers::of(2, Staleness::Unbounded) },
        Servers { colocated: true, ..Servers::of(1, Staleness::Within(1)) },
    ];
    for servers in servers {
        let sync = Sync { servers: Some(servers), ..Sync::default() };
        examples.push(of(format!("{servers:?}"), &workers(2, sync)));
    }
    let summations = [
        Summation::of(2),
        Summation { order: SendOrder::NextUse, ..Summation::of(1) },
        Summation { ranges: Ranges::Equal, share: Share::Balanced, ..Summation::of(2) },
        Summation { colocated: true, share: Share::Part(0.4), ..Summation::of(1) },
    ];
    for summation in summations {
        let sync = Sync { summation: Some(summation), ..Sync::default() };
        let of_all = Uniform { clip_norm: Some(1.0), ..workers(3, sync) };
        examples.push(of(format!("{summation:?}"), &of_all));
    }
    let graph = gpt(false);
    let sync = Sync { summation: Some(Summation::of(2)), ..Sync::default() };
    let plan = workers(3, sync).plan(&graph, "model", "local");
    let by = |names: &str, servers: &[u32]| ParameterGroup {
        servers: Some(servers.to_vec()),
        ..ParameterGroup::named(names)
    };
    let table = ParameterGroup { sparse: Some(true), ..by("embedding.token", &[0, 1, 0]) };
    for (name, rest) in [("tables", vec![by("*", &[])]), ("tables and sums", vec![])] {
        let parameters = [table.clone()].into_iter().chain(rest).collect();
        examples.push(example(name, gpt(false), Plan { parameters, ..plan.clone() }));
    }
    examples
}

pub fn all() -> Vec<Example> {
    without_servers().into_iter().chain(with_servers()).collect()
}
