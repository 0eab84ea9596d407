//! The search that `plan` runs when no other is asked for: over all of a cluster's machines, and over some
//! of them where these might be faster.

use std::collections::BTreeSet;
use std::time::Instant;

use shardloom_cluster::{Cluster, DeviceId, DeviceKind, NodeGroup};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind};
use shardloom_program::quantity;
use shardloom_sim::matmul_precision;

use crate::baseline::Baseline;
use crate::judge::unless_too_large;
use crate::search::{MOST_BLOCKS, Search, is_deep};
use crate::single_changes::improved;
use crate::space::{MOST_STAGES, Space, least_positions};
use crate::subset::Subset;
use crate::{
    Judgement, Only, Request, SearchError, closest, judge, nearby, with_fastest_reductions,
};

/// The answer of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The fastest simulated plan that fits.
    pub plan: Plan,
    /// How it was simulated.
    pub judgement: Judgement,
    /// What it was estimated to take; none for a baseline that won, or a single change of what did.
    pub estimated_seconds: Option<f64>,
    /// What the answer was held against.
    pub baselines: Vec<Baseline>,
    /// What was looked at.
    pub search: SearchCounts,
    /// The candidates for all machines that were simulated, in order of their estimates, and after them those
    /// with updates that are validated afterwards.
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
    /// What it was estimated to take; none for a baseline.
    pub estimated_seconds: Option<f64>,
    /// How it was simulated.
    pub judgement: Judgement,
}

impl Finalist {
    /// What a step was simulated to take.
    pub fn step_seconds(&self) -> f64 {
        self.judgement.step_seconds
    }
}

impl SearchCounts {
    /// Adds a search with so many simulated candidates.
    pub(crate) fn add(&mut self, search: &Search<'_>, simulated: usize) {
        self.space += search.scan.evaluated + search.scan.bounded_away;
        self.evaluated += search.scan.evaluated;
        self.bounded_away += search.scan.bounded_away;
        self.simulated += simulated;
    }
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

/// Finds the fastest plan for `graph` on `cluster`. It is no slower than those that `baselines` makes for given
/// machines and that fit, such as people use without a search; of models with more than 3,000 blocks, of which
/// one plan is simulated on each set of machines, it is the fastest by estimate.
///
/// Stages on several kinds of device are planned as if all were like the slowest and had the memory of the
/// smallest; the outcome's notes say so. Simulated times are those of the real cluster. Machines are left out
/// where that is faster: all but some kinds, and of these and all some machines, in four numbers for each halving.
///
/// # Errors
/// If the request asks for what cannot be, no plan divides, or none fits in memory.
pub fn auto(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    baselines: impl Fn(&Cluster, &Request) -> Result<Vec<Baseline>, SearchError> + Sync,
) -> Result<Outcome, SearchError> {
    let begun = Instant::now();
    require_estimate(request)?;
    let described = graph;
    let graph = &*request.graph_of(described, cluster)?;
    let is_deep = is_deep(graph);
    // What people use without a search has no constraints.
    let baselines = |machines: &Cluster, request: &Request| match is_deep {
        true => Ok(vec![]),
        false => baselines(machines, &request.free()),
    };
    let (whole, of_whole) = std::thread::scope(|scope| {
        let of_whole = scope.spawn(|| baselines(cluster, request));
        let whole = Search::of(graph, cluster, request);
        let of_whole = of_whole.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (whole, of_whole)
    });
    let (mut whole, of_whole) = (whole?, of_whole?);
    let mut search = SearchCounts {
        method: "auto",
        space: 0,
        evaluated: 0,
        bounded_away: 0,
        simulated: 0,
        seconds: 0.0,
    };
    let finalists = whole.finalists(&of_whole)?;
    search.add(&whole, finalists.len());
    let of_all = fastest(&finalists, cluster, request, &of_whole);
    let seconds_of_all = of_all.as_ref().map(Finalist::step_seconds);
    let of_some =
        of_some(graph, cluster, request, &whole, seconds_of_all, &baselines, &mut search)?;
    let is_of_some = of_some.is_some();
    let Some(Finalist { plan, judgement, estimated_seconds }) = of_some.or(of_all) else {
        return Err(closest::error(graph, cluster, request, &whole.spaces, search.space)?);
    };
    let devices_left_out = cluster.device_count() - plan.device_count() as u32;
    let mut notes = notes(cluster, &plan, &request.only, is_of_some.then_some(seconds_of_all));
    if is_deep {
        notes.push(format!(
            "the model has {} blocks: with more than {MOST_BLOCKS} only the fastest plan by estimate is simulated, and \
             neither plans that people use without a search nor other algorithms of collectives or sizes of buckets",
            graph.blocks().len()
        ));
    }
    notes.extend(note_of_one_stage(request, &plan, &finalists));
    let mut estimated_seconds = estimated_seconds;
    let (plan, judgement) = match is_deep {
        true => (plan, judgement),
        false => {
            let found = improved(graph, cluster, (plan.clone(), judgement), request)?;
            search.simulated += found.simulated;
            // The estimate was of another plan.
            estimated_seconds = estimated_seconds.filter(|_| found.plan == plan);
            let (plan, judgement) = (found.plan, found.judgement);
            let found = with_fastest_reductions(graph, cluster, plan, judgement, request)?;
            notes.extend(found.notes);
            (found.plan, found.judgement)
        }
    };
    if plan.precision != request.precision {
        let [used, all] =
            [&plan.precision, &request.precision].map(|it| matmul_precision(it.compute));
        notes
            .push(format!("the devices of the plan compute in {used}, all together only in {all}"));
    }
    if devices_left_out > 0 {
        let seconds = judgement.step_seconds;
        notes.extend(nearby::note(graph, cluster, request, seconds, &mut search)?);
    }
    search.seconds = begun.elapsed().as_secs_f64();
    Ok(Outcome {
        notes,
        plan,
        judgement,
        estimated_seconds,
        baselines: of_whole,
        search,
        finalists,
        devices_left_out,
        not_searched: not_searched(graph, cluster, request, &whole, devices_left_out > 0),
    })
}

/// The fastest of `finalists` and `baselines` that fits.
pub(crate) fn fastest(
    finalists: &[Finalist],
    cluster: &Cluster,
    request: &Request,
    baselines: &[Baseline],
) -> Option<Finalist> {
    let fitting = finalists.iter().filter(|it| it.judgement.fits(request.memory_share)).cloned();
    let baselines = if request.takes_baselines() { baselines } else { &[] };
    let rivals = baselines.iter().filter_map(|it| it.rival(request.memory_share));
    let rivals = rivals.filter(|(plan, _)| request.runs(cluster, plan));
    let rivals = rivals.map(|(plan, judgement)| Finalist {
        plan: plan.clone(),
        estimated_seconds: None,
        judgement: judgement.clone(),
    });
    fitting.chain(rivals).min_by(|a, b| a.step_seconds().total_cmp(&b.step_seconds()))
}

/// The fastest plan on some of the machines that takes less than the fastest on all: on some kinds of device, and
/// from each of these and all on fewer again and again, as long as these might be faster. The model is as it is
/// `described`, as other machines may compute its attention otherwise.
fn of_some(
    described: &Graph,
    cluster: &Cluster,
    request: &Request,
    whole: &Search<'_>,
    seconds_of_all: Option<f64>,
    baselines: &impl Fn(&Cluster, &Request) -> Result<Vec<Baseline>, SearchError>,
    counts: &mut SearchCounts,
) -> Result<Option<Finalist>, SearchError> {
    let mut best: Option<Finalist> = None;
    let mut best_seconds = seconds_of_all.unwrap_or(f64::INFINITY);
    let mut on =
        |subset: &Subset, best_seconds: f64| -> Result<(Option<Finalist>, f64), SearchError> {
            let request = &request.on(&subset.cluster);
            let graph = &*request.graph_of(described, &subset.cluster)?;
            let mut search = Search::faster_than(best_seconds, graph, &subset.cluster, request)?;
            // They take half of the time that some machines take here, and people use powers of two of machines.
            let baselines = match subset.cluster.node_count().is_power_of_two() {
                true => baselines(&subset.cluster, request)?,
                false => vec![],
            };
            // There may be others on other machines.
            let finalists = unless_too_large(search.finalists(&baselines))?.unwrap_or_default();
            counts.add(&search, finalists.len());
            let sample_seconds = search.least_sample_seconds();
            let found = fastest(&finalists, &subset.cluster, request, &baselines);
            let Some(found) = found.filter(|it| it.step_seconds() < best_seconds) else {
                return Ok((None, sample_seconds));
            };
            let plan = subset.in_whole(found.plan);
            let judgement = judge(described, cluster, &plan)?;
            let found = Finalist { plan, judgement, ..found };
            Ok((Some(found).filter(|it| it.step_seconds() < best_seconds), sample_seconds))
        };
    let mut starts = vec![(Subset::all(cluster), whole.least_sample_seconds())];
    for subset in Subset::of_kinds(cluster, matmul_precision(request.precision.compute))? {
        let (found, sample_seconds) = on(&subset, best_seconds)?;
        best_seconds = found.as_ref().map_or(best_seconds, Finalist::step_seconds);
        best = found.or(best);
        starts.push((subset, sample_seconds));
    }
    for (mut machines, sample_seconds) in starts {
        while let Some(fewer) = machines.fewer()? {
            let least_seconds = sample_seconds * request.global_batch as f64 / fewer.count() as f64;
            // Where nothing fits on more machines, nothing does on fewer.
            if least_seconds >= best_seconds || best_seconds.is_infinite() {
                break;
            }
            let (found, _) = on(&fewer, best_seconds)?;
            best_seconds = found.as_ref().map_or(best_seconds, Finalist::step_seconds);
            best = found.or(best);
            machines = fewer;
        }
    }
    Ok(best)
}

/// What a step of the fastest plan for a single device of `cluster` takes by estimate, were its memory large
/// enough: of several kinds of device that compute in the format for that on which it is fastest. None if no
/// plan has an estimate.
///
/// # Errors
/// If the request asks for what cannot be.
pub fn single_device_seconds(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Option<f64>, SearchError> {
    let graph = &*request.graph_of(graph, cluster)?;
    let mut least: Option<f64> = None;
    // It reduces nothing, whatever others reduce by.
    let free = Request { algorithm: Algorithm::Ring, ..request.free() };
    let format = matmul_precision(request.precision.compute);
    let computes = |group: &&NodeGroup| group.profile.device.peak_flops(format).is_ok();
    for group in cluster.groups().iter().filter(computes) {
        let one = NodeGroup { nodes: 1, devices_per_node: 1, ..group.clone() };
        let one = cluster.with_groups(vec![one])?;
        let search = Search::without_limit(graph, &one, &free)?;
        let seconds = search.scan.ranking.first().map(|(_, estimate)| estimate.step_seconds);
        least = [least, seconds].into_iter().flatten().reduce(f64::min);
    }
    Ok(least)
}

/// What `search` did not look at, where its plan leaves devices out or not.
fn not_searched(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    search: &Search<'_>,
    leaves_out: bool,
) -> Vec<String> {
    let mut found = vec![];
    if !request.only.is_free() {
        found.push("other widths and policies than those asked for".into());
    }
    if let Some(runner) = &request.runner {
        found.push(format!("plans that {} does not run", runner.name()));
    }
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
    found.push("stages that differ in width, layout or recomputation".into());
    if search.spaces.iter().any(Space::leaves_out_stages) {
        found.push(format!("more than {MOST_STAGES} stages with several on a device"));
    }
    let devices = || cluster.groups().iter().map(|group| &group.profile.device);
    if devices().any(|device| Some(device) != devices().next()) {
        found.push("pipelines with unequal shares of a step".into());
    }
    if leaves_out && request.only.cp.is_none() && graph.dim_named("seq").is_some() {
        found.push(format!(
            "context parallelism with fewer than {} positions on a device (--cp)",
            least_positions(&request.only)
        ));
    }
    if cluster.node_count() > 1 && search.spaces.len() == 1 {
        found.push("tensor parallelism across nodes".into());
    }
    if cluster.node_count() > 1 {
        found.push(
            "ranks in another order than by tensor, context, data and pipeline parallelism".into(),
        );
    }
    let left_out = search.left_out();
    if left_out > 0 {
        found.push(format!(
            "{left_out} plans whose orders fill gaps and have too many passes to be made in time"
        ));
    }
    found
}

/// What to know where `plan` is of one stage though schedules were asked for, which order the passes of several.
fn note_of_one_stage(request: &Request, plan: &Plan, finalists: &[Finalist]) -> Option<String> {
    let is_of_one = |plan: &Plan| plan.pipeline.iter().all(|pipeline| pipeline.stage.len() == 1);
    if request.schedules == ScheduleKind::SEARCHED || request.only.pp.is_some() || !is_of_one(plan)
    {
        return None;
    }
    let names: Vec<&str> = request.schedules.iter().map(|kind| kind.name()).collect();
    let of_several = finalists.iter().filter(|it| !is_of_one(&it.plan));
    let of_several = of_several.filter(|it| it.judgement.fits(request.memory_share));
    let fastest = of_several.map(Finalist::step_seconds).min_by(f64::total_cmp);
    let reason = match fastest {
        Some(seconds) => format!(
            "the fastest of several that was simulated takes {}",
            quantity::seconds(seconds)
        ),
        None => "none of several that fits is among the fastest by estimate".into(),
    };
    Some(format!(
        "{} was asked for, which orders the passes of several stages, and the plan is of one: {reason}; pp says how \
         many stages there are to be",
        names.join(", ")
    ))
}

/// What to know about `plan`. If some of the machines were chosen, with what a step takes on all, if any plan
/// fits there.
fn notes(cluster: &Cluster, plan: &Plan, only: &Only, of_some: Option<Option<f64>>) -> Vec<String> {
    let mut notes = vec![];
    let used = plan.devices();
    let kinds = used.iter().filter_map(|&device| cluster.kind_of(DeviceId(device)).ok());
    let mut kinds: Vec<&DeviceKind> = kinds.collect();
    kinds.dedup();
    if kinds.len() > 1 {
        notes.push(
            "the plan has several kinds of device; stages and shares are equal, chosen for the slowest \
             kind and the least memory"
                .into(),
        );
    }
    let left_out = cluster.device_count() - plan.device_count() as u32;
    let reason = match of_some {
        _ if left_out == 0 => return notes,
        Some(Some(all)) => {
            format!("the fastest plan found for all takes {}", quantity::seconds(all))
        }
        Some(None) => "no plan for all of them fits in memory".into(),
        None if !only.is_free() => {
            format!("of plans with {only}, as was asked for, none that uses them all is faster")
        }
        None => {
            "of the widths that divide the batch and the model, none that uses them all is faster"
                .into()
        }
    };
    let unused = cluster.devices().filter(|DeviceId(device)| !used.contains(device));
    let unused: BTreeSet<&str> = unused
        .filter_map(|device| cluster.kind_of(device).ok())
        .map(|kind| kind.name.as_str())
        .collect();
    let names = match unused.first().filter(|_| unused.len() == 1 && cluster.profiles().len() > 1) {
        Some(name) => format!(", all {name},"),
        None => String::new(),
    };
    let device_count = cluster.device_count();
    let are = if left_out == 1 { "is" } else { "are" };
    notes.push(format!("{left_out} of {device_count} devices{names} {are} left out: {reason}"));
    notes
}
