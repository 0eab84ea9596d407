//! Plans that an answer is held against.

use shardloom_search::{Baseline, Request, Space, judge};
use shardloom_sim::estimate::{Candidate, Estimator};

use crate::scenario::{GPT, h100, model};

#[test]
fn the_first_that_fits_by_estimate_is_taken_and_the_last_where_none_does() {
    let (graph, request) = (model(GPT), Request::new(GPT, "c", 16));
    let roomy = h100(1, 4, 80_000_000_000);
    let space = Space::new(&graph, &roomy, &request).expect("a space");
    // From the one that asks for the most to the one that asks for the least.
    let mut estimator = Estimator::new(&graph, &roomy, request.settings()).expect("an estimator");
    let mut candidates: Vec<(f64, Candidate)> = vec![];
    for candidate in space.candidates().step_by(97) {
        let estimate = estimator.estimate(&candidate).expect("costs");
        candidates.extend(estimate.map(|it| (it.peak_bytes, candidate)));
    }
    candidates.sort_by(|one, other| other.0.total_cmp(&one.0));
    candidates.dedup_by(|one, other| one.0 == other.0);
    let count = candidates.len();
    assert!(count > 10, "{count}");
    let all: Vec<Candidate> = candidates.iter().map(|it| it.1).collect();
    for (expected, memory_bytes) in [
        (0, 2.0 * candidates[0].0),
        (count / 2, candidates[count / 2].0),
        (count - 1, candidates[count - 1].0),
        // None fits.
        (count - 1, 0.5 * candidates[count - 1].0),
    ] {
        // A byte more, as they are whole.
        let cluster = h100(1, 4, (memory_bytes / request.memory_share) as u64 + 1);
        let found = Baseline::first_fitting("them", all.clone(), &graph, &cluster, &request)
            .expect("it can be simulated");
        let mut estimator =
            Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
        let plan = request.planned(&graph, &mut estimator, &all[expected]).expect("costs");
        assert_eq!(found.plan, plan, "{expected} of {count}");
        let judged = judge(&graph, &cluster, &plan.expect("a plan")).expect("it can be simulated");
        assert_eq!(found.fits, judged.fits(request.memory_share));
        assert_eq!(found.step_seconds(), Some(judged.step_seconds));
        assert_eq!((found.name, found.judgement), ("them", Some(judged)));
    }
    let none = Baseline::first_fitting("none", [], &graph, &roomy, &request).expect("no plan");
    assert_eq!((none.fits, none.step_seconds(), none.plan), (false, None, None));
    let empty = Request { global_batch: 0, ..request };
    let error = Baseline::first_fitting("none", all, &graph, &roomy, &empty).expect_err("no batch");
    assert!(error.to_string().starts_with("global_batch = 0"), "{error}");
}
