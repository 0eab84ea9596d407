//! What the planners of equal, equally replicated stages lead to.

use shardloom_plan::{Mesh, Recompute, ScheduleKind, Weights};
use shardloom_search::partition::{Interconnect, TwoBwRequest, Updates, two_bw};

use crate::choice::Task;
use crate::configuration::Configuration;
use crate::cut::Cut;
use crate::{Choice, MethodError};

/// Bytes of gradients, optimizer state and master weights beside a byte of weights.
pub(super) fn state_bytes_per_weight_byte(task: &Task<'_>) -> f64 {
    let precision = task.request.precision;
    let master = if precision.master { 4 } else { 0 };
    let state = task.request.optimizer.state_bytes_per_parameter();
    (precision.gradients.bytes() + state + master) as f64 / precision.compute.bytes() as f64
}

/// The memory that a plan may fill on the smallest device.
pub(super) fn memory_bytes(task: &Task<'_>) -> f64 {
    let groups = task.cluster.groups().iter();
    let least = groups.map(|group| group.profile.device.memory_bytes).min().unwrap_or(0);
    least as f64 * task.request.memory_share
}

/// A pipeline of 1F1B as planners of equal stages choose it: replicas, stages, samples of a micro-batch and
/// micro-batches of a step, blocks dealt evenly, with or without recomputation.
pub(super) fn equal(
    task: &Task<'_>,
    [width, depth, microbatch, microbatches]: [u32; 4],
    recompute: bool,
) -> Configuration {
    let (blocks, stages) = (task.graph.blocks().len(), depth as usize);
    Configuration {
        pp: stages,
        mesh: Mesh { dp: width, cp: 1, tp: 1 },
        sequence_parallel: false,
        microbatches: microbatches as usize,
        samples: microbatch as usize,
        chunks: 1,
        schedule: ScheduleKind::OneForwardOneBackward,
        weights: Weights::Flush,
        zero: 0,
        cut: Cut::At((0..=stages).map(|stage| stage * blocks / stages).collect()),
        recompute: vec![if recompute { Recompute::Full } else { Recompute::None }],
        recompute_last: true,
        timed: false,
        post_validation: false,
    }
}

/// The fastest of what PipeDream-2BW's planner puts first that has at least two stages and fits.
pub(super) fn planned(
    task: &mut Task<'_>,
    schedule: ScheduleKind,
    weights: Weights,
    updates: Updates,
) -> Result<Choice, MethodError> {
    let request = TwoBwRequest {
        workers: task.cluster.device_count(),
        global_batch: task.request.global_batch as u32,
        memory_bytes: memory_bytes(task),
        links: Interconnect::of(task.cluster),
        updates,
        state_bytes_per_weight_byte: state_bytes_per_weight_byte(task),
    };
    let found = two_bw(&request, |samples| task.layers(samples as usize).map(<[_]>::to_vec))?;
    let pipelines = found.iter().filter(|it| it.depth > 1);
    let configurations: Vec<Configuration> = pipelines
        .map(|it| {
            let sizes = [it.width, it.depth, it.microbatch, it.microbatches];
            Configuration { schedule, weights, ..equal(task, sizes, it.recompute) }
        })
        .collect();
    if configurations.is_empty() {
        let rule = format!(
            "its planner finds no pipeline of at least two stages, each with a block, a micro-batch and \
             room in {:.1} GB for what it is taken to hold; take more devices or blocks, a larger \
             global batch, or larger devices",
            request.memory_bytes / 1e9
        );
        return Err(task.impossible("devices", request.workers, rule));
    }
    task.fastest(&configurations)
}
