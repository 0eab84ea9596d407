//! Buckets that several classes hold and whose gradients are added up before the end of the step, where
//! the schedule leaves their devices time for it.
//!
//! Chimera's devices hold two stages, and stand idle between the last backward pass of the one and
//! those of the other, but in the middle of the pipeline (Li and Hoefler 2021, arXiv 2107.06925,
//! section 3.2: a stage's replicas are synchronised eagerly, except for the middle stages).

use std::collections::BTreeMap;

use shardloom_graph::ValueId;
use shardloom_plan::PassTimes;

use super::buckets::Parameters;
use super::stage::StageModel;
use crate::{BucketId, ClassId, ProgramError};
use shardloom_schedule::{Instance, Meeting, MeetingRequest, PassKind, Schedule, meetings};

/// For one class, after which actions of its order which buckets are reduced over their holders, in this
/// order; all others are at the end of the step.
#[derive(Clone, Default)]
pub(super) struct Early(BTreeMap<usize, Vec<BucketId>>);

impl Early {
    /// The buckets that are reduced after an action.
    pub fn after(&self, action: usize) -> &[BucketId] {
        self.0.get(&action).map_or(&[], Vec::as_slice)
    }

    /// Whether a bucket is reduced before the end of the step.
    pub fn contains(&self, bucket: BucketId) -> bool {
        self.0.values().flatten().any(|&it| it == bucket)
    }
}

/// What is reduced early, class by class, if passes take `times`; `parameters` are those of all classes.
///
/// # Errors
/// If the schedule deadlocks.
pub(super) fn early(
    schedule: &Schedule,
    times: &PassTimes,
    stages: &[StageModel],
    parameters: &[Parameters<'_>],
) -> Result<Vec<Early>, ProgramError> {
    // All holders have the same parameters in such a bucket; the first says which bucket it is.
    let mut shared: BTreeMap<ValueId, Vec<(ClassId, BucketId)>> = BTreeMap::new();
    for (class, parameters) in (0u32..).map(ClassId).zip(parameters) {
        for (bucket, spec) in (0u32..).map(BucketId).zip(&parameters.buckets) {
            if let (false, Some(first)) = (spec.classes.is_empty(), spec.params.first()) {
                let value = parameters.params[first.0 as usize].value;
                shared.entry(value).or_default().push((class, bucket));
            }
        }
    }
    let shared: Vec<Vec<(ClassId, BucketId)>> = shared.into_values().collect();
    let request = |holders: &Vec<(ClassId, BucketId)>| {
        let last = |&(class, bucket): &(ClassId, BucketId)| {
            let values: Vec<ValueId> = parameters[class.0 as usize].values(bucket).collect();
            (class.0 as usize, last_addition(schedule, stages, class, &values))
        };
        MeetingRequest { not_before: holders.iter().map(last).collect() }
    };
    let requests: Vec<MeetingRequest> = shared.iter().map(request).collect();
    let mut early = vec![Early::default(); parameters.len()];
    for Meeting { request, after } in meetings(schedule, times, &requests)? {
        for (&(class, bucket), (_, action)) in shared[request].iter().zip(after) {
            early[class.0 as usize].0.entry(action).or_default().push(bucket);
        }
    }
    Ok(early)
}

/// The last action of `class` that may add to the gradients of `values`.
fn last_addition(
    schedule: &Schedule,
    stages: &[StageModel],
    class: ClassId,
    values: &[ValueId],
) -> usize {
    let uses = |stage: &StageModel| values.iter().any(|&value| stage.uses(value));
    let users: Vec<Instance> = stages.iter().filter(|it| uses(it)).map(|it| it.place).collect();
    let order = &schedule.orders[class.0 as usize];
    let adds = order.iter().rposition(|action| {
        action.passes().any(|pass| pass.kind != PassKind::Forward && users.contains(&pass.instance))
    });
    adds.expect("a class runs backward passes of the stages that it holds")
}
