//! How much of the space is estimated and simulated, and what is told of the rest.

use shardloom_cluster::Cluster;
use shardloom_plan::ScheduleKind;
use shardloom_search::{Baseline, Only, Request, SearchError, Space, auto};
use shardloom_sim::SimError;

use super::{PLENTY, check, without_baselines};
use crate::scenario::{GPT, h100, model};

#[test]
fn the_counts_are_those_of_the_space() {
    // Enough work for all devices, so that no fewer are tried.
    let text = "gpt:layers=4,hidden=2048,heads=4,seq=1024,vocab=1024";
    let graph = model(text);
    let cluster = h100(2, 4, PLENTY);
    let request = Request::new(text, "c", 32);
    let outcome = check(&graph, &cluster, &request);
    let space = Space::new(&graph, &cluster, &request).expect("a space");
    assert_eq!(outcome.search.space, space.count());
    assert!(outcome.search.evaluated > 0 && outcome.search.bounded_away > 0);
    let across = "tensor parallelism across nodes".to_owned();
    assert!(outcome.not_searched.contains(&across), "{:?}", outcome.not_searched);
}

/// What is estimated to take a twentieth longer than the best plan known is not simulated.
#[test]
fn plans_that_are_too_slow_by_estimate_are_not_simulated() {
    let graph = model(GPT);
    let mut slower = 0;
    for memory_bytes in [PLENTY, 60_000_000, 40_000_000] {
        let cluster = h100(1, 8, memory_bytes);
        let request = Request { finalists: 64, ..Request::new(GPT, "c", 32) };
        let outcome = without_baselines(&graph, &cluster, &request);
        let mut best = f64::INFINITY;
        let mut before = 0.0;
        // Updates that are validated afterwards are tried after these, and not estimated as such.
        for finalist in outcome.finalists.iter().filter(|it| !it.plan.post_validation) {
            let estimated = finalist.estimated_seconds.expect("it is no baseline");
            assert!(before <= estimated, "finalists are in the order of their estimates");
            assert!(estimated <= 1.05 * best, "{estimated} beside {best} in {memory_bytes} bytes");
            before = estimated;
            if finalist.judgement.fits(request.memory_share) {
                slower += usize::from(finalist.judgement.step_seconds > best);
                best = best.min(finalist.judgement.step_seconds);
            }
        }
        assert!(outcome.finalists.len() < 64);
    }
    assert!(slower > 0, "every plan was faster than those before");
}

/// What simulations take is counted in micro-batches times blocks: 10,000 of them at most.
#[test]
fn plans_are_simulated_as_long_as_their_micro_batches_are_not_too_many() {
    // Eight blocks.
    let text = "gpt:layers=6,hidden=1024,heads=4,seq=256,vocab=1024";
    let graph = model(text);
    // There is room for what one sample leaves behind, not for five, however much is computed twice.
    let cluster = h100(1, 1, 1_550_000_000);
    let simulated = |global_batch: usize| {
        let request = Request::new(text, "c", global_batch);
        let outcome = without_baselines(&graph, &cluster, &request);
        let mut plans = outcome.finalists.iter().map(|it| &it.plan);
        assert!(plans.all(|it| it.microbatches == global_batch), "one sample a micro-batch");
        outcome.finalists.len()
    };
    // 625 is 5^4, and 631 a prime. Two plans are fast enough, which differ in what they compute twice:
    // that is 2 x 8 x 625 = 10,000, and 96 more.
    assert_eq!((simulated(625), simulated(631)), (2, 1));
}

/// However long the first plan takes to simulate, it is.
#[test]
fn a_batch_of_very_many_micro_batches_has_an_answer_without_other_plans() {
    let text = "gpt:layers=4,hidden=1024,heads=16,seq=4096,vocab=1024";
    let graph = model(text);
    let cluster = h100(1, 1, 6_000_000_000);
    let request = Request::new(text, "c", 4096);
    let outcome = without_baselines(&graph, &cluster, &request);
    let steps = outcome.plan.microbatches * graph.blocks().len();
    assert!(steps > 10_000, "{steps} passes of blocks are not very many");
    assert_eq!(outcome.finalists.len(), 1);
}

/// A baseline that is too large to simulate is left aside; a search ends where all plans are.
#[test]
fn plans_of_too_many_instructions_are_not_simulated() {
    let graph = model(GPT);
    let cluster = h100(1, 1, PLENTY);
    let only = Only { microbatch: Some(1), ..Only::default() };
    let request = Request { only, ..Request::new(GPT, "c", 1 << 17) };
    let space = Space::new(&graph, &cluster, &request).expect("a space");
    let first = space.candidates().take(1);
    let baseline = Baseline::first_fitting("one", first, &graph, &cluster, &request);
    let baseline = baseline.expect("there is a plan, which is not simulated");
    assert!(baseline.plan.is_some() && baseline.judgement.is_none() && !baseline.fits);
    let baselines = |_: &Cluster, _: &Request| Ok(vec![baseline.clone()]);
    let error = auto(&graph, &cluster, &request, baselines).expect_err("all are too large");
    assert!(matches!(error, SearchError::Sim(SimError::TooMany { .. })), "{error}");
    // As many samples in larger micro-batches.
    let request = Request { only: Only::default(), ..request };
    let outcome = auto(&graph, &cluster, &request, baselines).expect("others are not");
    assert!(outcome.plan.microbatches < 1 << 16);
}

/// On one device, of which there are few plans.
#[test]
fn a_model_of_thousands_of_blocks_is_simulated_once() {
    let text = "gpt:layers=3000,hidden=8,heads=1,seq=2,vocab=8";
    let graph = model(text);
    let request = Request { fastest_algorithm: true, ..Request::new(text, "c", 1) };
    let no_baseline = |_: &Cluster, _: &Request| -> Result<Vec<Baseline>, SearchError> {
        panic!("a baseline would be simulated")
    };
    let outcome = auto(&graph, &h100(1, 1, PLENTY), &request, no_baseline).expect("a plan");
    assert_eq!((outcome.search.simulated, outcome.baselines.len()), (1, 0));
    assert!(outcome.notes.iter().any(|note| note.contains("3002 blocks")), "{:?}", outcome.notes);
}

#[test]
fn what_was_not_looked_at_is_told_as_far_as_it_was_not() {
    let graph = model(GPT);
    let told =
        |request: Request| without_baselines(&graph, &h100(1, 1, PLENTY), &request).not_searched;
    let free = Request { finalists: 1, ..Request::new(GPT, "c", 2) };
    let always = told(free.clone());
    let [unflushed, tables, unlike] = &always[..] else { panic!("{always:?}") };
    assert!(unflushed.starts_with("pipedream, "), "{unflushed}");
    assert!(unflushed.ends_with(", which change what is learnt"), "{unflushed}");
    assert_eq!(tables, "chimera-doubling and orders in tables");
    assert_eq!(unlike, "stages that differ in width, layout or recomputation");
    let kinds = ScheduleKind::SEARCHED.into_iter();
    let schedules = kinds.filter(|&it| it != ScheduleKind::ZeroBubbleH1).collect();
    let fewer = told(Request { schedules, ..free.clone() });
    assert_eq!(fewer[0], "zb-h1, which were not asked for");
    assert_eq!(fewer[1..], always);
    let only = Only { tp: Some(1), ..Only::default() };
    let constrained = told(Request { only, ..free });
    assert_eq!(constrained[0], "other widths and policies than those asked for");
    assert_eq!(constrained[1..], always);
}
