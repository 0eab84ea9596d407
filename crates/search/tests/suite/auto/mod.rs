//! Answers of the search, on which what people use without one is a bound.

mod clusters;
mod constraints;
mod effort;
mod formats;
mod nothing_fits;
mod optimum;
mod single_changes;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_methods::baselines;
use shardloom_search::{Outcome, Request, SearchError, auto, judge};

const PLENTY: u64 = 80_000_000_000;

/// A model with work for a few devices.
const LARGER: &str = "gpt:layers=8,hidden=1024,heads=8,seq=512,vocab=4096";

/// The answer, held against what people use without a search.
fn search(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Outcome, SearchError> {
    auto(graph, cluster, request, |cluster, request| baselines(graph, cluster, request))
}

/// The answer alone.
fn without_baselines(graph: &Graph, cluster: &Cluster, request: &Request) -> Outcome {
    auto(graph, cluster, request, |_, _| Ok(vec![])).expect("an answer")
}

/// The answer, which is a valid plan that fits and is no slower than what people use without a search.
fn check(graph: &Graph, cluster: &Cluster, request: &Request) -> Outcome {
    let outcome = search(graph, cluster, request).expect("an answer");
    let devices = cluster.device_count();
    outcome.plan.validate(graph, devices as usize).expect("a valid plan");
    let judgement = judge(graph, cluster, &outcome.plan).expect("a plan that can be lowered");
    assert_eq!(judgement, outcome.judgement);
    assert!(judgement.fits(request.memory_share));
    assert_eq!(outcome.devices_left_out, devices - outcome.plan.device_count() as u32);
    let search = &outcome.search;
    assert_eq!(search.space, search.evaluated + search.bounded_away);
    for baseline in outcome.baselines.iter().filter(|it| it.fits) {
        let seconds = baseline.step_seconds().expect("what fits was simulated");
        assert!(judgement.step_seconds <= seconds, "{} is faster", baseline.name);
    }
    outcome
}
