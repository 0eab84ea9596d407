//! Explanations say which kinds of parallelism a plan has and what each alone would take.

use crate::scenario::{h100, model};
use shardloom_cluster::Cluster;
use shardloom_plan::{Mesh, Plan, Precision, Summation, Sync, Uniform};
use shardloom_search::{Only, Request, Topic, auto, explain};

const PLENTY: u64 = 80_000_000_000;
const BATCH: usize = 8;

fn text(heads: usize) -> String {
    format!("gpt:layers=4,hidden={},heads={heads},seq=64,vocab=512", 64 * heads)
}

fn plan(text: &str, pp: usize, dp: u32, tp: u32) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: BATCH,
        microbatches: BATCH / dp as usize,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    uniform.plan(&model(text), text, "c")
}

/// The sentences, and the numbers that they rest on.
fn told(text: &str, cluster: &Cluster, plan: &Plan) -> (f64, Vec<(String, f64)>) {
    let found = explain(&model(text), cluster, plan, &[]).expect("it can be simulated");
    let facts = found.facts.into_iter().filter(|it| it.topic == Topic::Parallelism);
    (found.step_seconds, facts.map(|it| (it.sentence, it.number)).collect())
}

#[test]
fn the_kinds_of_a_plan_are_said_and_each_of_the_others_alone() {
    let text = text(8);
    for ((pp, dp, tp), is, others) in [
        ((2, 2, 2), "samples, products and layers (hybrid, data, tensor and pipeline", 3),
        ((1, 8, 1), "samples (data", 2),
        ((1, 1, 8), "products (tensor", 2),
        ((1, 2, 4), "samples and products (hybrid, data and tensor", 3),
    ] {
        let plan = plan(&text, pp, dp, tp);
        let (seconds, facts) = told(&text, &h100(2, 4, PLENTY), &plan);
        assert_eq!(facts[0], (format!("the plan cuts {is} parallelism)"), seconds));
        assert_eq!(facts.len(), 1 + others);
        let names = ["data", "tensor", "pipeline"];
        let only = (others == 2).then_some(if dp > 1 { "data" } else { "tensor" });
        let expected = names.into_iter().filter(|&name| Some(name) != only);
        for ((sentence, _), name) in facts[1..].iter().zip(expected) {
            assert!(sentence.starts_with(&format!("{name} parallelism alone")), "{sentence}");
        }
    }
    // One device has none, and how servers are used no search chooses.
    assert!(told(&text, &h100(1, 2, PLENTY), &plan(&text, 1, 1, 1)).1.is_empty());
    let sync = Sync { summation: Some(Summation::of(1)), ..Sync::default() };
    let served = Uniform { sync, mesh: Mesh::of(2, 1, 1), global_batch: 8, ..Uniform::default() };
    let served = served.plan(&model(&text), &text, "c");
    assert!(told(&text, &h100(1, 4, PLENTY), &served).1.is_empty());
}

/// A search that is told the widths comes to no faster plan, and hardly to a slower one.
#[test]
fn what_a_kind_alone_takes_is_what_a_search_of_it_finds() {
    let (text, cluster) = (text(8), h100(2, 4, PLENTY));
    let plan = plan(&text, 2, 2, 2);
    let (seconds, facts) = told(&text, &cluster, &plan);
    let one = Some(1);
    let kinds = [
        Only { pp: one, tp: one, ..Only::default() },
        Only { pp: one, dp: one, ..Only::default() },
    ];
    for ((sentence, number), only) in facts[1..].iter().zip(kinds) {
        let only = Only { cp: one, ..only };
        let request = Request { only, ..Request::like(&plan) };
        let found = auto(&model(&text), &cluster, &request, |_, _| Ok(vec![])).expect("a plan");
        let ratio = number / found.judgement.step_seconds;
        assert!((1.0..1.2).contains(&ratio), "{sentence}: {ratio}");
        let says = format!(", {:.2} times as long, and loses ", number / seconds);
        assert!(sentence.contains(&says), "{sentence}");
    }
    // What a plan does about its norm is its own matter.
    let validated = Plan { post_validation: true, clip_norm: Some(1.0), ..plan.clone() };
    let clipped = Plan { clip_norm: Some(1.0), ..plan };
    let [(_, of_validated), (_, of_clipped)] =
        [validated, clipped].map(|plan| told(&text, &cluster, &plan));
    let numbers = |facts: &[(String, f64)]| facts[1..].iter().map(|it| it.1).collect::<Vec<_>>();
    assert_eq!(numbers(&of_validated), numbers(&of_clipped));
}

#[test]
fn what_is_too_large_or_cannot_be_cut_is_said() {
    let of = |text: &str, memory, name: &str| {
        let (_, facts) = told(text, &h100(2, 2, memory), &plan(text, 2, 2, 1));
        facts.into_iter().find(|it| it.0.starts_with(name)).expect("it is said")
    };
    // Of five heads, layers of width 320 and 513 words, four devices get no equal parts.
    let uneven = "gpt:layers=4,hidden=315,heads=5,seq=63,vocab=513";
    let tensor = of(uneven, PLENTY, "tensor");
    assert!(tensor.0.contains(": a step on 1 of 4 devices takes "), "{tensor:?}");
    let even = text(4);
    // Weights, gradients and states are 16 bytes an element, of which each of four shares a quarter, besides activations.
    let parameters = model(&even).parameter_count();
    let too_large = |name: &str| (format!("{name} parallelism alone: no plan fits in memory"), 0.0);
    assert_eq!(of(&even, 2 * parameters, "data"), too_large("data"));
    assert_eq!(of(&even, 2 * parameters, "pipeline"), too_large("pipeline"));
    assert!(of(&even, PLENTY, "data").1 > 0.0);
}
