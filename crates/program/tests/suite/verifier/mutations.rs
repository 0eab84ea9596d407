//! Programs in which one thing is wrong are rejected, and for that.

use std::collections::BTreeSet;

use shardloom_graph::work::Pass;
use shardloom_plan::{Averaging, Axis, Precision, ScheduleKind};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, Body, BodyId, BodyKind, Content, Control, Entry, Group, Instruction, Mode, ParamId,
    Point, Queue, TensorId, View, Window,
};

use super::instructions::{
    asks, averages, casts, change, copies_weights, differentiates, fetches, find, frees, gathers,
    gathers_second_copy, instruction, is_kernel, optimizes, over_axes, over_classes, publishes,
    receives, reduces, requeued, sends, sums_weights, twice, waits, without, without_all,
};
use super::mutants::{
    aged, agreed_within, cast_before_update, cast_of_moments, fetched_first, fewer_versions,
    foreign_gradients, freed_at_once, freed_early, guard_first, guarded, late_copies, message,
    moved_along_another, no_messages, on_another_route, other_bucket, other_format, other_kind,
    other_parameter, outside, published_in_parts, published_late, reads_another, reads_later,
    regrouped, restored_elsewhere, rolled_back, route_format, short_bucket, short_tensor,
    shorter_messages, swapped, uneven, without_entry,
};
use super::programs::{
    all_reduced, averaged, both_ways, local_sgd, mesh, mixed, pairs, pipeline, predicted, program,
    replicas, second_copy, served, stashed, validated,
};

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
    a_wait_for_itself_is_rejected: {
        let program = pipeline();
        let own = Point::Here(find(&program, 0, sends).1 as u32);
        change(program, 0, sends, |it| it.after.push(own))
    } => Violation::Operands { .. },
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
    a_dropped_sum_of_whole_gradients_that_are_shared_is_rejected: {
        let program = all_reduced(2, 2);
        let reduces = reduces(&program, 0);
        without(program, 0, reduces)
    } => Violation::Unreduced { .. },
    whole_gradients_that_are_shared_summed_twice_are_rejected: {
        let program = all_reduced(2, 2);
        let reduces = reduces(&program, 0);
        twice(program, 0, reduces)
    } => Violation::ReducedTwice { .. },
    shares_of_whole_gradients_that_are_not_summed_among_those_who_have_the_same_are_rejected: {
        let among_them = |it: &Instruction, _: &Body| {
            let over = Group::Mesh(vec![Axis::REPLICA]);
            matches!(&it.action, Action::Collective { group, .. } if *group == over)
        };
        without(all_reduced(4, 2), 0, among_them)
    } => Violation::Unreduced { .. },
    whole_gradients_summed_among_those_that_share_with_others_alone_are_rejected: {
        let program = all_reduced(4, 2);
        let reduces = reduces(&program, 0);
        requeued(change(program, 0, reduces, |it| over_axes(it, &[Axis::REPLICA])))
    } => Violation::Unreduced { .. },
    a_norm_of_whole_gradients_that_are_shared_is_rejected:
        change(all_reduced(2, 2), 0, |it, _| it.action == Action::Norm, |it| {
            it.reads[0].window = Window::Whole;
        }) => Violation::Unreduced { .. },
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
    a_second_copy_that_is_not_made_is_rejected:
        without_all(second_copy(), 0, copies_weights) => Violation::Stale { .. },
    a_second_copy_of_the_first_shares_is_rejected:
        change(second_copy(), 0, copies_weights, |it| it.reads[0].window = Window::Share)
            => Violation::Operands { .. },
    a_second_copy_gathered_from_all_that_share_the_first_is_rejected:
        requeued(change(second_copy(), 0, gathers_second_copy, |it| {
            over_axes(it, &[Axis::REPLICA, Axis::DP]);
        })) => Violation::Shares { .. },
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
    weights_that_a_worker_sends_for_gradients_are_rejected: {
        let program = served();
        let (class, (body, index)) = (&program.classes[0], find(&program, 0, sends));
        let sent = class.bodies[body].instructions[index].reads[0].tensor;
        let bucket = class.bucket(class.tensor(sent).bucket.expect("gradients are of a bucket"));
        let weights = bucket.held.replicated.used;
        change(program, 0, sends, |it| it.reads[0].tensor = weights)
    } => Violation::Piece { .. },
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
    weights_older_than_are_held_are_rejected: aged(stashed(), |age| age + 2) => Violation::Age { .. },
    a_backward_pass_with_newer_weights_is_rejected:
        aged(stashed(), |_| 0) => Violation::Versions { .. },
    fewer_versions_than_are_read_are_rejected: fewer_versions(stashed()) => Violation::Age { .. },
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
    a_backup_that_the_other_arm_keeps_is_rejected:
        rolled_back(validated(), 0, |kind| kind == BodyKind::Release) => Violation::Arms { .. },
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
    a_fetch_that_waits_for_what_others_publish_only_after_theirs_is_rejected:
        fetched_first(pairs()) => Violation::Deadlock { .. },
    weights_published_after_they_were_averaged_are_rejected:
        published_late(pairs()) => Violation::NoAverage { .. },
    weights_that_are_not_all_published_are_rejected:
        change(pairs(), 0, publishes, |it| {
            it.reads.pop();
            it.writes.pop();
        }) => Violation::NoAverage { .. },
    a_fetch_of_some_of_what_is_published_is_rejected:
        change(pairs(), 0, fetches, |it| it.writes.truncate(1)) => Violation::NoAverage { .. },
    a_fetch_into_another_order_than_that_of_what_is_published_is_rejected:
        change(pairs(), 0, fetches, |it| it.writes.reverse()) => Violation::NoAverage { .. },
    publications_at_two_times_are_rejected: published_in_parts(pairs()) => Violation::NoAverage { .. },
    a_fetch_from_others_than_replicas_is_rejected:
        change(pairs(), 0, fetches, |it| {
            it.action = Action::Fetch { group: Group::World };
        }) => Violation::NoAverage { .. },
    a_publication_for_others_than_replicas_is_rejected:
        change(pairs(), 0, publishes, |it| {
            it.action = Action::Publish { group: Group::World };
        }) => Violation::NoAverage { .. },
    weights_that_operators_read_published_for_their_masters_are_rejected: {
        let program = pairs();
        let weights = program.classes[0].buckets[0].held.replicated.used;
        change(program, 0, publishes, |it| it.reads[0] = View::whole(weights))
    } => Violation::Formats { .. },
    another_s_weights_taken_in_as_a_sum_are_rejected:
        change(pairs(), 0, averages, |it| {
            it.action = Action::Average { rate: 0.5, replicas: 2 };
        }) => Violation::NoAverage { .. },
    an_average_that_does_not_wait_for_what_is_fetched_is_rejected:
        change(pairs(), 0, averages, |it| it.after.clear()) => Violation::Race { .. },
    a_fetch_in_another_queue_is_rejected:
        change(pairs(), 0, fetches, |it| it.queue = Queue::Send) => Violation::Operands { .. },
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

/// As often as it is run, and in as many rows of steps as it is looked at.
#[test]
fn a_violation_is_named_once() {
    for program in [
        change(pipeline(), 0, frees, |it| it.frees.push(it.frees[0])),
        without(pipeline(), 1, receives),
        without_all(pipeline(), 0, differentiates),
        without(validated(), 0, optimizes),
        twice(local_sgd(), 0, averages),
    ] {
        let found = verify(&program).expect_err("something is wrong with it");
        let different: BTreeSet<&Violation> = found.iter().collect();
        assert_eq!(different.len(), found.len(), "{found:#?}");
    }
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

/// Usually the replicas that share sum first, and then those that have the same share of that sum.
#[test]
fn whole_gradients_may_be_summed_first_among_those_who_have_the_same_share() {
    let mut program = all_reduced(4, 2);
    assert_eq!(verify(&program), Ok(()));
    let at = find(&program, 0, reduces(&program, 0));
    let whole = instruction(&mut program, 0, at).reads[0];
    over_axes(instruction(&mut program, 0, at), &[Axis::REPLICA]);
    let is_next = |it: &Instruction, _: &Body| {
        matches!(it.action, Action::Collective { .. })
            && it.reads[0].tensor == whole.tensor
            && it.reads[0].window == Window::Share
    };
    let at = find(&program, 0, is_next);
    let next = instruction(&mut program, 0, at);
    (next.reads[0], next.writes[0].to) = (whole, whole);
    over_axes(next, &[Axis::DP]);
    assert_eq!(verify(&requeued(program)), Ok(()));
}
