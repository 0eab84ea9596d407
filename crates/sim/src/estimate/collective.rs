//! The time of one kind of collective over one group, by the size of the buffer.

use shardloom_cluster::{Curve, GroupShape, LibraryAlgorithm, Stack};
use shardloom_collectives::{Algorithm, Kind};

use super::place::Place;
use crate::cost::full_precision_elements;

/// One kind of collective over one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collective<'c> {
    kind: Kind,
    algorithm: Algorithm,
    shape: GroupShape<'c>,
    measured: Option<&'c Curve>,
    element_bytes: f64,
    stack: &'c Stack,
}

impl<'c> Collective<'c> {
    /// `kind` over a group of this shape, on elements of `element_bytes`, by what such a group takes where
    /// `algorithm` is asked for.
    pub fn new(
        place: &Place<'c>,
        kind: Kind,
        algorithm: Algorithm,
        shape: GroupShape<'c>,
        element_bytes: usize,
    ) -> Collective<'c> {
        let algorithm = algorithm.among(shape.members);
        let measured = place.measured(algorithm, kind, shape.members);
        let element_bytes = element_bytes as f64;
        Collective { kind, algorithm, shape, measured, element_bytes, stack: place.stack }
    }

    /// Seconds on a buffer of `elements` on each member; infinite where the group does not allow the
    /// algorithm.
    pub fn seconds(&self, elements: f64) -> f64 {
        match self.measured {
            _ if self.shape.members <= 1 || elements <= 0.0 => 0.0,
            Some(curve) => {
                curve.seconds(full_precision_elements(elements * self.element_bytes), 0.0)
            }
            None => {
                let bytes = elements * self.element_bytes;
                let seconds = |algorithm| match algorithm {
                    LibraryAlgorithm::Listed(algorithm) => {
                        self.shape.seconds(self.kind, algorithm, bytes).unwrap_or(f64::INFINITY)
                    }
                    LibraryAlgorithm::TreeOfNodes => self.shape.tree_of_nodes_seconds(bytes),
                };
                let algorithms = self.stack.algorithms(self.kind, self.algorithm);
                let least = algorithms.map(seconds).fold(f64::INFINITY, f64::min);
                self.stack.collective_time * least
            }
        }
    }
}
