//! What to say where nothing fits.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_graph::Graph;
use shardloom_sim::estimate::{Candidate, Estimator};

use crate::impossible;
use crate::{Request, SearchError, Space};

const GIB: f64 = (1_u64 << 30) as f64;

/// Why a runner runs nothing that others would, where it says no more.
const NOBODY: &str = "widths divide the devices, the batch and what they split, and as many devices of each machine take \
                      part";

/// The most that the cluster is enlarged to see whether that would help.
const LARGEST: u32 = 256;

/// The error, with the plan that comes closest and what would make one fit.
pub(crate) fn error(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    spaces: &[Space],
    counted: usize,
) -> Result<SearchError, SearchError> {
    let mut estimator = Estimator::new(graph, cluster, request.settings())?;
    let available = request.memory_share * estimator.memory_bytes() as f64;
    let mut found = None;
    for space in spaces {
        found = least(space, &mut estimator, found)?;
    }
    let Some((candidate, needed)) = found else {
        // What the runner has to say of plans that others would run.
        let others = Request { runner: None, ..request.clone() };
        let first = match &request.runner {
            Some(_) => Space::new(graph, cluster, &others)?.candidates().next(),
            None => None,
        };
        if let (Some(runner), Some(first)) = (&request.runner, first) {
            let reason = runner.why_not(&request.numbers(&first), first.chunks as usize);
            let only = match request.only.is_free() {
                true => String::new(),
                false => format!(" with {}", request.only),
            };
            return Ok(SearchError::NoneRuns {
                model: graph.name().to_owned(),
                cluster: request.cluster.clone(),
                runner: runner.name().to_owned(),
                only,
                reason: reason.unwrap_or_else(|| NOBODY.into()).into(),
            });
        }
        return Ok(match request.only.is_free() {
            true => SearchError::NoLayout { model: graph.name().to_owned() },
            false => SearchError::NoneWith {
                model: graph.name().to_owned(),
                cluster: request.cluster.clone(),
                only: request.only.to_string(),
                rule: impossible::rule(graph, cluster, request),
            },
        });
    };
    // Whole GiB, so that it is enough.
    let device = (needed / request.memory_share / GIB).ceil();
    let larger = enough_nodes(graph, cluster, request)?;
    let remedy = match larger {
        Some((times, devices)) => format!(
            "devices of {device:.0} GiB would do, and so would {times} times as many nodes \
             ({devices} devices)"
        ),
        None if request.only.is_free() => format!(
            "devices of {device:.0} GiB would do; more nodes alone would not, as a global batch \
             of {} does not spread the model further",
            request.global_batch
        ),
        None => format!(
            "devices of {device:.0} GiB would do; more nodes alone would not, as {} and a global batch of {} do not \
             spread the model further",
            request.only, request.global_batch
        ),
    };
    Ok(SearchError::NothingFits {
        model: graph.name().to_owned(),
        cluster: request.cluster.clone(),
        space: counted,
        closest: name(&candidate),
        needed_bytes: needed as u64,
        available_bytes: available as u64,
        remedy: remedy + &whole_tables(graph, cluster),
    })
}

/// What to say of tables for categories of which every device has all rows, as the widest tensor parallelism within a
/// node does not divide these.
fn whole_tables(graph: &Graph, cluster: &Cluster) -> String {
    let devices = cluster.groups().iter().map(|group| group.devices_per_node as usize);
    let tp = devices.min().unwrap_or(1);
    let mut tables = graph.dims().iter().filter(|dim| dim.name.starts_with("rows."));
    match tables.any(|dim| !dim.size.is_multiple_of(tp)) {
        true => format!(
            "; tables whose rows tensor parallelism does not divide are whole on every device, and --pad-vocabulary \
             {tp} lets {tp} devices divide them"
        ),
        false => String::new(),
    }
}

/// The candidate that needs the least memory, of several the first, and `known` unless one needs less. It has the smallest
/// micro-batch there is. Those that need the least at least are estimated first, and the others not at all.
fn least(
    space: &Space,
    estimator: &mut Estimator<'_>,
    known: Option<(Candidate, f64)>,
) -> Result<Option<(Candidate, f64)>, SearchError> {
    let mut bounded = vec![];
    let smallest = space.candidates().filter(|it| it.microbatch == space.least_microbatch());
    for (place, candidate) in smallest.enumerate() {
        if let Some(bound) = estimator.least_bytes(&candidate)?
            && known.is_none_or(|(_, known)| bound < known)
        {
            bounded.push((bound, place, candidate));
        }
    }
    bounded.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut least: Option<(f64, usize, Candidate)> = None;
    for (bound, place, candidate) in bounded {
        if least.is_some_and(|(needed, ..)| bound > needed) {
            break;
        }
        if let Some(estimate) = estimator.estimate(&candidate)? {
            let found = (estimate.peak_bytes, place);
            if least.is_none_or(|(needed, first, _)| found < (needed, first)) {
                least = Some((found.0, found.1, candidate));
            }
        }
    }
    let found = least.map(|(needed, _, candidate)| (candidate, needed));
    Ok(match (known, found) {
        (Some(known), Some(found)) if found.1 >= known.1 => Some(known),
        (known, found) => found.or(known),
    })
}

/// How many times as many nodes hold the model, and how many devices they have.
fn enough_nodes(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Option<(u32, u32)>, SearchError> {
    let mut times = 2;
    while times <= LARGEST {
        let larger = |group: &NodeGroup| NodeGroup {
            nodes: group.nodes.saturating_mul(times),
            ..group.clone()
        };
        let Ok(larger) = cluster.with_groups(cluster.groups().iter().map(larger).collect()) else {
            return Ok(None);
        };
        let mut estimator = Estimator::new(graph, &larger, request.settings())?;
        let available = request.memory_share * estimator.memory_bytes() as f64;
        let space = Space::new(graph, &larger, request)?;
        if least(&space, &mut estimator, None)?.is_some_and(|(_, needed)| needed <= available) {
            return Ok(Some((times, larger.device_count())));
        }
        times *= 2;
    }
    Ok(None)
}

fn name(candidate: &Candidate) -> String {
    let Candidate { pp, dp, cp, tp, zero, sharing, microbatch, recompute, .. } = candidate;
    let recompute = recompute.name();
    let within = match sharing == dp {
        true => String::new(),
        false => format!(" within {sharing} replicas"),
    };
    let context = if *cp > 1 { format!(" x context {cp}") } else { String::new() };
    let samples = match microbatch {
        1 => "one sample".to_owned(),
        several => format!("{several} samples"),
    };
    format!(
        "pipeline {pp} x data {dp}{context} x tensor {tp} with ZeRO-{zero}{within}, {samples} a micro-batch and \
         recomputation {recompute}"
    )
}
