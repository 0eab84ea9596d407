//! The algorithm that a plan gets against simulations with every other.

use crate::scenario::{h100, model};
use shardloom_cluster::{Cluster, Stack};
use shardloom_collectives::Algorithm;
use shardloom_methods::baselines;
use shardloom_plan::{Mesh, ParameterGroup, Plan, Precision, Sync, Uniform};
use shardloom_search::{Faster, Request, Topic, auto, explain, judge, with_fastest_algorithms};

const TEXT: &str = "gpt:layers=6,hidden=512,heads=8,seq=256,vocab=4096";
const MEMORY: u64 = 80_000_000_000;

/// Replicas that exchange gradients in buckets of this many bytes.
fn replicas(dp: u32, zero: u8, bucket_bytes: usize) -> Plan {
    let uniform = Uniform {
        mesh: Mesh::of(dp, 1, 1),
        global_batch: 32,
        precision: Precision::MIXED,
        sync: Sync { zero, bucket_bytes, ..Sync::default() },
        ..Uniform::default()
    };
    uniform.plan(&model(TEXT), TEXT, "c")
}

fn chosen(cluster: &Cluster, plan: Plan) -> Faster {
    let graph = model(TEXT);
    let judgement = judge(&graph, cluster, &plan).expect("it can be simulated");
    with_fastest_algorithms(&graph, cluster, plan, judgement, 0.95).expect("it can be simulated")
}

/// The least that a step takes with any algorithm of `of`.
fn least(cluster: &Cluster, plan: &Plan, of: impl IntoIterator<Item = Algorithm>) -> f64 {
    let seconds = of.into_iter().filter_map(|algorithm| {
        let mut other = plan.clone();
        other.sync.algorithm = algorithm;
        judge(&model(TEXT), cluster, &other).ok().map(|it| it.step_seconds)
    });
    seconds.fold(f64::INFINITY, f64::min)
}

#[test]
fn the_algorithm_is_the_fastest_of_those_without_messages_of_many_nodes_to_one() {
    let flat = [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::DoubleBinaryTree];
    let nested = [Algorithm::Hierarchical { inner: 4 }, Algorithm::BinaryTreeStar { inner: 4 }];
    let mut found = vec![];
    for (zero, bucket_bytes) in [(0, 1000), (0, 1 << 30), (1, 1000), (3, 1000)] {
        let (cluster, plan) = (h100(4, 4, MEMORY), replicas(16, zero, bucket_bytes));
        let best = least(&cluster, &plan, flat.into_iter().chain(nested));
        let before = judge(&graph(), &cluster, &plan).expect("it can be simulated");
        let answer = chosen(&cluster, plan);
        let step_seconds = answer.judgement.step_seconds;
        // What saves less than that is not worth another word.
        assert!(step_seconds <= best / (1.0 - 0.0005), "ZeRO-{zero}: {step_seconds} and {best}");
        assert_eq!(answer.judgement, judge(&graph(), &cluster, &answer.plan).expect("a plan"));
        let is_ring = answer.plan.sync.algorithm == Algorithm::Ring;
        assert_eq!(answer.notes.is_empty(), is_ring);
        assert!(is_ring || step_seconds < before.step_seconds);
        found.push(answer.plan.sync.algorithm.to_string());
    }
    found.sort_unstable();
    found.dedup();
    // Small buckets want few steps, a large one few bytes.
    assert!(found.len() > 1, "{found:?}");
}

fn graph() -> shardloom_graph::Graph {
    model(TEXT)
}

#[test]
fn within_a_node_small_buckets_go_straight_from_all_to_all() {
    let answer = chosen(&h100(1, 8, MEMORY), replicas(8, 0, 1000));
    assert_eq!(answer.plan.sync.algorithm, Algorithm::Direct);
    let note = answer.notes.last().expect("another algorithm than before");
    let begin = "collectives are direct: with sync.algorithm = \"ring\" a step would take ";
    assert!(note.starts_with(begin), "{note}");
}

/// Of six algorithms without groups in groups two send from many to one at a time, which nodes do not do alike.
#[test]
fn messages_of_many_to_one_are_left_out_where_any_stage_is_on_several_nodes() {
    let uniform = Uniform {
        pp: 2,
        mesh: Mesh::of(2, 1, 1),
        global_batch: 32,
        microbatches: 2,
        ..Uniform::default()
    };
    let cluster = h100(3, 2, MEMORY);
    let tried = |first: [u32; 2], second: [u32; 2]| {
        let mut plan = uniform.plan(&graph(), TEXT, "c");
        let stages = &mut plan.pipeline[0].stage;
        (stages[0].devices.0, stages[1].devices.0) = (first.into(), second.into());
        chosen(&cluster, plan).simulated
    };
    let (of_one, of_several) = ([2, 3], [0, 5]);
    assert_eq!(tried([0, 1], of_one), Algorithm::FLAT.len() - 1);
    assert_eq!(tried(of_several, of_one), Algorithm::FLAT.len() - 3);
    assert_eq!(tried(of_one, of_several), Algorithm::FLAT.len() - 3);
}

#[test]
fn a_group_of_parameters_gets_an_algorithm_of_its_own() {
    // Blocks in one large bucket, the rest in small ones.
    let mut plan = replicas(16, 0, 1000);
    let blocks = ParameterGroup { bucket_bytes: Some(1 << 30), ..ParameterGroup::named("block.*") };
    plan.parameters = vec![blocks];
    let cluster = h100(4, 4, MEMORY);
    let answer = chosen(&cluster, plan);
    let own = answer.plan.parameters[0].algorithm.expect("another than the rest");
    assert_ne!(own, answer.plan.sync.algorithm);
    let seconds = answer.judgement.step_seconds;
    for algorithm in Algorithm::FLAT
        .into_iter()
        .filter(|&it| ![Algorithm::Direct, Algorithm::Star].contains(&it))
    {
        let mut other = answer.plan.clone();
        other.parameters[0].algorithm = Some(algorithm);
        let other = judge(&graph(), &cluster, &other).expect("it can be simulated").step_seconds;
        assert!(seconds <= other / (1.0 - 0.0005), "{algorithm}: {other}, and {own}: {seconds}");
    }
    let note = answer.notes.last().expect("other algorithms than before");
    let begin = format!("collectives are {} and {own}: with ", answer.plan.sync.algorithm);
    assert!(note.starts_with(&begin), "{note}");
}

#[test]
fn a_stack_that_chooses_by_size_leaves_the_plan_as_it_is() {
    let plan = replicas(8, 0, 1000);
    for (stack, tried) in [("megatron", false), ("nanotron", false), ("shardloom", true)] {
        let stack = match stack {
            "shardloom" => Stack::default(),
            name => Stack::parse(name).expect("a preset"),
        };
        let answer = chosen(&h100(1, 8, MEMORY).under(stack), plan.clone());
        assert_eq!(answer.simulated > 0, tried);
        assert_eq!(answer.plan == plan, !tried);
    }
}

/// Measured times are not held against those of links that nobody measured.
#[test]
fn where_collectives_were_measured_so_is_what_is_chosen() {
    let measured = |names: &[&str]| {
        let mut group = h100(1, 8, MEMORY).groups()[0].clone();
        group.profile.device.lanes_overlap = false;
        for (index, name) in names.iter().enumerate() {
            let seconds = 1e-3 * (names.len() - index) as f64;
            let curve = shardloom_cluster::Curve::new(vec![(1.0, seconds), (1e9, 2.0 * seconds)]);
            group.profile.device.rates.insert((*name).into(), curve.expect("a curve"));
        }
        Cluster::new(vec![group]).expect("a cluster")
    };
    let plan = replicas(8, 0, 1 << 30);
    let ring = measured(&["ring.all-reduce.8"]);
    assert_eq!(chosen(&ring, plan.clone()).simulated, 0);
    let both = measured(&["ring.all-reduce.8", "halving-doubling.all-reduce.8"]);
    let answer = chosen(&both, plan);
    assert_eq!((answer.simulated, answer.plan.sync.algorithm), (1, Algorithm::HalvingDoubling));
}

#[test]
fn a_search_chooses_only_where_nobody_asked_for_an_algorithm() {
    let (graph, cluster) = (graph(), h100(1, 8, MEMORY));
    let found = |fastest_algorithm| {
        let request =
            Request { fastest_algorithm, bucket_bytes: 1000, ..Request::new(TEXT, "c", 8) };
        let baselines = |cluster: &Cluster, request: &Request| baselines(&graph, cluster, request);
        auto(&graph, &cluster, &request, baselines).expect("a plan")
    };
    let [asked, free] = [false, true].map(found);
    assert_eq!(asked.plan.sync.algorithm, Algorithm::Ring);
    assert!(free.judgement.step_seconds <= asked.judgement.step_seconds);
    let chosen = chosen(&cluster, asked.plan);
    assert_eq!((free.plan, free.judgement), (chosen.plan, chosen.judgement));
    assert_eq!(free.notes.last(), chosen.notes.last());
}

/// The share of memory that a plan with the fastest algorithm needs is enough to get it, and a little less is not.
#[test]
fn an_algorithm_with_which_the_plan_would_not_fit_is_not_taken() {
    let (graph, cluster, plan) = (graph(), h100(1, 8, MEMORY), replicas(8, 0, 1000));
    let start = judge(&graph, &cluster, &plan).expect("it can be simulated");
    let with_share = |share: f64| {
        with_fastest_algorithms(&graph, &cluster, plan.clone(), start.clone(), share)
            .expect("it can be simulated")
    };
    let free = with_share(0.95);
    assert_ne!(free.plan, plan);
    let fullest = free.judgement.fullest().expect("a device");
    let needed = fullest.peak_bytes as f64 / fullest.memory_bytes as f64;
    assert!(start.fits(1.001 * needed) && !start.fits(0.999 * needed), "{needed}");
    assert_eq!(with_share(1.001 * needed).plan, free.plan);
    for share in [0.999 * needed, 0.5 * needed] {
        let found = with_share(share);
        assert_eq!((found.plan, found.notes.len()), (plan.clone(), 0));
        assert_eq!(found.simulated, free.simulated, "what was tried is counted");
        assert_eq!(found.judgement, start);
    }
}

#[test]
fn an_explanation_says_how_the_algorithm_compares() {
    let (cluster, plan) = (h100(1, 8, MEMORY), replicas(8, 0, 1000));
    let sentences = |plan: &Plan| -> Vec<String> {
        let explained = explain(&graph(), &cluster, plan, &[]).expect("it can be simulated");
        let changes = explained.facts.into_iter().filter(|it| it.topic == Topic::Algorithm);
        let found = changes.map(|it| it.sentence);
        found.filter(|it| it.starts_with("sync.algorithm is ")).collect()
    };
    let [slow] = &sentences(&plan)[..] else { panic!("one sentence") };
    let begin = "sync.algorithm is \"ring\"; with \"direct\", the best of 5 others, ";
    assert!(slow.starts_with(begin) && slow.ends_with(" less"), "{slow}");
    let [fast] = &sentences(&chosen(&cluster, plan).plan)[..] else { panic!("one sentence") };
    assert!(fast.starts_with("sync.algorithm is \"direct\"; with "), "{fast}");
    assert!(fast.ends_with(" more") || fast.ends_with(" as long"), "{fast}");
}

/// Their weights are gathered where they are sharded; else nothing of them is exchanged.
#[test]
fn frozen_parameters_have_an_algorithm_where_their_weights_are_sharded() {
    let cluster = h100(4, 4, MEMORY);
    for (zero, has) in [(0, false), (2, false), (3, true)] {
        let mut plan = replicas(16, zero, 1 << 20);
        plan.parameters = vec![ParameterGroup { frozen: true, ..ParameterGroup::named("block.*") }];
        let facts = explain(&graph(), &cluster, &plan, &[]).expect("it can be simulated").facts;
        let compared = facts.iter().filter(|it| it.topic == Topic::Algorithm);
        let found =
            compared.filter(|it| it.sentence.starts_with("parameters[0].algorithm")).count();
        assert_eq!(found, usize::from(has), "ZeRO stage {zero}");
    }
}
