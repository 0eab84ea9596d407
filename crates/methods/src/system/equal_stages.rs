//! What planners of equal, equally replicated stages have in common.

use std::collections::BTreeMap;

use shardloom_cluster::Stack;
use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Weights};
use shardloom_program::quantity::bytes;

use crate::MethodError;
use crate::choice::Task;
use crate::configuration::Configuration;
use crate::cut::Cut;

/// Bytes of gradients, optimizer state and master weights beside a byte of weights.
pub(super) fn state_bytes_per_weight_byte(precision: Precision, optimizer: &Optimizer) -> f64 {
    let master = if precision.master { 4 } else { 0 };
    let state = optimizer.state_bytes_per_parameter();
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
pub(super) fn shapes(
    planned: impl Iterator<Item = (Shape, bool)>,
    stack: &Stack,
) -> Vec<(Shape, Vec<Recompute>)> {
    let mut shapes: Vec<(Shape, Vec<Recompute>)> = vec![];
    let mut places = BTreeMap::new();
    for (shape, recompute) in planned {
        let place = *places.entry(shape).or_insert(shapes.len());
        if place == shapes.len() {
            shapes.push((shape, vec![]));
        }
        let policies = &mut shapes[place].1;
        match recompute {
            true => policies.push(Recompute::Full.under(stack)),
            false => policies.insert(0, Recompute::None.under(stack)),
        }
    }
    shapes
}

/// A pipeline of 1F1B with blocks dealt evenly.
pub(super) fn equal(shape: Shape, recompute: Vec<Recompute>) -> Configuration {
    let Shape { width, depth, microbatch, microbatches } = shape;
    Configuration {
        pp: depth as usize,
        mesh: Mesh::of(width, 1, 1),
        sequence_parallel: false,
        microbatches: microbatches as usize,
        samples: microbatch as usize,
        chunks: 1,
        schedule: ScheduleKind::OneForwardOneBackward,
        weights: Weights::Flush,
        zero: 0,
        cut: Cut::Even,
        recompute,
        recompute_last: true,
        timed: false,
        post_validation: false,
    }
}

/// That by its planner's formulas none of a method's pipelines fits.
pub(super) fn no_room(task: &Task<'_>) -> MethodError {
    let rule = format!(
        "none of its pipelines has room in {} for what its planner takes it to hold; take more or \
         larger devices",
        bytes(memory_bytes(task) as u64)
    );
    task.impossible("devices", task.cluster.device_count(), rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In bytes of a parameter: AdamW's moments 8, gradients and master weights 4 each.
    #[test]
    fn state_is_counted_with_gradients_and_master_weights() {
        let adamw = Optimizer::default();
        let of = |precision| state_bytes_per_weight_byte(precision, &adamw);
        assert_eq!(of(Precision::FP32), (4.0 + 8.0) / 4.0);
        assert_eq!(of(Precision::MIXED), (4.0 + 8.0 + 4.0) / 2.0);
        assert_eq!(of(Precision { master: false, ..Precision::MIXED }), (4.0 + 8.0) / 2.0);
        assert_eq!(state_bytes_per_weight_byte(Precision::FP32, &Optimizer::sgd(0.0)), 1.0);
    }

    /// In the order in which they are named first, each from the least recomputation on.
    #[test]
    fn shapes_keep_their_places_and_fall_back_from_none_to_all_recomputed() {
        let of = |width| Shape { width, depth: 2, microbatch: 1, microbatches: 4 };
        let stack = Stack::default();
        let full = Recompute::Full.under(&stack);
        let both = vec![Recompute::None, full];
        for (planned, expected) in [
            (
                vec![(3, false), (1, false), (3, true), (1, true)],
                vec![(3, both.clone()), (1, both.clone())],
            ),
            (
                vec![(3, true), (1, true), (1, false), (3, false)],
                vec![(3, both.clone()), (1, both.clone())],
            ),
            (
                vec![(1, true), (2, false), (3, true)],
                vec![(1, vec![full]), (2, vec![Recompute::None]), (3, vec![full])],
            ),
            (vec![], vec![]),
        ] {
            let named = planned.into_iter().map(|(width, recompute)| (of(width), recompute));
            let found =
                shapes(named, &stack).into_iter().map(|(shape, policies)| (shape.width, policies));
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }
}
