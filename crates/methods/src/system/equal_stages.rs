//! What the planners of equal, equally replicated stages lead to.

use std::collections::BTreeMap;

use shardloom_plan::{Mesh, Recompute, ScheduleKind, Weights};
use shardloom_search::partition::{
    Interconnect, TwoBwConfiguration, TwoBwRequest, Updates, two_bw,
};

use crate::choice::Task;
use crate::configuration::Configuration;
use crate::cut::Cut;
use crate::depth::require_depth;
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

/// A pipeline as planners of equal stages choose it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// Replicas.
    pub width: u32,
    /// Stages.
    pub depth: u32,
    /// Samples of a micro-batch.
    pub microbatch: u32,
    /// Micro-batches of a step in one replica.
    pub microbatches: u32,
}

/// The shapes in the order in which a planner names them first, each with all the recomputation that it
/// names it with, from none to full. So the simulation may fall back to recomputation where it holds
/// more than the planner's formulas say.
pub(super) fn shapes(planned: impl Iterator<Item = (Shape, bool)>) -> Vec<(Shape, Vec<Recompute>)> {
    let mut shapes: Vec<(Shape, Vec<Recompute>)> = vec![];
    let mut places = BTreeMap::new();
    for (shape, recompute) in planned {
        let place = *places.entry(shape).or_insert(shapes.len());
        if place == shapes.len() {
            shapes.push((shape, vec![]));
        }
        let policies = &mut shapes[place].1;
        match recompute {
            true => policies.push(Recompute::Full),
            false => policies.insert(0, Recompute::None),
        }
    }
    shapes
}

/// A pipeline of 1F1B with blocks dealt evenly.
pub(super) fn equal(task: &Task<'_>, shape: Shape, recompute: Vec<Recompute>) -> Configuration {
    let Shape { width, depth, microbatch, microbatches } = shape;
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
        recompute,
        recompute_last: true,
        timed: false,
        post_validation: false,
    }
}

/// That by its planner's formulas none of a method's pipelines fits.
pub(super) fn no_room(task: &Task<'_>) -> MethodError {
    let rule = format!(
        "none of its pipelines has room in {:.1} GB for what its planner takes it to hold; take more or \
         larger devices",
        memory_bytes(task) / 1e9
    );
    task.impossible("devices", task.cluster.device_count(), rule)
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
    let pipelines = found.iter().filter(|it| it.depth > 1).map(|it| {
        let TwoBwConfiguration { width, depth, microbatch, microbatches, .. } = *it;
        (Shape { width, depth, microbatch, microbatches }, it.recompute)
    });
    let configurations: Vec<Configuration> = shapes(pipelines)
        .into_iter()
        .map(|(shape, recompute)| Configuration {
            schedule,
            weights,
            ..equal(task, shape, recompute)
        })
        .collect();
    if configurations.is_empty() {
        require_depth(task, |_| true, |depth| depth)?;
        // Depth 2 is possible, in one pipeline of micro-batches of a sample each.
        if updates == Updates::DoubleBuffered && request.global_batch < 2 {
            let rule = "with two versions of the weights the paper has at least as many micro-batches a \
                        step as a pipeline has stages, so at least 2";
            return Err(task.impossible("global_batch", request.global_batch, rule));
        }
        return Err(no_room(task));
    }
    task.fastest(&configurations)
}
