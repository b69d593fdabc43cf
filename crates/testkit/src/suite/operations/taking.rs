//! Replays: stages, the stop rule, the rate, order, and what others do to the letters meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::{
    Act, Action, Command, ErrorKind, HandOff, Limits, OperationState, Outcome, PauseScope, Placement,
    RolloutPolicy, Settled, Settlement, Store,
};
use lazaret_core::{Letter, Message, Position, QueueName};

use super::bed::{everything, names, ramp, request};
use crate::suite::letters::Fixture;
use crate::suite::letters::bed::{LEASE, kind, operator, requeue_of, requeued, resolve, seq};
use crate::suite::secs;

/// 5 %, in these stages.
fn careful(stages: &[u64]) -> RolloutPolicy {
    RolloutPolicy { stop_at: Some(0.05), ..ramp(stages) }
}

pub async fn a_replay_hands_out_letters_in_order_and_counts_them<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.fill("b", 2).await;
    t.advance(secs(1));
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let polled = t.take(10).await;
    assert_eq!(names(&polled.items), ["a-0", "b-0"], "one letter of a sequence at a time");
    assert!(polled.items.iter().all(|turn| turn.operation == id));
    assert_eq!(polled.items[0].claim.head, t.get("a-0").await);
    assert_eq!(t.tally(id).await, (0, 0, 0, 5), "what is in work has no outcome");
    t.succeed(&polled.items[1]).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 4));
    t.succeed(&polled.items[0]).await;
    t.advance(secs(1));
    assert_eq!(t.drain(|_| false).await, ["a-1", "b-1", "a-2"]);
    let operation = t.operation(id).await;
    assert_eq!((operation.state, operation.ended_at), (OperationState::Done, Some(t.now())));
    assert_eq!((operation.sent(), t.tally(id).await), (5, (5, 0, 0, 0)));
    assert_eq!(t.store.counts(&t.queue).await.unwrap().of(LetterState::Resolved), 5);
    assert_eq!(t.take(10).await.again_at, None);
}

pub async fn a_letter_that_waits_or_will_retry_is_replayed_whatever_its_state<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(600))).await;
    t.behind(t.waiting("a", "2")).await;
    t.enqueue("b", "3").await;
    t.act("3", Act::Park).await.unwrap();
    t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.drain(|_| false).await, ["1", "3", "2"]);
}

pub async fn nothing_behind_a_failed_letter_is_sent<S: Store>(t: Fixture<S>) {
    // I2
    t.fill("a", 4).await;
    t.fill("b", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.drain(|name| name == "a-1").await, ["a-0", "b-0", "a-1", "b-1"]);
    assert_eq!(t.tally(id).await, (3, 1, 2, 0));
    let behind = Some(Outcome::SkippedBehindFailed);
    let (ok, failed) = (Some(Outcome::Ok), Some(Outcome::FailedAgain));
    assert_eq!(t.outcomes(id).await, [ok, failed, behind, behind, ok, ok]);
    assert_eq!(t.messages("a").await, ["a-1", "a-2", "a-3"]);
    assert_eq!(t.stands(id).await, OperationState::Done);
}

pub async fn every_settlement_has_its_outcome<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let turns = t.take(10).await.items;
    let as_parked = |letter: &Letter| {
        let mut requeue = requeue_of(letter);
        requeue.state = LetterState::Parked;
        requeued(requeue)
    };
    for (turn, settlement) in turns.iter().zip([
        resolve(),
        Settlement::Evict("the policy gave it up".into()),
        Settlement::Skip("left out".into()),
        as_parked(&turns[3].claim.head),
    ]) {
        t.settle(&turn.claim, &turn.claim.head, settlement).await.unwrap();
    }
    let (ok, failed) = (Some(Outcome::Ok), Some(Outcome::FailedAgain));
    assert_eq!(t.outcomes(id).await, [ok, ok, ok, failed]);
    assert_eq!(t.state("a-003").await, LetterState::Parked);
}

pub async fn a_settlement_that_is_refused_gives_no_outcome<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let turn = t.take_one().await;
    let mut requeue = requeue_of(&turn.claim.head);
    requeue.state = LetterState::Evicted;
    let refused = t.settle(&turn.claim, &turn.claim.head, requeued(requeue)).await;
    assert_eq!(kind(refused), ErrorKind::Invalid);
    assert_eq!(t.tally(id).await, (0, 0, 0, 1));
    t.succeed(&turn).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 0));
}

pub async fn stages_are_exactly_as_large_as_asked_for<S: Store>(t: Fixture<S>) {
    t.letters("a", 140).await;
    let id = t.start(Action::Retry, &ramp(&[1, 5, 25, 100])).await;
    for (stage, size) in [1, 5, 25, 100, 9].into_iter().enumerate() {
        let polled = t.take(1000).await;
        assert_eq!(polled.items.len(), size, "stage {stage}");
        assert_eq!(t.operation(id).await.stage, stage);
        for turn in &polled.items {
            assert!(t.take(1000).await.items.is_empty(), "a stage begins when the one before is over");
            t.succeed(turn).await;
        }
    }
    assert_eq!(t.tally(id).await, (140, 0, 0, 0));
    assert_eq!(t.stands(id).await, OperationState::Done);
}

pub async fn a_stage_may_be_taken_in_parts<S: Store>(t: Fixture<S>) {
    t.letters("a", 7).await;
    t.start(Action::Retry, &ramp(&[5])).await;
    let some = t.take(3).await;
    assert_eq!((some.items.len(), some.again_at), (3, Some(t.now())), "there is more now");
    let rest = t.take(3).await;
    assert_eq!(names(&rest.items), ["a-003", "a-004"]);
    assert!(rest.again_at.is_some_and(|at| at > t.now()), "it has to wait for those in work");
    assert!(t.take(3).await.items.is_empty());
}

pub async fn a_letter_skipped_behind_a_failed_one_counts_for_its_stage<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &ramp(&[1, 2])).await;
    let turn = t.take_one().await;
    t.fail_turn(&turn).await;
    assert_eq!(t.tally(id).await, (0, 1, 2, 1));
    let turn = t.take_one().await;
    assert_eq!((names(std::slice::from_ref(&turn)), t.operation(id).await.stage), (vec!["b-0"], 2));
}

pub async fn the_stop_rule_holds_an_operation_after_a_stage<S: Store>(t: Fixture<S>) {
    t.letters("a", 10).await;
    let id = t.start(Action::Retry, &careful(&[1, 5])).await;
    let turn = t.take_one().await;
    t.advance(secs(1));
    t.fail_turn(&turn).await;
    let operation = t.operation(id).await;
    assert_eq!((operation.state, operation.updated_at), (OperationState::Paused, t.now()));
    let note = "stopped: 1 of 1 letters failed again, more than 5 %";
    assert_eq!(operation.note.as_deref(), Some(note));
    let polled = t.take(10).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, None));
    let audit = t.audit().await;
    let last = audit.last().unwrap();
    assert_eq!((last.action.as_str(), last.by.who.as_str()), ("pause", "lazaret"));
    assert_eq!((last.by.why.as_str(), last.subject.as_str()), (note, id.to_string().as_str()));
    assert_eq!((last.before.as_deref(), last.after.as_deref()), (Some("running"), Some("paused")));
}

pub async fn within_a_stage_the_stop_rule_looks_after_twenty_letters<S: Store>(t: Fixture<S>) {
    t.letters("a", 60).await;
    let id = t.start(Action::Retry, &careful(&[])).await;
    let turns = t.take(30).await.items;
    for (n, turn) in turns.iter().enumerate().take(19) {
        if n < 2 {
            t.fail_turn(turn).await
        } else {
            t.succeed(turn).await
        };
        assert_eq!(t.stands(id).await, OperationState::Running, "{n}");
    }
    t.succeed(&turns[19]).await;
    assert_eq!(t.stands(id).await, OperationState::Paused, "2 of 20 are 10 %");
    assert_eq!(t.tally(id).await, (18, 2, 0, 40));
    for turn in &turns[20..] {
        t.succeed(turn).await;
    }
    assert_eq!(t.tally(id).await, (28, 2, 0, 30), "what was in work is finished");
}

pub async fn a_share_that_is_just_allowed_does_not_stop<S: Store>(t: Fixture<S>) {
    t.letters("a", 20).await;
    t.letters("b", 20).await;
    let id = t.start(Action::Retry, &careful(&[20])).await;
    t.drain(|name| name == "a-007" || name == "b-019").await;
    assert_eq!((t.stands(id).await, t.tally(id).await), (OperationState::Done, (38, 2, 0, 0)));
}

pub async fn after_a_resume_the_stop_rule_counts_anew<S: Store>(t: Fixture<S>) {
    t.letters("a", 50).await;
    let id = t.start(Action::Retry, &careful(&[5, 5])).await;
    let fails = |name: &str| matches!(name, "a-000" | "a-009");
    assert_eq!(t.drain(fails).await.len(), 5);
    assert_eq!(t.stands(id).await, OperationState::Paused);
    assert_eq!(t.tell(id, Command::Resume).await, OperationState::Running);
    assert_eq!(t.drain(fails).await.len(), 5, "the next stage, and its failure stops it again");
    assert_eq!(
        t.operation(id).await.note.as_deref(),
        Some("stopped: 1 of 5 letters failed again, more than 5 %")
    );
    t.tell(id, Command::Resume).await;
    assert_eq!(t.drain(fails).await.len(), 40);
    assert_eq!((t.stands(id).await, t.tally(id).await), (OperationState::Done, (48, 2, 0, 0)));
}

pub async fn when_nothing_is_left_the_stop_rule_holds_nothing<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &careful(&[1])).await;
    t.drain(|_| true).await;
    assert_eq!(t.stands(id).await, OperationState::Done);
}

pub async fn the_rate_is_never_exceeded<S: Store>(t: Fixture<S>) {
    t.letters("a", 120).await;
    let (rate, began) = (10.0, t.now());
    t.start(Action::Retry, &RolloutPolicy { rate: Some(rate), ..RolloutPolicy::unlimited() }).await;
    let mut sent = 0;
    // Whoever asks, how often, and for how many: all together keep to the rate.
    for round in 0..100_u64 {
        let polled = t
            .store
            .poll_work(&t.queue, &format!("w{}", round % 3), LEASE, 1 + (round % 4) as usize)
            .await
            .unwrap();
        sent += polled.items.len();
        for turn in &polled.items {
            t.settle(&turn.claim, &turn.claim.head, resolve()).await.unwrap();
        }
        let seconds = t.now().duration_since(began).as_secs_f64();
        assert!(sent as f64 <= rate * seconds + 1.0 + rate / 4.0, "{sent} after {seconds} s");
        t.advance(Duration::from_millis(round % 7 * 30));
    }
    let seconds = t.now().duration_since(began).as_secs_f64();
    assert!(sent as f64 >= (rate * seconds - rate).min(120.0), "{sent} after {seconds} s");
}

pub async fn a_store_says_when_the_rate_allows_the_next_letter<S: Store>(t: Fixture<S>) {
    t.letters("a", 30).await;
    t.start(Action::Retry, &RolloutPolicy { rate: Some(0.5), ..RolloutPolicy::unlimited() }).await;
    for _ in 0..5 {
        let polled = t.take(10).await;
        assert_eq!((polled.items.len(), polled.again_at), (1, Some(t.now() + secs(2))));
        t.succeed(&polled.items[0]).await;
        t.advance(secs(2) - Duration::from_millis(1));
        assert!(t.take(10).await.items.is_empty());
        t.advance(Duration::from_millis(1));
    }
    t.advance(secs(3600));
    assert_eq!(t.take(10).await.items.len(), 1, "what was not used is not saved up");
}

pub async fn a_skipped_letter_costs_nothing_of_the_rate<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    t.start(Action::Retry, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    for name in ["a-000", "a-001", "a-002"] {
        t.act(name, Act::Resolve).await.unwrap();
    }
    let polled = t.take(10).await;
    assert_eq!((names(&polled.items), polled.settled), (vec!["a-003"], 3));
}

pub async fn a_letter_that_somebody_closed_or_overtook_is_skipped<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.enqueue("b", "evicted").await;
    t.enqueue("c", "old").await;
    t.act("old", Act::Evict).await.unwrap();
    t.enqueue("c", "new").await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    t.act("evicted", Act::Evict).await.unwrap();
    t.act("old", Act::Restore).await.unwrap();
    let polled = t.take(10).await;
    assert_eq!(names(&polled.items), ["a-1"]);
    assert_eq!(polled.settled, 3);
    let changed = Some(Outcome::SkippedChanged);
    assert_eq!(t.outcomes(id).await, [changed, None, changed, changed]);
    assert_eq!(t.messages("c").await, ["old", "new"], "I2: what was put in front goes first");
}

pub async fn a_letter_that_was_quarantined_meanwhile_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 2).await;
    t.act("a-000", Act::Quarantine).await.unwrap();
    let plan = t.freeze_named(Action::Retry, &["a-000", "a-001"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.act("a-001", Act::Quarantine).await.unwrap();
    assert_eq!(names(&t.take(10).await.items), ["a-000"], "that one was asked for");
    assert_eq!(t.outcomes(id).await, [None, Some(Outcome::SkippedChanged)]);
}

pub async fn a_letter_that_lost_its_payload_meanwhile_is_skipped<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let claim = t.claim("a-000", "other").await.unwrap();
    let mut requeue = requeue_of(&claim.head);
    requeue.leave_out_payload = true;
    t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    assert_eq!(t.take(10).await.settled, 1);
    assert_eq!(t.outcomes(id).await, [Some(Outcome::SkippedChanged)]);
}

pub async fn of_two_operations_the_first_has_the_letter<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let [one, other] = [t.freeze(Action::Retry).await, t.freeze(Action::Retry).await];
    let first = t.begin(&one, &RolloutPolicy::unlimited()).await;
    let late = t.begin(&other, &RolloutPolicy::unlimited()).await;
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.tally(first).await, (2, 0, 0, 0));
    assert_eq!(t.tally(late).await, (0, 0, 2, 0));
}

pub async fn a_letter_that_the_first_operation_let_go_is_the_others<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let [one, other] = [t.freeze(Action::Retry).await, t.freeze(Action::Retry).await];
    let first = t.begin(&one, &RolloutPolicy::unlimited()).await;
    let later = Some(t.now() + secs(5));
    let late = t.begin(&other, &RolloutPolicy { start_at: later, ..RolloutPolicy::unlimited() }).await;
    t.tell(first, Command::Cancel).await;
    t.advance(secs(5));
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.tally(late).await, (2, 0, 0, 0));
}

pub async fn two_operations_take_turns<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    let one = t.freeze(Action::Retry).await;
    t.letters("b", 4).await;
    let other = t.freeze_named(Action::Retry, &["b-000", "b-001", "b-002", "b-003"]).await;
    t.begin(&one, &RolloutPolicy::unlimited()).await;
    t.begin(&other, &RolloutPolicy::unlimited()).await;
    let mut served = Vec::new();
    for _ in 0..4 {
        t.advance(secs(1));
        served.extend(t.take(1).await.items.iter().map(|turn| turn.claim.head.message.id.to_string()));
    }
    assert_eq!(served, ["a-000", "b-000", "a-001", "b-001"]);
}

pub async fn a_sequence_that_somebody_holds_is_left_for_later<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let claim = t.claim("a", "other").await.unwrap();
    let polled = t.take(10).await;
    assert_eq!(names(&polled.items), ["b-0"]);
    assert!(polled.again_at.is_some_and(|at| at > t.now()));
    t.succeed(&polled.items[0]).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 2));
    let next = t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(matches!(next, Settled::Next(_)), "the other's lease is not an operation's");
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.drain(|_| false).await, ["a-1"]);
    assert_eq!(t.tally(id).await, (2, 0, 1, 0), "the other one was handled meanwhile");
}

pub async fn a_paused_sequence_waits_for_its_end<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.pause("a").await;
    assert_eq!(t.drain(|_| false).await, ["b-0"]);
    assert!(t.take(10).await.again_at.is_some(), "the pause may end");
    let scope = PauseScope::Sequence(seq("a"));
    t.store.resume(&t.consumer(), &scope, &operator()).await.unwrap();
    assert_eq!(t.drain(|_| false).await, ["a-0", "a-1"]);
    assert_eq!(t.stands(id).await, OperationState::Done);
}

pub async fn a_turn_that_was_given_back_comes_again<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let first = t.take_one().await;
    assert!(t.take(10).await.items.is_empty());
    t.store.release(&first.claim.lease).await.unwrap();
    assert_eq!(t.tally(id).await, (0, 0, 0, 2));
    let again = t.take_one().await;
    assert_eq!(again.claim.head.id, first.claim.head.id);
    assert!(again.claim.lease.fence > first.claim.lease.fence);
    t.succeed(&again).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 1));
}

pub async fn a_lost_turn_comes_again_and_has_one_outcome<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let lost = t.take_one().await;
    t.advance(LEASE - secs(1));
    let lost = lazaret_core::store::WorkItem {
        claim: lazaret_core::store::Claim {
            lease: t.store.renew(&lost.claim.lease, LEASE).await.unwrap(),
            ..lost.claim
        },
        ..lost
    };
    t.advance(secs(2));
    assert!(t.take(10).await.items.is_empty(), "a renewed lease is still the operation's");
    t.advance(LEASE);
    let again = t.take_one().await;
    assert_eq!(again.claim.head.id, lost.claim.head.id);
    assert_eq!(kind(t.settle(&lost.claim, &lost.claim.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.tally(id).await, (0, 0, 0, 2));
    t.fail_turn(&again).await;
    assert_eq!(kind(t.settle(&again.claim, &again.claim.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.tally(id).await, (0, 1, 1, 0));
}

pub async fn a_lost_turn_that_the_scheduler_took_is_skipped<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    t.take_one().await;
    t.advance(LEASE);
    let claim = t.due_one("scheduler").await;
    assert!(t.take(10).await.items.is_empty());
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
    assert_eq!(t.tally(id).await, (0, 0, 0, 1), "that was not this operation's doing");
    assert_eq!(t.take(10).await.settled, 1);
    assert_eq!(t.outcomes(id).await, [Some(Outcome::SkippedChanged)]);
}

pub async fn a_letter_in_work_is_not_taken_by_the_scheduler<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let turn = t.take_one().await;
    assert!(t.due("scheduler", 10).await.is_empty());
    assert_eq!(kind(t.act("1", Act::Evict).await), ErrorKind::Conflict);
    t.fail_turn(&turn).await;
    assert_eq!(t.due("scheduler", 10).await.len(), 1);
}

pub async fn what_an_operation_has_begun_does_not_run_around_it<S: Store>(t: Fixture<S>) {
    // What waits behind a dead head is due as soon as the head is handled, but the operation has its stages.
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.behind(t.waiting("a", "3")).await;
    let plan = t.freeze(Action::Retry).await;
    t.behind(t.waiting("a", "late")).await;
    let id = t.begin(&plan, &ramp(&[1])).await;
    t.succeed(&t.take_one().await).await;
    t.tell(id, Command::Pause).await;
    assert!(t.due("scheduler", 10).await.is_empty());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
    t.pause("a").await;
    t.store.resume(&t.consumer(), &PauseScope::Sequence(seq("a")), &operator()).await.unwrap();
    assert!(t.due("scheduler", 10).await.is_empty(), "a pause that came and went changes nothing");
    t.tell(id, Command::Resume).await;
    let lost = t.take_one().await;
    t.advance(LEASE);
    assert!(t.due("scheduler", 10).await.is_empty(), "a lost turn comes again");
    t.succeed(&t.take_one().await).await;
    assert_eq!(kind(t.settle(&lost.claim, &lost.claim.head, resolve()).await), ErrorKind::Fenced);
    t.succeed(&t.take_one().await).await;
    assert_eq!(t.stands(id).await, OperationState::Done);
    assert_eq!(t.due_one("scheduler").await.head.message.id.as_str(), "late", "that was never its own");
}

pub async fn what_an_operation_lets_go_runs_by_itself<S: Store>(t: Fixture<S>) {
    for sequence in ["cancelled", "failed", "changed"] {
        t.enqueue(sequence, &format!("{sequence}-1")).await;
        for n in 2..=4 {
            t.behind(t.waiting(sequence, &format!("{sequence}-{n}"))).await;
        }
        let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
        t.succeed(&t.take_one().await).await;
        match sequence {
            "cancelled" => _ = t.tell(id, Command::Cancel).await,
            "failed" => _ = t.fail_turn(&t.take_one().await).await,
            _ => {
                for n in 2..=4 {
                    t.act(&format!("{sequence}-{n}"), Act::Quarantine).await.unwrap();
                }
                assert_eq!(t.take(10).await.settled, 3);
                t.act(&format!("{sequence}-2"), Act::Release).await.unwrap();
            }
        }
        let claim = t.due_one("scheduler").await;
        assert_eq!(claim.head.message.id.as_str(), format!("{sequence}-2"));
        t.act(&format!("{sequence}-3"), Act::Park).await.unwrap();
        assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Blocked));
        for n in 3..=4 {
            t.act(&format!("{sequence}-{n}"), Act::Evict).await.unwrap();
        }
    }
}

pub async fn many_takers_never_share_a_letter<S: Store>(t: Fixture<S>) {
    // I6
    for n in 0..12 {
        t.fill(&format!("s{n}"), 5).await;
    }
    let id = t.start(Action::Retry, &ramp(&[7, 20])).await;
    let takers: Vec<_> = (0..6)
        .map(|n| {
            let (store, queue) = (t.store.clone(), t.queue.clone());
            tokio::spawn(async move {
                let mut tried: Vec<LetterId> = Vec::new();
                loop {
                    let polled = store.poll_work(&queue, &format!("w{n}"), LEASE, 1 + n % 3).await.unwrap();
                    for turn in &polled.items {
                        let head = &turn.claim.head;
                        tokio::task::yield_now().await;
                        store.settle(&turn.claim.lease, head.id, resolve()).await.unwrap();
                        tried.push(head.id);
                    }
                    if polled.items.is_empty() && polled.again_at.is_none() {
                        return tried;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut tried = Vec::new();
    for taker in takers {
        tried.extend(taker.await.unwrap());
    }
    assert_eq!((tried.len(), tried.iter().collect::<BTreeSet<_>>().len()), (60, 60));
    assert_eq!((t.stands(id).await, t.tally(id).await), (OperationState::Done, (60, 0, 0, 0)));
}

pub async fn an_operation_may_be_about_several_queues<S: Store>(t: Fixture<S>) {
    let mail = QueueName::of("orders", "mail");
    t.letters("a", 3).await;
    for n in 0..3 {
        let message =
            Message::new(format!("m-{n}"), "orders", Position::new(0, n)).with_key(format!("m-{n}"));
        let mut letter = Letter::new(mail.clone(), seq(&format!("m-{n}")), message.into(), t.now());
        letter.state = LetterState::Dead;
        let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
        t.store.hand_off(&mail, &Limits::NONE, items).await.unwrap().remove(0).unwrap();
        t.advance(secs(1));
    }
    let plan = t.store.freeze(&request(Action::Retry, everything()), &operator()).await.unwrap();
    assert_eq!((plan.letters, plan.sequences), (6, 6));
    let id = t.begin(&plan, &ramp(&[4])).await;
    let mine = t.take(10).await;
    assert_eq!(names(&mine.items).len(), 3);
    let theirs = t.take_of(&mail, 10).await;
    assert_eq!(names(&theirs.items), ["m-0"], "a stage is one over all queues");
    assert!(theirs.items.iter().all(|turn| turn.claim.lease.queue == mail));
    for turn in &mine.items {
        t.succeed(turn).await;
    }
    assert_eq!(t.take(10).await.again_at, None, "this queue has nothing to do with the rest");
    assert!(t.take_of(&mail, 10).await.items.is_empty());
    t.succeed(&theirs.items[0]).await;
    for turn in t.take_of(&mail, 10).await.items {
        t.succeed(&turn).await;
    }
    assert_eq!((t.stands(id).await, t.tally(id).await), (OperationState::Done, (6, 0, 0, 0)));
}

pub async fn a_limit_of_none_takes_nothing<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let polled = t.take(0).await;
    assert_eq!((polled.items.len(), polled.again_at), (0, Some(t.now())));
    assert_eq!(t.take(1).await.items.len(), 1);
}
