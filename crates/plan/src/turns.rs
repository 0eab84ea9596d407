//! Stages whose replicas take whole micro-batches in turn, written as pipelines (1F1B-RR, Narayanan et al.
//! 2019, SOSP, section 3.2).

use crate::{Arrangement, DeviceList, Mesh, Pipeline, PlanError, Stage};

/// A stage and the devices of its replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReplicas {
    /// First block and the block after the last.
    pub blocks: (usize, usize),
    /// The mesh of each replica.
    pub mesh: Mesh,
    /// The devices of each replica, in the order in which they take micro-batches.
    pub replicas: Vec<DeviceList>,
}

/// The pipelines in which micro-batch `k` goes to replica `k mod r` of each stage, forward and backward.
/// Pipelines get micro-batches in turn, so there are as many as the least common multiple of all numbers
/// of replicas, and pipeline `p` has a stage's replica `p mod r`.
///
/// # Errors
/// As [`Arrangement::taking_turns`].
pub fn pipelines_in_turn(stages: &[StageReplicas]) -> Result<Vec<Pipeline>, PlanError> {
    let replicas: Vec<usize> = stages.iter().map(|stage| stage.replicas.len()).collect();
    // Replicas are numbered stage by stage.
    let numbered: Vec<(&StageReplicas, &DeviceList)> =
        stages.iter().flat_map(|stage| stage.replicas.iter().map(move |it| (stage, it))).collect();
    let stage = |replica: usize| {
        let (stage, devices) = numbered[replica];
        Stage::new(stage.blocks, stage.mesh, devices.clone())
    };
    let places = Arrangement::taking_turns(&replicas)?;
    let pipeline = |places: Vec<usize>| Pipeline::of(places.into_iter().map(stage).collect());
    Ok(places.into_iter().map(pipeline).collect())
}
