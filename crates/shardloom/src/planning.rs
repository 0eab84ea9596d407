//! Finding a plan, and explaining one.

use std::error::Error as StdError;
use std::time::Instant;

use shardloom_cluster::{Algorithms, Cluster, DeviceId, Precision as Format};
use shardloom_collectives::Algorithm;
use shardloom_graph::Dim;
use shardloom_methods::{Choice, Method};
use shardloom_plan::{Axis, LayoutRule, Plan};
use shardloom_program::quantity::{bytes, percent};
use shardloom_search::{
    Circumstance, Explanation, Judgement, Outcome, Request, Rival, SearchCounts, StepPart,
    usual_precision,
};
use shardloom_train::Settings;

use crate::arithmetic::sample_flops;
use crate::{Data, Model, Result, Session};

/// A plan that was found, and what a step of it is predicted to be.
#[derive(Clone, Debug)]
pub struct Planned {
    /// All that the search says.
    pub outcome: Outcome,
    /// Tokens, or whatever else targets are, per second.
    pub tokens_per_second: f64,
    /// Model FLOP/s as a share of what the plan's devices can do at most, recomputation not counted
    /// (Chowdhery et al. 2022, appendix B); none where a device's peak is not known.
    pub model_flops_utilisation: Option<f64>,
    /// By how much a step on one device would take longer, by the fastest plan for that were its memory large
    /// enough; of several kinds of device that on which it is fastest. None if no plan runs on one.
    pub speedup: Option<f64>,
    /// The most memory that each rank holds at once, by rank.
    pub peak_bytes_per_rank: Vec<u64>,
    /// How long a step took in the trial of the plan; none where no trials are made, or they are simulated.
    pub measured_step_seconds: Option<f64>,
}

/// What a plan for these machines is usually wanted with: the format [usual](usual_precision) for all of them, or
/// for some where those are faster by themselves; and the algorithm of collectives and the size of buckets with which
/// the plan that is found is fastest, unless the software chooses them itself. It is searched with collectives straight
/// in memory where ranks are cores that share it, else with rings.
pub fn usual_request(
    model: &Model,
    cluster: &Cluster,
    cluster_text: &str,
    global_batch: usize,
) -> Request {
    let on_cores = cluster.groups().iter().all(|group| !group.profile.device.lanes_overlap);
    let algorithm = match on_cores && cluster.node_count() == 1 {
        true => Algorithm::Direct,
        false => Algorithm::Ring,
    };
    let request = Request::new(&model.text(), cluster_text, global_batch);
    Request {
        precision: usual_precision(cluster),
        formats_by_machines: true,
        algorithm,
        fastest_algorithm: cluster.stack().algorithms == Algorithms::Planned,
        fastest_bucket_size: true,
        plan_defaults: cluster.stack().plan_defaults,
        ..request
    }
}

/// Finds the fastest plan that fits in memory, no slower than those that people use without a search.
///
/// ```
/// use shardloom::{LocalProfile, Model, find_plan, load_cluster, usual_request};
///
/// let model = Model::load("gpt-2")?;
/// let local = LocalProfile::at("none".as_ref());
/// let cluster = load_cluster("a100-80g:4", &local, &mut |_, _| {})?;
/// let planned = find_plan(&model, &cluster, &usual_request(&model, &cluster, "a100-80g:4", 64))?;
/// assert!(planned.outcome.plan.device_count() <= 4);
/// assert!(planned.model_flops_utilisation < Some(1.0));
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If the request asks for what cannot be, or no plan divides or fits.
pub fn find_plan(model: &Model, cluster: &Cluster, request: &Request) -> Result<Planned> {
    let graph = model.graph();
    let baselines = |machines: &Cluster, request: &Request| {
        shardloom_methods::baselines(graph, machines, request)
    };
    let outcome = shardloom_search::auto(graph, cluster, request, baselines)?;
    Planned::of(model, cluster, request, outcome)
}

/// The plan that a published system would choose, beside the plans that people use without a search.
///
/// ```
/// use shardloom::{LocalProfile, Model, load_cluster, methods, plan_by_method, usual_request};
///
/// let model = Model::load("gpt-2")?;
/// let local = LocalProfile::at("none".as_ref());
/// let cluster = load_cluster("a100-80g:4", &local, &mut |_, _| {})?;
/// let request = usual_request(&model, &cluster, "a100-80g:4", 64);
/// let planned = plan_by_method(&model, &cluster, &request, methods::named("gpipe")?)?;
/// assert_eq!(planned.outcome.plan.schedule.name(), "afab");
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If the method has no plan for these numbers, or none of its plans fits.
pub fn plan_by_method(
    model: &Model,
    cluster: &Cluster,
    request: &Request,
    method: &Method,
) -> Result<Planned> {
    let begun = Instant::now();
    let choice = method.choose(model.graph(), cluster, request)?;
    planned(model, cluster, request, method, choice, begun)
}

/// A method's choice beside the plans that people use without a search.
fn planned(
    model: &Model,
    cluster: &Cluster,
    request: &Request,
    method: &Method,
    choice: Choice,
    begun: Instant,
) -> Result<Planned> {
    let graph = model.graph();
    let baselines = shardloom_methods::baselines(graph, cluster, request)?;
    let search = SearchCounts {
        method: method.name,
        space: choice.space,
        evaluated: choice.space - choice.impossible,
        bounded_away: choice.impossible,
        simulated: choice.simulated,
        seconds: begun.elapsed().as_secs_f64(),
    };
    let outcome = Outcome {
        devices_left_out: cluster.device_count() - choice.plan.device_count() as u32,
        not_searched: vec![],
        plan: choice.plan,
        judgement: choice.judgement,
        estimated_seconds: None,
        baselines,
        search,
        finalists: vec![],
        notes: choice.notes,
    };
    Planned::of(model, cluster, request, outcome)
}

/// The plan that a published system finds by trials that are really made: `measure` trains with a plan for some
/// steps and says how long one takes, such as [`measured_step_seconds`] does. The answer says that time of the plan,
/// which is the least of those measured, beside what is predicted of it.
///
/// # Errors
/// As [`plan_by_method`]; if the method makes no trials, or `measure` fails.
pub fn plan_by_measured_trials<E: Into<Box<dyn StdError + Send + Sync>>>(
    model: &Model,
    cluster: &Cluster,
    request: &Request,
    method: &Method,
    mut measure: impl FnMut(&Plan) -> std::result::Result<f64, E>,
) -> Result<Planned> {
    let begun = Instant::now();
    let mut measure = |plan: &Plan| measure(plan).map_err(Into::into);
    let mut choice = method.choose_by_measuring(model.graph(), cluster, request, &mut measure)?;
    let measured = choice.judgement.step_seconds;
    choice.judgement = shardloom_search::judge(model.graph(), cluster, &choice.plan)?;
    let planned = planned(model, cluster, request, method, choice, begun)?;
    Ok(Planned { measured_step_seconds: Some(measured), ..planned })
}

/// How long a step of training here takes, on average over so many after the first.
///
/// # Errors
/// As [`Session::start`] and [`Session::step`].
pub fn measured_step_seconds(
    model: &Model,
    plan: &Plan,
    data: Data,
    settings: Settings,
    steps: u32,
) -> Result<f64> {
    let mut session = Session::start(model, plan, data, settings)?;
    session.step()?;
    let begun = Instant::now();
    for _ in 0..steps {
        session.step()?;
    }
    Ok(begun.elapsed().as_secs_f64() / f64::from(steps.max(1)))
}

impl Planned {
    fn of(
        model: &Model,
        cluster: &Cluster,
        request: &Request,
        outcome: Outcome,
    ) -> Result<Planned> {
        let graph = model.graph();
        let step_seconds = outcome.judgement.step_seconds;
        let tokens = outcome.plan.global_batch as f64 * graph.targets_per_sample() as f64;
        let peak_flops = peak_flops(&outcome.plan, cluster);
        let sample_flops: f64 = sample_flops(graph, &request.frozen)?.iter().sum();
        let flops = sample_flops * outcome.plan.global_batch as f64;
        let mut outcome = outcome;
        outcome.notes.extend(padding(model, cluster, &outcome)?);
        outcome.notes.extend(padding_of_categories(model, cluster, &outcome)?);
        let request = Request { precision: outcome.plan.precision, ..request.clone() };
        let alone = shardloom_search::single_device_seconds(graph, cluster, &request)?;
        Ok(Planned {
            speedup: alone.map(|alone| alone / step_seconds),
            tokens_per_second: tokens / step_seconds,
            model_flops_utilisation: peak_flops.map(|peak| flops / (step_seconds * peak)),
            peak_bytes_per_rank: peak_bytes_per_rank(&outcome),
            measured_step_seconds: None,
            outcome,
        })
    }

    /// The speed-up as a share of the number of devices; none where these are of several kinds.
    pub fn efficiency(&self, cluster: &Cluster) -> Option<f64> {
        let mut profiles = cluster.groups().iter().map(|group| &group.profile.device);
        let alike = profiles.all(|device| *device == cluster.groups()[0].profile.device);
        let devices = self.outcome.plan.device_count() as f64;
        self.speedup.filter(|_| alike).map(|speedup| speedup / devices)
    }
}

/// Elements of 16 bits in the 16 bytes that a GPU's products read at once.
const ALIGNED: usize = 8;

/// What to know of a vocabulary that tensor parallelism does not divide, so that each rank has all of it, or whose rows
/// make products slow: what a step of the same plan would take were it padded to the next multiple of 128 times the
/// width, as Megatron-LM pads (`megatron/training/tokenizer`). None where that saves less than 1%.
fn padding(model: &Model, cluster: &Cluster, outcome: &Outcome) -> Result<Option<String>> {
    let Outcome { plan, judgement, .. } = outcome;
    let tp = plan.stages().map(|(_, stage)| stage.mesh.tp()).max().unwrap_or(1) as usize;
    let rows = model.graph().dim_named("vocab").map(|dim| model.graph().dim(dim).size);
    let rows = rows.filter(|rows| !rows.is_multiple_of(ALIGNED * tp));
    let (Some(vocabulary), Some(rows)) = (model.vocabulary(), rows) else { return Ok(None) };
    let multiple = 128 * tp;
    let padded = vocabulary.next_multiple_of(multiple);
    let Ok(spec) = model.spec().with_padding(Some(multiple)) else { return Ok(None) };
    let mut other = Plan { model: spec.to_string(), ..plan.clone() };
    let reason = if rows.is_multiple_of(tp) {
        format!(
            "the vocabulary of {rows} is no multiple of {}, so products of its logits are slow",
            ALIGNED * tp
        )
    } else {
        // Before sequence parallelism, which splits what is left.
        let rules = &mut other.layout.0;
        let sequence = rules.iter().position(|it| (it.dim.as_str(), it.axis) == ("seq", Axis::TP));
        let rule = LayoutRule { dim: "vocab".into(), axis: Axis::TP };
        rules.insert(sequence.unwrap_or(rules.len()), rule);
        format!(
            "tensor parallelism of width {tp} does not divide the vocabulary of {rows}, so each rank has all of it"
        )
    };
    let other = shardloom_search::judge(&spec.graph()?, cluster, &other)?;
    let saved = 1.0 - other.step_seconds / judgement.step_seconds;
    Ok((saved >= 0.01).then(|| {
        format!(
            "{reason}; padded to {padded} (--pad-vocabulary {multiple}), which changes no loss, the same plan would \
             take {} less",
            percent(saved)
        )
    }))
}

/// Likewise of tables for categories, of which each rank has all rows where tensor parallelism does not divide these.
fn padding_of_categories(
    model: &Model,
    cluster: &Cluster,
    outcome: &Outcome,
) -> Result<Option<String>> {
    let Outcome { plan, judgement, .. } = outcome;
    let tp = plan.stages().map(|(_, stage)| stage.mesh.tp()).max().unwrap_or(1) as usize;
    let tables = model.graph().dims().iter().filter(|dim| dim.name.starts_with("rows."));
    let (divided, whole): (Vec<_>, Vec<_>) = tables.partition(|dim| dim.size.is_multiple_of(tp));
    if whole.is_empty() {
        return Ok(None);
    }
    let Ok(spec) = model.spec().with_padding(Some(tp)) else { return Ok(None) };
    let mut other = Plan { model: spec.to_string(), ..plan.clone() };
    let rule = |dim: &&Dim| LayoutRule { dim: dim.name.clone(), axis: Axis::TP };
    other.layout.0.extend(whole.iter().map(rule));
    // Whatever is wrong with that plan, it is not the answer.
    let Ok(other) = shardloom_search::judge(&spec.graph()?, cluster, &other) else {
        return Ok(None);
    };
    let saved = 1.0 - other.step_seconds / judgement.step_seconds;
    let fullest = |of: &Judgement| of.memory.iter().map(|it| it.peak_bytes).max().unwrap_or(0);
    let smaller = fullest(judgement).saturating_sub(fullest(&other));
    let tables = whole.len() + divided.len();
    let is_much = smaller as f64 >= 0.01 * fullest(judgement) as f64;
    Ok((saved >= 0.01 || is_much).then(|| {
        format!(
            "tensor parallelism of width {tp} does not divide the rows of {} of {tables} tables, which each rank has \
             whole; with padding (--pad-vocabulary {tp}), which changes no loss, the same plan would take {} less and \
             the fullest device {} less",
            whole.len(),
            percent(saved.max(0.0)),
            bytes(smaller)
        )
    }))
}

/// Says what limits `plan` on `cluster` and what would change that, beside other plans, each for its own model and
/// machines.
///
/// # Errors
/// If a plan does not fit the model or the cluster.
pub fn explain(
    model: &Model,
    cluster: &Cluster,
    plan: &Plan,
    rivals: &[Rival<'_>],
) -> Result<Explanation> {
    Ok(shardloom_search::explain(model.graph(), cluster, plan, rivals)?)
}

/// Which part of a step of `plan` on `cluster` would have to be how much slower for a step of `target_seconds`.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn step_parts(
    model: &Model,
    cluster: &Cluster,
    plan: &Plan,
    target_seconds: f64,
) -> Result<Vec<StepPart>> {
    Ok(shardloom_search::step_parts(model.graph(), cluster, plan, target_seconds)?)
}

/// What a step of `plan` on `cluster` would take if one thing were otherwise.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn circumstances(model: &Model, cluster: &Cluster, plan: &Plan) -> Result<Vec<Circumstance>> {
    Ok(shardloom_search::circumstances(model.graph(), cluster, plan)?)
}

/// What the devices of `plan` can do together in its precision.
pub(crate) fn peak_flops(plan: &Plan, cluster: &Cluster) -> Option<f64> {
    let format = match plan.precision.fp8_products {
        true => Format::Fp8,
        false => shardloom_sim::matmul_precision(plan.precision.compute),
    };
    let peak = |device| cluster.kind_of(DeviceId(device)).ok()?.peak_flops(format).ok();
    plan.devices().into_iter().map(peak).sum()
}

/// Each stage's peak for each of its ranks.
fn peak_bytes_per_rank(outcome: &Outcome) -> Vec<u64> {
    let memory = &outcome.judgement.memory;
    let ends = memory.iter().skip(1).map(|next| next.rank as usize);
    let ends = ends.chain([outcome.plan.device_count()]);
    memory
        .iter()
        .zip(ends)
        .flat_map(|(fit, end)| (fit.rank as usize..end).map(|_| fit.peak_bytes))
        .collect()
}
