//! The flag of a guard is written before it is read, and both arms leave the same tensors behind.

use std::collections::BTreeSet;

use super::lifetimes::Lives;
use super::row::{Part, Row, instructions, parts};
use super::violation::Violation;
use crate::{Allocation, Class, ClassId, Content, Guard, Program, Run};

/// Checks the guards of all classes. That ranks which take the same arm read equal flags is for
/// [norms](super::norms) to say.
pub(super) fn check(program: &Program, found: &mut Vec<Violation>) {
    for (id, class) in program.classes().filter(|(_, class)| class.guards().next().is_some()) {
        let mut lives = Lives::default();
        for part in parts(program, class, Row::Usual) {
            match part {
                Part::Run(run) => run_entries(class, id, &[run], &mut lives),
                Part::Guard(guard, arms) => {
                    flag(class, guard, &lives, found);
                    compare(class, arms.map(|arm| left(class, id, &arm, &lives)), found);
                }
            }
        }
    }
}

/// Runs entries. What else is wrong with them is found elsewhere.
fn run_entries(class: &Class, id: ClassId, entries: &[Run], lives: &mut Lives) {
    for step in instructions(class, id, entries) {
        lives.step(&step, &mut vec![]);
    }
}

/// What is there after an arm.
fn left(class: &Class, id: ClassId, arm: &[Run], before: &Lives) -> BTreeSet<Allocation> {
    let mut lives = before.clone();
    run_entries(class, id, arm, &mut lives);
    lives.allocations().collect()
}

fn compare(
    class: &Class,
    [then, otherwise]: [BTreeSet<Allocation>; 2],
    found: &mut Vec<Violation>,
) {
    for &differs in then.symmetric_difference(&otherwise) {
        let tensor = class.allocation_text(differs);
        found.push(Violation::Arms { place: class.place(), tensor });
    }
}

fn flag(class: &Class, guard: &Guard, lives: &Lives, found: &mut Vec<Violation>) {
    let tensor = class.tensor(guard.on.tensor);
    if tensor.content != Content::Flag || !lives.holds(class, guard.on) {
        let (place, tensor) = (class.place(), tensor.name.clone());
        found.push(Violation::Flag { place, tensor });
    }
}
