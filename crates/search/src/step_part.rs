//! Which part of a predicted step would have to be how much slower for the step to take as long as it was
//! measured to.

use shardloom_cluster::{Cluster, Stack};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_sim::Simulation;

use crate::SearchError;
use crate::experiment::{Bench, Scales, Traffic, traffic_of};
use crate::without_communication::{IDLE_SERVERS, WithoutCommunication, waiting_for};

/// A part of a predicted step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPart {
    /// What it is.
    pub name: &'static str,
    /// By how much the step gets shorter without it; of computing, what an average device computes.
    pub seconds: f64,
    /// How much slower it would have to be.
    pub needed: Needed,
}

/// How much slower a part of a step has to be for the step to take a certain time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needed {
    /// So many times as slow, all else as predicted.
    Times(f64),
    /// However fast or slow it is, the step does not take that time.
    Impossible,
    /// It follows from the other parts: waiting for other stages, and servers that compute nothing.
    Follows,
}

/// What is scaled.
#[derive(Clone, Copy)]
enum Part {
    Compute,
    Traffic(Traffic),
    Host,
}

/// The most times as slow that a part is tried.
const MOST_TIMES: f64 = 64.0;
/// How close to the time a step has to come, as a share of it.
const CLOSE: f64 = 5e-4;
/// The most simulations for a part.
const MOST_TRIES: usize = 30;

/// The parts of a step of `plan` that is predicted on `cluster`, the longest first, each with how many times as slow
/// it would have to be for a step of `target_seconds`. That is found by simulation, so that what is
/// hidden by other parts counts only as far as it comes to light.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn step_parts(
    graph: &Graph,
    cluster: &Cluster,
    plan: &Plan,
    target_seconds: f64,
) -> Result<Vec<StepPart>, SearchError> {
    let planned = plan.graph_of(graph);
    let bench = Bench::new(&planned, cluster, plan)?;
    let predicted = bench.without(&[])?;
    let step_seconds = seconds(&predicted);
    let hostless = cluster.clone().under(host_times(cluster.stack(), 0.0));
    let alone = WithoutCommunication::of(&bench, &hostless, &predicted)?;
    let mut parts = vec![
        (Some(Part::Compute), "computing", alone.computing),
        (None, waiting_for(plan), alone.waiting),
        (None, IDLE_SERVERS, alone.idle_servers),
    ];
    for (traffic, (name, _)) in Traffic::ALL.into_iter().zip(traffic_of(plan)) {
        let without = seconds(&bench.without(&[traffic])?);
        parts.push((Some(Part::Traffic(traffic)), name, (step_seconds - without).max(0.0)));
    }
    if cluster.stack().host.launches() {
        let without = seconds(&bench.on(&hostless, &[])?);
        let name = "waiting for the host";
        parts.push((Some(Part::Host), name, (step_seconds - without).max(0.0)));
    }
    let mut found = vec![];
    for (part, name, part_seconds) in parts {
        let needed = match part {
            None => Needed::Follows,
            Some(part) => {
                let step = |times: f64| Ok(seconds(&scaled(&bench, part, times)?));
                needed(step, step_seconds, target_seconds)?
            }
        };
        let is_there = part_seconds >= 5e-4 * step_seconds || matches!(needed, Needed::Times(_));
        if is_there {
            found.push(StepPart { name, seconds: part_seconds, needed });
        }
    }
    found.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    Ok(found)
}

fn seconds(simulation: &Simulation) -> f64 {
    simulation.step_time().seconds()
}

fn scaled(bench: &Bench<'_>, part: Part, times: f64) -> Result<Simulation, SearchError> {
    let mut scales = Scales::NONE;
    match part {
        Part::Compute => scales.compute = (times, None),
        Part::Traffic(traffic) => {
            for (scale, known) in scales.traffic.iter_mut().zip(Traffic::ALL) {
                *scale = if known == traffic { times } else { 1.0 };
            }
        }
        Part::Host => {
            let cluster = bench.cluster.clone().under(host_times(bench.cluster.stack(), times));
            return bench.on(&cluster, &[]);
        }
    }
    bench.scaled(&scales)
}

/// The stack with a host that takes so many times as long.
pub(crate) fn host_times(stack: &Stack, times: f64) -> Stack {
    let mut stack = stack.clone();
    let host = &mut stack.host;
    for seconds in [
        &mut host.kernel_seconds,
        &mut host.communication_seconds,
        &mut host.step_seconds,
        &mut host.share_seconds,
        &mut host.between_nodes.seconds,
    ] {
        *seconds *= times;
    }
    stack
}

/// How many times as slow a part has to be, if `step` says how long a step takes then. Steps do not get
/// shorter when a part gets slower.
fn needed(
    step: impl Fn(f64) -> Result<f64, SearchError>,
    predicted: f64,
    target: f64,
) -> Result<Needed, SearchError> {
    let close = |seconds: f64| (seconds / target - 1.0).abs() <= CLOSE;
    if close(predicted) {
        return Ok(Needed::Times(1.0));
    }
    // Where a step takes less than the target, and where more.
    let (mut low, mut high) = ((1.0, predicted), (1.0, predicted));
    if predicted > target {
        low = (0.0, step(0.0)?);
        if low.1 > target && !close(low.1) {
            return Ok(Needed::Impossible);
        }
    } else {
        while high.1 < target {
            if high.0 >= MOST_TIMES {
                return Ok(Needed::Impossible);
            }
            low = high;
            high.0 *= 2.0;
            high.1 = step(high.0)?;
        }
    }
    for turn in 0..MOST_TRIES {
        if let Some((times, _)) = [low, high].into_iter().find(|it| close(it.1)) {
            return Ok(Needed::Times(times));
        }
        // Steps are nearly straight lines between ends; every third time in half, so that no end stays for ever.
        let share = match turn % 3 {
            2 => 0.5,
            _ => ((target - low.1) / (high.1 - low.1)).clamp(0.02, 0.98),
        };
        let times = low.0 + share * (high.0 - low.0);
        let found = (times, step(times)?);
        if found.1 < target { low = found } else { high = found }
    }
    Ok(Needed::Times(low.0 + 0.5 * (high.0 - low.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of 3 seconds that hides behind 2 others at first, of a step of 10.
    fn step(times: f64) -> Result<f64, SearchError> {
        Ok(7.0 + (3.0 * times).max(2.0))
    }

    #[test]
    fn the_times_are_those_at_which_the_step_takes_the_target() {
        for target in [9.5, 10.5, 13.0, 60.0] {
            let Ok(Needed::Times(times)) = needed(step, 10.0, target) else {
                panic!("no times for {target}")
            };
            let found = step(times).expect("it is");
            assert!((found / target - 1.0).abs() <= CLOSE, "{target}: {times} gives {found}");
        }
        assert_eq!(needed(step, 10.0, 10.0).expect("it is"), Needed::Times(1.0));
    }

    #[test]
    fn what_no_speed_reaches_is_impossible() {
        assert_eq!(needed(step, 10.0, 8.0).expect("it is"), Needed::Impossible);
        assert_eq!(needed(step, 10.0, 1000.0).expect("it is"), Needed::Impossible);
    }
}
