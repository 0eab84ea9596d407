//! Why a plan takes as long as it does, and what would change that: facts from experiments in the
//! simulator, each with its number.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_graph::Graph;
use shardloom_plan::{Plan, Recompute, Sync};
use shardloom_program::ProgramError;
use shardloom_program::quantity::{self, bytes, counted, percent};
use shardloom_sim::{Fit, MemoryFit, Simulation};

use crate::edits::Edits;
use crate::experiment::{Bench, Traffic, changed, traffic_of};
use crate::search::{MOST_BLOCKS, Search, is_deep};
use crate::step_part::host_times;
use crate::without_communication::{
    IDLE_SERVERS, WithoutCommunication, shortens_waiting, waiting_for,
};
use crate::{Request, SearchError, algorithms, edits, judge, kinds};

/// What a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// How a step's time divides.
    Share,
    /// What takes most of it, and what would next.
    Bottleneck,
    /// Memory.
    Memory,
    /// Which kinds of parallelism it has, and what each alone would take.
    Parallelism,
    /// What another machine would do to the plan.
    Machine,
    /// What another batch would do to the plan.
    Batch,
    /// What another value of one of its keys would do.
    Change,
    /// How the algorithms of its collectives compare with others.
    Algorithm,
    /// Another plan.
    Rival,
}

/// Something found out by experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// What it is about.
    pub topic: Topic,
    /// A sentence for people.
    pub sentence: String,
    /// The number it rests on: seconds for rivals and for kinds of parallelism (0 where there is no plan), a share of
    /// memory for memory, otherwise a share of the step's time (negative where something takes longer).
    pub number: f64,
}

/// Another plan beside the one that is explained.
#[derive(Clone, Copy, Debug)]
pub struct Rival<'a> {
    /// What it is called.
    pub name: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// Its model.
    pub graph: &'a Graph,
    /// Its machines.
    pub cluster: &'a Cluster,
}

/// All facts about a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The step that the facts are about.
    pub step_seconds: f64,
    /// What each rank needs and has.
    pub memory: Vec<MemoryFit>,
    /// The facts, the most telling first.
    pub facts: Vec<Fact>,
}

/// The index of computing among the parts of a step's time.
pub(crate) const COMPUTE: usize = 0;

/// Explains `plan` for `graph` on `cluster`, beside other plans given by name.
///
/// A step's time divides into computing (an average device's), what is left where all communication is
/// free and the host launches in no time (waiting for other stages, and servers that compute nothing), and what each
/// kind of communication and the host add that computing does not hide: by how much the step gets shorter without.
///
/// # Errors
/// If a plan does not fit the model or the cluster.
pub fn explain(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    rivals: &[Rival<'_>],
) -> Result<Explanation, SearchError> {
    let planned = plan.graph_of(graph);
    let bench = Bench::new(&planned, cluster, plan)?;
    let measured = bench.without(&[])?;
    let step_seconds = seconds(&measured);
    // What is told of a model takes some dozens of simulations, and of so many blocks each takes seconds.
    let deep = is_deep(graph);
    let edits = match deep {
        true => Edits::default(),
        false => edits::edits(graph, cluster, plan, step_seconds)?,
    };
    let mut facts = shares(&bench, plan, &measured, &edits)?;
    let fits = measured.memory_fits(&bench.program, bench.cluster)?;
    facts.extend(memory(&bench, &fits));
    match deep {
        true => facts.push(Fact {
            topic: Topic::Change,
            sentence: format!(
                "what changes of the plan, the batch or the machines would bring is not tried of a model with more than \
                 {MOST_BLOCKS} blocks"
            ),
            number: 0.0,
        }),
        false => facts.extend(changes(&bench, (graph, cluster, plan), step_seconds, edits)?),
    }
    for rival in rivals {
        facts.push(match *rival.plan == *plan {
            true => Fact {
                topic: Topic::Rival,
                sentence: format!("{} is this plan", rival.name),
                number: step_seconds,
            },
            false => against(*rival, step_seconds)?,
        });
    }
    Ok(Explanation { step_seconds, memory: fits, facts })
}

/// What changes of the machines, the batch and the plan would bring.
fn changes(
    bench: &Bench<'_>,
    (graph, cluster, plan): (&Graph, &Cluster, &Plan),
    step_seconds: f64,
    edits: Edits,
) -> Result<Vec<Fact>, SearchError> {
    let mut facts = kinds::compared(graph, cluster, plan, step_seconds)?;
    facts.extend(machines(bench, step_seconds)?);
    facts.extend(batches(graph, cluster, plan, step_seconds)?);
    facts.extend(roomier(graph, cluster, plan, step_seconds)?);
    facts.extend(edits.facts);
    let algorithms = algorithms::compared(graph, cluster, plan, step_seconds)?.into_iter();
    facts.extend(algorithms.map(|(sentence, number)| Fact {
        topic: Topic::Algorithm,
        sentence,
        number,
    }));
    Ok(facts)
}

fn seconds(simulation: &Simulation) -> f64 {
    simulation.step_time().seconds()
}

/// The parts of the step's time as shares of it: what each is called, what makes it smaller, and how much it is. What
/// would make the step longer, as an experiment with it has shown, is no remedy.
pub(crate) fn parts(
    bench: &Bench<'_>,
    plan: &Plan,
    measured: &Simulation,
    edits: &Edits,
) -> Result<Vec<(&'static str, &'static str, f64)>, SearchError> {
    let step_seconds = seconds(measured);
    let share = |seconds: f64| if step_seconds > 0.0 { seconds / step_seconds } else { 0.0 };
    let saved = |other: Simulation| share((step_seconds - seconds(&other)).max(0.0));
    let hostless = bench.cluster.clone().under(host_times(bench.cluster.stack(), 0.0));
    let alone = WithoutCommunication::of(bench, &hostless, measured)?;
    let helps = |saved: Option<f64>| saved.is_none_or(|saved| saved >= 0.0);
    let computes_again = plan
        .stages()
        .any(|(_, stage)| stage.recompute.unwrap_or(plan.recompute) != Recompute::None);
    let computing = match computes_again {
        true => "faster devices, or less recomputation",
        false => "faster devices",
    };
    let shortens_waiting = shortens_waiting(plan, helps(edits.with_more_microbatches));
    let mut parts = vec![
        ("computing", computing, share(alone.computing)),
        (waiting_for(plan), shortens_waiting, share(alone.waiting)),
        (IDLE_SERVERS, "fewer servers, or more workers", share(alone.idle_servers)),
    ];
    for ((name, remedy), traffic) in traffic_of(plan).into_iter().zip(Traffic::ALL) {
        parts.push((name, remedy, saved(bench.without(&[traffic])?)));
    }
    if bench.cluster.stack().host.launches() {
        let remedy = match helps(edits.with_fewer_microbatches) {
            true => "larger micro-batches, or software that launches fewer kernels",
            false => "software that launches fewer kernels",
        };
        parts.push(("waiting for the host", remedy, saved(bench.on(&hostless, &[])?)));
    }
    Ok(parts)
}

/// How the step's time divides, and the two largest parts.
fn shares(
    bench: &Bench<'_>,
    plan: &Plan,
    measured: &Simulation,
    edits: &Edits,
) -> Result<Vec<Fact>, SearchError> {
    let step_seconds = seconds(measured);
    let parts = parts(bench, plan, measured, edits)?;
    let of_step = ["computing", waiting_for(plan), IDLE_SERVERS];
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|&a, &b| parts[b].2.total_cmp(&parts[a].2));
    let mut facts: Vec<Fact> = order
        .iter()
        .map(|&part| parts[part])
        .filter(|&(_, _, share)| share >= 0.0005)
        .map(|(name, _, share)| {
            let is_part = of_step.contains(&name);
            let sentence = match is_part {
                true => format!("{} of a step is {name}", percent(share)),
                // It runs beside computing, too, which it may slow down.
                false => format!("without {name} a step would take {} less", percent(share)),
            };
            Fact { topic: Topic::Share, sentence, number: share }
        })
        .collect();
    // What is not computing could be saved; computing itself only on other devices.
    let losses: Vec<usize> = order.iter().copied().filter(|&part| part != COMPUTE).collect();
    let lost: f64 = losses.iter().map(|&part| parts[part].2).sum();
    let mut bottleneck = |part: usize, place: &str| {
        let (name, remedy, share) = parts[part];
        let remedy = match bench.cluster.node_count() {
            1 => remedy.replace("links between nodes", "links"),
            _ => remedy.to_owned(),
        };
        let sentence = format!(
            "{place} {name}: {} a step; it shrinks with {remedy}",
            quantity::seconds(share * step_seconds)
        );
        facts.push(Fact { topic: Topic::Bottleneck, sentence, number: share });
    };
    match lost < 0.1 {
        true => bottleneck(COMPUTE, "the limit is"),
        false => bottleneck(losses[0], "most is lost to"),
    }
    let next = if lost < 0.1 { losses[0] } else { losses[1] };
    if parts[next].2 >= 0.0005 {
        bottleneck(next, "the next bottleneck is");
    }
    Ok(facts)
}

fn memory(bench: &Bench<'_>, fits: &[MemoryFit]) -> Option<Fact> {
    let fullest = MemoryFit::fullest(fits)?;
    let (class, _) = bench.program.locate(shardloom_program::Rank(fullest.rank));
    let class = bench.program.class(class);
    let held = fullest.persistent;
    let share = fullest.peak_bytes as f64 / fullest.memory_bytes as f64;
    let verdict = match fullest.fit() {
        Fit::Exceeds => "does not fit",
        Fit::Close => "is close to the limit",
        Fit::Fits if share > 0.8 => "uses memory well",
        // What goes into it is said where it is tried.
        Fit::Fits => "leaves room",
    };
    let sentence = format!(
        "fullest: {}, with {} of {} ({}), which {verdict}: weights {}, gradients {}, optimizer \
         state {}, activations {}, buffers {}",
        class.place(),
        bytes(fullest.peak_bytes),
        bytes(fullest.memory_bytes),
        percent(share),
        bytes(held.weights),
        bytes(held.gradients),
        bytes(held.state),
        bytes(fullest.activation_bytes),
        bytes(fullest.buffer_bytes()),
    );
    Some(Fact { topic: Topic::Memory, sentence, number: share })
}

/// What faster machines would do.
fn machines(bench: &Bench<'_>, step_seconds: f64) -> Result<Vec<Fact>, SearchError> {
    type Change = fn(&mut NodeGroup);
    let between: Change = |group| {
        group.profile.node.inter.bytes_per_second *= 2.0;
        group.profile.node.uplink_bytes_per_second *= 2.0;
    };
    let within: Change = |group| group.profile.node.intra.bytes_per_second *= 2.0;
    let memory: Change = |group| group.profile.device.memory_bytes_per_second *= 2.0;
    let experiments = [
        ("links between nodes were twice as fast", between),
        ("links within nodes were twice as fast", within),
        ("device memory were twice as fast", memory),
    ];
    let of_one_node = usize::from(bench.cluster.node_count() == 1);
    let mut facts = vec![];
    for (condition, change) in experiments.into_iter().skip(of_one_node) {
        let other = changed(bench.cluster, change)?;
        let saved = 1.0 - seconds(&bench.on(&other, &[])?) / step_seconds;
        let sentence = match saved < 0.0005 {
            true => format!("if {condition}, nothing would change"),
            false => format!("if {condition}, a step would take {} less", percent(saved)),
        };
        facts.push(Fact { topic: Topic::Machine, sentence, number: saved });
    }
    Ok(facts)
}

/// What other batches would do, where they divide.
fn batches(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Vec<Fact>, SearchError> {
    let per_sample = step_seconds / plan.global_batch as f64;
    let mut half = Plan { global_batch: plan.global_batch / 2, ..plan.clone() };
    half.microbatches = plan.microbatches / 2;
    let mut double = Plan { global_batch: plan.global_batch * 2, ..plan.clone() };
    double.microbatches = plan.microbatches * 2;
    let experiments =
        [("with half the global batch", half), ("with twice the global batch", double)];
    let mut facts = vec![];
    for (condition, other) in experiments {
        let odd = other.global_batch * 2 == plan.global_batch && plan.microbatches % 2 == 1;
        if odd {
            continue;
        }
        let judgement = match judge(graph, cluster, &other) {
            // Samples cannot be dealt so, or the schedule does not exist for so few micro-batches.
            Err(SearchError::Program(ProgramError::Plan(_) | ProgramError::Schedule(_))) => {
                continue;
            }
            judgement => judgement?,
        };
        let saved = 1.0 - judgement.step_seconds / other.global_batch as f64 / per_sample;
        let relation = if saved >= 0.0 { "less" } else { "more" };
        let share = percent(saved.abs());
        let sentence = format!("{condition}, a sample would take {share} {relation} time");
        facts.push(Fact { topic: Topic::Batch, sentence, number: saved });
    }
    Ok(facts)
}

/// Whether replicas are kept equal in a way that a search has among what it chooses from.
pub(crate) fn is_searched(plan: &Plan) -> bool {
    let Sync { averaging, compression, negotiation, .. } = plan.sync;
    let sparse = plan.syncs().any(|sync| sync.sparse);
    let otherwise = averaging.is_some() || negotiation.is_some() || !compression.is_none();
    !plan.sync.has_servers() && !otherwise && !sparse
}

/// The fastest plan by estimate for the same as `plan` on `cluster`, if any fits.
pub(crate) fn fastest_like(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
) -> Result<Option<Plan>, SearchError> {
    let request = Request::like(plan);
    Search::of(&plan.graph_of(graph), cluster, &request)?.fastest_estimate()
}

/// How much memory devices get in the experiment of [`roomier`].
const MORE_MEMORY: f64 = 1.25;

/// What the search would find if devices had more memory.
fn roomier(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    step_seconds: f64,
) -> Result<Option<Fact>, SearchError> {
    if !is_searched(plan) {
        return Ok(None);
    }
    let larger = changed(cluster, |group| {
        let bytes = group.profile.device.memory_bytes as f64 * MORE_MEMORY;
        group.profile.device.memory_bytes = bytes as u64;
    })?;
    let Some(other) = fastest_like(graph, &larger, plan)? else {
        return Ok(None);
    };
    let saved = 1.0 - judge(graph, &larger, &other)?.step_seconds / step_seconds;
    let more = format!("if devices had {} more memory,", percent(MORE_MEMORY - 1.0));
    let is_slower = saved < 0.0005;
    let fits_now =
        !is_slower && judge(graph, cluster, &other)?.fits(Request::like(plan).memory_share);
    let (condition, fits) = match fits_now {
        true => ("with the memory that there is,".to_owned(), "fits"),
        false => (more, "would fit"),
    };
    let sentence = match is_slower {
        true => format!("{condition} no faster plan would be found"),
        false => format!(
            "{condition} a plan that takes {} less {fits}: {} of {}, {} with {}, ZeRO-{}, \
             recomputation {}",
            percent(saved),
            counted(other.stages().count(), "stage"),
            other.stages().next().map(|(_, stage)| stage.mesh.to_string()).unwrap_or_default(),
            other.schedule.name(),
            counted(other.microbatches, "micro-batch"),
            other.sync.zero,
            other.recompute.name(),
        ),
    };
    Ok(Some(Fact { topic: Topic::Memory, sentence, number: saved }))
}

/// Why not another plan.
fn against(rival: Rival<'_>, step_seconds: f64) -> Result<Fact, SearchError> {
    let Rival { name, plan, graph, cluster } = rival;
    let judgement = judge(graph, cluster, plan)?;
    let number = judgement.step_seconds;
    let time = match number / step_seconds - 1.0 {
        slower if slower >= 0.0005 => format!("takes {} longer", percent(slower)),
        slower if slower <= -0.0005 => format!("would take {} less", percent(-slower)),
        _ => "takes as long".to_owned(),
    };
    let full = judgement.fullest().filter(|it| it.peak_bytes > it.memory_bytes);
    let sentence = match full {
        Some(it) => format!(
            "{name} does not fit: it needs {} of {} (and {time}: {})",
            bytes(it.peak_bytes),
            bytes(it.memory_bytes),
            quantity::seconds(number),
        ),
        None => {
            let planned = plan.graph_of(graph);
            let bench = Bench::new(&planned, cluster, plan)?;
            let measured = bench.without(&[])?;
            let mut worst = (0.0, "");
            for ((part, _), traffic) in traffic_of(plan).into_iter().zip(Traffic::ALL) {
                let saved = 1.0 - seconds(&bench.without(&[traffic])?) / seconds(&measured);
                if saved > worst.0 {
                    worst = (saved, part);
                }
            }
            let seconds = quantity::seconds(number);
            match worst {
                (share, part) if share >= 0.0005 => {
                    format!("{name} {time}: {seconds}, {} of it {part}", percent(share))
                }
                _ => format!("{name} {time}: {seconds}"),
            }
        }
    };
    Ok(Fact { topic: Topic::Rival, sentence, number })
}
