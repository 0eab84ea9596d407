//! How a tensor is spread over a stage's mesh.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardloom_graph::Reduction;
use shardloom_plan::{Axis, Mesh};

/// The layout of one tensor: DTensor's Shard, Replicate and Partial per mesh axis.
///
/// A mesh axis that is named nowhere replicates. Axes of width one are never named, so equal layouts
/// are equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    /// For each tensor axis the mesh axes that split it, outermost first.
    pub splits: Vec<Vec<Axis>>,
    /// Mesh axes over which the tensor is an unreduced part of the whole, ascending.
    pub partial: Vec<(Axis, Reduction)>,
}

/// The part of a tensor that one position holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// First index along each axis.
    pub start: Vec<usize>,
    /// Extent along each axis.
    pub extent: Vec<usize>,
}

impl Placement {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.extent.iter().product()
    }

    /// The part that two placements share; none if they share nothing.
    pub fn intersection(&self, other: &Placement) -> Option<Placement> {
        let mut shared = Placement { start: vec![], extent: vec![] };
        for axis in 0..self.start.len() {
            let start = self.start[axis].max(other.start[axis]);
            let end = |each: &Placement| each.start[axis] + each.extent[axis];
            let end = end(self).min(end(other));
            if end <= start {
                return None;
            }
            shared.start.push(start);
            shared.extent.push(end - start);
        }
        Some(shared)
    }

    /// The indices along one axis.
    pub fn range(&self, axis: usize) -> Range<usize> {
        self.start[axis]..self.start[axis] + self.extent[axis]
    }
}

impl Layout {
    /// Everything everywhere.
    pub fn replicated(rank: usize) -> Layout {
        Layout { splits: vec![vec![]; rank], partial: vec![] }
    }

    /// Whether some mesh axis holds unreduced parts.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The layout that the gradient of a tensor in this layout must have to be complete: split the same
    /// way, reduced.
    pub fn reduced(&self) -> Layout {
        Layout { splits: self.splits.clone(), partial: vec![] }
    }

    /// The local shape of a tensor of this global shape. Sizes divide, which validation made sure of.
    pub fn local_shape(&self, global: &[usize], mesh: &Mesh) -> Vec<usize> {
        global.iter().zip(&self.splits).map(|(&size, axes)| size / mesh.span(axes)).collect()
    }

    /// The part that `position` of the mesh holds.
    pub fn placement(&self, global: &[usize], mesh: &Mesh, position: usize) -> Placement {
        let extent = self.local_shape(global, mesh);
        let start = self
            .splits
            .iter()
            .zip(&extent)
            .map(|(axes, extent)| mesh.index_along(position, axes) * extent)
            .collect();
        Placement { start, extent }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axis = |axes: &Vec<Axis>| match axes.len() {
            0 => "R".to_owned(),
            _ => format!("S({})", axes.iter().map(|a| a.name()).collect::<Vec<_>>().join(",")),
        };
        let axes: Vec<String> = self.splits.iter().map(axis).collect();
        write!(out, "[{}]", axes.join(", "))?;
        for (axis, reduction) in &self.partial {
            write!(out, " P({axis}, {reduction:?})")?;
        }
        Ok(())
    }
}
