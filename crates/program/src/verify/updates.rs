//! What lasts is changed once by each update, put back as it was where an update is rolled back, and whole
//! where it is read.

use std::collections::{BTreeMap, BTreeSet};

use super::row::{Row, Step, entries, instructions, place, site};
use super::violation::Violation;
use crate::{
    Action, BodyId, BodyKind, Class, ClassId, Collective, Content, Keep, Program, Run, Tensor,
    TensorId, View, Window,
};

/// Follows what updates change of a class through a row.
pub(super) fn check(program: &Program, id: ClassId, row: Row, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let changed: Vec<TensorId> =
        class.tensors().filter(|(_, it)| is_updated(class, it)).map(|(tensor, _)| tensor).collect();
    let mut times: BTreeMap<TensorId, i64> = BTreeMap::new();
    // A server updates what it owns and its replicas of each other at different times.
    let owner = |tensor: TensorId| {
        let replica = class.tensor(tensor).bucket.and_then(|it| class.bucket(it).replica_of);
        replica.map(|(server, _)| server)
    };
    let mut updates: BTreeMap<Option<ClassId>, i64> = BTreeMap::new();
    let mut parts = Parts::default();
    let (mut tests, mut stale) = (0, BTreeMap::new());
    let second = class.tensors().filter(|(_, it)| it.content == Content::SecondWeight);
    let mut outdated: BTreeSet<TensorId> = second.map(|(tensor, _)| tensor).collect();
    let mut copies: BTreeMap<TensorId, View> = BTreeMap::new();
    for run in entries(program, class, row) {
        let mut now: BTreeMap<TensorId, usize> = BTreeMap::new();
        let averages = class.body_of(&run.entry).kind == BodyKind::Averaging;
        for step in instructions(class, id, &[run]) {
            parts.read(&step, found);
            whole(&step, &mut stale, found);
            second_copies(&step, &mut outdated, found);
            found.extend(step.instruction.writes.iter().filter_map(|it| frozen(&step, it.to)));
            match &step.instruction.action {
                Action::Optimizer => {
                    for write in &step.instruction.writes {
                        *now.entry(write.to.tensor).or_default() += 1;
                    }
                }
                // A server adds what a worker's update has changed.
                Action::Add => {
                    let to = step.instruction.writes[0].to.tensor;
                    if class.tensor(to).content == Content::Weight {
                        *now.entry(to).or_default() += 1;
                    }
                }
                // Averages are weights that operators read once they are cast, too.
                Action::Cast if averages => {}
                Action::Cast => {
                    let [read, write] = [step.instruction.reads[0], step.instruction.writes[0].to];
                    if !now.contains_key(&read.tensor) {
                        let tensor = step.tensor_name(read.tensor);
                        found.push(Violation::CastEarly { at: step.site(), tensor });
                    }
                    *now.entry(write.tensor).or_default() += 1;
                }
                Action::Copy if step.instruction.restores(step.class) => {
                    let pairs = step.instruction.reads.iter().zip(&step.instruction.writes);
                    for (copy, write) in pairs {
                        if copies.get(&copy.tensor) != Some(&write.to) {
                            found.push(not_back(&step, write.to));
                        }
                        *times.entry(write.to.tensor).or_default() -= 1;
                    }
                }
                Action::Copy => {
                    let pairs = step.instruction.reads.iter().zip(&step.instruction.writes);
                    for (&read, write) in pairs {
                        if class.tensor(write.to.tensor).content != Content::Backup {
                            continue;
                        }
                        if now.contains_key(&read.tensor) {
                            found.push(not_back(&step, read));
                        }
                        copies.insert(write.to.tensor, read);
                    }
                }
                Action::Test => tests += 1,
                _ => {}
            }
        }
        let kind = class.body_of(&run.entry).kind;
        let updated_for = class.served_owner(program, run.number);
        *updates.entry(updated_for).or_default() += i64::from(kind == BodyKind::Epilogue);
        let is_update = matches!(kind, BodyKind::Epilogue | BodyKind::Redo);
        if kind == BodyKind::PartOfUpdate {
            parts.add(run, &now);
            continue;
        }
        for &tensor in &changed {
            let number = now.get(&tensor).copied().unwrap_or(0);
            *times.entry(tensor).or_default() += number as i64;
            if number != usize::from(is_update && owner(tensor) == updated_for) {
                let (place, tensor) =
                    (place(class, run.entry.body), class.tensor(tensor).name.clone());
                found.push(Violation::Updates { place, tensor, times: number });
            }
        }
    }
    if row != Row::Evaluation {
        parts.finish(class, &changed, found);
    }
    let are_tested = program.classes.iter().any(Class::tests_updates);
    let of = |owner| updates.get(&owner).copied().unwrap_or(0);
    if are_tested && tests != of(None) {
        let updates = of(None);
        found.push(Violation::Tests { place: class.place(), updates, times: tests });
    }
    // What is rebuilt from what was put back need not be put back itself.
    for &tensor in changed.iter().filter(|&&it| class.tensor(it).keep != Keep::Resident) {
        let times = times.get(&tensor).copied().unwrap_or(0);
        let updates = of(owner(tensor));
        if times != updates {
            let (place, tensor) = (class.place(), class.tensor(tensor).name.clone());
            found.push(Violation::UpdatesOfAll { place, tensor, updates, times });
        }
    }
    for (tensor, (body, index)) in stale {
        let at = site(class, id, body, index);
        found.push(Violation::Stale { at, tensor: class.tensor(tensor).name.clone() });
    }
}

/// Updates in parts, each of which changes some tensors.
#[derive(Default)]
struct Parts {
    /// By the step that they belong to, how often each tensor was changed.
    of_step: BTreeMap<i64, BTreeMap<TensorId, usize>>,
    /// Where they stand.
    bodies: Vec<BodyId>,
}

impl Parts {
    fn add(&mut self, run: Run, changes: &BTreeMap<TensorId, usize>) {
        let of_step = self.of_step.entry(run.of_step()).or_default();
        changes.iter().for_each(|(&tensor, times)| *of_step.entry(tensor).or_default() += times);
        self.bodies.push(run.entry.body);
    }

    /// That a pass reads weights which the step before it has not changed yet, where it does.
    fn read(&self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let before = step.run.of_step() - 1;
        if before < 0 || step.run.entry.microbatch.is_none() || !in_parts(step.class) {
            return;
        }
        let is_changed =
            |tensor| self.of_step.get(&before).is_some_and(|it| it.contains_key(&tensor));
        for read in &step.instruction.reads {
            let tensor = step.class.tensor(read.tensor);
            let lasts = tensor.content == Content::Weight && is_updated(step.class, tensor);
            if lasts && !is_changed(read.tensor) {
                let tensor = tensor.name.clone();
                found.push(Violation::Early { at: step.site(), tensor });
            }
        }
    }

    /// Checks that the parts of each step change all that an update changes, once.
    fn finish(&self, class: &Class, changed: &[TensorId], found: &mut Vec<Violation>) {
        let Some(&body) = self.bodies.first() else { return };
        for times in self.of_step.values() {
            for &tensor in changed {
                let times = times.get(&tensor).copied().unwrap_or(0);
                if times != 1 {
                    let (place, tensor) = (place(class, body), class.tensor(tensor).name.clone());
                    found.push(Violation::Updates { place, tensor, times });
                }
            }
        }
    }
}

/// Whether a class updates in parts.
fn in_parts(class: &Class) -> bool {
    class.bodies.iter().any(|body| body.kind == BodyKind::PartOfUpdate)
}

/// Whether an update changes a tensor; none does of what is frozen.
fn is_updated(class: &Class, tensor: &Tensor) -> bool {
    let of_update = matches!(
        tensor.content,
        Content::Weight
            | Content::MasterWeight
            | Content::OptimizerState(_)
            | Content::PreviousWeight
            | Content::WeightVelocity
    );
    let is_trained = tensor.bucket.is_some_and(|bucket| !class.bucket(bucket).is_frozen);
    of_update && tensor.keep != Keep::Transient && is_trained
}

/// That an instruction writes what lasts of a frozen bucket, if it does.
fn frozen(step: &Step<'_>, to: View) -> Option<Violation> {
    let tensor = step.class.tensor(to.tensor);
    let is_frozen = step.class.bucket(tensor.bucket?).is_frozen;
    (is_frozen && tensor.keep != Keep::Transient && tensor.content != Content::SecondWeight)
        .then(|| Violation::FrozenChanged { at: step.site(), tensor: tensor.name.clone() })
}

fn not_back(step: &Step<'_>, view: View) -> Violation {
    Violation::Backup { at: step.site(), tensor: step.tensor_name(view.tensor) }
}

/// Checks that weights of which ranks change a share are gathered again before something reads more of
/// them; `stale` are those that are not.
fn whole(
    step: &Step<'_>,
    stale: &mut BTreeMap<TensorId, (BodyId, usize)>,
    found: &mut Vec<Violation>,
) {
    let instruction = step.instruction;
    for read in instruction.reads.iter().filter(|read| read.window != Window::Share) {
        if stale.contains_key(&read.tensor) {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::Stale { at: step.site(), tensor });
        }
    }
    let updates = matches!(instruction.action, Action::Optimizer | Action::Cast);
    let changes = updates || step.instruction.restores(step.class);
    for write in &instruction.writes {
        let tensor = write.to.tensor;
        let gathers = matches!(
            instruction.action,
            Action::Collective { kind: Collective::AllGather { .. }, .. }
        );
        if changes && write.to.window == Window::Share && is_shared(step.class, tensor) {
            stale.insert(tensor, (step.run.entry.body, step.index));
        } else if gathers && write.to.window == Window::Whole {
            let was_stale = stale.remove(&tensor).is_some();
            if !was_stale && instruction.is_in_place() && is_shared(step.class, tensor) {
                let tensor = step.tensor_name(tensor);
                found.push(Violation::GatheredTwice { at: step.site(), tensor });
            }
        }
    }
}

/// Checks that second copies of weights are made, and renewed after an update, before something reads them; `outdated`
/// are those that are not.
fn second_copies(step: &Step<'_>, outdated: &mut BTreeSet<TensorId>, found: &mut Vec<Violation>) {
    let is_copy = |it: &TensorId| step.class.tensor(*it).content == Content::SecondWeight;
    for read in step.instruction.reads.iter().filter(|read| outdated.contains(&read.tensor)) {
        found.push(Violation::Stale { at: step.site(), tensor: step.tensor_name(read.tensor) });
    }
    let updates = matches!(step.instruction.action, Action::Optimizer | Action::Cast);
    let changes = updates || step.instruction.restores(step.class);
    for write in &step.instruction.writes {
        let tensor = write.to.tensor;
        outdated.remove(&tensor);
        if let Some(bucket) = step.class.tensor(tensor).bucket.filter(|_| changes) {
            let own = &step.class.bucket(bucket).held.replicated.own;
            outdated.extend(own.iter().filter(|it| is_copy(it)));
        }
    }
}

/// Whether ranks have shares of a tensor's bucket.
fn is_shared(class: &Class, tensor: TensorId) -> bool {
    let bucket = class.tensor(tensor).bucket.map(|bucket| class.bucket(bucket));
    bucket.is_some_and(|bucket| class.mesh.span(&bucket.shards) > 1)
}
