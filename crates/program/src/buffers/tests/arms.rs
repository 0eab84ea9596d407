//! Guards whose arms are of any length, and programs in which something is never freed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Mesh, ScheduleKind, Uniform};

use super::super::BufferPlan;
use super::{check_class, graph, uniform};
use crate::{
    Action, Body, BodyId, BodyKind, Class, Content, Control, Copies, Entry, Format, Group, Guard,
    Instruction, Keep, Part, Program, Shape, Tensor, TensorId, View, lower,
};

/// How many tensors there are before a guard, of which both of its arms free some.
const BEFORE: u32 = 4;

/// How many tensors each arm may have of its own.
const OWN: u32 = 4;

/// A program of two stages to put bodies into.
fn program(schedule: ScheduleKind) -> Program {
    let graph = graph("mlp:inputs=2,hidden=2,layers=2,classes=2");
    let uniform = Uniform {
        pp: 2,
        mesh: Mesh::SINGLE,
        schedule,
        clip_norm: schedule.flushes().then_some(1.0),
        ..uniform()
    };
    lower(&graph, &uniform.plan(&graph, "model", "local"), 2).expect("a program")
}

fn passing(number: u32, lines: usize) -> Tensor {
    Tensor {
        name: format!("tensor {number}"),
        shape: Shape::Local(vec![64 * lines]),
        format: Format::U8,
        keep: Keep::Transient,
        copies: Copies::One,
        content: Content::Activation,
        bucket: None,
    }
}

fn writes(tensor: u32) -> Instruction {
    Instruction::new(Action::Add, [], [View::whole(TensorId(tensor))])
}

fn frees(tensor: u32) -> Instruction {
    Instruction::new(Action::Free, [], []).freeing([TensorId(tensor)])
}

/// What an arm does in some order: it frees what both free, and writes and frees tensors of its own, which
/// are numbered from `first` on.
fn arm(first: u32, both_free: Vec<bool>) -> impl Strategy<Value = Vec<Instruction>> {
    let both = (0..BEFORE).zip(both_free).filter(|(_, frees)| *frees).map(|(it, _)| it);
    let events: Vec<u32> = both.chain((first..first + OWN).flat_map(|it| [it, it])).collect();
    let own = prop::collection::vec(any::<bool>(), OWN as usize);
    (Just(events).prop_shuffle(), own).prop_map(move |(events, own)| {
        let is_left_out = |it: u32| it >= first && !own[(it - first) as usize];
        let mut there = vec![];
        let mut instructions = vec![];
        for tensor in events.into_iter().filter(|&it| !is_left_out(it)) {
            if tensor < BEFORE || there.contains(&tensor) {
                instructions.push(frees(tensor));
            } else {
                there.push(tensor);
                instructions.push(writes(tensor));
            }
        }
        instructions
    })
}

/// A class that runs what comes before, a guard with these arms, each in bodies of so many instructions, and
/// what comes after.
fn class(
    of: &Class,
    lines: &[usize],
    arms: [&[Instruction]; 2],
    each: usize,
    left: &[u32],
) -> Class {
    let mut class = of.clone();
    class.tensors = (0..).zip(lines).map(|(number, &lines)| passing(number, lines)).collect();
    class.bodies.clear();
    class.evaluation.clear();
    let mut entry = |instructions: Vec<Instruction>| {
        let part = Part::default();
        class.bodies.push(Body { kind: BodyKind::Test, part, instructions });
        Entry::new(BodyId(class.bodies.len() as u32 - 1), None)
    };
    let before = entry((0..BEFORE).map(writes).collect());
    let [then, otherwise] =
        arms.map(|arm| arm.chunks(each).map(|part| entry(part.to_vec())).collect::<Vec<Entry>>());
    let after = entry(left.iter().copied().map(frees).collect());
    let on = View::whole(TensorId(0));
    let guard = Guard { on, agreed: Group::World, shift: 0, then, otherwise };
    class.control = vec![Control::Run(before), Control::Guard(guard), Control::Run(after)];
    class
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(5),
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_the_arms_of_a_guard_write_and_free_lies_apart_from_what_is_there_with_it(
        (both_free, [then, otherwise]) in prop::collection::vec(any::<bool>(), BEFORE as usize)
            .prop_flat_map(|both| {
                let arms = [arm(BEFORE, both.clone()), arm(BEFORE + OWN, both.clone())];
                (Just(both), arms)
            }),
        lines in prop::collection::vec(1usize..4, (BEFORE + 2 * OWN) as usize),
        each in 1usize..9,
    ) {
        let program = program(ScheduleKind::Afab);
        let left = (0..BEFORE).zip(&both_free).filter(|(_, frees)| !**frees).map(|(it, _)| it);
        let left: Vec<u32> = left.collect();
        let class = class(&program.classes[0], &lines, [&then, &otherwise], each, &left);
        check_class(&program, &class, [1, 3]);
    }
}

/// Whether there is a plan of the buffers of each class.
fn has_plan(program: &Program) -> bool {
    let plan = || program.classes.iter().for_each(|it| drop(BufferPlan::new(program, it)));
    catch_unwind(AssertUnwindSafe(plan)).is_ok()
}

#[test]
fn what_nothing_frees_is_found_with_and_without_a_flush() {
    for schedule in [ScheduleKind::Afab, ScheduleKind::PipeDream] {
        let program = program(schedule);
        assert!(has_plan(&program));
        let class = &program.classes[0];
        let run = class.entries().map(|entry| entry.body).chain(class.evaluation.iter().copied());
        let run: std::collections::BTreeSet<u32> = run.map(|body| body.0).collect();
        let mut count = 0;
        for body in run.into_iter().map(|body| body as usize) {
            for at in 0..class.bodies[body].instructions.len() {
                if class.bodies[body].instructions[at].frees.is_empty() {
                    continue;
                }
                let mut leaking = program.clone();
                leaking.classes[0].bodies[body].instructions[at].frees.pop();
                assert!(!has_plan(&leaking), "{schedule:?}, body {body}, instruction {at}");
                count += 1;
            }
        }
        assert!(count > 10, "{count}");
    }
}
