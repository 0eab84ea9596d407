//! Collectives whose algorithm has inner groups, in groups of ranks that these do not divide: a plan names one
//! algorithm for groups of several sizes, of replicas with and without tensor parallelism say.

use crate::{Action, Program};

impl Program {
    /// Gives every collective an algorithm that exists for the size of its group.
    pub(super) fn fit_inner_groups(&mut self) {
        let ranks = self.ranks();
        for class in &mut self.classes {
            for instruction in class.bodies.iter_mut().flat_map(|body| &mut body.instructions) {
                if let Action::Collective { group, algorithm, .. } = &mut instruction.action {
                    *algorithm = algorithm.among(group.size(&class.mesh, ranks) as u32);
                }
            }
        }
    }
}
