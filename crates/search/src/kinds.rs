//! Which kinds of parallelism a plan has, and what each of them alone would take.

use std::collections::BTreeSet;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Axis, Plan};
use shardloom_program::quantity::{self, percent};

use crate::auto::fastest;
use crate::edits::Edits;
use crate::experiment::Bench;
use crate::explain::{COMPUTE, Fact, Topic, is_searched, parts};
use crate::judge::unless_too_large;
use crate::search::Search;
use crate::{Only, Request, SearchError};

/// The most plans of a kind that are simulated.
const SIMULATED: usize = 4;

/// From how many times as long on a plan is too far away for what it loses to matter.
const FAR: f64 = 10.0;

/// A kind of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Tensor,
    Pipeline,
    Context,
}

impl Kind {
    /// Those that can be a plan's only one.
    const ALONE: [Kind; 3] = [Kind::Data, Kind::Tensor, Kind::Pipeline];

    fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Tensor => "tensor",
            Kind::Pipeline => "pipeline",
            Kind::Context => "context",
        }
    }

    /// What it cuts.
    fn cuts(self) -> &'static str {
        match self {
            Kind::Data => "samples",
            Kind::Tensor => "products",
            Kind::Pipeline => "layers",
            Kind::Context => "sequences",
        }
    }

    /// Plans of no other kind.
    fn only(self) -> Only {
        let one = |kind| (self != kind).then_some(1);
        Only {
            pp: one(Kind::Pipeline),
            dp: one(Kind::Data),
            tp: one(Kind::Tensor),
            cp: Some(1),
            ..Only::default()
        }
    }

    /// Those that a plan has.
    fn of(plan: &Plan) -> Vec<Kind> {
        let meshes = || plan.stages().map(|(_, stage)| stage.mesh);
        let places = |pipeline: usize| {
            let stages = plan.pipeline[pipeline].stage.iter();
            stages.map(|stage| &stage.devices.0).collect::<BTreeSet<_>>().len()
        };
        let cuts = [
            (Kind::Data, plan.pipeline.len() > 1 || meshes().any(|mesh| mesh.dp() > 1)),
            (Kind::Tensor, meshes().any(|mesh| mesh.tp() > 1)),
            (Kind::Pipeline, (0..plan.pipeline.len()).any(|pipeline| places(pipeline) > 1)),
            (Kind::Context, meshes().any(|mesh| mesh.width(Axis::CP) > 1)),
        ];
        cuts.into_iter().filter_map(|(kind, is_there)| is_there.then_some(kind)).collect()
    }
}

/// Which kinds `plan` has, and for each that is not all it has, what the fastest plan of that kind alone takes or why
/// there is none. Empty where replicas are kept equal in a way that no search chooses, and of a plan for one device.
///
/// # Errors
/// If the cluster lacks a device or a rate.
pub(crate) fn compared(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Vec<Fact>, SearchError> {
    let own = Kind::of(plan);
    if !is_searched(plan) || own.is_empty() {
        return Ok(vec![]);
    }
    let list = |words: Vec<&str>| match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.join(""),
    };
    let cuts = list(own.iter().map(|kind| kind.cuts()).collect());
    let names = list(own.iter().map(|kind| kind.name()).collect());
    let hybrid = if own.len() > 1 { "hybrid, " } else { "" };
    let sentence = format!("the plan cuts {cuts} ({hybrid}{names} parallelism)");
    let mut facts = vec![Fact { topic: Topic::Parallelism, sentence, number: step_seconds }];
    for kind in Kind::ALONE.into_iter().filter(|kind| own != [*kind]) {
        facts.push(alone(kind, graph, cluster, plan, step_seconds)?);
    }
    Ok(facts)
}

/// What the fastest plan takes that is of this kind only; of one device, if nothing can be cut or that takes longer.
fn alone(
    kind: Kind,
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Fact, SearchError> {
    let name = kind.name();
    let fact = |sentence, number| Fact { topic: Topic::Parallelism, sentence, number };
    let devices = cluster.device_count();
    let impossible = |why: &str| fact(format!("{name} parallelism alone cannot be: {why}"), 0.0);
    // What `post_validation` would bring a search finds out by simulation; its estimates know nothing of it.
    let like = Request::like(plan);
    let only = kind.only();
    let request = Request { only, post_validation: false, finalists: SIMULATED, ..like };
    let planned = plan.graph_of(graph);
    let mut search = match Search::of(&planned, cluster, &request) {
        Err(SearchError::NoneWith { rule, .. }) => return Ok(impossible(&rule)),
        search => search?,
    };
    if search.scan.evaluated + search.scan.bounded_away == 0 {
        let why = format!("{} cannot be cut for {devices} devices", kind.cuts());
        return Ok(impossible(&why));
    }
    let Some(finalists) = unless_too_large(search.finalists(&[]))? else {
        let sentence =
            format!("{name} parallelism alone: a step of too many instructions to be simulated");
        return Ok(fact(sentence, 0.0));
    };
    let Some(found) = fastest(&finalists, cluster, &request, &[]) else {
        return Ok(fact(format!("{name} parallelism alone: no plan fits in memory"), 0.0));
    };
    let other = found.plan;
    let seconds = found.judgement.step_seconds;
    let times = seconds / step_seconds;
    let lost = match times < FAR {
        true => most_lost(&Bench::new(&planned, cluster, &other)?, &other)?,
        false => None,
    };
    let used = match other.device_count() {
        used if used == devices as usize => String::new(),
        used => format!(" on {used} of {devices} devices"),
    };
    let sentence = format!(
        "{name} parallelism alone: a step{used} takes {}, {times:.*} times as long{}",
        quantity::seconds(seconds),
        if times < FAR { 2 } else { 0 },
        lost.unwrap_or_default()
    );
    Ok(fact(sentence, seconds))
}

/// What a step of `plan` loses most to besides computing, if to anything.
fn most_lost(bench: &Bench<'_>, plan: &Plan) -> Result<Option<String>, SearchError> {
    let parts = parts(bench, plan, &bench.without(&[])?, &Edits::default())?;
    let losses = parts.iter().enumerate().filter(|(part, _)| *part != COMPUTE).map(|it| it.1);
    let most = losses.max_by(|a, b| a.2.total_cmp(&b.2)).filter(|it| it.2 >= 0.0005);
    Ok(most.map(|(what, _, share)| format!(", and loses {} to {what}", percent(*share))))
}
