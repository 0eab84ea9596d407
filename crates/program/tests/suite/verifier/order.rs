//! What is read before it is written is rejected, and so are operands too many or too few, in programs of every kind.

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

use shardloom_program::verify::verify;
use shardloom_program::{
    Action, Carried, Class, Content, Instruction, Mode, Program, TensorId, View, Window, Write,
};

use crate::every_kind::{self, Example};

/// In how many programs neighbours of each kind are swapped.
const MOST: usize = 2;

/// What the first of two neighbours makes that the second reads; none of what it only adds to or changes in place of
/// a value, which the graph would have to say, and none where both sum up, or a sum may as well follow later.
fn made_for(class: &Class, [one, other]: [&Instruction; 2]) -> Option<Content> {
    let sums = |it: &Instruction| matches!(it.action, Action::Collective { .. });
    let adds_later = other.writes.iter().any(|it| it.mode == Mode::AddUnlessFirst);
    if sums(other) && (sums(one) || adds_later) {
        return None;
    }
    let made = one.writes.iter().find(|write| {
        let content = class.tensor(write.to.tensor).content;
        let is_made = match content {
            Content::Activation | Content::Staging => write.mode == Mode::Set && !one.is_in_place(),
            _ => write.mode != Mode::Add || content == Content::Gradient,
        };
        let meets = |window: Window| {
            window == write.to.window || [window, write.to.window].contains(&Window::Whole)
        };
        let mut reads = other.reads.iter().filter(|read| read.tensor == write.to.tensor);
        is_made && reads.any(|read| meets(read.window))
    });
    made.map(|write| class.tensor(write.to.tensor).content)
}

/// What is carried where an instruction sends or receives.
fn carried(program: &Program, instruction: &Instruction) -> Option<Discriminant<Carried>> {
    match instruction.action {
        Action::Send { route } | Action::Receive { route } => {
            Some(discriminant(&program.route(route).carried))
        }
        _ => None,
    }
}

/// Of each kind of two neighbours a few in different programs.
#[test]
fn two_neighbours_of_which_one_reads_what_the_other_makes_are_in_no_other_order() {
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut accepted = vec![];
    let mut count = 0;
    for Example { name, program, .. } in every_kind::all() {
        let mut here = HashSet::new();
        for (class, of) in program.classes.iter().enumerate() {
            for (body, spec) in of.bodies.iter().enumerate() {
                for (at, pair) in spec.instructions.windows(2).enumerate() {
                    let [one, other] = [&pair[0], &pair[1]];
                    let Some(content) = made_for(of, [one, other]) else { continue };
                    let kind =
                        [one, other].map(|it| (discriminant(&it.action), carried(&program, it)));
                    let kind = (kind, content, spec.kind);
                    let times = known.entry(kind).or_default();
                    if *times >= MOST || !here.insert(kind) {
                        continue;
                    }
                    *times += 1;
                    count += 1;
                    let mut program = program.clone();
                    program.classes[class].bodies[body].instructions.swap(at, at + 1);
                    program.assign_queues();
                    if verify(&program).is_ok() {
                        accepted.push(format!("{name}, class {class}: {one:?} and {other:?}"));
                    }
                }
            }
        }
    }
    assert!(accepted.is_empty(), "{} of {count}: {accepted:#?}", accepted.len());
    assert!(count > 100, "{count}");
}

/// Whether an action has as many operands as there are buckets, parts or operands of an operator.
fn has_any_number(action: &Action) -> bool {
    matches!(
        action,
        Action::Kernel { .. }
            | Action::Norm
            | Action::Statistics { .. }
            | Action::Optimizer
            | Action::Copy
            | Action::Publish { .. }
            | Action::Fetch { .. }
    )
}

/// Of each kind of instruction a few in different programs.
#[test]
fn an_operand_too_many_or_too_few_is_rejected() {
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut accepted = vec![];
    for Example { name, program, .. } in every_kind::all() {
        let mut here = HashSet::new();
        for (class, of) in program.classes.iter().enumerate() {
            for (body, at, it) in of.instructions() {
                let kind = (discriminant(&it.action), carried(&program, it), it.reads.len());
                let times = known.entry(kind).or_default();
                if has_any_number(&it.action) || *times >= 2 || !here.insert(kind) {
                    continue;
                }
                *times += 1;
                let view = View::whole(it.operands().next().map_or(TensorId(0), |it| it.tensor));
                let changes: [fn(&mut Instruction, View); 4] = [
                    |it, _| {
                        it.reads.pop();
                    },
                    |it, _| {
                        it.writes.pop();
                    },
                    |it, view| it.reads.push(view),
                    |it, view| it.writes.push(Write::set(view)),
                ];
                for change in changes {
                    let mut program = program.clone();
                    let body = &mut program.classes[class].bodies[body.0 as usize];
                    change(&mut body.instructions[at], view);
                    let changed = body.instructions[at].clone();
                    if changed != *it && verify(&program).is_ok() {
                        accepted.push(format!("{name}: {changed:?}"));
                    }
                }
            }
        }
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
    assert!(known.len() > 15, "{}", known.len());
}
