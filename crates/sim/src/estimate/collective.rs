//! Collectives of one group, asked for again and again with the same buffer.

use shardloom_cluster::{Curve, GroupShape};
use shardloom_collectives::{Algorithm, Kind};

use super::place::{Place, is_direct};

/// One kind of collective over one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collective<'c> {
    kind: Kind,
    algorithm: Algorithm,
    shape: GroupShape<'c>,
    measured: Option<&'c Curve>,
    element_bytes: f64,
    /// The buffer asked for last, and its time. Neighbouring blocks are mostly alike.
    last: (f64, f64),
}

impl<'c> Collective<'c> {
    /// `kind` over a group of this shape, on elements of `element_bytes`.
    pub fn new(
        place: &Place<'c>,
        kind: Kind,
        algorithm: Algorithm,
        shape: GroupShape<'c>,
        element_bytes: usize,
    ) -> Collective<'c> {
        let measured = match is_direct(algorithm) {
            true => place.measured(kind, shape.members),
            false => None,
        };
        let element_bytes = element_bytes as f64;
        Collective { kind, algorithm, shape, measured, element_bytes, last: (0.0, 0.0) }
    }

    /// Seconds on a buffer of `elements` on each member; infinite where the group does not allow the
    /// algorithm.
    pub fn seconds(&mut self, elements: f64) -> f64 {
        if elements != self.last.0 {
            let seconds = match self.measured {
                _ if self.shape.members <= 1 || elements <= 0.0 => 0.0,
                Some(curve) => curve.seconds(elements, 0.0),
                None => {
                    let bytes = elements * self.element_bytes;
                    let seconds = self.shape.seconds(self.kind, self.algorithm, bytes);
                    seconds.unwrap_or(f64::INFINITY)
                }
            };
            self.last = (elements, seconds);
        }
        self.last.1
    }
}
