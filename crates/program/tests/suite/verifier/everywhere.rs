//! A change that no program bears is rejected at every instruction and every entry at which it is made.

use shardloom_plan::{Averaging, Optimizer, Precision, ScheduleKind, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, Class, ClassId, Control, Entry, Handler, Instruction, Mode, Program,
};

use super::programs::{
    averaged, both_ways, gpt, local_sgd, lowered, mesh, pairs, pipeline, program, replicas, routed,
    served, stashed, summed, uniform, validated,
};

/// Programs that differ in what they have to keep to.
fn several() -> Vec<Program> {
    let graph = gpt(false);
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let alone = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 2), 1);
    let lamb = Uniform { optimizer: lamb, ..alone.clone() };
    let mixed = Uniform { precision: Precision::MIXED, ..alone };
    let of = |uniform: &Uniform| lowered(&graph, &uniform.plan(&graph, "model", "local"));
    let split = program(ScheduleKind::OneForwardOneBackward, 2, mesh(2, 2), 2);
    let replicas = (0..=3).map(replicas);
    let others = [
        pipeline(),
        stashed(),
        validated(),
        served(),
        summed(),
        both_ways(),
        split,
        of(&lamb),
        of(&mixed),
    ];
    let averaged = [
        averaged(Averaging::SYNCHRONOUS, 1, 2, Precision::MIXED),
        averaged(Averaging::local_sgd(1), 2, 1, Precision::FP32),
        local_sgd(),
        pairs(),
    ];
    replicas.chain(others).chain(averaged).chain([routed(1)]).collect()
}

/// Each program with one change after another, made at every instruction.
fn at_every_instruction(mut change: impl FnMut(&Program, &Class, (usize, usize, usize))) {
    for program in several() {
        for (index, class) in program.classes.iter().enumerate() {
            for (body, spec) in class.bodies.iter().enumerate() {
                for at in 0..spec.instructions.len() {
                    change(&program, class, (index, body, at));
                }
            }
        }
    }
}

/// Whether a program is rejected even where its queues wait for each other as its instructions want it.
fn is_rejected(mut program: Program) -> bool {
    program.assign_queues();
    verify(&program).is_err()
}

#[test]
fn an_instruction_that_is_left_out_anywhere_is_rejected() {
    let mut count = 0;
    at_every_instruction(|program, class, (index, body, at)| {
        let instruction = &class.bodies[body].instructions[at];
        // One more summand of a value's gradient is for the graph to want, and a reduction in the pass of
        // each micro-batch may as well follow after several.
        let sums = instruction.writes.iter().any(|write| match instruction.action {
            Action::Kernel { .. } => write.mode == Mode::Add,
            Action::Collective { .. } => write.mode == Mode::AddUnlessFirst,
            _ => false,
        });
        if sums || is_alone(program, index, instruction) {
            return;
        }
        let mut mutated = program.clone();
        mutated.classes[index].bodies[body].instructions.remove(at);
        assert!(is_rejected(mutated), "{instruction:?}");
        count += 1;
    });
    assert!(count > 1000, "{count}");
}

#[test]
fn an_instruction_that_is_run_twice_anywhere_is_rejected() {
    let mut count = 0;
    at_every_instruction(|program, class, (index, body, at)| {
        let instruction = &class.bodies[body].instructions[at];
        if is_alone(program, index, instruction) {
            return;
        }
        let mut mutated = program.clone();
        let instructions = &mut mutated.classes[index].bodies[body].instructions;
        instructions.insert(at, instruction.clone());
        assert!(is_rejected(mutated), "{instruction:?}");
        count += 1;
    });
    assert!(count > 1000, "{count}");
}

/// Whether it is a collective of one rank, which has the result already.
fn is_alone(program: &Program, class: usize, instruction: &Instruction) -> bool {
    let Action::Collective { group, .. } = &instruction.action else { return false };
    program.members(ClassId(class as u32), 0, group).len() == 1
}

#[test]
fn a_free_that_is_left_out_anywhere_is_rejected() {
    let mut count = 0;
    at_every_instruction(|program, class, (index, body, at)| {
        let instruction = &class.bodies[body].instructions[at];
        for freed in 0..instruction.frees.len() {
            let mut mutated = program.clone();
            mutated.classes[index].bodies[body].instructions[at].frees.remove(freed);
            assert!(is_rejected(mutated), "{instruction:?}");
            count += 1;
        }
    });
    assert!(count > 1000, "{count}");
}

#[test]
fn a_write_in_another_mode_is_rejected_everywhere() {
    let mut count = 0;
    at_every_instruction(|program, class, (index, body, at)| {
        let instruction = &class.bodies[body].instructions[at];
        for (number, write) in instruction.writes.iter().enumerate() {
            let others = [Mode::Set, Mode::Add, Mode::AddUnlessFirst];
            for mode in others.into_iter().filter(|mode| *mode != write.mode) {
                let mut mutated = program.clone();
                let instructions = &mut mutated.classes[index].bodies[body].instructions;
                instructions[at].writes[number].mode = mode;
                assert!(is_rejected(mutated), "{mode:?} {instruction:?}");
                count += 1;
            }
        }
    });
    assert!(count > 1000, "{count}");
}

#[test]
fn a_pass_that_is_left_out_or_run_twice_anywhere_is_rejected() {
    let mut count = 0;
    for program in several() {
        for (index, class) in program.classes.iter().enumerate() {
            for (at, entry) in class.entries().enumerate() {
                let kind = class.body_of(entry).kind;
                let without = with_entries(&program, index, at, &[]);
                assert!(verify(&without).is_err(), "without {entry:?}, {kind:?}");
                let twice = with_entries(&program, index, at, &[*entry; 2]);
                assert!(verify(&twice).is_err(), "twice {entry:?}, {kind:?}");
                count += 2;
            }
        }
    }
    assert!(count > 100, "{count}");
}

/// The program with other entries in the place of the n-th of a class.
fn with_entries(program: &Program, class: usize, at: usize, entries: &[Entry]) -> Program {
    let mut mutated = program.clone();
    let mut number = 0..;
    let mut replaced = |entry: &Entry| match number.next() == Some(at) {
        true => entries.to_vec(),
        false => vec![*entry],
    };
    let mut control = vec![];
    for part in &program.classes[class].control {
        match part {
            Control::Run(entry) => control.extend(replaced(entry).into_iter().map(Control::Run)),
            Control::Guard(guard) => {
                let mut guard = guard.clone();
                guard.then = guard.then.iter().flat_map(&mut replaced).collect();
                guard.otherwise = guard.otherwise.iter().flat_map(&mut replaced).collect();
                control.push(Control::Guard(guard));
            }
            Control::Serve(serve) => {
                let mut serve = serve.clone();
                for client in &mut serve.clients {
                    let handlers = client.handlers.iter().flat_map(|handler| {
                        let runs = replaced(&handler.run).into_iter();
                        runs.map(|run| Handler { run, ..*handler })
                    });
                    client.handlers = handlers.collect();
                }
                control.push(Control::Serve(serve));
            }
            Control::AsReceived(entries) => {
                let entries = entries.iter().flat_map(&mut replaced).collect();
                control.push(Control::AsReceived(entries));
            }
        }
    }
    mutated.classes[class].control = control;
    mutated
}

#[test]
fn a_guard_that_is_left_out_anywhere_is_rejected() {
    let mut count = 0;
    for program in several() {
        for (index, class) in program.classes.iter().enumerate() {
            for at in 0..class.control.len() {
                if matches!(class.control[at], Control::Guard(_)) {
                    let mut without = program.clone();
                    without.classes[index].control.remove(at);
                    assert!(verify(&without).is_err(), "the guard of class {index}");
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 4);
}

#[test]
fn a_point_that_is_not_waited_for_is_rejected_unless_others_imply_it() {
    let (mut rejected, mut implied) = (0, 0);
    at_every_instruction(|program, class, (index, body, at)| {
        for point in 0..class.bodies[body].instructions[at].after.len() {
            let mut mutated = program.clone();
            mutated.classes[index].bodies[body].instructions[at].after.remove(point);
            match verify(&mutated) {
                Ok(()) => implied += 1,
                Err(found) => {
                    let races = |it: &Violation| matches!(it, Violation::Race { .. });
                    assert!(found.iter().all(races), "{found:#?}");
                    rejected += 1;
                }
            }
        }
    });
    assert!(rejected > 500 && rejected > 2 * implied, "{rejected} rejected, {implied} implied");
}
