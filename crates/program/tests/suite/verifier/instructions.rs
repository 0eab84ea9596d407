//! One instruction of a program: found by what it is, changed, left out or run twice.

use shardloom_graph::work::Pass;
use shardloom_plan::Axis;
use shardloom_program::{
    Action, Body, BodyKind, Collective, Content, Group, Instruction, Program, Queue,
};

/// The first instruction of a class for which something holds: its body and its number there.
pub fn find(
    program: &Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> (usize, usize) {
    let bodies = program.classes[class].bodies.iter().enumerate();
    let found = bodies.flat_map(|(body, spec)| {
        let number = move |(index, _)| (body, index);
        spec.instructions.iter().enumerate().filter(|(_, it)| is_it(it, spec)).map(number)
    });
    found.into_iter().next().expect("the program has such an instruction")
}

pub fn instruction(
    program: &mut Program,
    class: usize,
    (body, index): (usize, usize),
) -> &mut Instruction {
    &mut program.classes[class].bodies[body].instructions[index]
}

/// Changes the first instruction for which something holds.
pub fn change(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
    how: impl FnOnce(&mut Instruction),
) -> Program {
    let at = find(&program, class, is_it);
    how(instruction(&mut program, class, at));
    program
}

/// The same with queues that wait for each other as its instructions want it.
pub fn requeued(mut program: Program) -> Program {
    program.assign_queues();
    program
}

/// Takes the first instruction away for which something holds.
pub fn without(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> Program {
    let (body, index) = find(&program, class, is_it);
    program.classes[class].bodies[body].instructions.remove(index);
    requeued(program)
}

/// Takes every instruction away for which something holds.
pub fn without_all(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> Program {
    find(&program, class, &is_it);
    for body in &mut program.classes[class].bodies {
        let before = body.clone();
        body.instructions.retain(|it| !is_it(it, &before));
    }
    requeued(program)
}

/// Runs the first instruction twice for which something holds.
pub fn twice(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> Program {
    let (body, index) = find(&program, class, is_it);
    let instructions = &mut program.classes[class].bodies[body].instructions;
    instructions.insert(index, instructions[index].clone());
    requeued(program)
}

pub fn sends(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Send { .. })
}

pub fn receives(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Receive { .. })
}

/// Whether it computes, and waits for a message.
pub fn waits(it: &Instruction, _: &Body) -> bool {
    it.queue == Queue::Compute && !it.after.is_empty()
}

pub fn optimizes(it: &Instruction, _: &Body) -> bool {
    it.action == Action::Optimizer
}

pub fn casts(it: &Instruction, _: &Body) -> bool {
    it.action == Action::Cast
}

pub fn frees(it: &Instruction, body: &Body) -> bool {
    body.kind == BodyKind::Backward && !it.frees.is_empty()
}

pub fn is_kernel(it: &Instruction, wanted: Pass) -> bool {
    matches!(it.action, Action::Kernel { pass, .. } if pass == wanted)
}

pub fn gathers(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Collective { kind: Collective::AllGather { .. }, .. })
}

/// Whether it keeps a share of gathered weights. Nothing else is copied where steps do not overlap and no gradients are
/// of several operators.
pub fn copies_weights(it: &Instruction, body: &Body) -> bool {
    it.action == Action::Copy && body.kind == BodyKind::Forward
}

/// Whether it gathers weights for a backward pass.
pub fn gathers_second_copy(it: &Instruction, body: &Body) -> bool {
    gathers(it, body) && body.kind == BodyKind::Backward
}

/// Whether it reduces gradients.
pub fn reduces(program: &Program, class: usize) -> impl Fn(&Instruction, &Body) -> bool + use<> {
    let tensors = program.classes[class].tensors.clone();
    move |it, _| {
        matches!(it.action, Action::Collective { .. })
            && tensors[it.reads[0].tensor.0 as usize].content == Content::Gradient
    }
}

/// Whether it sums up weights that each replica has its own of.
pub fn sums_weights(it: &Instruction, body: &Body) -> bool {
    body.kind == BodyKind::Averaging && matches!(it.action, Action::Collective { .. })
}

pub fn averages(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Average { .. })
}

pub fn publishes(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Publish { .. })
}

pub fn fetches(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Fetch { .. })
}

pub fn asks(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Due { .. })
}

/// Has a collective be one over other axes.
pub fn over_axes(it: &mut Instruction, axes: &[Axis]) {
    let Action::Collective { group, .. } = &mut it.action else { panic!("it is a collective") };
    *group = Group::Mesh(axes.to_vec());
}

/// Whether it is an operator that adds to the gradient of a parameter.
pub fn differentiates(it: &Instruction, _: &Body) -> bool {
    is_kernel(it, Pass::Weight)
}

pub fn over_classes(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Collective { group: Group::Classes(_), .. })
}
