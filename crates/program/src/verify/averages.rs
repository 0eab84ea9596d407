//! Replicas with weights of their own have nothing from each other but averages: the weights that the optimizer
//! updates are summed up over all of them once a step that averages, and become what follows from that sum. Or
//! each publishes all of them once a step, before anything changes them, and they become what follows from those
//! that another has published.

use std::collections::BTreeMap;

use super::row::{Row, Step, entries, instructions, place, steps};
use super::violation::Violation;
use crate::{
    Action, BodyKind, Bucket, BucketId, Class, ClassId, Collective, Content, Group, Instruction,
    Program, Run, TensorId,
};
use shardloom_graph::Reduction;

/// What has become of a bucket's weights in a step.
#[derive(Default)]
struct Averaged {
    /// Whether their sum over replicas is there, or another's weights are.
    is_summed: bool,
    /// How often they were published before anything changed them.
    published: u32,
    is_changed: bool,
    /// How often they were averaged.
    times: u32,
    /// Whether the weights that operators read are those from before the average.
    is_stale: bool,
}

/// Checks all classes in a row.
pub(super) fn check(program: &Program, row: Row, found: &mut Vec<Violation>) {
    let mut intervals = vec![];
    for (id, class) in program.classes() {
        let bodies = class.bodies.iter().flat_map(|body| &body.instructions);
        intervals.extend(bodies.filter_map(|it| match it.action {
            Action::Due { every } => Some((every, class.place())),
            _ => None,
        }));
        Averages { class, id, buckets: BTreeMap::new() }.run(program, row, found);
    }
    // Where several hold the same weights, they stay the same.
    if let Some((_, place)) = intervals.iter().find(|(every, _)| *every != intervals[0].0) {
        let tensor = "flag that says whether to average".into();
        found.push(Violation::Agreement { place: place.clone(), tensor });
    }
}

/// Follows the weights of one class.
struct Averages<'p> {
    class: &'p Class,
    id: ClassId,
    buckets: BTreeMap<BucketId, Averaged>,
}

impl Averages<'_> {
    fn run(mut self, program: &Program, row: Row, found: &mut Vec<Violation>) {
        // Whether every step has an average is said by flags.
        let is_guarded = self.class.guards().any(|guard| {
            let arm = guard.arm(true).iter();
            arm.clone().any(|entry| self.class.body_of(entry).kind == BodyKind::Averaging)
        });
        let wanted = u32::from(!(is_guarded && row == Row::RolledBack));
        let runs = entries(program, self.class, row);
        for step in 0..i64::from(steps(program)) {
            self.buckets.clear();
            let of_step: Vec<Run> = runs.iter().filter(|run| run.step == step).copied().collect();
            for step in instructions(self.class, self.id, &of_step) {
                self.step(&step, found);
            }
            for (id, bucket) in self.class.buckets().filter(|(_, bucket)| !bucket.own.is_empty()) {
                let averaged = self.buckets.get(&id);
                let times = averaged.map_or(0, |it| it.times);
                if times != wanted || averaged.is_some_and(|it| it.is_stale) {
                    let (place, bucket) = (self.class.place(), bucket.name.clone());
                    found.push(Violation::Averages { place, bucket, times });
                }
                let times = averaged.map_or(0, |it| it.published);
                if times != u32::from(bucket.held.published.is_some()) {
                    let (place, bucket) = (self.class.place(), bucket.name.clone());
                    found.push(Violation::Publications { place, bucket, times });
                }
            }
        }
    }

    fn step(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let instruction = step.instruction;
        let content = |tensor: TensorId| self.class.tensor(tensor).content;
        match &instruction.action {
            Action::Collective { kind, group, .. } => {
                let [read, write] = [instruction.reads[0].tensor, instruction.writes[0].to.tensor];
                if content(write) == Content::SummedWeight {
                    let sums = *kind == Collective::AllReduce(Reduction::Sum);
                    let fits = self.bucket(read).is_some_and(|(_, bucket)| {
                        sums && is_over_all(group, bucket)
                            && bucket.held.published.is_none()
                            && updated(self.class, bucket) == Some(read)
                    });
                    match self.averaged(read).filter(|it| fits && !it.is_summed) {
                        Some(averaged) => averaged.is_summed = true,
                        None => found.push(wrong(step, write)),
                    }
                } else if let Group::Mesh(axes) = group
                    && self.own_axes().any(|own| axes.contains(&own))
                {
                    found
                        .push(Violation::Apart { at: step.site(), tensor: step.tensor_name(read) });
                }
            }
            Action::Publish { group } => {
                let is_all = self.is_of_all(instruction);
                for (read, write) in instruction.reads.iter().zip(&instruction.writes) {
                    let write = write.to.tensor;
                    let fits = self.bucket(write).is_some_and(|(_, bucket)| {
                        is_over_all(group, bucket)
                            && bucket.held.published == Some(write)
                            && updated(self.class, bucket) == Some(read.tensor)
                    });
                    match self.averaged(write).filter(|it| fits && is_all && !it.is_changed) {
                        Some(averaged) => averaged.published += 1,
                        None => found.push(wrong(step, write)),
                    }
                }
            }
            Action::Fetch { group } => {
                let is_all = self.is_of_all(instruction);
                let tensors = instruction.writes.iter().map(|write| write.to.tensor);
                for write in tensors {
                    let fits = self.bucket(write).is_some_and(|(_, bucket)| {
                        is_over_all(group, bucket)
                            && bucket.held.published.is_some()
                            && bucket.held.summed == Some(write)
                    });
                    match self.averaged(write).filter(|it| fits && is_all && !it.is_summed) {
                        Some(averaged) => averaged.is_summed = true,
                        None => found.push(wrong(step, write)),
                    }
                }
            }
            Action::Optimizer => {
                for write in &instruction.writes {
                    if let Some(averaged) = self.averaged(write.to.tensor) {
                        averaged.is_changed = true;
                    }
                }
            }
            Action::Average { replicas, .. } => {
                let [sum, weights] = [instruction.reads[0].tensor, instruction.writes[0].to.tensor];
                let fits = self.bucket(weights).is_some_and(|(_, bucket)| {
                    bucket.held.summed == Some(sum)
                        && updated(self.class, bucket) == Some(weights)
                        && *replicas as usize
                            == match bucket.held.published {
                                Some(_) => 1,
                                None => self.class.mesh.span(&bucket.own),
                            }
                });
                let has_master = content(weights) == Content::MasterWeight;
                match self.averaged(weights).filter(|it| fits && it.is_summed) {
                    Some(averaged) => {
                        averaged.is_summed = false;
                        averaged.times += 1;
                        averaged.is_changed = true;
                        averaged.is_stale |= has_master;
                    }
                    None => found.push(wrong(step, weights)),
                }
            }
            // What operators read is made of master weights after an update, too.
            Action::Cast => {
                let [read, write] = [instruction.reads[0].tensor, instruction.writes[0].to.tensor];
                let of_average = self.class.body_of(&step.run.entry).kind == BodyKind::Averaging;
                let Some(averaged) = self.averaged(read) else { return };
                if of_average && !averaged.is_stale {
                    found.push(wrong(step, write));
                }
                averaged.is_stale = false;
            }
            _ => {}
        }
    }

    /// Whether an instruction writes something of each bucket that is published, in the order of buckets: so what is
    /// fetched is all of one time, and of the same bucket in the same place.
    fn is_of_all(&self, instruction: &Instruction) -> bool {
        let published = self.class.buckets().filter(|(_, bucket)| bucket.held.published.is_some());
        let written = instruction.writes.iter().map(|it| self.class.tensor(it.to.tensor).bucket);
        written.eq(published.map(|(id, _)| Some(id)))
    }

    fn own_axes(&self) -> impl Iterator<Item = shardloom_plan::Axis> + '_ {
        self.class.buckets.iter().flat_map(|bucket| &bucket.own).copied()
    }

    fn bucket(&self, tensor: TensorId) -> Option<(BucketId, &Bucket)> {
        let id = self.class.tensor(tensor).bucket?;
        Some((id, self.class.bucket(id)))
    }

    fn averaged(&mut self, tensor: TensorId) -> Option<&mut Averaged> {
        let id = self.class.tensor(tensor).bucket?;
        Some(self.buckets.entry(id).or_default())
    }
}

/// Whether a group is of all replicas that have weights of their own of a bucket.
fn is_over_all(group: &Group, bucket: &Bucket) -> bool {
    *group == Group::Mesh(bucket.own.clone())
}

/// The weights of a bucket that the optimizer updates.
fn updated(class: &Class, bucket: &Bucket) -> Option<TensorId> {
    let is_master = |it: &&TensorId| class.tensor(**it).content == Content::MasterWeight;
    let master = bucket.held.state.iter().find(is_master).copied();
    Some(master.unwrap_or(bucket.held.replicated.updated.tensor))
}

fn wrong(step: &Step<'_>, tensor: TensorId) -> Violation {
    let place = place(step.class, step.run.entry.body);
    Violation::NoAverage { place, tensor: step.tensor_name(tensor) }
}
