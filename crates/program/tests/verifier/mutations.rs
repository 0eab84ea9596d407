//! Programs in which one thing is wrong are rejected, and for that.

use std::collections::BTreeSet;

use shardloom_graph::work::Pass;
use shardloom_plan::{Averaging, Axis, Precision, ScheduleKind};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, Body, BodyId, BodyKind, Collective, Content, Control, Copies, Entry, Extent, Format,
    Group, Guard, Instruction, Mode, ParamId, Point, Program, Queue, Shape, TensorId, View, Window,
};

use crate::programs::{
    averaged, both_ways, local_sgd, mesh, mixed, pipeline, predicted, program, replicas, served,
    stashed, validated, validated_on,
};

/// The first instruction of a class for which something holds: its body and its number there.
fn find(
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

fn instruction(
    program: &mut Program,
    class: usize,
    (body, index): (usize, usize),
) -> &mut Instruction {
    &mut program.classes[class].bodies[body].instructions[index]
}

/// Changes the first instruction for which something holds.
fn change(
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
fn requeued(mut program: Program) -> Program {
    program.assign_queues();
    program
}

/// Takes the first instruction away for which something holds.
fn without(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> Program {
    let (body, index) = find(&program, class, is_it);
    program.classes[class].bodies[body].instructions.remove(index);
    requeued(program)
}

/// Takes every instruction away for which something holds.
fn without_all(
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
fn twice(
    mut program: Program,
    class: usize,
    is_it: impl Fn(&Instruction, &Body) -> bool,
) -> Program {
    let (body, index) = find(&program, class, is_it);
    let instructions = &mut program.classes[class].bodies[body].instructions;
    instructions.insert(index, instructions[index].clone());
    requeued(program)
}

fn sends(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Send { .. })
}

fn receives(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Receive { .. })
}

/// Whether it computes, and waits for a message.
fn waits(it: &Instruction, _: &Body) -> bool {
    it.queue == Queue::Compute && !it.after.is_empty()
}

fn optimizes(it: &Instruction, _: &Body) -> bool {
    it.action == Action::Optimizer
}

fn casts(it: &Instruction, _: &Body) -> bool {
    it.action == Action::Cast
}

fn frees(it: &Instruction, body: &Body) -> bool {
    body.kind == BodyKind::Backward && !it.frees.is_empty()
}

fn is_kernel(it: &Instruction, wanted: Pass) -> bool {
    matches!(it.action, Action::Kernel { pass, .. } if pass == wanted)
}

fn gathers(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Collective { kind: Collective::AllGather { .. }, .. })
}

/// Whether it reduces gradients.
fn reduces(program: &Program, class: usize) -> impl Fn(&Instruction, &Body) -> bool + use<> {
    let tensors = program.classes[class].tensors.clone();
    move |it, _| {
        matches!(it.action, Action::Collective { .. })
            && tensors[it.reads[0].tensor.0 as usize].content == Content::Gradient
    }
}

/// Whether it sums up weights that each replica has its own of.
fn sums_weights(it: &Instruction, body: &Body) -> bool {
    body.kind == BodyKind::Averaging && matches!(it.action, Action::Collective { .. })
}

fn averages(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Average { .. })
}

fn asks(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Due { .. })
}

/// Has a collective be one over other axes.
fn over_axes(it: &mut Instruction, axes: &[Axis]) {
    let Action::Collective { group, .. } = &mut it.action else { panic!("it is a collective") };
    *group = Group::Mesh(axes.to_vec());
}

/// Whether it is an operator that adds to the gradient of a parameter.
fn differentiates(it: &Instruction, _: &Body) -> bool {
    is_kernel(it, Pass::Weight)
}

/// The first parameter of a bucket.
const FIRST: Window = Window::Param(ParamId(0));

/// A mutated program is rejected, for one of these reasons among others.
macro_rules! rejected {
    ($($name:ident: $program:expr => $violation:pat),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let found = verify(&$program).expect_err("something is wrong with it");
                assert!(
                    found.iter().any(|violation| matches!(violation, $violation)),
                    "{found:#?}"
                );
            }
        )*
    };
}

rejected! {
    a_use_that_does_not_wait_for_its_message_is_rejected:
        change(pipeline(), 1, waits, |it| it.after.clear()) => Violation::Race { .. },
    a_reduction_that_does_not_wait_for_computation_is_rejected: {
        let program = replicas(0);
        let reduces = reduces(&program, 0);
        change(program, 0, reduces, |it| it.after.clear())
    } => Violation::Race { .. },
    a_gather_that_overtakes_the_readers_of_its_tensor_is_rejected: {
        let waits = |it: &Instruction, body: &Body| gathers(it, body) && !it.after.is_empty();
        change(replicas(1), 0, waits, |it| it.after.clear())
    } => Violation::Race { .. },
    a_wait_for_the_same_micro_batch_where_all_share_a_tensor_is_rejected: {
        change(replicas(0), 0, |it, _| it.action == Action::Norm, |it| {
            for point in &mut it.after {
                if let Point::Latest(body, number) = *point {
                    *point = Point::Microbatch(body, number);
                }
            }
        })
    } => Violation::Race { .. },
    computation_in_the_queue_of_sends_is_rejected:
        change(pipeline(), 0, optimizes, |it| it.queue = Queue::Send) => Violation::Operands { .. },
    a_collective_in_the_queue_of_another_group_is_rejected: {
        let program = replicas(0);
        let reduces = reduces(&program, 0);
        change(program, 0, reduces, |it| it.queue = Queue::Communicator(9))
    } => Violation::Operands { .. },
    a_wait_for_a_later_instruction_is_rejected:
        change(pipeline(), 0, sends, |it| it.after.push(Point::Here(u32::MAX)))
            => Violation::Operands { .. },
    a_dropped_receive_is_rejected: without(pipeline(), 1, receives) => Violation::Messages { .. },
    a_value_that_is_not_received_is_rejected:
        without(pipeline(), 1, receives) => Violation::Unwritten { .. },
    a_dropped_send_is_rejected: without(pipeline(), 0, sends) => Violation::Messages { .. },
    a_message_sent_twice_is_rejected: twice(pipeline(), 0, sends) => Violation::Messages { .. },
    a_missing_free_is_rejected:
        change(pipeline(), 0, frees, |it| { it.frees.pop(); }) => Violation::Left { .. },
    a_double_free_is_rejected:
        change(pipeline(), 0, frees, |it| it.frees.push(it.frees[0])) => Violation::FreedTwice { .. },
    freeing_what_lasts_is_rejected:
        change(pipeline(), 0, optimizes, |it| it.frees.push(it.reads[0].tensor))
            => Violation::FreedTwice { .. },
    an_early_free_is_rejected: freed_early(pipeline()) => Violation::Unwritten { .. },
    a_free_right_after_the_write_is_rejected: freed_at_once(pipeline()) => Violation::Unread { .. },
    a_wrong_tensor_as_operand_is_rejected: reads_another(pipeline()) => Violation::Operator { .. },
    a_read_of_what_is_not_there_yet_is_rejected: reads_later(pipeline()) => Violation::Unwritten { .. },
    an_unknown_tensor_is_rejected:
        change(pipeline(), 0, sends, |it| it.reads[0].tensor = TensorId(u32::MAX))
            => Violation::Operands { .. },
    a_send_of_nothing_is_rejected:
        change(pipeline(), 0, sends, |it| it.reads.clear()) => Violation::Operands { .. },
    a_route_to_another_class_is_rejected: on_another_route(pipeline()) => Violation::Operands { .. },
    a_message_one_element_longer_is_rejected: message(pipeline(), |part| {
        *part.extent.last_mut().expect("values have axes") += 1;
    }) => Violation::Route { .. },
    a_message_one_element_off_is_rejected: message(pipeline(), |part| {
        *part.start.last_mut().expect("values have axes") += 1;
    }) => Violation::Route { .. },
    messages_that_miss_an_element_are_rejected: shorter_messages(pipeline()) => Violation::Route { .. },
    a_receiver_without_messages_is_rejected: no_messages(pipeline()) => Violation::Route { .. },
    a_route_of_another_format_is_rejected: route_format(pipeline()) => Violation::Formats { .. },
    a_dropped_cast_is_rejected: without(mixed(0), 0, casts) => Violation::Updates { .. },
    weights_cast_twice_are_rejected: twice(mixed(0), 0, casts) => Violation::Updates { .. },
    a_cast_before_the_update_is_rejected: cast_before_update(mixed(1)) => Violation::CastEarly { .. },
    a_cast_of_moments_is_rejected: cast_of_moments(mixed(1)) => Violation::Operands { .. },
    weights_that_are_cast_and_not_gathered_are_rejected:
        without(mixed(1), 0, gathers) => Violation::Stale { .. },
    swapped_collectives_of_one_class_are_rejected: swapped(both_ways()) => Violation::Meeting { .. },
    a_meeting_that_one_class_leaves_out_is_rejected:
        without_all(both_ways(), 0, over_classes) => Violation::Meeting { .. },
    a_norm_among_fewer_ranks_is_rejected:
        regrouped(pipeline(), 0, Content::Norm, Group::Mesh(vec![])) => Violation::Deadlock { .. },
    an_update_before_the_norm_of_all_is_known_is_rejected:
        regrouped(pipeline(), 0, Content::Norm, Group::Mesh(vec![])) => Violation::Unreduced { .. },
    a_reduction_in_the_wrong_group_is_rejected:
        regrouped(
            program(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 2), 0),
            0,
            Content::Gradient,
            Group::Mesh(vec![Axis::CP]),
        ) => Violation::Unreduced { .. },
    another_algorithm_on_one_class_is_rejected: other_kind(both_ways()) => Violation::Meeting { .. },
    a_dropped_reduction_is_rejected: {
        let program = replicas(0);
        let reduces = reduces(&program, 0);
        without(program, 0, reduces)
    } => Violation::Unreduced { .. },
    a_reduction_twice_is_rejected: {
        let program = replicas(0);
        let reduces = reduces(&program, 0);
        twice(program, 0, reduces)
    } => Violation::ReducedTwice { .. },
    gradients_that_a_worker_sends_twice_are_rejected:
        twice(served(), 0, sends) => Violation::ReducedTwice { .. },
    a_reduction_to_shares_twice_is_rejected: {
        let program = replicas(1);
        let reduces = reduces(&program, 0);
        twice(program, 0, reduces)
    } => Violation::ReducedTwice { .. },
    a_sum_of_shards_that_forgets_micro_batches_is_rejected: {
        let program = replicas(2);
        let reduces = reduces(&program, 0);
        change(program, 0, reduces, |it| it.writes[0].mode = Mode::Set)
    } => Violation::Lost { .. },
    a_dropped_reduction_over_classes_is_rejected: {
        let program = both_ways();
        let program = without(program, 0, over_classes);
        without(program, 1, over_classes)
    } => Violation::Unreduced { .. },
    a_dropped_gather_before_a_use_is_rejected:
        without(replicas(3), 0, gathers) => Violation::Unwritten { .. },
    a_dropped_gather_after_an_update_is_rejected:
        without(replicas(1), 0, gathers) => Violation::Stale { .. },
    a_shard_one_element_short_is_rejected: short_bucket(replicas(3)) => Violation::Bucket { .. },
    a_bucket_with_a_parameter_that_is_not_there_is_rejected: {
        let mut program = pipeline();
        program.classes[0].buckets[0].params.push(ParamId(u32::MAX));
        program
    } => Violation::Bucket { .. },
    gathered_weights_one_element_short_are_rejected:
        short_tensor(replicas(3), Content::Weight) => Violation::Bucket { .. },
    gathering_into_a_tensor_of_another_bucket_is_rejected:
        other_bucket(replicas(3)) => Violation::Operands { .. },
    a_gather_among_too_few_ranks_is_rejected:
        regrouped(replicas(3), 0, Content::Weight, Group::Mesh(vec![])) => Violation::Shares { .. },
    another_element_format_of_a_shard_is_rejected: other_format(replicas(3)) => Violation::Formats { .. },
    a_gradient_in_the_window_of_another_parameter_is_rejected:
        other_parameter(replicas(0)) => Violation::NoGradient { .. } | Violation::Operator { .. },
    weights_moved_along_those_of_a_larger_bucket_are_rejected:
        moved_along_another(predicted()) => Violation::Sizes { .. },
    a_parameter_of_another_bucket_is_rejected: outside(replicas(0)) => Violation::Outside { .. },
    a_gradient_that_is_set_is_rejected:
        change(replicas(0), 0, differentiates, |it| it.writes[0].mode = Mode::Set)
            => Violation::Mode { .. },
    an_update_that_overwrites_is_rejected:
        change(replicas(0), 0, optimizes, |it| it.writes[0].mode = Mode::Set)
            => Violation::Mode { .. },
    a_sum_that_begins_with_an_addition_is_rejected:
        change(pipeline(), 0, |it, _| is_kernel(it, Pass::Forward), |it| it.writes[0].mode = Mode::Add)
            => Violation::Unwritten { .. },
    a_dropped_weight_gradient_is_rejected:
        without_all(pipeline(), 0, differentiates) => Violation::NoGradient { .. },
    a_gradient_that_one_micro_batch_lacks_is_rejected: uneven(pipeline()) => Violation::Contributions { .. },
    a_state_that_the_update_leaves_out_is_rejected:
        change(pipeline(), 0, optimizes, |it| { it.writes.pop(); }) => Violation::Updates { .. },
    an_update_with_a_part_of_the_gradients_is_rejected:
        change(pipeline(), 0, optimizes, |it| it.reads[0].window = FIRST) => Violation::Sizes { .. },
    an_update_of_a_part_of_the_weights_is_rejected:
        change(pipeline(), 0, optimizes, |it| it.writes[0].to.window = FIRST)
            => Violation::Sizes { .. },
    a_norm_of_a_part_of_the_gradients_is_rejected:
        change(pipeline(), 0, |it, _| it.action == Action::Norm, |it| it.reads[0].window = FIRST)
            => Violation::Operands { .. },
    a_dropped_update_is_rejected: without(pipeline(), 0, optimizes) => Violation::Unused { .. },
    an_update_twice_is_rejected: twice(pipeline(), 0, optimizes) => Violation::Updates { .. },
    an_update_with_gradients_of_another_bucket_is_rejected:
        foreign_gradients(pipeline()) => Violation::Operands { .. },
    weights_older_than_are_held_are_rejected: aged(stashed(), |age| age + 2) => Violation::Lag { .. },
    a_backward_pass_with_newer_weights_is_rejected:
        aged(stashed(), |_| 0) => Violation::Versions { .. },
    fewer_versions_than_are_read_are_rejected: fewer_versions(stashed()) => Violation::Lag { .. },
    a_pass_that_is_not_repeated_is_rejected:
        rolled_back(validated(), 0, |kind| kind == BodyKind::Forward)
            => Violation::Messages { .. } | Violation::Unwritten { .. },
    arms_that_leave_different_tensors_are_rejected:
        rolled_back(validated(), 0, |kind| kind == BodyKind::Forward) => Violation::Arms { .. },
    an_update_that_is_not_made_again_is_rejected:
        rolled_back(validated(), 0, |kind| kind == BodyKind::Redo) => Violation::UpdatesOfAll { .. },
    what_was_sent_for_nothing_and_is_not_dropped_is_rejected:
        rolled_back(validated(), 1, |kind| kind == BodyKind::Forward) => Violation::Messages { .. },
    a_backup_that_is_not_restored_is_rejected:
        without(validated(), 0, |it, body| {
            it.action == Action::Copy && body.kind == BodyKind::Rollback
        }) => Violation::UpdatesOfAll { .. },
    a_backup_restored_to_another_place_is_rejected:
        restored_elsewhere(validated()) => Violation::Backup { .. },
    a_backup_that_one_arm_keeps_is_rejected: guarded(validated(), 0, |guard| guard.then.clear())
        => Violation::Arms { .. },
    a_flag_read_before_it_is_written_is_rejected: guard_first(validated()) => Violation::Flag { .. },
    a_guard_by_something_else_is_rejected: {
        let program = validated();
        let norm = program.classes[0].tensors().find(|(_, it)| it.content == Content::Norm);
        let norm = norm.expect("it looks at the norm").0;
        guarded(program, 0, |guard| guard.on = View::whole(norm))
    } => Violation::Flag { .. },
    a_flag_of_a_norm_that_others_do_not_have_is_rejected: {
        // The norm of the classes before is all that it waits for.
        let program = without(validated(), 0, |it, body| {
            body.kind == BodyKind::Test && matches!(it.action, Action::Receive { .. })
        });
        without(program, 1, |it, body| {
            body.kind == BodyKind::Epilogue && matches!(it.action, Action::Send { .. })
        })
    } => Violation::Agreement { .. },
    an_update_validated_without_its_copies_is_rejected:
        without(validated(), 0, |it, body| it.action == Action::Copy && body.kind == BodyKind::Epilogue)
            => Violation::Unwritten { .. },
    an_update_that_is_not_validated_is_rejected:
        without_all(validated(), 1, |it, _| it.action == Action::Test) => Violation::Tests { .. },
    copies_made_after_the_update_are_rejected: late_copies(validated()) => Violation::Backup { .. },
    an_average_of_what_was_not_summed_up_is_rejected:
        without_all(local_sgd(), 0, sums_weights) => Violation::NoAverage { .. },
    a_step_that_does_not_average_is_rejected:
        without_all(averaged(Averaging::SYNCHRONOUS, 1, 1, Precision::FP32), 0, |it, body| {
            body.kind == BodyKind::Averaging && !it.reads.is_empty()
        }) => Violation::Averages { .. },
    an_average_over_others_than_replicas_is_rejected: {
        let program = averaged(Averaging::SYNCHRONOUS, 1, 2, Precision::FP32);
        requeued(change(program, 0, sums_weights, |it| over_axes(it, &[Axis::TP])))
    } => Violation::NoAverage { .. },
    an_average_over_more_than_replicas_is_rejected: {
        let program = averaged(Averaging::SYNCHRONOUS, 1, 2, Precision::FP32);
        requeued(change(program, 0, sums_weights, |it| over_axes(it, &[Axis::DP, Axis::TP])))
    } => Violation::NoAverage { .. },
    an_average_of_another_number_of_replicas_is_rejected:
        change(local_sgd(), 0, averages, |it| {
            it.action = Action::Average { rate: 1.0, replicas: 3 };
        }) => Violation::NoAverage { .. },
    weights_averaged_twice_are_rejected: twice(local_sgd(), 0, averages) => Violation::NoAverage { .. },
    averaged_master_weights_that_nobody_reads_are_rejected:
        without(local_sgd(), 0, |it, body| casts(it, body) && body.kind == BodyKind::Averaging)
            => Violation::Averages { .. },
    a_stage_that_averages_at_other_steps_is_rejected:
        change(local_sgd(), 1, asks, |it| {
            it.action = Action::Due { every: 3.try_into().expect("not zero") };
        }) => Violation::Agreement { .. },
    an_average_that_another_arm_has_is_rejected:
        guarded(local_sgd(), 0, |guard| std::mem::swap(&mut guard.then, &mut guard.otherwise))
            => Violation::Averages { .. },
    gradients_of_replicas_with_weights_of_their_own_that_are_summed_up_are_rejected: {
        // Along tensor parallelism gains of norms are summed up, and now along replicas instead.
        let program = averaged(Averaging::local_sgd(1), 1, 2, Precision::FP32);
        let reduces = reduces(&program, 0);
        requeued(change(program, 0, reduces, |it| over_axes(it, &[Axis::DP, Axis::TP])))
    } => Violation::Unreduced { .. } | Violation::Apart { .. },
    a_question_that_is_not_asked_is_rejected: without(local_sgd(), 0, asks) => Violation::Flag { .. },
    an_evaluation_that_leaves_something_is_rejected:
        change(
            pipeline(),
            0,
            |it, body| body.kind == BodyKind::Evaluation && !it.frees.is_empty(),
            |it| it.frees.clear(),
        ) => Violation::Left { .. },
    a_pass_that_is_left_out_is_rejected:
        without_entry(pipeline(), 0, |kind| kind == BodyKind::Forward) => Violation::Unwritten { .. },
}

fn over_classes(it: &Instruction, _: &Body) -> bool {
    matches!(it.action, Action::Collective { group: Group::Classes(_), .. })
}

/// Frees a tensor at its first read instead of its last.
fn freed_early(mut program: Program) -> Program {
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
fn freed_at_once(program: Program) -> Program {
    let loads = |it: &Instruction, body: &Body| {
        body.kind == BodyKind::Forward && matches!(it.action, Action::Load { .. })
    };
    change(program, 0, loads, |it| it.frees.push(it.writes[0].to.tensor))
}

/// Has an operator read a value of another shape.
fn reads_another(program: Program) -> Program {
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
fn reads_later(mut program: Program) -> Program {
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

fn on_another_route(program: Program) -> Program {
    let other = program.routes.iter().position(|route| route.from.0 == 1).expect("a way back");
    change(program, 0, sends, |it| {
        it.action = Action::Send { route: shardloom_program::RouteId(other as u32) };
    })
}

/// Changes what the first message of the first route reads.
fn message(mut program: Program, how: impl FnOnce(&mut shardloom_program::Placement)) -> Program {
    let message = &mut program.routes[0].messages[0];
    how(&mut message.source);
    message.target = message.source.clone();
    program
}

fn shorter_messages(program: Program) -> Program {
    message(program, |part| *part.extent.last_mut().expect("values have axes") -= 1)
}

fn no_messages(mut program: Program) -> Program {
    program.routes[0].messages.clear();
    program
}

fn route_format(mut program: Program) -> Program {
    program.routes[0].format = Format::Bf16;
    program
}

/// Swaps two meetings of one class.
fn swapped(mut program: Program) -> Program {
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

/// Moves the collective over a content into another group.
fn regrouped(program: Program, class: usize, content: Content, to: Group) -> Program {
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

fn other_kind(program: Program) -> Program {
    change(program, 0, over_classes, |it| {
        if let Action::Collective { algorithm, .. } = &mut it.action {
            let others =
                [shardloom_collectives::Algorithm::Direct, shardloom_collectives::Algorithm::Ring];
            *algorithm = others.into_iter().find(|it| it != algorithm).expect("there are two");
        }
    })
}

fn short_bucket(mut program: Program) -> Program {
    program.classes[0].buckets[0].elements -= 1;
    program
}

fn short_tensor(mut program: Program, content: Content) -> Program {
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
fn other_bucket(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, gathers, |it| {
        let own = class.tensor(it.reads[0].tensor).bucket.expect("weights lie in buckets");
        let size = class.bucket(own).elements;
        let other = class.buckets.iter().find(|bucket| bucket.elements != size);
        let other = other.expect("buckets of another size");
        it.reads[0] = View::whole(other.held.replicated.weights);
    })
}

fn other_format(mut program: Program) -> Program {
    let shard = program.classes[0].buckets[0].held.replicated.weights;
    program.classes[0].tensors[shard.0 as usize].format = Format::Bf16;
    program
}

/// Adds a parameter's gradient to another's of the same shape in the same bucket.
fn other_parameter(mut program: Program) -> Program {
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
fn outside(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, differentiates, |it| {
        let own = class.tensor(it.writes[0].to.tensor).bucket;
        let other = class.buckets().find(|(id, _)| Some(*id) != own).expect("several buckets").1;
        it.writes[0].to.window = Window::Param(other.params[0]);
    })
}

/// Moves the weights of a bucket with one parameter along what a larger bucket has.
fn moved_along_another(program: Program) -> Program {
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
fn uneven(mut program: Program) -> Program {
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

fn foreign_gradients(program: Program) -> Program {
    let class = program.classes[0].clone();
    change(program, 0, optimizes, |it| {
        let own = class.tensor(it.reads[0].tensor).bucket;
        let other = class.buckets().find(|(id, _)| Some(*id) != own).expect("several buckets").1;
        it.reads[0] = other.held.replicated.reduced;
    })
}

/// Changes the age of the weights that the first class's late backward passes run with.
fn aged(mut program: Program, how: impl Fn(u32) -> u32) -> Program {
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

fn fewer_versions(mut program: Program) -> Program {
    let class = &mut program.classes[0];
    let several = |copies: &Copies| matches!(copies, Copies::Versions(it) if *it > 1);
    let tensors = class.tensors.iter_mut().filter(|tensor| several(&tensor.copies));
    let tensors: Vec<_> = tensors.collect();
    assert!(!tensors.is_empty(), "versions are held");
    tensors.into_iter().for_each(|tensor| tensor.copies = Copies::One);
    program
}

/// Takes the first entry away for which something holds.
fn without_entry(mut program: Program, class: usize, is_it: impl Fn(BodyKind) -> bool) -> Program {
    let class = &mut program.classes[class];
    let kind = |entry: &Entry| class.body_of(entry).kind;
    let found = |part: &Control| matches!(part, Control::Run(entry) if is_it(kind(entry)));
    let at = class.control.iter().position(found);
    class.control.remove(at.expect("the control has such an entry"));
    program
}

/// Changes the first guard of a class.
fn guarded(mut program: Program, class: usize, how: impl FnOnce(&mut Guard)) -> Program {
    let mut guards = program.classes[class].control.iter_mut().filter_map(|part| match part {
        Control::Run(_) | Control::Serve(_) => None,
        Control::Guard(guard) => Some(guard),
    });
    how(guards.next().expect("the class has a guard"));
    program
}

/// Four ranks to a stage. Those of the first must agree on their updates, and know only the norm of the ranks
/// along `axes`.
fn agreed_within(axes: &[Axis]) -> Program {
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

#[test]
fn a_guard_by_a_norm_that_some_who_must_agree_do_not_have_is_rejected() {
    for (axes, agrees) in [(&[Axis::DP, Axis::TP][..], true), (&[Axis::DP], false)] {
        let program = agreed_within(axes);
        let first = program.classes[0].place();
        let found = verify(&program).expect_err("the norm is not of all");
        let disagrees =
            |it: &Violation| matches!(it, Violation::Agreement { place, .. } if *place == first);
        assert_eq!(!found.iter().any(disagrees), agrees, "{axes:?}: {found:#?}");
    }
}

/// Takes the first entry of a kind out of what is run where an update was wrong.
fn rolled_back(program: Program, class: usize, is_it: impl Fn(BodyKind) -> bool) -> Program {
    let kinds: Vec<BodyKind> = program.classes[class].bodies.iter().map(|it| it.kind).collect();
    guarded(program, class, |guard| {
        let at = guard.otherwise.iter().position(|it| is_it(kinds[it.body.0 as usize]));
        guard.otherwise.remove(at.expect("it is run again"));
    })
}

/// Puts a guard before the test that writes its flag.
fn guard_first(mut program: Program) -> Program {
    let control = &mut program.classes[0].control;
    let at = control.iter().position(|part| matches!(part, Control::Guard(_)));
    let at = at.expect("the class has a guard");
    control.swap(at - 1, at);
    program
}

/// Swaps what two copies of one bucket go back to.
fn restored_elsewhere(program: Program) -> Program {
    let restores = |it: &Instruction, body: &Body| {
        it.action == Action::Copy && body.kind == BodyKind::Rollback
    };
    change(program, 0, restores, |it| it.writes.swap(1, 2))
}

/// Makes the first copies of what an update changes after it.
fn late_copies(mut program: Program) -> Program {
    let (body, copy) =
        find(&program, 0, |it, body| it.action == Action::Copy && body.kind == BodyKind::Epilogue);
    let instructions = &mut program.classes[0].bodies[body].instructions;
    let copied = instructions.remove(copy);
    instructions.push(copied);
    program
}

#[test]
fn a_violation_says_where_it_is_and_of_what() {
    let program = change(pipeline(), 0, frees, |it| it.frees.push(it.frees[0]));
    let (body, index) = find(&program, 0, frees);
    let freed = program.classes[0].bodies[body].instructions[index].frees[0];
    let name = &program.classes[0].tensors[freed.0 as usize].name;
    let found = verify(&program).expect_err("something is freed twice");
    let texts: BTreeSet<String> = found.iter().map(Violation::to_string).collect();
    let expected = format!(
        "stage 0, body {body} (B), instruction {index}: {name} is freed and is not there to be freed"
    );
    assert!(texts.contains(&expected), "{texts:?}");
}

/// Weights that are gathered before the passes of the next step and not after the update, so that nothing reads
/// them stale: but after the last step of a row nobody gathers them.
#[test]
fn weights_of_which_the_last_update_leaves_shares_are_rejected() {
    let mut program = replicas(1);
    let class = &mut program.classes[0];
    let epilogue = class.bodies.iter().position(|body| body.kind == BodyKind::Epilogue);
    let epilogue = epilogue.expect("a step ends with an update");
    let before = class.bodies[epilogue].clone();
    let (late, kept): (Vec<Instruction>, Vec<Instruction>) =
        before.instructions.iter().cloned().partition(|it| gathers(it, &before));
    let late_tensors: BTreeSet<String> = late
        .iter()
        .map(|it| class.tensors[it.writes[0].to.tensor.0 as usize].name.clone())
        .collect();
    assert!(late_tensors.len() > 1, "{late_tensors:?}");
    class.bodies[epilogue].instructions = kept;
    class.bodies.push(Body { kind: BodyKind::Synchronisation, instructions: late, ..before });
    let first = Entry::new(BodyId(class.bodies.len() as u32 - 1), None);
    class.control.insert(0, Control::Run(first));
    let found = verify(&requeued(program)).expect_err("they are not gathered");
    let stale: BTreeSet<String> = found
        .iter()
        .filter_map(|violation| match violation {
            Violation::Stale { at, tensor } if at.body.0 as usize == epilogue => {
                Some(tensor.clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(stale, late_tensors, "{found:#?}");
}

/// The first cast comes before the update of what it casts.
fn cast_before_update(mut program: Program) -> Program {
    let (body, index) = find(&program, 0, casts);
    program.classes[0].bodies[body].instructions.swap(index - 1, index);
    program
}

/// The first cast reads the optimizer's state instead of the master weights.
fn cast_of_moments(mut program: Program) -> Program {
    let at = find(&program, 0, casts);
    let tensors = &program.classes[0].tensors;
    let moment = tensors.iter().position(|it| matches!(it.content, Content::OptimizerState(_)));
    let moment = TensorId(moment.expect("AdamW keeps moments") as u32);
    instruction(&mut program, 0, at).reads[0].tensor = moment;
    program
}
