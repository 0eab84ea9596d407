//! The times and the memory that schedules which fill gaps are made for, as the simulator predicts them.

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{PassTimes, Plan};
use shardloom_program::lower;
use shardloom_program::timeline::{Activity, Lane, Picos, Track};
use shardloom_sim::{Options, simulate};

use crate::MethodError;

/// What passes and messages of `plan` take on its slowest device, in microseconds, and the largest share
/// of a forward pass's memory that weight gradients need on any device.
///
/// The plan is simulated. A pass lasts from the start of its first operator to the end of its last, so
/// tensor parallelism's collectives count; where this differs from micro-batch to micro-batch, the least
/// is free of waiting. Passes of a device's stages are added up, and with several pipelines the mean of
/// these is taken. Where a schedule does not split backward passes, half of one is for inputs and half for
/// weights.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn pass_times(graph: &Graph, cluster: &Cluster, plan: &Plan) -> Result<PassTimes, MethodError> {
    let program = lower(graph, plan, cluster.device_count() as usize)?;
    let options = Options { steps: 1, folded: true };
    let simulation = simulate(graph, cluster, &program, options)?;
    let tracks = &simulation.timeline.tracks;
    let [mut forward, mut input, mut weight] = [0.0f64; 3];
    for track in tracks {
        let [f, b, i, w] = passes(track).map(|time| time / plan.pipeline.len() as f64);
        let [i, w] = if i + w > 0.0 { [i, w] } else { [b / 2.0, b / 2.0] };
        if f + i + w > forward + input + weight {
            [forward, input, weight] = [f, i, w];
        }
    }
    let message = tracks.iter().map(shortest_message).fold(0.0, f64::max);
    let kept = program.classes.iter().map(|class| class.kept_share(&program, 0));
    // A thousandth is close enough to plan with, and plans are read by people.
    let kept = (kept.fold(0.0, f64::max) * 1e3).ceil() / 1e3;
    Ok(PassTimes { forward, input, weight, message, kept: kept.min(1.0) })
}

/// Microseconds, to a nanosecond.
fn microseconds(time: Picos) -> f64 {
    (time.seconds() * 1e9).round() / 1e3
}

/// Forward, whole backward, input-gradient and weight-gradient passes of one micro-batch on a device.
fn passes(track: &Track) -> [f64; 4] {
    /// With its chunk, and whether its pipeline is the one in the other direction.
    type Pass = (Activity, Option<u32>, bool);
    let kinds =
        [Activity::Forward, Activity::Backward, Activity::BackwardInput, Activity::BackwardWeight];
    let mut spans: BTreeMap<String, (Pass, Picos, Picos)> = BTreeMap::new();
    for it in track.intervals.iter().filter(|it| it.lane == Lane::Compute) {
        if !kinds.contains(&it.activity) {
            continue;
        }
        // The label tells passes, micro-batches, chunks and directions apart.
        let pass = (it.activity, it.chunk, it.label.ends_with('<'));
        let span = spans.entry(it.label.clone()).or_insert((pass, it.start, it.end));
        span.2 = span.2.max(it.end);
    }
    let mut least: Vec<(Pass, f64)> = vec![];
    for (pass, start, end) in spans.into_values() {
        let time = microseconds(end.since(start));
        match least.iter_mut().find(|(known, _)| *known == pass) {
            Some((_, known)) => *known = known.min(time),
            None => least.push((pass, time)),
        }
    }
    kinds.map(|kind| least.iter().filter(|(pass, _)| pass.0 == kind).map(|(_, time)| time).sum())
}

fn shortest_message(track: &Track) -> f64 {
    let sends = track.intervals.iter().filter(|it| it.activity == Activity::Send);
    let times = sends.map(|it| microseconds(it.end.since(it.start)));
    times.reduce(f64::min).unwrap_or(0.0)
}
