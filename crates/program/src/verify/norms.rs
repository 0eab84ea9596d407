//! The norm of gradients is that of all ranks before it is used, and ranks that take the same arm of a guard
//! have found their flags from equal norms.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_plan::Axis;

use super::row::{Part, Row, Step, instructions, parts};
use super::violation::Violation;
use crate::{Action, Class, ClassId, Content, Group, Guard, Mode, Program, RouteId, TensorId};

/// What a rank's norm covers.
#[derive(Clone, Default)]
struct Norm {
    /// Mesh axes over which it is summed.
    axes: BTreeSet<Axis>,
    /// Whether the class's own gradients are in it.
    is_found: bool,
    /// Classes of which it is the whole norm, besides.
    classes: BTreeSet<ClassId>,
    /// Whether it was found and has not been used yet.
    is_pending: bool,
}

/// What a class does with norms, in order.
enum Event<'p> {
    Step(Step<'p>, TensorId),
    Guard(&'p Guard),
}

/// The classes whose norm every message of a route brings.
type Sent = BTreeMap<RouteId, BTreeSet<ClassId>>;

/// Follows the norm of all classes through a row. What one sends another is found by following all of them
/// again until nothing more comes to anybody.
pub(super) fn check(program: &Program, row: Row, found: &mut Vec<Violation>) {
    let classes: Vec<(ClassId, Vec<Event<'_>>)> =
        program.classes().map(|(id, class)| (id, events(program, id, class, row))).collect();
    let mut known = Sent::new();
    loop {
        let mut sent = Sent::new();
        let mut violations = vec![];
        for (id, events) in &classes {
            Follower::new(program, *id, &known).follow(events, &mut sent, &mut violations);
        }
        if sent == known {
            found.extend(violations);
            return;
        }
        known = sent;
    }
}

fn events<'p>(program: &Program, id: ClassId, class: &'p Class, row: Row) -> Vec<Event<'p>> {
    let mut events = vec![];
    for part in parts(program, class, row) {
        match part {
            Part::Guard(guard, _) => events.push(Event::Guard(guard)),
            Part::Run(run) => {
                for step in instructions(class, id, &[run]) {
                    let mut tensors = step.instruction.operands().map(|view| view.tensor);
                    let norm = tensors.find(|&it| class.tensor(it).content == Content::Norm);
                    events.extend(norm.map(|norm| Event::Step(step, norm)));
                }
            }
        }
    }
    events
}

/// Follows the norm of one class.
struct Follower<'a> {
    program: &'a Program,
    id: ClassId,
    known: &'a Sent,
    norm: Norm,
    /// The norms from which flags were found.
    flags: BTreeMap<TensorId, Norm>,
}

impl<'a> Follower<'a> {
    fn new(program: &'a Program, id: ClassId, known: &'a Sent) -> Follower<'a> {
        Follower { program, id, known, norm: Norm::default(), flags: BTreeMap::new() }
    }

    fn follow(mut self, events: &[Event<'_>], sent: &mut Sent, found: &mut Vec<Violation>) {
        for event in events {
            match event {
                Event::Step(step, tensor) => self.step(step, *tensor, sent, found),
                Event::Guard(guard) => self.guard(guard, found),
            }
        }
    }

    fn step(
        &mut self,
        step: &Step<'_>,
        tensor: TensorId,
        sent: &mut Sent,
        found: &mut Vec<Violation>,
    ) {
        let instruction = step.instruction;
        let lost = || Violation::Lost { at: step.site(), tensor: step.tensor_name(tensor) };
        match &instruction.action {
            Action::Norm => {
                if self.norm.is_pending {
                    found.push(lost());
                }
                let classes = self.counted_alone();
                self.norm = Norm { is_found: true, is_pending: true, classes, ..Norm::default() };
            }
            Action::Collective { group, .. } => {
                let again = match group {
                    Group::World => {
                        let again = self.is_of_all(&self.norm);
                        let all = self.program.classes().map(|(id, _)| id);
                        self.norm.classes.extend(all);
                        again
                    }
                    Group::Mesh(axes) => {
                        let known = axes.iter().any(|axis| self.norm.axes.contains(axis));
                        self.norm.axes.extend(axes);
                        known
                    }
                    Group::Classes(_) => true,
                };
                if again || !self.norm.is_pending {
                    let tensor = step.tensor_name(tensor);
                    found.push(Violation::ReducedTwice { at: step.site(), tensor });
                }
                // Who holds nothing takes part for others, which need the norm.
                self.norm.is_pending &= !step.class.buckets.is_empty();
            }
            Action::Receive { route } => {
                let brought = self.known.get(route).cloned().unwrap_or_default();
                match instruction.writes[0].mode {
                    Mode::Set if self.norm.is_pending => found.push(lost()),
                    Mode::Set => self.norm = Norm { classes: brought, ..Norm::default() },
                    _ => {
                        self.require(step, false, tensor, found);
                        let before = self.covered(&self.norm);
                        if !before.is_disjoint(&brought) {
                            let tensor = step.tensor_name(tensor);
                            found.push(Violation::ReducedTwice { at: step.site(), tensor });
                        }
                        self.norm.classes.extend(brought);
                    }
                }
            }
            action => {
                // An update that may be rolled back does not wait for the norm of all.
                let is_early = step.run.arm.is_none() && step.class.late() > 0;
                let of_all = match action {
                    Action::Send { .. } => false,
                    Action::Test => true,
                    _ => !is_early,
                };
                self.require(step, of_all, tensor, found);
                self.norm.is_pending = false;
                if let Action::Send { route } = action {
                    let covered = self.covered(&self.norm);
                    sent.entry(*route)
                        .and_modify(|known| known.retain(|it| covered.contains(it)))
                        .or_insert(covered);
                }
                if *action == Action::Test {
                    let flags = instruction.writes.iter().map(|write| write.to.tensor);
                    self.flags.extend(flags.map(|flag| (flag, self.norm.clone())));
                }
            }
        }
    }

    /// Checks that a norm covers the class's ranks, or all.
    fn require(&self, step: &Step<'_>, of_all: bool, tensor: TensorId, found: &mut Vec<Violation>) {
        let covers = match of_all {
            true => self.is_of_all(&self.norm),
            false => self.covered(&self.norm).contains(&self.id),
        };
        if !covers {
            let tensor = step.tensor_name(tensor);
            found.push(Violation::Unreduced { at: step.site(), tensor });
        }
    }

    /// The classes of whose gradients the class finds the norm by itself: those with which it holds all of its
    /// buckets, where each of them counts all elements.
    fn counted_alone(&self) -> BTreeSet<ClassId> {
        let class = self.program.class(self.id);
        let counts_all = |other: &Class| other.buckets.iter().all(|bucket| bucket.owned_here);
        let mut holders = class.buckets.iter().map(|bucket| &bucket.classes);
        let Some(first) = holders.next() else { return BTreeSet::new() };
        let is_alone = holders.all(|it| it == first)
            && first.iter().all(|&it| {
                let other = self.program.class(it);
                counts_all(other) && other.buckets.len() == class.buckets.len()
            });
        if is_alone { first.iter().copied().collect() } else { BTreeSet::new() }
    }

    /// The classes of all of whose ranks it is the norm, and those that have no gradients.
    fn covered(&self, norm: &Norm) -> BTreeSet<ClassId> {
        let mesh = &self.program.class(self.id).mesh;
        let own = mesh.axes().all(|axis| norm.axes.contains(&axis));
        // What has only come from others is not this class's.
        let is_own = norm.is_found && own;
        let sum = self
            .program
            .classes()
            .filter(|(_, class)| class.sums() && !class.holds_tables())
            .map(|(id, _)| id);
        let covered = norm.classes.iter().copied().chain(is_own.then_some(self.id));
        covered.chain(sum).collect()
    }

    fn is_of_all(&self, norm: &Norm) -> bool {
        self.covered(norm).len() == self.program.classes.len()
    }

    /// Checks that all who take the same arm of a guard have equal norms to decide by.
    fn guard(&self, guard: &Guard, found: &mut Vec<Violation>) {
        let Some(norm) = self.flags.get(&guard.on.tensor) else { return };
        let class = self.program.class(self.id);
        let is_equal = self.is_of_all(norm)
            || match &guard.agreed {
                Group::Mesh(axes) => axes.iter().all(|axis| norm.axes.contains(axis)),
                Group::Classes(_) | Group::World => false,
            };
        if !is_equal {
            let tensor = class.tensor(guard.on.tensor).name.clone();
            found.push(Violation::Agreement { place: class.place(), tensor });
        }
    }
}
