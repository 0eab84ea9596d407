//! AutoSync (Zhang et al. 2020, "AutoSync: Learning to Synchronize for Data-Parallel Distributed Deep Learning",
//! NeurIPS): a search over how the gradients of each variable are synchronised, with a cost model that learns from
//! trials.

mod features;
mod linear;
mod network;
mod predefined;
mod problem;
mod random;
mod rank_rnn;
mod ranker;
mod ranking;
mod sampler;
mod search;
mod strategy;
#[cfg(test)]
mod tests;
mod trials;
mod words;

use std::collections::BTreeMap;

use shardloom_plan::{Compression, Number, Plan};
use shardloom_program::ProgramError;
use shardloom_search::{Judgement, SearchError, divisors, judge};

use super::{byteps, data_parallel, herring, parallax, workers};
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::selection::Selection;
use crate::{Choice, MethodError};
use problem::{Problem, Shape};
use sampler::Sampler;
use search::Searched;
use strategy::{Strategy, Synchroniser};
pub use trials::trials_in;
use trials::{Trial, Trials};

/// Servers or all-reduces, variable by variable.
pub(crate) const METHOD: Method = Method {
    name: "autosync",
    family: Family::DataParallel,
    paper: "Zhang et al. 2020, AutoSync: Learning to Synchronize for Data-Parallel Distributed Deep Learning, \
            NeurIPS",
    about: "Chooses for each variable whether and which servers sum its gradients, in how many pieces, or with \
            which others workers all-reduce them, by trials and a cost model that learns from them.",
    rules: |_| Rules::FLUSH,
    chooser,
};

/// Trials where nobody says how many, as published.
const TRIALS: usize = 200;

/// Workers times micro-batches times blocks that are simulated in all where nobody says how many trials to make:
/// what a simulation takes is proportional to them.
const EFFORT: usize = 100_000;

/// Trials even where that is more.
const LEAST_TRIALS: usize = 20;

fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    task.takes_trials = true;
    task.require_none_frozen()?;
    let mut selection = Selection::new(task.request.memory_share);
    let fixed = fixed(task, &mut selection)?;
    let problem = problem(task)?;
    let asked = &task.request.trials;
    if asked.compressed && task.request.precision.gradients != Number::Fp32 {
        let rule = "compressors take gradients in fp32, and these are in fewer bits";
        return Err(task.impossible("trials", "compressed", rule));
    }
    let compresses = asked.compressed;
    let sampler = Sampler::new(&problem, compresses);
    let (mut others, mut known) = (vec![], Trials { problem: problem.clone(), done: vec![] });
    for trials in asked.file.as_deref().map(trials::read).transpose()?.unwrap_or_default() {
        match trials.problem == problem {
            true => known.done = trials.done,
            false => others.push(trials),
        }
    }
    // The answer is a plan with its simulation, which a file does not hold.
    let may_be = |trial: &&Trial| compresses || !trial.strategy.compresses();
    let best = known.done.iter().filter(may_be);
    let best = best.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let best = best.map(|trial| trial.strategy.clone());
    let run = &mut |strategy: &Strategy| {
        let plan = words::plan(task, &problem, strategy);
        tried(task, &mut selection, plan)
    };
    if let Some(strategy) = &best {
        run(strategy)?;
    }
    let count = asked.count.unwrap_or_else(|| usual_trials(task, &problem));
    let begin = begin(&problem);
    let before = known.done.len();
    let keep = &mut |made: &Trials| match &asked.file {
        Some(path) => trials::write(path, others.iter().chain([made])),
        None => Ok(()),
    };
    let trying = search::Trying { run, keep };
    let found = search::search(&sampler, begin, known, &others, (count, asked.seed), trying)?;
    let mut notes = notes(task, &found, (before, count));
    let nothing = || {
        let devices = task.cluster.device_count();
        task.impossible("devices", devices, "no strategy has a plan for them")
    };
    let simulated = fixed + found.tried;
    let answer = selection.finish(task).map_err(|why| why.unwrap_or_else(nothing))?;
    let mut choice = answer.choice(fixed + found.drawn.max(found.tried), simulated);
    notes.extend(with_tables(&choice.plan));
    notes.extend(described(&choice.plan));
    choice.notes = notes;
    Ok(choice)
}

/// Offers the plans of methods that treat all variables alike, or all tables and all others, and says how many there
/// are.
fn fixed(task: &mut Task<'_>, selection: &mut Selection) -> Result<usize, MethodError> {
    let mut count = 0;
    let has_tables = !parallax::sparse(task.graph, 1).is_empty();
    let of_tables = has_tables.then_some(parallax::METHOD);
    let of_all = [data_parallel::METHOD, byteps::METHOD, herring::METHOD];
    for method in of_all.into_iter().chain(of_tables) {
        match (method.chooser)(task) {
            Ok(Choice { plan, judgement, .. }) => {
                count += 1;
                let judgement = measured(task, &plan, judgement)?;
                selection.offer(plan, judgement);
            }
            // One may have no plan where another has.
            Err(MethodError::NothingFits { .. } | MethodError::Impossible { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// How long a step of a plan takes; none if it is none, or does not fit.
fn tried(
    task: &Task<'_>,
    selection: &mut Selection,
    plan: Plan,
) -> Result<Option<f64>, MethodError> {
    let judgement = match judge(task.graph, task.cluster, &plan) {
        Ok(judgement) => judgement,
        Err(SearchError::Program(ProgramError::TooManyServers { .. })) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let judgement = measured(task, &plan, judgement)?;
    let seconds = judgement.step_seconds;
    Ok(selection.offer(plan, judgement).then_some(seconds))
}

/// The same with the step time that was measured, where trials are, of a plan that fits.
fn measured(task: &Task<'_>, plan: &Plan, judged: Judgement) -> Result<Judgement, MethodError> {
    match &task.measure {
        Some(measure) if judged.fits(task.request.memory_share) => {
            let step_seconds = measure.borrow_mut()(plan).map_err(MethodError::Trial)?;
            Ok(Judgement { step_seconds, ..judged })
        }
        _ => Ok(judged),
    }
}

/// The variables of a model, and workers and servers on a cluster: none, and one, two, four and so on up to half
/// of the devices; of the others as many workers as the batch can be dealt to, each with the largest micro-batches
/// that fit.
fn problem(task: &mut Task<'_>) -> Result<Problem, MethodError> {
    workers::require_room(task)?;
    let (cluster, request) = (task.cluster, task.request);
    let (devices, batch) = (cluster.device_count(), request.global_batch as u32);
    let counts = std::iter::successors(Some(1), |count| Some(2 * count));
    let counts = std::iter::once(0).chain(counts.take_while(|it| 2 * it <= devices));
    let mut problem = Problem {
        version: env!("CARGO_PKG_VERSION").into(),
        model: request.model.clone(),
        cluster: request.cluster.clone(),
        software: cluster.stack().name.clone(),
        measured: task.measure.is_some(),
        settings: words::settings(task),
        global_batch: request.global_batch,
        gradient_bytes: request.precision.gradients.bytes(),
        variables: Problem::variables(task.graph),
        shapes: vec![],
    };
    for servers in counts {
        let workers = divisors(batch).filter(|&it| it <= devices - servers).max().unwrap_or(1);
        for microbatches in divisors(batch / workers) {
            let samples = (batch / workers / microbatches) as usize;
            let layers = task.layers(samples)?;
            let pass: f64 = layers.iter().map(crate::layer_profile::LayerProfile::seconds).sum();
            let times = (microbatches as usize, f64::from(microbatches) * pass);
            let looked_up = looked_up(task, (workers, servers));
            let shape = Shape::of(cluster, (workers, servers), times)?;
            problem.shapes.push(Shape { looked_up, ..shape });
            let shape = problem.shapes.len() - 1;
            let plan = words::plan(task, &problem, &alike(&problem, shape));
            let fits = match judge(task.graph, cluster, &plan) {
                Ok(judgement) => judgement.fits(request.memory_share),
                // Variables are too few for so many servers.
                Err(SearchError::Program(ProgramError::TooManyServers { .. })) => false,
                Err(error) => return Err(error.into()),
            };
            if fits {
                break;
            }
            problem.shapes.pop();
        }
    }
    if problem.shapes.is_empty() {
        let rule = "workers have no room for the model; take larger devices, or a method that splits it, such as \
                    zero or megatron-lm";
        return Err(task.impossible("devices", devices, rule));
    }
    Ok(problem)
}

/// The tables whose rows go to servers one by one where these sum them, each with the share of its rows that a worker
/// looks up in a step. Under optimizers that look at whole parameters, of which servers cannot update pieces, there
/// are none.
fn looked_up(task: &Task<'_>, (workers, servers): (u32, u32)) -> BTreeMap<String, f64> {
    let request = task.request;
    if servers == 0 || !request.optimizer.updates_by_element() {
        return BTreeMap::new();
    }
    let tables = parallax::sparse(task.graph, request.global_batch / workers as usize);
    tables.into_iter().map(|table| (table.name.to_owned(), table.share)).collect()
}

/// The strategy in which all variables are synchronised alike: by all servers in turn, or by one all-reduce.
fn alike(problem: &Problem, shape: usize) -> Strategy {
    let servers = problem.shapes[shape].server_bandwidths.len();
    let synchroniser = |variable: usize| match servers {
        0 => Synchroniser::AllReduce { group: 0, compression: Compression::None },
        servers => Synchroniser::Servers(vec![(variable % servers) as u32]),
    };
    let synchronisers = (0..problem.variables.len()).map(synchroniser).collect();
    Strategy { shape, synchronisers }.without_idle_servers()
}

/// The strategy in which tables of which few rows are looked up are cut over all servers, and all else is one
/// all-reduce.
fn by_kind(problem: &Problem, shape: usize) -> Strategy {
    let of = &problem.shapes[shape];
    let servers = of.server_bandwidths.len();
    let synchroniser =
        |variable: &strategy::Variable| match of.looked_up.contains_key(&variable.name) {
            true => Synchroniser::Servers((0..servers.min(variable.rows) as u32).collect()),
            false => Synchroniser::AllReduce { group: 0, compression: Compression::None },
        };
    let synchronisers = problem.variables.iter().map(synchroniser).collect();
    Strategy { shape, synchronisers }.without_idle_servers()
}

/// The strategies that are tried first.
fn begin(problem: &Problem) -> Vec<Strategy> {
    let shapes = || 0..problem.shapes.len();
    let with_tables = shapes().filter(|&shape| !problem.shapes[shape].looked_up.is_empty());
    let by_kind = with_tables.map(|shape| by_kind(problem, shape));
    shapes().map(|shape| alike(problem, shape)).chain(by_kind).collect()
}

/// As many trials as are published, or fewer where simulating them would take long.
fn usual_trials(task: &Task<'_>, problem: &Problem) -> usize {
    if task.measure.is_some() {
        return TRIALS;
    }
    let blocks = task.graph.blocks().len();
    let effort = |shape: &Shape| shape.workers as usize * shape.microbatches * blocks;
    let most = problem.shapes.iter().map(effort).max().unwrap_or(1).max(1);
    TRIALS.min((EFFORT / most).max(LEAST_TRIALS))
}

/// What to know of a search.
fn notes(task: &Task<'_>, found: &Searched, (before, count): (usize, usize)) -> Vec<String> {
    let mut notes = vec![];
    let mut known = format!("{} strategies were tried", found.tried);
    if before > 0 {
        known += &format!(", beside {before} that were known from {}", shown(task));
    }
    if task.request.trials.count.is_none() && count < TRIALS {
        known +=
            &format!(", not {TRIALS}, as simulating one takes long here: --trials says how many");
    }
    notes.push(known);
    let names = ["the predefined cost model", "the linear one", "RankRNN"];
    let shares = names
        .iter()
        .zip(found.accuracies)
        .filter_map(|(name, share)| share.map(|share| format!("{name} {:.0}%", 100.0 * share)));
    let shares: Vec<String> = shares.collect();
    if !shares.is_empty() {
        notes.push(format!(
            "of pairs of strategies in the last rounds {} had put in the right order before they were tried",
            shares.join(", ")
        ));
    }
    notes
}

fn shown(task: &Task<'_>) -> String {
    let file = task.request.trials.file.as_ref();
    file.map_or_else(|| "a file".into(), |path| path.display().to_string())
}

/// What to know of a plan with tables on servers.
fn with_tables(plan: &Plan) -> Option<String> {
    let tables = plan.parameters.iter().filter(|it| it.sparse == Some(true)).count();
    let are = if tables == 1 { "a table lies" } else { "tables lie" };
    (tables > 0).then(|| {
        format!("{are} on servers, from which workers get the rows that they look up and to which they send the gradients of these")
    })
}

/// What to know of a plan.
fn described(plan: &Plan) -> Option<String> {
    let is_compressed =
        |it: &shardloom_plan::ParameterGroup| it.compression.is_some_and(|how| !how.is_none());
    let compressed = plan.parameters.iter().filter(|it| is_compressed(it)).count();
    (compressed > 0).then(|| {
        format!(
            "gradients of {compressed} of {} groups of parameters are exchanged in 16 bits: training is near that \
             with whole ones, and not equal to it",
            plan.parameters.len()
        )
    })
}
