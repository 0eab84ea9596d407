//! The average of weights that each replica has its own of, at the end of a step: after the update (Stich 2019,
//! local SGD), or between the gradients and the update (Mai et al. 2020, synchronous model averaging).
//!
//! With all replicas, for each bucket there is an all-reduce of the weights that the optimizer updates into a tensor
//! of its own, and what makes weights of that sum. The sum of the next bucket is formed meanwhile, so that two are
//! there at a time. Where a step does not always average, a flag that follows from its number says whether it does.
//!
//! With one other (KungFu's pair averaging), each step begins by publishing all of the weights and fetching what the
//! other has published, which passes run beside; before the update weights are made of the two.

use std::num::NonZeroU32;

use shardloom_plan::{Averaging, AveragingTime, Axis, Partners};
use shardloom_schedule::ScheduleError;

use super::{Role, SUM, add};
use crate::class::{BodyKind, Class};
use crate::lower::epilogue::{self, buckets};
use crate::lower::{Order, Parameters};
use crate::{
    Action, Bucket, BucketId, ClassId, Control, Entry, Group, Guard, Instruction, Mode,
    ProgramError, Tensor, TensorId, View,
};

/// Replicas whose weights are averaged.
pub(crate) struct Averages {
    /// How.
    pub averaging: Averaging,
}

impl Averages {
    /// Whether any of a class's weights are averaged.
    fn has_any(parameters: &Parameters<'_>) -> bool {
        parameters.buckets.iter().any(|bucket| bucket.held.summed.is_some())
    }

    /// How many steps there are from one average to the next, if not every step averages.
    fn interval(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.averaging.every).filter(|every| every.get() > 1)
    }
}

impl Role for Averages {
    /// Says whether a step averages.
    fn flag(&self, parameters: &Parameters<'_>, tensors: &mut Vec<Tensor>) -> Option<TensorId> {
        self.interval().filter(|_| Averages::has_any(parameters))?;
        Some(add(tensors, Tensor::flag("step averages")))
    }

    /// Where weights are averaged with one other replica's, each step publishes and fetches first.
    fn arrange(&self, order: &mut Order, _: ClassId, parameters: &Parameters<'_>) -> Option<Entry> {
        let body = order.add(BodyKind::Averaging, exchange(parameters)?);
        Some(Entry::new(body, None))
    }

    /// The class's order, which ends with the update, and the average on the side of it that the plan says.
    fn control(
        &self,
        order: &mut Order,
        _: ClassId,
        parameters: &Parameters<'_>,
        flag: Option<TensorId>,
    ) -> Option<Vec<Control>> {
        if !Averages::has_any(parameters) {
            return None;
        }
        let mut averages = average(parameters, self.averaging);
        let averages = match self.interval().zip(flag) {
            None => {
                let body = order.add(BodyKind::Averaging, averages);
                vec![Control::Run(Entry::new(body, None))]
            }
            Some((every, flag)) => {
                let release = || Instruction::new(Action::Free, [], []).freeing([flag]);
                let flags = [View::whole(flag)];
                let asks = vec![Instruction::new(Action::Due { every }, [], flags)];
                averages.push(release());
                let mut entry = |body| Entry::new(order.add(BodyKind::Averaging, body), None);
                let [asks, averages, passes] = [asks, averages, vec![release()]].map(&mut entry);
                let guard = Guard {
                    on: View::whole(flag),
                    agreed: Group::World,
                    shift: 0,
                    then: vec![averages],
                    otherwise: vec![passes],
                };
                vec![Control::Run(asks), Control::Guard(guard)]
            }
        };
        let mut control: Vec<Control> =
            order.entries.iter().map(|&(entry, _)| Control::Run(entry)).collect();
        let at = match self.averaging.when {
            // With a flush there is one update, with which the order ends.
            AveragingTime::BeforeUpdate => control.len() - 1,
            AveragingTime::AfterUpdate => control.len(),
        };
        control.splice(at..at, averages);
        Some(control)
    }

    /// Nothing but averages of weights goes between replicas that have their own: no operator looks at samples of
    /// several, and no way of keeping replicas equal is for them.
    fn check(&self, class: &Class) -> Result<(), ProgramError> {
        let own = |axis: &Axis| class.buckets.iter().any(|bucket| bucket.own.contains(axis));
        for body in class.bodies.iter().filter(|body| body.kind != BodyKind::Averaging) {
            for instruction in &body.instructions {
                let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action
                else {
                    continue;
                };
                if let Some(axis) = axes.iter().find(|axis| own(axis)) {
                    let what = &class.tensor(instruction.reads[0].tensor).name;
                    return Err(ScheduleError::Rule(format!(
                        "sync.averaging: replicas along {axis} have weights of their own, and {what} is exchanged \
                         between them in {}; leave sync.averaging out, or {axis} of its `over`",
                        class.place()
                    ))
                    .into());
                }
            }
        }
        Ok(())
    }
}

/// What a step begins with where weights are averaged with one other replica's: all buckets are published at once, and
/// all of the other's fetched.
fn exchange(parameters: &Parameters<'_>) -> Option<Vec<Instruction>> {
    let (mut weights, mut published, mut fetched, mut group) = (vec![], vec![], vec![], None);
    for (_, bucket) in buckets(parameters) {
        let Some(window) = bucket.held.published else { continue };
        weights.extend(epilogue::changed(parameters, bucket).next());
        published.push(View::whole(window));
        fetched.extend(bucket.held.summed.map(View::whole));
        group = Some(Group::Mesh(bucket.own.clone()));
    }
    let group = group?;
    let publish = Instruction::new(Action::Publish { group: group.clone() }, weights, published);
    let fetch = Instruction::new(Action::Fetch { group }, [], fetched);
    Some(vec![publish, fetch])
}

/// The average of all buckets.
fn average(parameters: &Parameters<'_>, averaging: Averaging) -> Vec<Instruction> {
    let averaged = |(id, bucket): (BucketId, &Bucket)| {
        let sum = View::whole(bucket.held.summed?);
        let weights = epilogue::changed(parameters, bucket).next()?;
        let reduction = (averaging.partners == Partners::All).then(|| {
            let action = Action::Collective {
                kind: SUM,
                group: Group::Mesh(bucket.own.clone()),
                algorithm: parameters.algorithm(id),
            };
            Instruction::new(action, [weights], [sum])
        });
        let replicas = match averaging.partners {
            Partners::All => parameters.mesh.span(&bucket.own) as u32,
            Partners::One => 1,
        };
        let action = Action::Average { rate: averaging.rate, replicas };
        let average = Instruction::new(action, [sum], [weights]);
        let mut after = vec![average.with_mode(Mode::Add).freeing([sum.tensor])];
        if averaging.when == AveragingTime::AfterUpdate {
            after.extend(epilogue::cast(parameters, bucket));
        }
        Some((reduction, after))
    };
    let mut instructions = vec![];
    let mut before: Vec<Instruction> = vec![];
    for (reduction, after) in buckets(parameters).filter_map(averaged) {
        instructions.extend(reduction);
        instructions.append(&mut before);
        before = after;
    }
    instructions.extend(before);
    instructions
}
