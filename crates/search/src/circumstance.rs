//! What a step would take if one thing were otherwise than planned: machines, software or a key of the plan,
//! each simulated.

use shardloom_cluster::{Cluster, NodeGroup, Stack};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::ClassId;
use shardloom_program::quantity::percent;
use shardloom_sim::{Simulation, step_kind};

use crate::experiment::{Bench, Scales, changed};
use crate::{SearchError, edits, judge};

/// One thing that is otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Circumstance {
    /// What it is, to stand behind "with".
    pub what: String,
    /// What a step takes then.
    pub step_seconds: f64,
    /// The most memory that a device holds then.
    pub peak_bytes: u64,
}

/// Speeds of a slow device, as shares of what it should be.
const SPEEDS: [f64; 3] = [0.9, 0.75, 0.5];

/// All gradients of a stage in one bucket.
const ONE_BUCKET: usize = 1 << 40;

/// What a step of `plan` on `cluster` would take under each of the circumstances that can be simulated of
/// it. Those that change nothing (by less than a thousandth) are left out, and so are those that need more memory than
/// there is, and more than the plan does.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn circumstances(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
) -> Result<Vec<Circumstance>, SearchError> {
    let planned = plan.graph_of(graph);
    let bench = Bench::new(&planned, cluster, plan)?;
    let as_planned = of("all as planned", &bench.without(&[])?);
    let predicted = as_planned.step_seconds;
    let memory = cluster.profiles().iter().map(|it| it.device.memory_bytes).max().unwrap_or(0);
    let most = memory.max(as_planned.peak_bytes);
    let mut found = machines(&bench, plan)?;
    found.extend(slow_devices(&bench)?);
    found.extend(software(&bench)?);
    found.extend(plans(graph, cluster, plan)?);
    found.retain(|it| (it.step_seconds / predicted - 1.0).abs() >= 1e-3 && it.peak_bytes <= most);
    Ok(found)
}

fn of(what: impl Into<String>, simulation: &Simulation) -> Circumstance {
    let peaks = simulation.timeline.tracks.iter().map(|track| track.peak_bytes);
    Circumstance {
        what: what.into(),
        step_seconds: simulation.step_time().seconds(),
        peak_bytes: peaks.max().unwrap_or(0),
    }
}

/// Other links and memory, and devices that do not compute while they communicate.
fn machines(bench: &Bench<'_>, plan: &Plan) -> Result<Vec<Circumstance>, SearchError> {
    type Change = fn(&mut NodeGroup);
    fn between(group: &mut NodeGroup, factor: f64) {
        group.profile.node.inter.bytes_per_second *= factor;
        group.profile.node.uplink_bytes_per_second *= factor;
    }
    let between_nodes: [(&str, Change); 4] = [
        ("half the bandwidth between nodes", |group| between(group, 0.5)),
        ("a quarter of the bandwidth between nodes", |group| between(group, 0.25)),
        ("twice the bandwidth between nodes", |group| between(group, 2.0)),
        ("all devices of a node sharing what one of them can send out of it", |group| {
            let node = &mut group.profile.node;
            node.uplink_bytes_per_second =
                node.uplink_bytes_per_second.min(node.inter.bytes_per_second);
        }),
    ];
    let anywhere: [(&str, Change); 3] = [
        ("half the bandwidth within nodes", |group| {
            group.profile.node.intra.bytes_per_second *= 0.5;
        }),
        ("an eighth of the bandwidth within nodes", |group| {
            group.profile.node.intra.bytes_per_second *= 0.125;
        }),
        ("half the bandwidth of device memory", |group| {
            group.profile.device.memory_bytes_per_second *= 0.5;
        }),
    ];
    let several = step_kind(plan, bench.cluster).several_nodes;
    let changes = between_nodes.into_iter().filter(|_| several).chain(anywhere);
    let mut found = vec![];
    for (what, change) in changes {
        let other = changed(bench.cluster, change)?;
        if other != *bench.cluster {
            found.push(of(what, &bench.on(&other, &[])?));
        }
    }
    found.push(of("no communication beside computation", &bench.without_overlap()?));
    Ok(found)
}

/// One slow device, in the stage that computes longest. All ranks of a stage wait for the slowest of them
/// in every step, so they are simulated as if all were.
fn slow_devices(bench: &Bench<'_>) -> Result<Vec<Circumstance>, SearchError> {
    let predicted = bench.without(&[])?;
    let tracks = predicted.timeline.tracks.iter();
    let busiest = tracks.max_by_key(|track| (track.busy(), std::cmp::Reverse(track.rank)));
    let Some(track) = busiest else { return Ok(vec![]) };
    let (class, _) = bench.program.locate(shardloom_program::Rank(track.rank));
    let place = bench.program.class(class).place();
    let one_stage = bench.program.classes.len() == 1;
    let mut found = vec![];
    let mut simulate = |who: String, class: Option<ClassId>| -> Result<(), SearchError> {
        for speed in SPEEDS {
            let scales = Scales { compute: (1.0 / speed, class), ..Scales::NONE };
            let what = format!("{who} computing at {} of its speed", percent(speed));
            found.push(of(what, &bench.scaled(&scales)?));
        }
        Ok(())
    };
    simulate(format!("one device ({place})"), Some(class))?;
    if !one_stage {
        simulate("every device".to_owned(), None)?;
    }
    Ok(found)
}

/// The other software stacks.
fn software(bench: &Bench<'_>) -> Result<Vec<Circumstance>, SearchError> {
    let mut found = vec![];
    for name in Stack::preset_names().filter(|name| *name != bench.cluster.stack().name) {
        let cluster = bench.cluster.clone().under(Stack::parse(name)?);
        found.push(of(format!("the software stack {name}"), &bench.on(&cluster, &[])?));
    }
    let mut waiting = bench.cluster.stack().clone();
    waiting.host.waits_for_steps = !waiting.host.waits_for_steps;
    let what = match waiting.host.waits_for_steps {
        true => "hosts that wait for the end of each step",
        false => "hosts that launch the next step before one ends",
    };
    let cluster = bench.cluster.clone().under(waiting);
    found.push(of(what, &bench.on(&cluster, &[])?));
    Ok(found)
}

/// Another value of one key of the plan.
fn plans(graph: &Graph, cluster: &Cluster, plan: &Plan) -> Result<Vec<Circumstance>, SearchError> {
    let mut others = edits::changed(plan, cluster);
    let keeps = Plan { keeps_gathered: !plan.keeps_gathered, ..plan.clone() };
    others.push((format!("keeps_gathered = {}", keeps.keeps_gathered), keeps));
    if plan.sync.bucket_bytes < ONE_BUCKET {
        let mut at_end = plan.clone();
        at_end.sync.bucket_bytes = ONE_BUCKET;
        others.push(("gradients reduced in one piece at the end of the step".into(), at_end));
    }
    let mut found = vec![];
    for (what, other) in others {
        let judgement = match judge(graph, cluster, &other) {
            // The model, the batch or another key of the plan does not go with it.
            Err(SearchError::Program(_)) => continue,
            judgement => judgement?,
        };
        let peaks = judgement.memory.iter().map(|it| it.peak_bytes);
        found.push(Circumstance {
            // Stages 2 and 3 of ZeRO differ in whether weights stay gathered after the forward pass.
            what: match what.as_str() {
                "sync.zero = 3" if plan.sync.zero == 2 => {
                    "weights sharded again after the forward pass (sync.zero = 3)".into()
                }
                "sync.zero = 2" if plan.sync.zero == 3 => {
                    "weights not sharded again after the forward pass (sync.zero = 2)".into()
                }
                _ => what,
            },
            step_seconds: judgement.step_seconds,
            peak_bytes: peaks.max().unwrap_or(0),
        });
    }
    Ok(found)
}
