//! Cases for letter stores, with their fixture.

#![allow(missing_docs, reason = "the name of a case is its sentence")]

pub mod acts;
pub mod axon_component;
pub mod axon_gaps;
pub mod axon_queue;
pub mod concurrency;
pub mod detached;
pub mod fixture;
pub mod flowwarden;
pub mod incarnations;
pub mod intake;
pub mod leases;
pub mod listing;
pub mod opened;

pub use acts::*;
pub use axon_component::*;
pub use axon_gaps::*;
pub use axon_queue::*;
pub use concurrency::*;
pub use detached::*;
pub use fixture::{Fixture, operator, resolve};
pub use flowwarden::*;
pub use incarnations::*;
pub use intake::*;
pub use leases::*;
pub use listing::*;
pub use opened::*;

/// Makes one test per case of the letter store contract, in a module of this name.
///
/// The second argument makes a fresh, empty store that uses the given clock. The store needs
/// [`LetterStore`](lazaret_core::store::LetterStore), [`Audit`](lazaret_core::store::Audit) and
/// [`Triage`](lazaret_core::store::Triage) and [`Operations`](lazaret_core::store::Operations). The calling crate needs
/// tokio with `macros`, `rt` and `test-util`.
///
/// ```
/// use lazaret_memory::MemoryStore;
///
/// lazaret_testkit::store_test_suite!(memory, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// Tests run on a paused tokio clock. A store that waits for the network or the disk takes `io`, and its tests run in
/// real time, because a paused clock would end its timeouts at once. The store's own clock is the same in both:
///
/// ```
/// # use lazaret_memory::MemoryStore;
/// lazaret_testkit::store_test_suite!(memory, io, |clock| async move { MemoryStore::new(clock) });
/// ```
///
/// A layer between the suite and a store may be unable to express a case. Such cases are named with `except` and a list
/// of [`Exception`](crate::suite::Exception)s. They are run all the same, and have to fail. The names of
/// all cases are in the module's `CASES`.
///
/// A store that needs a service takes `if` and a function at the end. Where it returns `false`, the tests do nothing.
#[macro_export]
macro_rules! store_test_suite {
    ($name:ident, $make:expr) => {
        $crate::__store_test_suite! { $name, [start_paused = true], $make, &[] }
    };
    ($name:ident, io, $make:expr) => {
        $crate::__store_test_suite! { $name, [], $make, &[] }
    };
    ($name:ident, $make:expr, except $exceptions:expr) => {
        $crate::__store_test_suite! { $name, [start_paused = true], $make, $exceptions }
    };
    ($name:ident, io, $make:expr, except $exceptions:expr) => {
        $crate::__store_test_suite! { $name, [], $make, $exceptions }
    };
    ($name:ident, io, $make:expr, if $ready:path) => {
        $crate::__store_test_suite! { $name, [], $make, &[], $ready }
    };
    ($name:ident, io, $make:expr, except $exceptions:expr, if $ready:path) => {
        $crate::__store_test_suite! { $name, [], $make, $exceptions, $ready }
    };
}

/// The list of cases. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_test_suite {
    ($name:ident, $runtime:tt, $make:expr, $exceptions:expr) => {
        $crate::__store_test_suite! { $name, $runtime, $make, $exceptions, $crate::suite::always }
    };
    ($name:ident, $runtime:tt, $make:expr, $exceptions:expr, $ready:path) => {
        $crate::__suite! {
            $name, $runtime, $make, $crate::suite::letters::Fixture::new, $ready, $exceptions;
            letters {
                q01_an_enqueued_letter_is_contained_and_comes_back_as_it_was
                q02_a_new_sequence_beyond_the_limit_overflows
                q03_a_letter_beyond_the_size_of_its_sequence_overflows
                q04_a_follower_beyond_the_size_of_its_sequence_overflows
                q05_a_follower_of_an_absent_sequence_is_not_stored
                q06_a_follower_of_another_sequence_is_not_stored
                q07_a_follower_stands_behind_its_head
                q08_evicting_a_letter_of_an_unknown_sequence_changes_nothing
                q09_evicting_an_unknown_letter_changes_nothing
                q10_evicting_the_last_letter_closes_its_sequence
                q11_requeueing_in_an_empty_queue_is_refused
                q12_requeueing_another_letter_is_refused
                q13_a_requeue_stores_the_cause_and_touches_the_letter
                q14_only_the_sequence_of_a_letter_is_contained
                q15_a_sequence_lists_nothing_until_a_letter_comes
                q16_a_sequence_lists_its_letters_in_the_order_they_came
                q17_letters_that_came_alternately_are_listed_by_sequence
                q18_a_queue_with_all_its_sequences_is_full_for_a_new_one
                q19_a_sequence_with_all_its_letters_is_full
                q20_the_size_counts_all_letters
                q21_the_size_of_a_sequence_counts_only_its_letters
                q22_the_number_of_sequences_counts_each_once
                q23_an_empty_queue_gives_no_work
                q24_a_letter_that_was_handled_leaves_and_closes_its_sequence
                q25_the_payload_comes_back_byte_for_byte
                q26_a_letter_that_failed_again_stays_with_its_new_cause_and_diagnostics
                q27_the_oldest_touched_sequence_comes_first
                q28_a_run_works_down_one_sequence_and_leaves_the_others
                q29_a_long_sequence_is_worked_down_in_order
                q30_a_sequence_in_work_is_not_given_to_a_second_worker
                q31_a_filter_that_fits_nothing_gives_no_work
                q32_a_filter_that_fits_nothing_leaves_every_sequence
                q33_a_filter_picks_its_own_sequence
                q34_a_filter_leaves_what_it_did_not_pick
                q35_a_filter_sees_the_head_and_the_run_takes_the_whole_sequence
                q36_a_picked_letter_that_fails_again_stays
                q37_a_picked_sequence_in_work_is_not_given_to_a_second_worker
                q38_clearing_leaves_no_sequence
                x01_after_its_lease_ended_a_sequence_may_be_taken_by_another
                x03_a_worker_that_lost_its_lease_stops_before_the_next_letter
                x04_a_worker_that_gives_up_frees_the_sequence_at_once
                x07_a_requeue_leaves_the_letters_behind_untouched_and_in_order
                x08_a_requeued_sequence_goes_behind_those_touched_before_it
                x09_a_requeue_without_a_cause_keeps_the_old_one_and_touches_the_letter
                x11_a_match_behind_many_older_sequences_is_found
                x12_a_long_sequence_is_listed_in_pages_without_gaps_or_repetitions
                x13_a_sequence_of_the_largest_size_is_worked_down_to_its_end
                x14_two_appends_to_one_new_sequence_are_both_stored
                x16_sequences_whose_names_look_alike_are_kept_apart
                x18_a_queue_with_all_its_sequences_still_takes_followers
                x19_clearing_leaves_a_worker_its_head_and_the_worker_ends_quietly
                x23_a_letter_in_the_middle_keeps_its_place
                h01_a_message_that_is_not_handed_off_leaves_no_trace
                h02_the_next_message_of_a_blocked_sequence_is_appended
                h03_a_failed_message_is_contained
                h08_a_reset_empties_the_queue
                h10_processing_an_empty_queue_does_nothing
                h11_a_retry_that_succeeds_empties_its_sequence
                h12_processing_one_of_two_sequences_removes_only_that
                h13_a_retry_that_fails_leaves_the_letter
                h14_to_h16_cause_and_diagnostics_are_stored_as_the_policy_gave_them
                h22_h23_a_policy_that_gives_up_on_retry_closes_the_letter
                h24_a_policy_that_requeues_sets_the_new_cause
                h26_a_letter_is_requeued_twice_and_then_given_up
                i02_the_followers_of_a_failed_message_wait_in_order
                i03_all_three_succeed_on_retry_and_the_sequence_is_gone
                i04_the_third_fails_on_retry_and_stays_alone
                i06_what_was_known_at_the_failure_is_there_at_the_retry
                i08_forty_sequences_are_retried_without_loss_or_repetition
                i09_i10_a_replaced_or_shortened_cause_is_stored_as_given
                i12_letters_are_listed_by_index_whatever_the_order_of_their_return
                i13_a_letter_of_one_component_is_not_in_the_queue_of_another
                i14_followers_go_only_to_the_queue_that_is_blocked
                i15_one_message_can_have_a_letter_in_each_queue
                i16_working_one_queue_down_leaves_the_other
                i17_clearing_one_queue_leaves_the_other
                k01_an_empty_queue_has_no_open_sequence
                k03_an_opened_sequence_is_listed
                k05_an_append_opens_nothing_new
                k06_a_cleared_queue_has_no_open_sequence
                k08_a_new_owner_is_told_every_open_sequence
                k12_not_open_names_a_revision_before_any_later_opening
                k13_a_sequence_opened_by_another_owner_is_listed
                k14_many_open_sequences_come_in_pages
                k37_a_closed_sequence_is_not_told_to_a_new_owner
                k39_a_sequence_that_was_opened_again_is_told_again
                k64_a_restored_sequence_is_told_like_an_opened_one
                k65_the_revision_of_one_queue_says_nothing_about_another
                fw01_a_full_letter_is_taken
                fw02_a_letter_without_anything_optional_is_taken
                fw03_every_field_comes_back_as_it_was
                fw04_an_unknown_letter_is_none
                fw05_letters_are_listed_by_their_queue
                fw06_what_was_missing_stays_missing
                fw07_taking_a_message_twice_keeps_the_first_letter
                fw08_an_unknown_queue_counts_nothing
                fw09_letters_are_counted_by_their_queue
                fw10_closed_letters_do_not_count_as_open
                a_message_handed_off_twice_has_one_letter
                a_message_whose_letter_was_closed_is_held_closed
                a_held_letter_is_not_changed
                the_store_gives_index_and_times
                the_index_grows_on_after_a_sequence_was_closed
                a_skipped_message_blocks_no_other
                a_state_that_does_not_fit_its_placement_is_refused
                the_answers_of_a_batch_stand_in_its_order
                a_batch_is_stored_in_its_order
                an_empty_batch_is_no_error
                a_refused_message_leaves_no_trace_and_may_come_again
                an_old_grant_can_hand_off_nothing
                a_grant_that_was_never_given_can_hand_off_nothing
                grants_of_other_partitions_and_queues_stay
                grants_stand_in_the_order_of_the_partitions
                one_bad_grant_spoils_no_other_sequence
                a_current_grant_stays_behind_a_message_of_an_old_one
                behind_a_refused_message_nothing_of_its_sequence_is_stored
                the_horizon_is_the_highest_offset_ever_handed_off
                the_horizon_stays_when_its_letters_are_closed
                a_skipped_message_raises_the_horizon
                a_message_that_was_not_stored_does_not_raise_the_horizon
                look_ups_answer_in_the_order_of_the_question
                a_note_on_attempts_comes_back_as_it_was
                a_message_delivered_again_goes_before_later_ones_of_its_partition
                messages_delivered_again_in_any_order_find_their_place
                messages_under_no_grant_find_their_place_by_their_offsets
                a_message_under_no_grant_does_not_go_before_a_head_in_work
                a_message_under_no_grant_raises_the_horizon
                a_letter_from_a_retry_topic_raises_the_horizon_of_its_message
                an_import_moves_no_horizon
                a_letter_imported_as_closed_absorbs_no_message
                a_letter_imported_as_open_absorbs_no_message_when_it_is_closed
                delivered_messages_stay_in_order_among_imported_ones
                a_restored_letter_finds_its_place_among_those_delivered_again
                a_message_delivered_again_waits_while_a_later_head_is_in_work
                a_letter_restored_beside_one_that_was_put_before_it_keeps_its_order
                a_call_that_arrives_after_a_later_one_is_refused
                a_note_that_comes_late_takes_no_attempts_back
                a_newer_note_replaces_the_older_one
                notes_belong_to_their_partition_and_queue
                notes_are_forgotten_up_to_and_with_an_offset
                a_letter_that_failed_again_does_not_lose_its_place_to_redelivery
                a_retry_is_claimed_at_its_due_time_and_not_before
                the_earliest_due_is_claimed_first
                no_more_than_the_limit_is_claimed
                a_waiting_head_is_due_at_once
                a_waiting_letter_is_due_once_its_head_has_left
                heads_that_need_a_person_are_not_claimed
                a_leased_sequence_is_not_claimed_again
                a_claim_reports_that_the_lease_before_it_expired
                replays_do_not_hide_that_a_lease_expired
                an_expired_lease_says_nothing_about_the_letter_behind
                a_lease_that_expired_while_its_owner_waited_was_no_attempt
                a_lease_names_its_sequence_owner_and_end
                a_lease_that_ended_frees_the_sequence
                a_settlement_after_the_lease_ended_is_fenced
                a_settlement_under_an_old_fence_is_refused
                a_second_settlement_of_one_letter_is_refused
                the_fence_grows_on_after_a_sequence_was_closed
                a_renewed_lease_lasts_from_now
                a_lease_that_ended_cannot_be_renewed
                a_renewal_counts_for_the_settlement_whichever_copy_is_shown
                a_released_lease_frees_the_sequence_unchanged
                releasing_an_old_lease_is_no_error_and_frees_nothing
                a_resolved_head_gives_the_lease_to_the_next_letter
                a_letter_appended_meanwhile_is_handled_in_the_same_run
                a_retry_stops_before_a_letter_that_needs_a_person
                a_retry_stops_before_a_letter_that_is_not_due
                a_retry_stops_when_its_sequence_was_paused
                a_replay_goes_on_whatever_the_state
                a_requeue_writes_all_it_is_given_and_frees_the_sequence
                a_waiting_letter_that_fails_gets_its_first_cause
                a_requeue_cannot_close_a_letter
                a_success_is_remembered_in_the_history
                the_attempt_before_a_dismissal_is_remembered_in_the_history
                leaving_out_and_giving_up_are_audited
                the_next_due_time_is_the_earliest_of_all
                a_leased_sequence_is_due_at_the_end_of_its_lease
                a_replayed_sequence_is_not_due_before_its_time
                a_paused_sequence_is_not_claimed_until_it_is_resumed
                a_paused_sequence_makes_nothing_due
                a_pause_of_another_consumer_holds_nothing_back
                claims_keep_to_their_queue
                a_sequence_of_ten_thousand_letters_drains
                appending_and_closing_exclude_each_other
                many_workers_never_share_a_sequence
                an_act_changes_the_state_and_touches_the_letter
                a_head_taken_out_by_hand_releases_those_behind_it
                a_letter_in_the_middle_can_be_taken_out
                a_released_letter_runs_again_now_with_fresh_attempts
                a_released_letter_behind_the_head_waits_for_it
                a_parked_head_holds_its_sequence_until_it_is_released
                a_restored_letter_is_dead_in_its_old_place
                a_restored_head_is_the_head_again
                a_restored_letter_opens_its_closed_sequence
                a_letter_restored_into_a_sequence_opened_since_goes_first
                only_evicted_letters_are_restored
                closed_letters_can_only_be_restored
                the_head_of_a_sequence_in_work_is_left_to_the_worker
                a_letter_is_not_restored_in_front_of_a_worker
                after_the_lease_ended_a_person_may_act_and_the_worker_may_not
                every_act_is_audited_with_who_why_before_and_after
                what_is_more_than_one_act_is_noted_in_the_audit
                an_act_that_is_refused_is_not_audited
                the_audit_comes_in_pages
                clearing_is_audited_once_and_can_be_taken_back
                clearing_after_the_lease_ended_takes_the_head_too
                an_incarnation_is_recorded_once_with_its_time
                a_stream_that_was_recorded_without_an_id_gets_its_id
                the_incarnations_of_consumers_are_apart
                horizons_are_read_without_a_grant
                horizons_and_notes_belong_to_one_incarnation
                a_letter_keeps_its_incarnation_and_stands_behind_those_of_earlier_ones
                a_pause_says_who_why_and_since_when
                every_scope_can_be_paused_and_resumed
                pausing_what_is_paused_replaces_who_and_why
                pauses_and_their_ends_are_audited
                the_heads_come_oldest_touched_first
                paging_finds_every_sequence_exactly_once
                only_heads_are_listed
                the_audit_is_verified_where_the_store_says_so
                a_cursor_that_makes_no_sense_is_refused
                a_sequence_is_listed_from_an_index_on
                closed_letters_are_not_listed_but_can_be_read
                the_counts_follow_every_change
                leases_change_no_letter
                a_clock_that_is_set_back_does_not_prolong_a_dead_lease
                a_retry_does_not_wait_for_a_clock_that_was_set_back
                a_clock_that_is_set_back_twice_makes_no_retry_early
                a_letter_that_becomes_the_head_does_not_wait_for_a_clock_that_was_set_back
                a_letter_that_is_commented_does_not_wait_for_a_clock_that_was_set_back
                a_letter_that_is_stored_after_the_clock_was_set_back_waits_for_its_delay
                a_letter_that_is_requeued_after_the_clock_was_set_back_waits_for_its_delay
                a_head_that_is_claimed_after_the_clock_was_set_back_has_its_delay_left
                a_letter_that_leaves_lets_those_behind_it_go_on
                the_last_letter_that_leaves_closes_its_sequence
                a_letter_that_left_is_known_by_its_message_and_its_key
                a_letter_that_left_is_replayed_beside_its_old_sequence
                a_letter_that_left_does_not_return_to_its_sequence
                a_letter_that_leaves_in_a_replay_ends_it
                only_a_dead_letter_leaves
                counts_and_groups_follow_a_letter_that_leaves
                a_full_queue_refuses_no_letter_that_leaves
                a_letter_that_left_expires_and_is_purged
                a_letter_that_left_can_be_cleared
                a_message_delivered_again_goes_before_those_behind_a_letter_that_left
            }
            triage {
                an_empty_store_finds_nothing
                each_field_finds_its_letters
                what_is_found_is_what_matches
                the_latest_taken_in_comes_first_whatever_its_queue
                a_letter_is_found_as_it_is_stored
                an_imported_letter_is_found_by_its_message
                paging_shows_each_letter_once_while_others_come
                paging_goes_on_while_letters_are_closed
                a_page_holds_at_most_its_limit
                an_unknown_cursor_is_refused
                closed_letters_are_found_where_a_state_is_named
                what_changes_is_found_as_it_is_now
                hostile_text_is_data
                the_largest_queries_are_answered
                counts_are_exact_for_queues_and_states
                counts_follow_every_change
                a_failed_letter_is_counted_in_the_group_of_its_cause
                failures_that_differ_in_what_varies_share_a_group
                an_older_failure_does_not_replace_the_latest
                a_group_keeps_only_the_beginning_of_a_long_message
                a_group_keeps_the_exception_at_the_end_of_a_long_stack_trace
                letters_without_a_cause_belong_to_no_group
                a_skipped_message_with_a_cause_is_counted_as_closed
                a_message_handed_off_twice_is_counted_once
                a_message_that_was_refused_is_counted_nowhere
                the_counts_of_a_group_follow_every_act
                settling_moves_a_letter_between_the_counts_of_its_group
                a_letter_that_fails_in_another_way_moves_to_another_group
                a_letter_that_fails_in_the_same_way_stays_in_its_group
                a_failed_attempt_without_a_new_cause_is_seen
                a_waiting_letter_that_fails_comes_into_a_group
                those_behind_a_head_are_blocked_by_its_group
                a_message_delivered_again_blocks_the_later_ones
                the_oldest_open_letter_tells_the_age_of_a_group
                the_trend_counts_what_came_in_each_of_the_last_hours
                groups_come_in_pages_those_with_the_most_open_letters_first
                groups_without_open_letters_are_listed_on_demand
                groups_of_one_cause_are_kept_apart_by_queue
                what_names_no_group_finds_none
                queues_are_summed_up_by_name
                the_oldest_letter_of_a_queue_may_only_wait
                a_queue_is_listed_once_it_held_a_letter
                a_new_payload_keeps_the_original
                a_held_edit_parks_the_letter
                a_payload_can_be_changed_only_while_the_letter_is_not_leased
                comments_are_kept_in_order
                the_audit_of_a_letter_is_found_by_its_id
                comments_are_bounded
                owner_assignee_and_expiry_are_set_and_taken_back
                what_is_noted_on_a_letter_in_work_stays
                closed_letters_can_be_noted_on
                a_noted_head_was_touched_and_its_sequence_with_it
                every_change_is_audited_and_none_shows_a_payload
                the_key_of_digests_is_created_once
                a_letter_that_is_not_there_cannot_be_noted_on
                of_a_purged_letter_only_the_trace_is_left
                purged_letters_are_not_counted
                an_evicted_letter_is_restored_until_it_is_purged
                open_letters_are_not_purged
                a_purged_letter_is_not_found
                a_purge_is_audited
                an_erased_letter_keeps_its_skeleton_and_says_who_erased_it
                the_group_of_an_erased_letter_forgets_its_message
                open_letters_are_not_erased
                an_erased_letter_is_not_restored_and_not_erased_again
                nothing_is_added_to_an_erased_letter
                an_erased_letter_is_purged_as_any_other
                after_a_scrub_everything_else_is_there
                a_letter_expires_at_its_time_and_not_before
                each_letter_that_expires_is_audited
                an_expired_head_releases_those_behind_it
                a_letter_that_waits_behind_others_does_not_expire
                the_time_of_a_letter_that_waited_starts_with_its_first_failure
                the_next_letter_of_a_queue_to_expire_is_known_before
                the_next_letter_of_a_group_to_expire_is_known_before
                the_next_expiry_of_a_group_is_found_behind_many_of_others
                the_next_expiry_of_a_large_group_is_found_among_its_later_letters
                a_head_in_work_does_not_expire_under_the_worker
                no_more_than_the_limit_expires_in_one_call
                closed_letters_are_purged_when_they_were_kept_long_enough
                a_note_on_a_closed_letter_does_not_keep_it_longer
                a_letter_that_was_restored_is_not_purged
                letters_stored_closed_and_expired_ones_are_purged_in_time
                expiring_and_purging_share_the_limit
                expiring_keeps_to_its_queue
                a_requeue_may_leave_out_the_payload_and_says_so
                a_requeue_that_does_not_ask_keeps_the_payload
                a_payload_left_out_at_the_hand_off_is_remembered
                a_payload_that_was_left_out_can_be_brought_back
            }
            operations {
                a_freeze_is_exact_and_touches_nothing
                letters_stand_in_the_order_of_their_sequences
                what_comes_after_the_freeze_is_not_touched
                named_letters_are_frozen_once_each
                letters_that_are_not_there_are_left_out
                closed_letters_are_left_out
                what_stands_behind_a_letter_that_was_not_selected_is_not_replayed
                what_a_query_by_state_leaves_out_is_told
                quarantined_letters_are_replayed_only_when_asked_for
                letters_without_their_payload_are_not_replayed
                what_is_parked_is_not_parked_again
                letters_of_an_operation_that_is_not_over_are_left_out
                equal_plans_have_equal_hashes
                a_plan_holds_the_digests_of_its_payloads
                plans_and_operations_forget_the_payload_of_an_erased_letter
                a_plan_with_too_many_letters_is_refused
                the_letters_of_a_plan_come_in_pages
                old_plans_that_were_not_carried_out_are_forgotten
                drafts_are_the_plans_that_can_still_begin
                only_drafts_count_against_their_limits
                unknown_plans_and_operations_are_not_found
                an_operation_begins_as_it_was_asked_for
                a_plan_is_carried_out_once
                a_plan_that_has_expired_is_not_carried_out
                an_impossible_rollout_is_refused
                an_operation_about_nothing_is_done_at_once
                operations_come_latest_first_in_pages
                operations_under_way_are_listed_however_many_followed
                nothing_happens_before_a_second_person_approves
                a_refused_command_changes_no_counter_of_a_running_operation
                a_rejected_operation_touches_nothing
                a_scheduled_operation_waits_for_its_time
                a_schedule_in_the_past_is_now
                a_paused_operation_finishes_what_is_in_work_and_goes_on
                an_operation_whose_last_letters_end_while_it_is_paused_is_done
                a_cancelled_operation_counts_what_is_in_work
                whatever_an_operation_hands_out_counts_however_it_is_cancelled
                letters_of_a_cancelled_operation_whose_lease_was_lost_are_skipped
                an_operation_can_be_held_and_cancelled_before_its_time
                approvers_are_compared_by_name_not_by_channel
                each_letter_of_an_operation_is_leased_alone
                a_settlement_takes_the_next_letter_under_the_same_lease
                without_an_operation_it_is_an_ordinary_settlement
                a_settlement_takes_nothing_that_has_changed
                a_settlement_takes_no_letter_outside_of_its_operation
                nothing_behind_a_failed_letter_is_taken
                a_pause_of_the_sequence_holds_what_a_settlement_would_take
                commands_hold_what_a_settlement_would_take
                stages_hold_for_letters_that_settlements_take
                the_stop_rule_looks_before_a_letter_is_taken
                a_rate_bounds_the_letters_that_settlements_take
                a_letter_that_a_settlement_took_is_offered_again
                a_letter_that_was_only_taken_was_not_interrupted
                many_workers_that_continue_never_share_a_letter
                a_replay_hands_out_letters_in_order_and_counts_them
                a_letter_that_waits_or_will_retry_is_replayed_whatever_its_state
                nothing_behind_a_failed_letter_is_sent
                every_settlement_has_its_outcome
                a_settlement_that_is_refused_gives_no_outcome
                stages_are_exactly_as_large_as_asked_for
                a_stage_may_be_taken_in_parts
                a_letter_skipped_behind_a_failed_one_counts_for_its_stage
                the_stop_rule_holds_an_operation_after_a_stage
                within_a_stage_the_stop_rule_looks_after_twenty_letters
                a_share_that_is_just_allowed_does_not_stop
                after_a_resume_the_stop_rule_counts_anew
                when_nothing_is_left_the_stop_rule_holds_nothing
                the_rate_is_never_exceeded
                a_store_says_when_the_rate_allows_the_next_letter
                a_skipped_letter_costs_nothing_of_the_rate
                a_rate_bounds_the_letters_behind_the_heads_too
                letters_that_cannot_run_cost_nothing_of_the_rate
                a_rate_bounds_what_an_evicted_head_releases
                letters_that_arrive_behind_paced_ones_run_at_once_after_them
                paced_letters_do_not_wait_for_a_clock_that_was_set_back
                a_letter_that_was_closed_or_overtaken_is_skipped
                a_letter_that_was_quarantined_meanwhile_is_skipped
                a_letter_that_lost_its_payload_meanwhile_is_skipped
                a_letter_that_was_edited_meanwhile_is_skipped
                of_two_operations_the_first_has_the_letter
                a_letter_that_the_first_operation_let_go_is_the_others
                two_operations_alternate
                a_leased_sequence_is_left_for_later
                a_paused_sequence_waits_for_its_end
                released_work_is_offered_again
                work_of_an_expired_lease_is_offered_again_and_has_one_outcome
                work_of_an_expired_lease_that_the_scheduler_took_is_skipped
                a_letter_that_left_its_sequence_after_the_freeze_is_replayed
                what_a_letter_of_an_operation_leaves_behind_keeps_to_the_rate
                a_letter_in_work_is_not_taken_by_the_scheduler
                the_scheduler_leaves_letters_of_a_running_operation_alone
                a_letter_that_was_purged_meanwhile_releases_those_behind_it
                a_letter_that_left_its_sequence_meanwhile_releases_those_behind_it
                a_letter_that_left_releases_those_behind_it_before_the_operation_ends
                letters_skipped_behind_one_that_left_and_failed_again_run_by_themselves
                a_letter_that_had_left_before_the_freeze_releases_nothing_of_its_old_sequence
                letters_that_an_operation_released_run_by_themselves
                many_workers_never_share_a_letter
                an_operation_may_be_about_several_queues
                a_limit_of_none_takes_nothing
                acts_are_done_and_audited_letter_by_letter
                acts_keep_to_limit_stage_and_rate
                a_letter_whose_state_does_not_allow_the_act_any_more_is_skipped
                a_letter_quarantined_meanwhile_is_not_released
                the_head_of_a_sequence_in_work_is_acted_upon_later
                a_pause_of_a_sequence_holds_no_act_back
                a_head_that_an_operation_evicts_releases_those_behind_it
            }
        }
    };
}
