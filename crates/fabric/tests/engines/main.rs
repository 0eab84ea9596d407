//! What ranks may rely on, whatever the engine that connects them.
//!
//! Facts are functions of an engine. Each engine in `engines` is held to all of them.

mod arithmetic;
mod collectives;
mod counts;
mod failures;
mod groups;
mod handles;
#[cfg(feature = "mpi")]
mod job;
mod messages;
mod negotiated;
mod progress;
mod ranks;
mod separate;
mod windows;

/// One test for each fact and engine.
macro_rules! facts {
    ($($module:ident { $($fact:ident)+ })+) => {
        engines! { $($($module $fact)+)+ }
    };
}

macro_rules! engines {
    ($($module:ident $fact:ident)+) => {
        mod in_process {
            use shardloom_fabric::InProcess;

            $(#[test]
            fn $fact() {
                crate::$module::$fact(&InProcess);
            })+
        }

        mod a_process_each {
            use crate::separate::Separate;

            $(#[test]
            fn $fact() {
                crate::$module::$fact(&Separate { ranks_each: 1 });
            })+
        }

        mod two_in_a_process {
            use crate::separate::Separate;

            $(#[test]
            fn $fact() {
                crate::$module::$fact(&Separate { ranks_each: 2 });
            })+
        }

        #[cfg(feature = "mpi")]
        mod mpi {
            $(#[test]
            fn $fact() {
                crate::$module::$fact(crate::job::engine());
            })+
        }

        mod overlapped_processes {
            use shardloom_fabric::Overlapped;

            use crate::separate::Separate;

            $(#[test]
            fn $fact() {
                crate::$module::$fact(&Overlapped(Separate { ranks_each: 1 }));
            })+
        }

        mod overlapped {
            use shardloom_fabric::{InProcess, Overlapped};

            $(#[test]
            fn $fact() {
                crate::$module::$fact(&Overlapped(InProcess));
            })+
        }
    };
}

facts! {
    collectives {
        every_pair_equals_the_interpreter_and_sends_its_bytes
        what_is_reduced_by_is_passed_over_where_nothing_is
        every_pair_rounds_as_the_order_of_its_list_does
        a_direct_all_reduce_over_many_blocks_is_bitwise_the_serial_sum_on_all_members
        every_format_is_exchanged_and_reduced
        control_scalars_are_reduced_in_double_precision_in_ascending_order
        hundreds_of_direct_collectives_with_more_ranks_than_cores_stay_exact
        a_collective_that_does_not_exist_is_refused_everywhere_and_leaves_the_group_usable
    }
    counts {
        every_part_arrives_whatever_the_counts
        parts_arrive_where_the_step_list_puts_them_and_send_its_bytes
        counts_may_change_from_call_to_call
        counts_that_differ_break_the_group_on_all_members
        counts_that_do_not_fit_are_refused_with_their_numbers
    }
    failures {
        everyone_in_a_collective_learns_which_peer_was_dropped
        a_reported_failure_reaches_senders_receivers_and_groups_with_its_reason
        what_a_rank_sent_before_it_left_still_arrives
        a_rank_may_leave_as_soon_as_its_last_collective_is_done
        a_panicking_rank_says_so
        different_calls_are_reported_to_all_naming_both
        a_collective_that_nobody_else_calls_times_out_naming_who_is_missing
        all_who_wait_in_a_collective_get_the_same_timeout
        all_who_wait_at_a_barrier_get_the_same_timeout
        a_receive_times_out_naming_the_sender_and_can_be_tried_again
        a_dead_peer_is_named_though_a_late_one_stands_before_it
        on_behalf_of_a_rank_that_is_gone_nobody_is_waited_for
    }
    groups {
        disjoint_groups_work_at_once
        subgroups_and_world_interleave
        the_uses_of_one_list_are_matched_in_order_and_kept_apart
        a_group_may_run_on_another_thread_than_its_endpoint
        nobody_passes_a_barrier_before_everybody_came
        impossible_member_lists_are_refused_with_the_reason
    }
    handles {
        what_was_started_comes_back_to_who_waits_in_whatever_order
        who_waited_elsewhere_finds_it_complete
        a_handle_brings_the_error_of_its_collective_and_what_was_lent
    }
    negotiated {
        ranks_that_get_ready_in_any_order_carry_out_the_same_lists
        lists_that_are_repeated_come_to_the_same_bits
        a_rank_that_fails_ends_all_requests_with_its_reason
        a_list_that_is_carried_out_one_by_one_ends_with_the_first_that_fails
        requests_that_are_unlike_or_too_large_together_are_carried_out_one_by_one
        requests_that_others_do_not_make_are_given_up
    }
    messages {
        messages_of_a_tag_stay_in_order_and_others_wait_until_asked_for
        messages_of_every_format_arrive_as_they_were_sent
        a_message_may_have_less_than_there_is_room_for
        try_receive_finds_what_is_there_and_nothing_else
        a_sender_without_a_free_buffer_waits_and_says_so
        two_buffers_pass_any_number_of_messages
        a_pool_makes_more_buffers_up_to_its_most
        counters_are_exact_and_leave_out_what_failed_and_what_a_rank_sends_to_itself
        ranks_that_do_not_exist_are_refused
        who_waits_for_a_buffer_hears_that_the_receiver_is_gone_or_late
        a_free_buffer_needs_nobody
        any_sender_is_received_from_and_named
        no_sender_is_kept_waiting_by_another
        a_receive_from_any_names_all_it_waited_for_and_who_is_gone
        each_rank_is_asked_for_the_tag_that_stands_beside_it
    }
    windows {
        who_fetches_finds_one_publication_whole_and_none_older_than_asked_for
        ranks_that_fetch_from_each_other_hold_nobody_up
        what_is_fetched_counts_for_who_fetches
        a_fetch_hears_that_the_other_is_gone_or_late_and_can_be_tried_again
        what_does_not_fit_is_refused_by_who_fetches
        who_publishes_waits_until_it_was_fetched_as_often_as_it_says
    }
}

/// Facts that have all the time that they want, of an engine that finds one packet at a time.
macro_rules! whole_facts {
    ($($module:ident { $($fact:ident)+ })+) => {
        mod one_packet_at_a_time {
            use crate::separate::OnePacketAtATime;

            $($(#[test]
            fn $fact() {
                crate::$module::$fact(&OnePacketAtATime);
            })+)+
        }
    };
}

whole_facts! {
    collectives {
        every_format_is_exchanged_and_reduced
    }
    counts {
        every_part_arrives_whatever_the_counts
    }
    failures {
        what_a_rank_sent_before_it_left_still_arrives
        different_calls_are_reported_to_all_naming_both
    }
    groups {
        subgroups_and_world_interleave
        the_uses_of_one_list_are_matched_in_order_and_kept_apart
    }
    messages {
        messages_of_a_tag_stay_in_order_and_others_wait_until_asked_for
        messages_of_every_format_arrive_as_they_were_sent
        two_buffers_pass_any_number_of_messages
    }
    windows {
        who_fetches_finds_one_publication_whole_and_none_older_than_asked_for
        ranks_that_fetch_from_each_other_hold_nobody_up
        what_is_fetched_counts_for_who_fetches
        what_does_not_fit_is_refused_by_who_fetches
    }
}

/// Facts of engines that carry collectives out on a thread of the rank's own.
macro_rules! facts_beside_computing {
    ($($fact:ident)+) => {
        mod in_process_beside_computing {
            use shardloom_fabric::{InProcess, Overlapped};

            $(#[test]
            fn $fact() {
                crate::progress::$fact(&Overlapped(InProcess));
            })+
        }

        mod a_process_each_beside_computing {
            use shardloom_fabric::Overlapped;

            use crate::separate::Separate;

            $(#[test]
            fn $fact() {
                crate::progress::$fact(&Overlapped(Separate { ranks_each: 1 }));
            })+
        }

        mod two_in_a_process_beside_computing {
            use shardloom_fabric::Overlapped;

            use crate::separate::Separate;

            $(#[test]
            fn $fact() {
                crate::progress::$fact(&Overlapped(Separate { ranks_each: 2 }));
            })+
        }

        mod one_packet_at_a_time_beside_computing {
            use shardloom_fabric::Overlapped;

            use crate::separate::OnePacketAtATime;

            $(#[test]
            fn $fact() {
                crate::progress::$fact(&Overlapped(OnePacketAtATime));
            })+
        }

        #[cfg(feature = "mpi")]
        mod mpi_beside_computing {
            use shardloom_fabric::Overlapped;

            use crate::job::Job;

            $(#[test]
            fn $fact() {
                crate::progress::$fact(&Overlapped(Job));
            })+
        }
    };
}

facts_beside_computing! {
    what_was_started_ends_beside_what_ranks_compute
    what_another_rank_has_not_started_has_not_ended
}

/// What only ranks that are threads of one process may rely on.
#[test]
fn a_message_in_one_process_is_moved_and_not_copied() {
    messages::a_message_is_moved_and_not_copied(&shardloom_fabric::InProcess);
}

#[test]
fn buffers_that_are_under_way_in_one_process_are_made_anew() {
    messages::buffers_that_are_under_way_are_made_anew(&shardloom_fabric::InProcess);
}
