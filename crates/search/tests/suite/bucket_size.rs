//! The size of buckets that a plan gets against simulations with others.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::scenario::{h100, model};
use shardloom_cluster::{Cluster, Stack};
use shardloom_plan::{Compression, Mesh, Negotiation, Plan, Precision, Summation, Sync, Uniform};
use shardloom_search::{Faster, Request, Runner, auto, judge, with_fastest_reductions};

const TEXT: &str = "gpt:layers=6,hidden=512,heads=8,seq=256,vocab=4096";
const MEMORY: u64 = 80_000_000_000;

fn replicas(sync: Sync) -> Plan {
    let uniform = Uniform {
        mesh: Mesh::of(16, 1, 1),
        global_batch: 32,
        precision: Precision::MIXED,
        sync,
        ..Uniform::default()
    };
    uniform.plan(&model(TEXT), TEXT, "c")
}

fn of_bytes(bucket_bytes: usize) -> Plan {
    replicas(Sync { bucket_bytes, ..Sync::default() })
}

fn seconds(cluster: &Cluster, plan: &Plan) -> f64 {
    judge(&model(TEXT), cluster, plan).expect("it can be simulated").step_seconds
}

fn request(bucket_bytes: usize) -> Request {
    Request { fastest_bucket_size: true, bucket_bytes, ..Request::new(TEXT, "c", 32) }
}

fn chosen(cluster: &Cluster, plan: Plan, request: &Request) -> Faster {
    let graph = model(TEXT);
    let judgement = judge(&graph, cluster, &plan).expect("it can be simulated");
    with_fastest_reductions(&graph, cluster, plan, judgement, request).expect("a plan")
}

/// From wherever it begins: a quarter of the size that it ends with or four times that saves next to nothing.
#[test]
fn the_size_is_one_that_neither_more_nor_fewer_bytes_are_much_faster_than() {
    let cluster = h100(4, 4, MEMORY);
    for before in [1 << 20, 25_000_000, 1 << 30] {
        let answer = chosen(&cluster, of_bytes(before), &request(before));
        let (after, took) = (answer.plan.sync.bucket_bytes, answer.judgement.step_seconds);
        assert_eq!(took, seconds(&cluster, &of_bytes(after)), "only the size is another");
        for other in [after / 4, after.saturating_mul(4)].into_iter().filter(|it| *it >= 1 << 20) {
            let other_took = seconds(&cluster, &of_bytes(other));
            assert!(
                took <= other_took / (1.0 - 0.005),
                "{before}: {after} {took}, {other} {other_took}"
            );
        }
        assert_eq!(answer.notes.is_empty(), after == before);
        assert!(answer.simulated > 0);
    }
}

/// A model of many small blocks.
const FINE: &str = "gpt:layers=48,hidden=128,heads=4,seq=512,vocab=1024";

/// Of a pipeline with many micro-batches, whose steps are tried with fewer.
#[test]
fn the_size_of_a_long_step_is_no_other_than_that_of_a_whole_one() {
    let graph = model(FINE);
    let cluster = Cluster::parse("rtx-2080:16x1").expect("a preset").under(Stack::default());
    let seconds =
        |plan: &Plan| judge(&graph, &cluster, plan).expect("it can be simulated").step_seconds;
    let of_bytes = |bucket_bytes| {
        let sync = Sync { bucket_bytes, ..Sync::default() };
        let mesh = Mesh::of(8, 1, 1);
        let (global_batch, microbatches) = (64, 8);
        let uniform =
            Uniform { pp: 2, mesh, global_batch, microbatches, sync, ..Uniform::default() };
        uniform.plan(&graph, FINE, "c")
    };
    let mut found = BTreeMap::new();
    for before in [1 << 20, 1 << 24, 1 << 30] {
        let request = Request { global_batch: 64, ..request(before) };
        let judgement = judge(&graph, &cluster, &of_bytes(before)).expect("it can be simulated");
        let answer =
            with_fastest_reductions(&graph, &cluster, of_bytes(before), judgement, &request);
        let answer = answer.expect("a plan");
        let (after, took) = (answer.plan.sync.bucket_bytes, answer.judgement.step_seconds);
        assert_eq!(answer.plan, of_bytes(after), "only the size is another");
        assert_eq!(took, seconds(&of_bytes(after)));
        for other in [after / 4, after.saturating_mul(4)].into_iter().filter(|it| *it >= 1 << 20) {
            let other_took = seconds(&of_bytes(other));
            assert!(took <= other_took / (1.0 - 0.005), "{before}: {after} {took}, {other}");
        }
        found.insert(before, after);
    }
    assert!(found.iter().any(|(before, after)| before != after), "{found:?}");
}

/// The plan of a model for 16 replicas, with so many samples a step.
fn of_16(text: &str, global_batch: usize, sync: Sync) -> Plan {
    let uniform = Uniform {
        mesh: Mesh::of(16, 1, 1),
        global_batch,
        precision: Precision::MIXED,
        sync,
        ..Uniform::default()
    };
    uniform.plan(&model(text), text, "c")
}

/// That of these small blocks with buckets of so many bytes, and the one that the request makes of it.
fn fine(before: usize, request: &Request) -> [Faster; 2] {
    let (graph, cluster) = (model(FINE), h100(4, 4, MEMORY));
    let plan = of_16(FINE, 512, Sync { bucket_bytes: before, ..Sync::default() });
    let judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
    let fixed = Request { fastest_bucket_size: false, ..request.clone() };
    [&fixed, request].map(|request| {
        let (plan, judgement) = (plan.clone(), judgement.clone());
        with_fastest_reductions(&graph, &cluster, plan, judgement, request).expect("a plan")
    })
}

/// Reduced as one at the end, all of it is waited for; block by small block, each costs its messages' latency.
#[test]
fn buckets_that_are_too_large_or_too_small_get_a_size_between() {
    let found = [1 << 20, 1 << 30].map(|before| {
        let [fixed, answer] = fine(before, &request(before));
        let (was, now) = (fixed.judgement.step_seconds, answer.judgement.step_seconds);
        let after = answer.plan.sync.bucket_bytes;
        assert!(now < was, "{before}: {now} and {was}");
        let more = format!("{:.1}%", 100.0 * (was / now - 1.0));
        let note =
            format!("sync.bucket_bytes is {after}: with {before} a step would take {more} more");
        assert_eq!(answer.notes, [note]);
        after
    });
    assert!(found[0] > 1 << 20 && found[1] < 1 << 30, "{found:?}");
}

#[test]
fn a_size_that_somebody_has_chosen_stays() {
    let cluster = h100(4, 4, MEMORY);
    let before = 1 << 30;
    let sync = Sync { bucket_bytes: before, ..Sync::default() };
    let negotiation = Some(Negotiation::default());
    let compression = Compression::TopK { of: 8 };
    let asked = Request { fastest_bucket_size: false, ..request(before) };
    let fixed = [
        ("what is left out depends on it", request(before), Sync { compression, ..sync }),
        ("not left to the search", asked, sync),
        ("another than asked for", request(1 << 20), sync),
        ("by block", request(before), Sync { zero: 3, ..sync }),
        ("requests", request(before), Sync { negotiation, ..sync }),
    ];
    for (why, request, sync) in fixed {
        let plan = replicas(sync);
        let answer = chosen(&cluster, plan.clone(), &request);
        assert_eq!((answer.plan, answer.simulated), (plan, 0), "{why}");
    }
    // Software with a size of its own.
    let nanotron = cluster.under(Stack::parse("nanotron").expect("a preset"));
    assert_eq!(chosen(&nanotron, replicas(sync), &request(before)).simulated, 0);
}

/// Somebody who runs every plan, with buckets of so many bytes at least.
#[derive(Debug)]
pub struct Least(pub usize);

impl Runner for Least {
    fn name(&self) -> &str {
        "somebody"
    }

    fn runs_on(&self, _: &Cluster, _: u32) -> bool {
        true
    }

    fn runs_numbers(&self, _: &Uniform, _: usize) -> bool {
        true
    }

    fn runs(&self, _: &Cluster, _: &Plan) -> bool {
        true
    }

    fn takes_bucket_size(&self, _: &Cluster, plan: &Plan) -> bool {
        plan.sync.bucket_bytes >= self.0
    }

    fn own_cuts(&self) -> Option<&BTreeMap<usize, Vec<usize>>> {
        None
    }
}

#[test]
fn who_runs_the_plan_is_given_no_size_that_they_do_not_take() {
    let before = 1 << 30;
    let size_for = |least: usize| {
        let runner: Option<Arc<dyn Runner>> = Some(Arc::new(Least(least)));
        let [_, answer] = fine(before, &Request { runner, ..request(before) });
        answer.plan.sync.bucket_bytes
    };
    let [_, free] = fine(before, &request(before));
    let free = free.plan.sync.bucket_bytes;
    assert!(free < before);
    assert_eq!(size_for(free), free);
    assert!((free + 1..=before).contains(&size_for(free + 1)));
    assert_eq!(size_for(before + 1), before, "not even the usual size is taken");
}

#[test]
fn servers_have_the_size_of_their_pieces() {
    let uniform = Uniform {
        pp: 1,
        mesh: Mesh::of(1, 1, 1),
        global_batch: 32,
        precision: Precision::MIXED,
        sync: Sync { bucket_bytes: 1 << 20, summation: Some(Summation::of(1)), ..Sync::default() },
        ..Uniform::default()
    };
    let plan = uniform.plan(&model(TEXT), TEXT, "c");
    assert_eq!(chosen(&h100(1, 4, MEMORY), plan, &request(1 << 20)).simulated, 0);
}

/// Replicas that keep a share of the gradients have those of a bucket whole at a time.
#[test]
fn a_size_with_which_the_plan_would_not_fit_is_not_taken() {
    let before = 1 << 20;
    let text = "gpt:layers=48,hidden=128,heads=4,seq=8,vocab=1024";
    let (graph, cluster) = (model(text), h100(4, 4, MEMORY));
    let plan = of_16(text, 16, Sync { zero: 2, bucket_bytes: before, ..Sync::default() });
    let start = judge(&graph, &cluster, &plan).expect("it can be simulated");
    let chosen = |request: &Request| {
        let (plan, judgement) = (plan.clone(), start.clone());
        with_fastest_reductions(&graph, &cluster, plan, judgement, request).expect("a plan")
    };
    let free = chosen(&request(before));
    assert!(free.plan.sync.bucket_bytes > before);
    let mut shares = (1..1_000_000).map(|share| f64::from(share) * 1e-6);
    let share = shares.find(|&share| start.fits(share)).expect("it fits into all");
    assert!(!free.judgement.fits(share), "larger buckets take more memory");
    let found = chosen(&Request { memory_share: share, ..request(before) });
    assert!(found.judgement.fits(share));
}

#[test]
fn a_single_device_reduces_nothing() {
    let uniform = Uniform { global_batch: 32, precision: Precision::MIXED, ..Uniform::default() };
    let plan = uniform.plan(&model(TEXT), TEXT, "c");
    let bytes = plan.sync.bucket_bytes;
    assert_eq!(chosen(&h100(1, 1, MEMORY), plan, &request(bytes)).simulated, 0);
}

#[test]
fn a_search_chooses_only_where_nobody_asked_for_a_size() {
    let (graph, cluster) = (model(TEXT), h100(4, 4, MEMORY));
    let found = |fastest_bucket_size| {
        let request = Request { fastest_bucket_size, ..request(1 << 30) };
        auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("a plan")
    };
    let [asked, free] = [false, true].map(found);
    assert_eq!(asked.plan.sync.bucket_bytes, 1 << 30);
    let chosen = chosen(&cluster, asked.plan, &request(1 << 30));
    assert!(chosen.simulated > 0);
    assert_eq!((free.plan, free.judgement), (chosen.plan, chosen.judgement));
    assert_eq!(free.notes.last(), chosen.notes.last());
}
