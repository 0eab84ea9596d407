//! The search that `plan` runs when no other is asked for: every candidate of the space is scored by
//! estimate or bounded away, and the best are judged by the simulator.

use std::time::Instant;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Estimate, Estimator};

use crate::baseline::Baseline;
use crate::scan::Scan;
use crate::space::Space;
use crate::{Judgement, Request, SearchError, closest, judge};

/// Micro-batches times blocks that are simulated at most, the first finalist and baselines aside: what a
/// simulation takes is proportional to them.
const EFFORT: usize = 10_000;

/// Estimates this much slower than the best simulated plan are not simulated: the estimate is right to a
/// few percent.
const DOUBT: f64 = 1.05;

/// The answer of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The fastest simulated plan that fits.
    pub plan: Plan,
    /// How it was simulated.
    pub judgement: Judgement,
    /// What it was estimated to take; none for a baseline that won.
    pub estimated_seconds: Option<f64>,
    /// What the answer was held against.
    pub baselines: Vec<Baseline>,
    /// What was looked at.
    pub search: SearchCounts,
    /// The simulated candidates, in order of their estimates.
    pub finalists: Vec<Finalist>,
    /// Devices that the plan does not use.
    pub devices_left_out: u32,
    /// What a reader of the answer should know.
    pub notes: Vec<String>,
    /// What might be faster and was not looked at.
    pub not_searched: Vec<String>,
}

/// How much of its space a search has looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchCounts {
    /// The searcher's name.
    pub method: &'static str,
    /// Candidates in all: `evaluated + bounded_away`.
    pub space: usize,
    /// Candidates whose time and memory were estimated, by whatever the searcher goes by.
    pub evaluated: usize,
    /// Candidates that cannot be the answer: their layout is impossible, or a lower bound of their memory
    /// exceeds what there is, or one of their time what the best take.
    pub bounded_away: usize,
    /// Candidates that were simulated, baselines aside.
    pub simulated: usize,
    /// How long it took, simulation of finalists and baselines included.
    pub seconds: f64,
}

/// A candidate that was simulated.
#[derive(Clone, Debug)]
pub struct Finalist {
    /// Its plan.
    pub plan: Plan,
    /// What it was estimated to take.
    pub estimated_seconds: f64,
    /// How it was simulated.
    pub judgement: Judgement,
}

/// Refuses what estimates know nothing of.
fn require_estimate(request: &Request) -> Result<(), SearchError> {
    if !request.post_validation {
        return Ok(());
    }
    let rule = "estimates that a search goes by wait for the norm; take a method by name, or write it \
                into the plan that was found";
    Err(SearchError::Request { key: "post_validation", value: "true".into(), rule: rule.into() })
}

/// Finds the fastest plan for `graph` on `cluster`: one that is no slower than any of `baselines` that
/// fits, such as those that people use without a search. They are made while the space is looked through.
///
/// A cluster of several kinds of device is planned for as if all were like the slowest and had the memory
/// of the smallest; the outcome's notes say so. Simulated times are those of the real cluster.
///
/// # Errors
/// If the request asks for what cannot be, no plan divides, or none fits in memory.
pub fn auto(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    baselines: impl FnOnce() -> Result<Vec<Baseline>, SearchError> + Send,
) -> Result<Outcome, SearchError> {
    let begun = Instant::now();
    require_estimate(request)?;
    let mut estimator = Estimator::new(graph, cluster, request.settings())?;
    let limit_bytes = request.memory_share * estimator.memory_bytes() as f64;
    let (scanned, baselines) = std::thread::scope(|scope| {
        let baselines = scope.spawn(baselines);
        let scanned = Scanned::of(graph, cluster, request, limit_bytes, &mut estimator);
        let baselines = baselines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (scanned, baselines)
    });
    let Scanned { spaces, scan } = scanned?;
    let baselines = baselines?;
    let counted = scan.evaluated + scan.bounded_away;
    let mut finalists =
        simulate_best(graph, cluster, request, &mut estimator, &scan.ranking, &baselines)?;
    if request.clip_norm.is_some() {
        let found = &scan.halves;
        validate_afterwards(graph, cluster, request, &mut estimator, found, &mut finalists)?;
    }
    let best = |a: &&Finalist, b: &&Finalist| {
        a.judgement.step_seconds.total_cmp(&b.judgement.step_seconds)
    };
    let fitting = finalists.iter().filter(|it| it.judgement.fits(request.memory_share));
    let found = fitting.min_by(best).cloned();
    let rival = baselines.iter().filter_map(|it| it.rival(request.memory_share));
    let rival = rival.min_by(|a, b| a.1.step_seconds.total_cmp(&b.1.step_seconds));
    let (plan, judgement, estimated_seconds) = match (found, rival) {
        (Some(found), Some((_, rival))) if found.judgement.step_seconds <= rival.step_seconds => {
            (found.plan, found.judgement, Some(found.estimated_seconds))
        }
        (_, Some((plan, judgement))) => (plan.clone(), judgement.clone(), None),
        (Some(found), None) => (found.plan, found.judgement, Some(found.estimated_seconds)),
        (None, None) => {
            return Err(closest::error(graph, cluster, request, &spaces, counted)?);
        }
    };
    let devices_left_out = cluster.device_count() - plan.device_count() as u32;
    let notes = notes(cluster, devices_left_out);
    let search = SearchCounts {
        method: "auto",
        space: counted,
        evaluated: scan.evaluated,
        bounded_away: scan.bounded_away,
        simulated: finalists.len(),
        seconds: begun.elapsed().as_secs_f64(),
    };
    Ok(Outcome {
        plan,
        judgement,
        estimated_seconds,
        baselines,
        search,
        finalists,
        devices_left_out,
        notes,
        not_searched: not_searched(request, estimator.left_out()),
    })
}

/// The spaces that were looked through, the second if there is nothing in the first, and what was found.
struct Scanned {
    spaces: Vec<Space>,
    scan: Scan,
}

impl Scanned {
    fn of(
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
        limit_bytes: f64,
        estimator: &mut Estimator<'_>,
    ) -> Result<Scanned, SearchError> {
        let space = Space::new(graph, cluster, request)?;
        let scan = Scan::of(&space, request, limit_bytes, estimator)?;
        if !scan.ranking.is_empty() {
            return Ok(Scanned { spaces: vec![space], scan });
        }
        let wider = Space::across_nodes(graph, cluster, request)?;
        let found = Scan::of(&wider, request, limit_bytes, estimator)?;
        let scan = Scan {
            evaluated: scan.evaluated + found.evaluated,
            bounded_away: scan.bounded_away + found.bounded_away,
            ..found
        };
        Ok(Scanned { spaces: vec![space, wider], scan })
    }
}

/// The fastest candidate by estimate, with its plan; none if none fits.
pub(crate) fn fastest_estimate(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Option<(Plan, Estimate)>, SearchError> {
    let mut estimator = Estimator::new(graph, cluster, request.settings())?;
    let limit_bytes = request.memory_share * estimator.memory_bytes() as f64;
    let space = Space::new(graph, cluster, request)?;
    let scan = Scan::of(&space, request, limit_bytes, &mut estimator)?;
    let Some(&(candidate, estimate)) = scan.ranking.first() else { return Ok(None) };
    let plan = request.planned(graph, &mut estimator, &candidate)?;
    Ok(plan.map(|plan| (plan, estimate)))
}

/// Simulates candidates best first, until enough fit or the rest are too slow to win.
fn simulate_best(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    estimator: &mut Estimator<'_>,
    ranking: &[(Candidate, Estimate)],
    baselines: &[Baseline],
) -> Result<Vec<Finalist>, SearchError> {
    let mut finalists: Vec<Finalist> = vec![];
    let (mut fitting, mut best_seconds, mut effort) = (0, f64::INFINITY, 0);
    for &(candidate, estimate) in ranking {
        if fitting == request.finalists || estimate.step_seconds > DOUBT * best_seconds {
            break;
        }
        let Some(plan) = request.planned(graph, estimator, &candidate)? else { continue };
        if finalists.iter().any(|it| it.plan == plan) {
            continue;
        }
        let known = baselines.iter().find(|it| it.plan.as_ref() == Some(&plan));
        let judgement = match known.and_then(|it| it.judgement.clone()) {
            Some(known) => known,
            None => {
                effort += plan.microbatches * graph.blocks().len();
                if fitting > 0 && effort > EFFORT {
                    break;
                }
                judge(graph, cluster, &plan)?
            }
        };
        if judgement.fits(request.memory_share) {
            fitting += 1;
            best_seconds = judgement.step_seconds.min(best_seconds);
        }
        let estimated_seconds = estimate.step_seconds;
        finalists.push(Finalist { plan, estimated_seconds, judgement });
    }
    Ok(finalists)
}

/// Simulates candidates with updates that do not wait for the norm of all gradients, as long as that is less
/// effort than finding them was; estimates wait for it.
fn validate_afterwards(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    estimator: &mut Estimator<'_>,
    ranking: &[(Candidate, Estimate)],
    finalists: &mut Vec<Finalist>,
) -> Result<(), SearchError> {
    let efforts = finalists.iter().skip(1).map(|it| it.plan.microbatches * graph.blocks().len());
    let mut effort: usize = efforts.sum();
    let seconds = finalists.iter().map(|it| it.judgement.step_seconds);
    let best_seconds = seconds.fold(f64::INFINITY, f64::min);
    for (candidate, estimate) in ranking {
        let Some(mut plan) = request.planned(graph, estimator, candidate)? else { continue };
        effort += plan.microbatches * graph.blocks().len();
        if effort > EFFORT || estimate.step_seconds > DOUBT * best_seconds {
            break;
        }
        plan.post_validation = true;
        let judgement = judge(graph, cluster, &plan)?;
        let estimated_seconds = estimate.step_seconds;
        finalists.push(Finalist { plan, estimated_seconds, judgement });
    }
    Ok(())
}

/// What of schedules was not looked at, with how many estimates there were not because orders take too long
/// to make.
fn not_searched(request: &Request, left_out: usize) -> Vec<String> {
    let mut found = vec![];
    let names = |kinds: &mut dyn Iterator<Item = ScheduleKind>| {
        kinds.map(ScheduleKind::name).collect::<Vec<_>>().join(", ")
    };
    let mut others =
        ScheduleKind::SEARCHED.into_iter().filter(|it| !request.schedules.contains(it));
    let others = names(&mut others);
    if !others.is_empty() {
        found.push(format!("{others}, which were not asked for"));
    }
    let mut unflushed = ScheduleKind::ALL.into_iter().filter(|it| !it.flushes());
    found.push(format!("{}, which change what is learnt", names(&mut unflushed)));
    found.push(format!("{} and orders in tables", ScheduleKind::ChimeraDoubling.name()));
    if left_out > 0 {
        found.push(format!(
            "{left_out} plans whose orders fill gaps and have too many passes to be made in time"
        ));
    }
    found
}

fn notes(cluster: &Cluster, devices_left_out: u32) -> Vec<String> {
    let mut notes = vec![];
    let groups = cluster.groups();
    if groups.windows(2).any(|pair| pair[0].profile != pair[1].profile) {
        notes.push(
            "the cluster has several kinds of device; stages and shares are equal, chosen for the \
             slowest kind and the least memory"
                .into(),
        );
    }
    if devices_left_out > 0 {
        notes.push(format!(
            "{devices_left_out} of {} devices are left out, the last ones: of the widths that divide the \
             batch and the model, none that uses them all is faster",
            cluster.device_count()
        ));
    }
    notes
}
