//! Programs in which one thing is wrong that takes more than changing one instruction.

use std::sync::Arc;

use shardloom_graph::work::Pass;
use shardloom_plan::Axis;
use shardloom_program::{
    Action, Body, BodyId, BodyKind, Content, Control, Copies, Entry, Extent, Format, Group, Guard,
    Instruction, Program, Shape, TensorId, View, Window,
};

use super::instructions::{
    averages, casts, change, differentiates, fetches, find, frees, gathers, instruction, is_kernel,
    optimizes, over_classes, publishes, requeued, sends, without,
};
use super::programs::{mesh, validated_on};

/// Frees a tensor at its first read instead of its last.
pub fn freed_early(mut program: Program) -> Program {
    let body = find(&program, 0, frees).0;
    let instructions = &mut program.classes[0].bodies[body].instructions;
    let read_before = |last: usize, tensor: TensorId| {
        let reads = |it: &Instruction| it.reads.iter().any(|read| read.tensor == tensor);
        instructions[..last].iter().position(reads)
    };
    let found = instructions.iter().enumerate().find_map(|(last, it)| {
        it.frees.iter().find_map(|&tensor| Some((read_before(last, tensor)?, last, tensor)))
    });
    let (first, last, tensor) = found.expect("something is read twice in a pass");
    instructions[last].frees.retain(|&it| it != tensor);
    instructions[first].frees.push(tensor);
    program
}

/// Frees what an instruction writes before anybody reads it.
pub fn freed_at_once(program: Program) -> Program {
    let loads = |it: &Instruction, body: &Body| {
        body.kind == BodyKind::Forward && matches!(it.action, Action::Load { .. })
    };
    change(program, 0, loads, |it| it.frees.push(it.writes[0].to.tensor))
}

/// Has an operator read a value of another shape.
pub fn reads_another(program: Program) -> Program {
    let class = program.classes[0].clone();
    let forward = |it: &Instruction, body: &Body| {
        body.kind == BodyKind::Forward && is_kernel(it, Pass::Forward) && it.reads.len() == 2
    };
    change(program, 0, forward, |it| {
        let shape = class.shape(it.reads[0]).to_vec();
        let other = class.tensors().find(|(_, tensor)| {
            tensor.copies == Copies::PerMicrobatch && tensor.local_shape() != shape
        });
        it.reads[0] = View::whole(other.expect("values have several shapes").0);
    })
}

/// Has an operator read a value of the same shape that is written by a later one.
pub fn reads_later(mut program: Program) -> Program {
    let class = program.classes[0].clone();
    let body = class.bodies.iter().position(|body| body.kind == BodyKind::Forward);
    let instructions = &mut program.classes[0].bodies[body.expect("a pass")].instructions;
    let later = (0..instructions.len()).find_map(|at| {
        let read = instructions[at].reads.first()?;
        is_kernel(&instructions[at], Pass::Forward).then_some(())?;
        let like = |view: &View| {
            let format = |view: &View| class.tensor(view.tensor).format;
            view.tensor != read.tensor
                && class.tensor(view.tensor).copies == Copies::PerMicrobatch
                && class.shape(*view) == class.shape(*read)
                && format(view) == format(read)
        };
        let writes = instructions[at + 1..].iter().flat_map(|it| &it.writes);
        Some((at, writes.map(|write| write.to).find(like)?))
    });
    let (at, view) = later.expect("values have equal shapes");
    instructions[at].reads[0] = view;
    program
}

pub fn on_another_route(program: Program) -> Program {
    let other = program.routes.iter().position(|route| route.from.0 == 1).expect("a way back");
    change(program, 0, sends, |it| {
        it.action = Action::Send { route: shardloom_program::RouteId(other as u32) };
    })
}

/// Changes what the first message of the first route reads.
pub fn message(
    mut program: Program,
    how: impl FnOnce(&mut shardloom_program::Placement),
) -> Program {
    let message = &mut Arc::make_mut(&mut program.routes[0].messages)[0];
    how(&mut message.source);
    message.target = message.source.clone();
    program
}

pub fn shorter_messages(program: Program) -> Program {
    message(program, |part| *part.extent.last_mut().expect("values have axes") -= 1)
}

pub fn no_messages(mut program: Program) -> Program {
    program.routes[0].messages = [].into();
    program
}

pub fn route_format(mut program: Program) -> Program {
    program.routes[0].format = Format::Bf16;
    program
}

/// Swaps two meetings of one class.
pub fn swapped(mut program: Program) -> Program {
    let meetings = |body: &Body| {
        let all = body.instructions.iter().enumerate().filter(|(_, it)| over_classes(it, body));
        all.map(|(index, _)| index).collect::<Vec<usize>>()
    };
    let bodies = &mut program.classes[0].bodies;
    let body = bodies.iter_mut().find(|body| meetings(body).len() > 1).expect("several buckets");
    let at = meetings(body);
    body.instructions.swap(at[0], at[1]);
    program
}

/// Has weights published after the averages of their step.
pub fn published_late(mut program: Program) -> Program {
    let (body, index) = find(&program, 0, publishes);
    let bodies = &mut program.classes[0].bodies;
    let publish = bodies[body].instructions.remove(index);
    let average = |it: &Body| it.instructions.iter().any(|it| averages(it, &bodies[body]));
    let last = bodies.iter().position(average).expect("it averages");
    bodies[last].instructions.push(publish);
    requeued(program)
}

/// Has half of the buckets published by themselves, right after the others.
pub fn published_in_parts(mut program: Program) -> Program {
    let (body, index) = find(&program, 0, publishes);
    let instructions = &mut program.classes[0].bodies[body].instructions;
    let mut rest = instructions[index].clone();
    let half = rest.writes.len() / 2;
    rest.reads.drain(..half);
    rest.writes.drain(..half);
    instructions[index].reads.truncate(half);
    instructions[index].writes.truncate(half);
    instructions.insert(index + 1, rest);
    requeued(program)
}

/// Has a fetch stand before what it waits for of others.
pub fn fetched_first(mut program: Program) -> Program {
    let (body, index) = find(&program, 0, fetches);
    program.classes[0].bodies[body].instructions.swap(index - 1, index);
    requeued(program)
}

/// Moves the collective over a content into another group.
pub fn regrouped(program: Program, class: usize, content: Content, to: Group) -> Program {
    let tensors = program.classes[class].tensors.clone();
    let of_it = |it: &Instruction, _: &Body| {
        matches!(it.action, Action::Collective { .. })
            && tensors[it.reads[0].tensor.0 as usize].content == content
    };
    requeued(change(program, class, of_it, |it| {
        if let Action::Collective { group, .. } = &mut it.action {
            *group = to;
        }
    }))
}

pub fn other_kind(program: Program) -> Program {
    change(program, 0, over_classes, |it| {
        if let Action::Collective { algorithm, .. } = &mut it.action {
            let others =
                [shardloom_collectives::Algorithm::Direct, shardloom_collectives::Algorithm::Ring];
            *algorithm = others.into_iter().find(|it| it != algorithm).expect("there are two");
        }
    })
}

pub fn short_bucket(mut program: Program) -> Program {
    program.classes[0].buckets[0].elements -= 1;
    program
}

pub fn short_tensor(mut program: Program, content: Content) -> Program {
    let shorten = |tensor: &mut shardloom_program::Tensor| match &mut tensor.shape {
        Shape::Flat(Extent::Exactly(elements)) if tensor.content == content => {
            *elements -= 1;
            true
        }
        _ => false,
    };
    assert!(program.classes[0].tensors.iter_mut().any(shorten));
    program
}

/// Gathers the weights of one bucket from another's shards, of another size.
pub fn other_bucket(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, gathers, |it| {
        let own = class.tensor(it.reads[0].tensor).bucket.expect("weights lie in buckets");
        let size = class.bucket(own).elements;
        let other = class.buckets.iter().find(|bucket| bucket.elements != size);
        let other = other.expect("buckets of another size");
        it.reads[0] = View::whole(other.held.replicated.weights);
    })
}

pub fn other_format(mut program: Program) -> Program {
    let shard = program.classes[0].buckets[0].held.replicated.weights;
    program.classes[0].tensors[shard.0 as usize].format = Format::Bf16;
    program
}

/// Adds a parameter's gradient to another's of the same shape in the same bucket.
pub fn other_parameter(mut program: Program) -> Program {
    let class = program.classes[0].clone();
    let like = |view: View| {
        let Window::Param(param) = view.window else { return None };
        let spec = class.param(param);
        let mut others = class.bucket(spec.bucket).params.iter();
        let other = others.find(|&&it| it != param && class.param(it).shape == spec.shape)?;
        Some(View { window: Window::Param(*other), ..view })
    };
    let writes = program.classes[0].bodies.iter_mut().flat_map(|body| &mut body.instructions);
    let mut writes = writes.filter(|it| is_kernel(it, Pass::Weight)).flat_map(|it| &mut it.writes);
    let changed = writes.any(|write| match like(write.to) {
        Some(other) => {
            write.to = other;
            true
        }
        None => false,
    });
    assert!(changed, "two parameters of a bucket have the same shape");
    program
}

/// Adds to the gradient of a parameter that lies in another bucket.
pub fn outside(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, differentiates, |it| {
        let own = class.tensor(it.writes[0].to.tensor).bucket;
        let other = class.buckets().find(|(id, _)| Some(*id) != own).expect("several buckets").1;
        it.writes[0].to.window = Window::Param(other.params[0]);
    })
}

/// Moves the weights of a bucket with one parameter along what a larger bucket has.
pub fn moved_along_another(program: Program) -> Program {
    let class = program.classes[0].clone();
    let bucket = |view: View| class.tensor(view.tensor).bucket.map(|id| class.bucket(id));
    let is_alone = |it: &Instruction, _: &Body| {
        matches!(it.action, Action::Extrapolate { .. })
            && bucket(it.reads[0]).is_some_and(|bucket| bucket.params.len() == 1)
    };
    change(program, 0, is_alone, |it| {
        let [own, along] = [it.reads[0], it.reads[1]];
        let content = |view: View| class.tensor(view.tensor).content;
        let elements = |view: View| bucket(view).map(|bucket| bucket.elements);
        let mut all = class.tensors().map(|(id, _)| View::whole(id));
        let larger = all.find(|&it| content(it) == content(along) && elements(it) > elements(own));
        it.reads = vec![View::whole(own.tensor), larger.expect("another bucket is larger")];
    })
}

/// Leaves a weight gradient out for one micro-batch.
pub fn uneven(mut program: Program) -> Program {
    let class = &mut program.classes[0];
    let is_it = |entry: &Entry| {
        class.body_of(entry).kind == BodyKind::Backward && entry.microbatch == Some(1)
    };
    let entry = class.control.iter().position(|it| matches!(it, Control::Run(it) if is_it(it)));
    let entry = entry.expect("every micro-batch goes backward");
    let Control::Run(mut changed) = class.control[entry] else { panic!("it is an entry") };
    let mut body = class.body_of(&changed).clone();
    let at = body.instructions.iter().position(|it| is_kernel(it, Pass::Weight));
    let gone = body.instructions.remove(at.expect("a pass has weight gradients"));
    // What it was the last to read goes one earlier.
    let before = at.expect("found above") - 1;
    body.instructions[before].frees.extend(gone.frees);
    class.bodies.push(body);
    changed.body = BodyId(class.bodies.len() as u32 - 1);
    class.control[entry] = Control::Run(changed);
    program
}

pub fn foreign_gradients(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, optimizes, |it| {
        let own = class.tensor(it.reads[0].tensor).bucket;
        let other = class.buckets().find(|(id, _)| Some(*id) != own).expect("several buckets").1;
        it.reads[0] = other.held.replicated.expect_gradients().reduced;
    })
}

/// Changes the age of the weights that the first class's late backward passes run with.
pub fn aged(mut program: Program, how: impl Fn(u32) -> u32) -> Program {
    let mut count = 0;
    for part in &mut program.classes[0].control {
        if let Control::Run(entry) = part
            && entry.age > 0
        {
            entry.age = how(entry.age);
            count += 1;
        }
    }
    assert!(count > 0, "some pass is late");
    program
}

pub fn fewer_versions(mut program: Program) -> Program {
    let class = &mut program.classes[0];
    let several = |copies: &Copies| matches!(copies, Copies::Versions(it) if *it > 1);
    let tensors = class.tensors.iter_mut().filter(|tensor| several(&tensor.copies));
    let mut tensors: Vec<_> = tensors.collect();
    // Others have as many as before.
    assert!(tensors.len() > 1, "versions are held of several");
    tensors.remove(0).copies = Copies::One;
    program
}

/// Takes the first entry away for which something holds.
pub fn without_entry(
    mut program: Program,
    class: usize,
    is_it: impl Fn(BodyKind) -> bool,
) -> Program {
    let class = &mut program.classes[class];
    let kind = |entry: &Entry| class.body_of(entry).kind;
    let found = |part: &Control| matches!(part, Control::Run(entry) if is_it(kind(entry)));
    let at = class.control.iter().position(found);
    class.control.remove(at.expect("the control has such an entry"));
    program
}

/// Changes the first guard of a class.
pub fn guarded(mut program: Program, class: usize, how: impl FnOnce(&mut Guard)) -> Program {
    let mut guards = program.classes[class].control.iter_mut().filter_map(|part| match part {
        Control::Run(_) | Control::Serve(_) | Control::AsReceived(_) => None,
        Control::Guard(guard) => Some(guard),
    });
    how(guards.next().expect("the class has a guard"));
    program
}

/// Four ranks to a stage. Those of the first must agree on their updates, and know only the norm of the ranks
/// along `axes`.
pub fn agreed_within(axes: &[Axis]) -> Program {
    // The norm of all does not come back to the first stage.
    let program = without(validated_on(mesh(2, 2)), 0, |it, body| {
        body.kind == BodyKind::Test && matches!(it.action, Action::Receive { .. })
    });
    let program = without(program, 1, |it, body| {
        body.kind == BodyKind::Epilogue && matches!(it.action, Action::Send { .. })
    });
    let program = regrouped(program, 0, Content::Norm, Group::Mesh(axes.to_vec()));
    guarded(program, 0, |guard| guard.agreed = Group::Mesh(vec![Axis::DP, Axis::TP]))
}

/// Takes the first entry of a kind out of what is run where an update was wrong.
pub fn rolled_back(program: Program, class: usize, is_it: impl Fn(BodyKind) -> bool) -> Program {
    let kinds: Vec<BodyKind> = program.classes[class].bodies.iter().map(|it| it.kind).collect();
    guarded(program, class, |guard| {
        let at = guard.otherwise.iter().position(|it| is_it(kinds[it.body.0 as usize]));
        guard.otherwise.remove(at.expect("it is run again"));
    })
}

/// Puts a guard before the test that writes its flag.
pub fn guard_first(mut program: Program) -> Program {
    let control = &mut program.classes[0].control;
    let at = control.iter().position(|part| matches!(part, Control::Guard(_)));
    let at = at.expect("the class has a guard");
    control.swap(at - 1, at);
    program
}

/// Swaps what two copies of one bucket go back to.
pub fn restored_elsewhere(program: Program) -> Program {
    let restores = |it: &Instruction, body: &Body| {
        it.action == Action::Copy && body.kind == BodyKind::Rollback
    };
    change(program, 0, restores, |it| it.writes.swap(1, 2))
}

/// Makes the first copies of what an update changes after it.
pub fn late_copies(mut program: Program) -> Program {
    let (body, copy) =
        find(&program, 0, |it, body| it.action == Action::Copy && body.kind == BodyKind::Epilogue);
    let instructions = &mut program.classes[0].bodies[body].instructions;
    let copied = instructions.remove(copy);
    instructions.push(copied);
    program
}

/// The first cast comes before the update of what it casts.
pub fn cast_before_update(mut program: Program) -> Program {
    let (body, index) = find(&program, 0, casts);
    program.classes[0].bodies[body].instructions.swap(index - 1, index);
    program
}

/// The first cast reads the optimizer's state instead of the master weights.
pub fn cast_of_moments(mut program: Program) -> Program {
    let at = find(&program, 0, casts);
    let tensors = &program.classes[0].tensors;
    let moment = tensors.iter().position(|it| matches!(it.content, Content::OptimizerState(_)));
    let moment = TensorId(moment.expect("AdamW keeps moments") as u32);
    instruction(&mut program, 0, at).reads[0].tensor = moment;
    program
}
