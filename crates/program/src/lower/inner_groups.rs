//! Collectives whose algorithm has inner groups, in groups of ranks that these do not divide: a plan names one
//! algorithm for groups of several sizes, of replicas with and without tensor parallelism say.

use shardloom_collectives::Algorithm;

use crate::{Action, Program, ProgramError};

impl Program {
    /// Gives every collective an algorithm that exists for the size of its group.
    ///
    /// # Errors
    /// If an algorithm that the plan names exists for none of the groups that are to take it.
    pub(super) fn fit_inner_groups(&mut self) -> Result<(), ProgramError> {
        let ranks = self.ranks();
        let (mut taken, mut left): (Vec<Algorithm>, Vec<Algorithm>) = (vec![], vec![]);
        for class in &mut self.classes {
            for instruction in class.bodies.iter_mut().flat_map(|body| &mut body.instructions) {
                if let Action::Collective { group, algorithm, .. } = &mut instruction.action {
                    let named = *algorithm;
                    *algorithm = named.among(group.size(&class.mesh, ranks) as u32);
                    let all = if *algorithm == named { &mut taken } else { &mut left };
                    if !all.contains(&named) {
                        all.push(named);
                    }
                }
            }
        }
        match left.into_iter().find(|named| !taken.contains(named)) {
            None => Ok(()),
            Some(algorithm) => Err(ProgramError::InnerGroups { algorithm }),
        }
    }
}
