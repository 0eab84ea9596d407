//! Updates that are made before the norm of all gradients is known, and tested in the next step (Qi et
//! al. 2024, "Zero Bubble Pipeline Parallelism", ICLR, arXiv 2401.10241, section 4, and the order of the
//! authors' code, sail-sg/zero-bubble-pipeline-parallelism).
//!
//! At the end of a step the squared norm goes from class to class, each adding its own, and each updates
//! with what it has got. The last class knows all of it and sends it back, from class to class, while the
//! others are at the first forward passes of the next step. There each of them tests its update: a guard
//! whose arms are to go on, and to go back. Where gradients
//! had to be clipped or were not finite, which all classes see alike, the update is rolled back and made
//! again, and the step begins anew.
//!
//! What has run before the validation must not rest on anything that runs after it on another class, or
//! classes would wait for each other. So validations *cut* the step: the passes before them are forward
//! passes, each with all those of the same micro-batch in the stages before it. Messages may cross the cut;
//! those that were sent before it for nothing are received and dropped.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_plan::Plan;

use super::boundary::{Boundaries, Way};
use super::buckets::Parameters;
use super::epilogue;
use super::order::Order;
use super::stage::StageModel;
use crate::class::{Body, BodyId, BodyKind};
use crate::sync::add;
use crate::{
    Action, ClassId, Control, Copies, Entry, Group, Guard, Instruction, Mode, Route, RouteId,
    Tensor, TensorId, View,
};
use shardloom_schedule::{self as schedule, Instance, Pass, PassKind, Schedule};

/// How the norm goes round the classes, and how far each gets before it is back.
pub(super) struct PostValidation {
    /// How many passes of each class run before the validation.
    cuts: Vec<usize>,
    /// Where each forward pass stands: the class and the place in its order.
    places: BTreeMap<(Instance, u32), (usize, usize)>,
    /// From each class but the last to the next.
    onward: Vec<RouteId>,
    /// From each class but the first to the one before.
    back: Vec<RouteId>,
}

impl PostValidation {
    /// How updates are validated afterwards, where the plan wants that and there is anything to wait for:
    /// a norm, and a second class. Adds the ways of the norm to those of values.
    pub fn of(
        plan: &Plan,
        schedule: &Schedule,
        stages: &[StageModel],
        boundaries: &mut Boundaries,
    ) -> Option<PostValidation> {
        let classes = schedule.orders.len();
        if !plan.post_validation || !plan.looks_at_norm() || classes < 2 {
            return None;
        }
        let passes: Vec<Vec<Pass>> = schedule
            .orders
            .iter()
            .map(|order| order.iter().flat_map(|action| action.passes()).collect())
            .collect();
        let mut places = BTreeMap::new();
        for (class, passes) in passes.iter().enumerate() {
            for (index, pass) in passes.iter().enumerate() {
                if pass.kind == PassKind::Forward {
                    places.insert((pass.instance, pass.microbatch), (class, index));
                }
            }
        }
        let end = |class: usize| {
            let id = ClassId(class as u32);
            let stage = stages.iter().find(|stage| stage.class == id);
            (id, stage.expect("a class holds a stage").mesh.size())
        };
        let mut route =
            |from: usize, to: usize| boundaries.add_route(Route::of_norm(end(from), end(to)));
        let onward = (1..classes).map(|class| route(class - 1, class)).collect();
        let back = (1..classes).map(|class| route(class, class - 1)).collect();
        let cuts = cuts(schedule, &passes, &places);
        Some(PostValidation { cuts, places, onward, back })
    }

    /// Whether a class knows the norm of all gradients when it updates.
    pub fn knows_all(&self, class: ClassId) -> bool {
        class.0 as usize + 1 == self.cuts.len()
    }

    /// The instructions that find the norm as far as it is known at the end of a step, and keep what they
    /// may have to go back to.
    pub fn norm(&self, class: ClassId, parameters: &Parameters<'_>) -> Vec<Instruction> {
        let index = class.0 as usize;
        let norm = norm_of(parameters);
        let own = Group::Mesh(parameters.mesh.axes().collect());
        let mut instructions = epilogue::norm(parameters, own);
        if let Some(before) = index.checked_sub(1) {
            instructions.push(receive(self.onward[before], norm, Mode::Add));
        }
        if !self.knows_all(class) {
            instructions.push(send(self.onward[index], norm));
            instructions.extend(epilogue::backups(parameters));
        } else if let Some(before) = index.checked_sub(1) {
            instructions.push(send(self.back[before], norm));
        }
        instructions
    }

    /// Adds the tensor that says whether an update was right.
    pub fn flag(&self, tensors: &mut Vec<Tensor>) -> TensorId {
        add(tensors, Tensor::flag("update was right"))
    }

    /// A class's control: its order with the test of the update before at the cut, and what follows from
    /// it.
    pub fn control(
        &self,
        order: &mut Order,
        class: ClassId,
        (parameters, tensors, flag): (&Parameters<'_>, &[Tensor], TensorId),
        boundaries: &Boundaries,
        stages: &[StageModel],
    ) -> Vec<Control> {
        let index = class.0 as usize;
        let norm = norm_of(parameters);
        let mut test = vec![];
        if !self.knows_all(class) {
            test.push(receive(self.back[index], norm, Mode::Set));
            let before = index.checked_sub(1).map(|before| self.back[before]);
            test.extend(before.map(|route| send(route, norm)));
        }
        let flags = [View::whole(flag)];
        test.push(Instruction::new(Action::Test, [View::whole(norm)], flags));
        // Until the cut each action is one pass, and nothing stands between.
        let (before, after) = order.entries.split_at(self.cuts[index]);
        let before: Vec<Entry> = before.iter().map(|&(entry, _)| entry).collect();
        let pass = |&(entry, pass): &(Entry, Option<Pass>)| Some((pass?, entry.body));
        let passes: Vec<(Pass, BodyId)> = after.iter().filter_map(pass).collect();
        let after: Vec<Entry> = after.iter().map(|&(entry, _)| entry).collect();

        let test = of_step_before(order.add(BodyKind::Test, test));
        let release = vec![epilogue::release(parameters, &[flag])];
        let release = of_step_before(order.add(BodyKind::Release, release));
        let mut otherwise = vec![];
        if !self.knows_all(class) {
            let restores = epilogue::restores(parameters);
            otherwise.push(of_step_before(order.add(BodyKind::Rollback, restores)));
        }
        otherwise.push(release);
        otherwise.extend(drops(order, tensors, &before));
        if !self.knows_all(class) {
            let update = epilogue::updates(parameters);
            otherwise.push(of_step_before(order.add(BodyKind::Redo, update)));
        }
        let dropped = self.dropped(&passes, boundaries, stages);
        otherwise.extend(discards(order, tensors, dropped));
        otherwise.extend(&before);
        let guard = Guard {
            on: View::whole(flag),
            // The norm of all is too large or not finite wherever that of some is.
            agreed: Group::World,
            shift: -1,
            then: vec![release],
            otherwise,
        };
        let before = before.into_iter().map(Control::Run);
        let tested = [Control::Run(test), Control::Guard(guard)];
        before.chain(tested).chain(after.into_iter().map(Control::Run)).collect()
    }

    /// What the passes after a class's cut receive that was sent before the sender's: the body of the
    /// pass, the micro-batch and the routes.
    fn dropped(
        &self,
        after: &[(Pass, BodyId)],
        boundaries: &Boundaries,
        stages: &[StageModel],
    ) -> Vec<(BodyId, u32, Vec<RouteId>)> {
        let mut dropped = vec![];
        for (pass, body) in after.iter().filter(|(pass, _)| pass.kind == PassKind::Forward) {
            let transfers = boundaries.transfers().filter_map(|(_, transfer)| {
                let Way::Messages { forward, .. } = transfer.way else { return None };
                let sender = stages[transfer.from.0].place;
                let (class, place) = self.places.get(&(sender, pass.microbatch)).copied()?;
                let arrives = stages[transfer.to.0].place == pass.instance;
                (arrives && place < self.cuts[class]).then_some(forward)
            });
            let routes: Vec<RouteId> = transfers.collect();
            if !routes.is_empty() {
                dropped.push((*body, pass.microbatch, routes));
            }
        }
        dropped
    }
}

/// How many passes of each class run before its validation: as many forward passes as the authors have,
/// two for each class that the norm still has to come back from (for each stage that this one holds, by
/// however many pipelines it is come to), but none that needs one of another class's that is not among
/// those; and fewer than in the class before, which would otherwise wait for this one to hand the norm on.
fn cuts(
    schedule: &Schedule,
    passes: &[Vec<Pass>],
    places: &BTreeMap<(Instance, u32), (usize, usize)>,
) -> Vec<usize> {
    let most = |class: usize| {
        let order = schedule.orders[class].iter();
        let is_forward = |action: &&schedule::Action| matches!(action, schedule::Action::Alone(it) if it.kind == PassKind::Forward);
        let forwards = order.take_while(is_forward).count();
        let held = schedule.map.instances_on(class).map(|instance| instance.stage);
        let stages = held.collect::<BTreeSet<u16>>().len();
        forwards.min(2 * (schedule.orders.len() - 1 - class) * stages)
    };
    let mut cuts: Vec<usize> = (0..passes.len()).map(most).collect();
    loop {
        let mut shorter = cuts.clone();
        for (passes, cut) in passes.iter().zip(&mut shorter) {
            let needs = |pass: &Pass| {
                let before = schedule.map.before(pass.instance)?;
                places.get(&(before, pass.microbatch))
            };
            let early = |pass: &Pass| needs(pass).is_none_or(|&(class, at)| at < cuts[class]);
            *cut = passes[..*cut].iter().take_while(|pass| early(pass)).count();
        }
        for class in 1..shorter.len() {
            shorter[class] = shorter[class].min(shorter[class - 1].saturating_sub(1));
        }
        if shorter == cuts {
            return cuts;
        }
        cuts = shorter;
    }
}

/// An entry that belongs to the step before.
fn of_step_before(body: BodyId) -> Entry {
    Entry { shift: -1, ..Entry::new(body, None) }
}

/// Entries that free what these passes have left of each micro-batch.
fn drops(order: &mut Order, tensors: &[Tensor], passes: &[Entry]) -> Vec<Entry> {
    let mut left: BTreeMap<Option<u32>, BTreeSet<TensorId>> = BTreeMap::new();
    let passing = |id: &TensorId| tensors[id.0 as usize].copies == Copies::PerMicrobatch;
    for entry in passes {
        let left = left.entry(entry.microbatch).or_default();
        for instruction in &order.bodies[entry.body.0 as usize].instructions {
            left.extend(instruction.writes.iter().map(|write| write.to.tensor).filter(passing));
            instruction.frees.iter().for_each(|freed| _ = left.remove(freed));
        }
    }
    let mut known: BTreeMap<BTreeSet<TensorId>, BodyId> = BTreeMap::new();
    let mut entries = vec![];
    for (microbatch, left) in left.into_iter().filter(|(_, left)| !left.is_empty()) {
        let body = known.get(&left).copied().unwrap_or_else(|| {
            let free = Instruction::new(Action::Free, [], []).freeing(left.iter().copied());
            order.add(BodyKind::Rollback, vec![free])
        });
        known.insert(left, body);
        entries.push(Entry::new(body, microbatch));
    }
    entries
}

/// Entries that receive and drop what bodies would receive by the given routes.
fn discards(
    order: &mut Order,
    tensors: &[Tensor],
    dropped: Vec<(BodyId, u32, Vec<RouteId>)>,
) -> Vec<Entry> {
    let mut known: BTreeMap<(BodyId, Vec<RouteId>), BodyId> = BTreeMap::new();
    let mut entries = vec![];
    for (body, microbatch, routes) in dropped {
        let key = (body, routes);
        let discard = match known.get(&key) {
            Some(&discard) => discard,
            None => {
                let Body { part, instructions, .. } = &order.bodies[body.0 as usize];
                let those = instructions.iter().filter(|instruction| {
                    matches!(instruction.action, Action::Receive { route } if key.1.contains(&route))
                });
                let instructions: Vec<Instruction> = those.map(|it| freed(it, tensors)).collect();
                // Another piece of the pass receives it.
                if instructions.is_empty() {
                    continue;
                }
                let part = *part;
                order.bodies.push(Body { kind: BodyKind::Forward, part, instructions });
                let discard = BodyId(order.bodies.len() as u32 - 1);
                known.insert(key, discard);
                discard
            }
        };
        entries.push(Entry::new(discard, Some(microbatch)));
    }
    entries
}

/// A receive of something that nobody wants any more.
fn freed(receive: &Instruction, tensors: &[Tensor]) -> Instruction {
    let written = receive.writes.iter().map(|write| write.to.tensor);
    let passing = written.filter(|it| tensors[it.0 as usize].copies == Copies::PerMicrobatch);
    Instruction { frees: passing.collect(), ..receive.clone() }
}

/// The norm that updates look at.
fn norm_of(parameters: &Parameters<'_>) -> TensorId {
    parameters.norm.expect("updates are tested only where they look at the norm")
}

fn send(route: RouteId, norm: TensorId) -> Instruction {
    Instruction::new(Action::Send { route }, [View::whole(norm)], [])
}

fn receive(route: RouteId, norm: TensorId, mode: Mode) -> Instruction {
    Instruction::new(Action::Receive { route }, [], [View::whole(norm)]).with_mode(mode)
}
