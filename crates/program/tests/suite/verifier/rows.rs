//! Programs in which rows are read with the wrong counts, or go another way than was decided.

use shardloom_graph::work::Pass;
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{Action, Class, Entry, Instruction, Program, Shape, TensorId, View};

use super::programs::routed;

#[test]
fn routed_rows_verify_on_one_stage_and_on_two() {
    for stages in [1, 2] {
        assert_eq!(verify(&routed(stages)), Ok(()), "{stages} stages");
    }
}

fn instructions(class: &Class) -> impl Iterator<Item = &Instruction> {
    class.bodies.iter().flat_map(|body| &body.instructions)
}

/// What a program breaks after a change of its only class.
fn broken(change: impl FnOnce(&mut Class)) -> Vec<Violation> {
    let mut program: Program = routed(1);
    change(&mut program.classes[0]);
    program.assign_queues();
    verify(&program).expect_err("the change is a mistake")
}

/// All instructions of a class, to be changed.
fn all(class: &mut Class) -> impl Iterator<Item = &mut Instruction> {
    class.bodies.iter_mut().flat_map(|body| &mut body.instructions)
}

fn is_forward(instruction: &Instruction) -> bool {
    matches!(instruction.action, Action::Kernel { pass: Pass::Forward, .. })
}

/// The tensors of this name that `which` instructions write.
fn named(class: &Class, name: &str) -> TensorId {
    let is_it = |it: &TensorId| class.tensor(*it).name == name;
    let mut written =
        instructions(class).flat_map(|it| it.writes.iter().map(|write| write.to.tensor));
    written.find(is_it).unwrap_or_else(|| panic!("no {name} is written"))
}

fn is_counts(found: &[Violation]) -> bool {
    found.iter().any(|it| matches!(it, Violation::Counts { .. }))
}

fn is_rows(found: &[Violation]) -> bool {
    found.iter().any(|it| matches!(it, Violation::Rows { .. }))
}

#[test]
fn rows_that_are_read_with_other_counts_are_rejected_wherever_that_is() {
    let program = routed(1);
    let class = &program.classes[0];
    let counts: Vec<TensorId> = class
        .tensors()
        .filter(|(_, it)| it.name.contains("route.counts"))
        .map(|(id, _)| id)
        .collect();
    let mut count = 0;
    for (body, spec) in class.bodies.iter().enumerate() {
        for (at, instruction) in spec.instructions.iter().enumerate() {
            let touches =
                instruction.operands().any(|it| class.tensor(it.tensor).counts().is_some());
            for (index, read) in instruction.reads.iter().enumerate() {
                for &other in counts.iter().filter(|&&it| it != read.tensor) {
                    if !touches || !counts.contains(&read.tensor) {
                        continue;
                    }
                    let mut mutated = program.clone();
                    let instructions = &mut mutated.classes[0].bodies[body].instructions;
                    instructions[at].reads[index] = View::whole(other);
                    mutated.assign_queues();
                    assert!(verify(&mutated).is_err(), "{instruction:?} with {other:?}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn rows_that_are_said_to_have_other_counts_are_rejected() {
    let found = broken(|class| {
        let rows = named(class, "layer.0.dispatch");
        let other = class.tensor(named(class, "layer.1.dispatch")).counts();
        let other = other.expect("the second layer's rows have counts");
        if let Shape::AtMost { counts, .. } = &mut class.tensors[rows.0 as usize].shape {
            *counts = other;
        }
    });
    assert!(is_counts(&found), "{found:?}");
}

#[test]
fn a_whole_pass_that_reads_counts_of_another_layer_is_rejected() {
    let found = broken(|class| {
        let own = class.tensor(named(class, "layer.0.dispatch")).counts();
        let other = class.tensor(named(class, "layer.1.dispatch")).counts();
        let (own, other) = (own.expect("rows"), other.expect("rows"));
        let rows: Vec<TensorId> =
            class.tensors().filter(|(_, it)| it.counts() == Some(own)).map(|(id, _)| id).collect();
        for &id in &rows {
            if let Shape::AtMost { counts, .. } = &mut class.tensors[id.0 as usize].shape {
                *counts = other;
            }
        }
        for instruction in all(class) {
            let touches = instruction.operands().any(|it| rows.contains(&it.tensor));
            if touches {
                let own = instruction.reads.iter_mut().filter(|it| **it == own);
                own.for_each(|it| *it = other);
            }
        }
    });
    assert!(is_rows(&found), "{found:?}");
}

#[test]
fn a_bound_one_short_is_rejected() {
    for name in ["layer.0.dispatch", "layer.0.dispatch@[S(dp), R, R, R]", "layer.1.down"] {
        for axis in 0..4 {
            let found = broken(|class| {
                let rows = named(class, name);
                if let Shape::AtMost { bound, .. } = &mut class.tensors[rows.0 as usize].shape {
                    bound[axis] -= 1;
                }
            });
            assert!(!found.is_empty(), "{name}, axis {axis}");
        }
    }
}

#[test]
fn the_permutation_of_another_layer_is_rejected() {
    for result in ["choice", "slot"] {
        for kernel in ["layer.1.dispatch", "layer.1.combine"] {
            let found = broken(|class| {
                let other = named(class, &format!("layer.0.route.{result}"));
                let own = named(class, &format!("layer.1.route.{result}"));
                let target = named(class, kernel);
                let instruction = all(class)
                    .find(|it| it.writes.iter().any(|write| write.to.tensor == target))
                    .expect("what is written is written by an instruction");
                assert!(is_forward(instruction));
                let read = instruction.reads.iter_mut().find(|it| it.tensor == own);
                read.expect("it reads it").tensor = other;
            });
            assert!(!found.is_empty(), "{result} of {kernel}");
        }
    }
}

#[test]
fn choices_and_slots_that_are_mistaken_for_each_other_are_rejected() {
    let found = broken(|class| {
        let target = named(class, "layer.1.combine");
        let instruction = all(class)
            .find(|it| it.writes.iter().any(|write| write.to.tensor == target))
            .expect("what is written is written by an instruction");
        instruction.reads.swap(2, 3);
    });
    assert!(is_rows(&found), "{found:?}");
}

#[test]
fn counts_that_are_not_exchanged_before_their_rows_are_rejected() {
    let program = routed(1);
    let class = &program.classes[0];
    let is_exchange = |it: &Instruction| {
        let first = it.reads.first().map(|read| &class.tensor(read.tensor).name);
        matches!(it.action, Action::Collective { .. })
            && first.is_some_and(|name| name.contains("route.counts"))
    };
    let mut count = 0;
    for (body, spec) in class.bodies.iter().enumerate() {
        for at in (0..spec.instructions.len()).filter(|&at| is_exchange(&spec.instructions[at])) {
            let mut mutated = program.clone();
            mutated.classes[0].bodies[body].instructions.remove(at);
            mutated.assign_queues();
            assert!(verify(&mutated).is_err(), "{:?}", spec.instructions[at]);
            count += 1;
        }
    }
    // Of two layers, in training and in evaluation; backward passes keep them.
    assert_eq!(count, 4);
}

#[test]
fn each_layer_sends_rows_twice_forward_and_twice_backward() {
    let program = routed(1);
    let class = &program.classes[0];
    let count = |entry: &Entry| {
        let body = &class.body_of(entry).instructions;
        body.iter().filter(|it| it.moves_rows(class)).count()
    };
    let passes: Vec<usize> = class.entries().map(count).filter(|&it| it > 0).collect();
    assert_eq!(passes, [4; 8], "four micro-batches forward and backward");
}
