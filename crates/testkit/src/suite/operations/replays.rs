//! Replays: order, stages, the stop rule and the rate.

use std::time::Duration;

use lazaret_core::Letter;
use lazaret_core::letter::LetterState;
use lazaret_core::store::{
    Act, Action, Claim, Command, ErrorKind, OperationState, Outcome, Requeue, RolloutPolicy, Settled,
    Settlement, Store,
};

use super::fixture::{names, ramp};
use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{LEASE, kind, requeued, resolve};
use crate::suite::secs;

/// These stages, with a stop rule of 5 %.
fn careful(stages: &[u64]) -> RolloutPolicy {
    RolloutPolicy { stop_at: Some(0.05), ..ramp(stages) }
}

pub async fn a_replay_hands_out_letters_in_order_and_counts_them<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.fill("b", 2).await;
    t.advance(secs(1));
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let polled = t.poll(10).await;
    assert_eq!(names(&polled.items), ["a-0", "b-0"], "one letter of a sequence at a time");
    assert!(polled.items.iter().all(|item| item.operation == id));
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
    assert_eq!(t.poll(10).await.again_at, None);
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
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn every_settlement_has_its_outcome<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(10).await.items;
    let as_parked = |letter: &Letter| {
        let mut requeue = Requeue::of(letter);
        requeue.state = LetterState::Parked;
        requeued(requeue)
    };
    for (item, settlement) in items.iter().zip([
        resolve(),
        Settlement::Evict("the policy gave it up".into()),
        Settlement::Skip("left out".into()),
        as_parked(&items[3].claim.head),
    ]) {
        t.settle(&item.claim, &item.claim.head, settlement).await.unwrap();
    }
    let (ok, failed) = (Some(Outcome::Ok), Some(Outcome::FailedAgain));
    assert_eq!(t.outcomes(id).await, [ok, ok, ok, failed]);
    assert_eq!(t.state("a-003").await, LetterState::Parked);
    // I11: the audit names each letter that ended or was parked, and the operation that resolved or parked one.
    let audit = t.audit().await;
    for (name, action) in [("a-000", "resolve"), ("a-001", "evict"), ("a-002", "skip"), ("a-003", "park")] {
        let subject = t.get(name).await.id.to_string();
        let line = audit.iter().rfind(|line| line.subject == subject).unwrap();
        assert_eq!((line.action.as_str(), line.before.as_deref()), (action, Some("dead")), "{name}");
        let names_operation = ["resolve", "park"].contains(&action);
        assert_eq!(line.by.why.contains(&id.to_string()), names_operation, "{line:?}");
    }
}

pub async fn a_settlement_that_is_refused_gives_no_outcome<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    let mut requeue = Requeue::of(&item.claim.head);
    requeue.state = LetterState::Evicted;
    let refused = t.settle(&item.claim, &item.claim.head, requeued(requeue)).await;
    assert_eq!(kind(refused), ErrorKind::Invalid);
    assert_eq!(t.tally(id).await, (0, 0, 0, 1));
    t.succeed(&item).await;
    assert_eq!(t.tally(id).await, (1, 0, 0, 0));
}

pub async fn stages_are_exactly_as_large_as_asked_for<S: Store>(t: Fixture<S>) {
    t.letters("a", 140).await;
    let id = t.start(Action::Retry, &ramp(&[1, 5, 25, 100])).await;
    for (stage, size) in [1, 5, 25, 100, 9].into_iter().enumerate() {
        let polled = t.poll(1000).await;
        assert_eq!(polled.items.len(), size, "stage {stage}");
        assert_eq!(t.operation(id).await.stage, stage);
        for item in &polled.items {
            assert!(t.poll(1000).await.items.is_empty(), "a stage begins when the one before is over");
            t.succeed(item).await;
        }
    }
    assert_eq!(t.tally(id).await, (140, 0, 0, 0));
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn a_stage_may_be_taken_in_parts<S: Store>(t: Fixture<S>) {
    t.letters("a", 7).await;
    t.start(Action::Retry, &ramp(&[5])).await;
    let some = t.poll(3).await;
    assert_eq!((some.items.len(), some.again_at), (3, Some(t.now())), "there is more now");
    let rest = t.poll(3).await;
    assert_eq!(names(&rest.items), ["a-003", "a-004"]);
    assert!(rest.again_at.is_some_and(|at| at > t.now()), "it has to wait for those in work");
    assert!(t.poll(3).await.items.is_empty());
}

pub async fn a_letter_skipped_behind_a_failed_one_counts_for_its_stage<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &ramp(&[1, 2])).await;
    let item = t.poll_one().await;
    t.fail_item(&item).await;
    assert_eq!(t.tally(id).await, (0, 1, 2, 1));
    let item = t.poll_one().await;
    assert_eq!((names(std::slice::from_ref(&item)), t.operation(id).await.stage), (vec!["b-0"], 2));
}

pub async fn the_stop_rule_holds_an_operation_after_a_stage<S: Store>(t: Fixture<S>) {
    t.letters("a", 10).await;
    let id = t.start(Action::Retry, &careful(&[1, 5])).await;
    let item = t.poll_one().await;
    t.advance(secs(1));
    t.fail_item(&item).await;
    let operation = t.operation(id).await;
    assert_eq!((operation.state, operation.updated_at), (OperationState::Paused, t.now()));
    let note = "stopped: 1 of 1 letters failed again, more than 5 %";
    assert_eq!(operation.note.as_deref(), Some(note));
    assert!(operation.is_stopped());
    let polled = t.poll(10).await;
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
    let items = t.poll(30).await.items;
    for (n, item) in items.iter().enumerate().take(19) {
        if n < 2 {
            t.fail_item(item).await
        } else {
            t.succeed(item).await
        };
        assert_eq!(t.state_of(id).await, OperationState::Running, "{n}");
    }
    t.succeed(&items[19]).await;
    assert_eq!(t.state_of(id).await, OperationState::Paused, "2 of 20 are 10 %");
    assert_eq!(t.tally(id).await, (18, 2, 0, 40));
    for item in &items[20..] {
        t.succeed(item).await;
    }
    assert_eq!(t.tally(id).await, (28, 2, 0, 30), "what was in work is finished");
}

pub async fn a_share_that_is_just_allowed_does_not_stop<S: Store>(t: Fixture<S>) {
    t.letters("a", 20).await;
    t.letters("b", 20).await;
    let id = t.start(Action::Retry, &careful(&[20])).await;
    t.drain(|name| name == "a-007" || name == "b-019").await;
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (38, 2, 0, 0)));
}

pub async fn after_a_resume_the_stop_rule_counts_anew<S: Store>(t: Fixture<S>) {
    t.letters("a", 50).await;
    let id = t.start(Action::Retry, &careful(&[5, 5])).await;
    let fails = |name: &str| matches!(name, "a-000" | "a-009");
    assert_eq!(t.drain(fails).await.len(), 5);
    assert_eq!(t.state_of(id).await, OperationState::Paused);
    assert_eq!(t.command(id, Command::Resume).await, OperationState::Running);
    assert_eq!(t.drain(fails).await.len(), 5, "the next stage, and its failure stops it again");
    assert_eq!(
        t.operation(id).await.note.as_deref(),
        Some("stopped: 1 of 5 letters failed again, more than 5 %")
    );
    t.command(id, Command::Resume).await;
    assert_eq!(t.drain(fails).await.len(), 40);
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (48, 2, 0, 0)));
}

pub async fn when_nothing_is_left_the_stop_rule_holds_nothing<S: Store>(t: Fixture<S>) {
    t.letters("a", 1).await;
    let id = t.start(Action::Retry, &careful(&[1])).await;
    t.drain(|_| true).await;
    assert_eq!(t.state_of(id).await, OperationState::Done);
}

pub async fn the_rate_is_never_exceeded<S: Store>(t: Fixture<S>) {
    t.letters("a", 120).await;
    let (rate, began) = (10.0, t.now());
    t.start(Action::Retry, &RolloutPolicy { rate: Some(rate), ..RolloutPolicy::unlimited() }).await;
    let mut sent = 0;
    // All workers together keep to the rate, whatever they ask for.
    for round in 0..100_u64 {
        let polled = t
            .store
            .poll_work(&t.queue, &format!("w{}", round % 3), LEASE, 1 + (round % 4) as usize)
            .await
            .unwrap();
        sent += polled.items.len();
        for item in &polled.items {
            t.settle(&item.claim, &item.claim.head, resolve()).await.unwrap();
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
        let polled = t.poll(10).await;
        assert_eq!((polled.items.len(), polled.again_at), (1, Some(t.now() + secs(2))));
        t.succeed(&polled.items[0]).await;
        t.advance(secs(2) - Duration::from_millis(1));
        assert!(t.poll(10).await.items.is_empty());
        t.advance(Duration::from_millis(1));
    }
    t.advance(secs(3600));
    assert_eq!(t.poll(10).await.items.len(), 1, "what was not used is not saved up");
}

pub async fn a_skipped_letter_costs_nothing_of_the_rate<S: Store>(t: Fixture<S>) {
    t.letters("a", 4).await;
    t.start(Action::Retry, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    for name in ["a-000", "a-001", "a-002"] {
        t.act(name, Act::Resolve).await.unwrap();
    }
    let polled = t.poll(10).await;
    assert_eq!((names(&polled.items), polled.settled), (vec!["a-003"], 3));
}

/// Runs everything that may run, at intervals of a quarter of a second: the letters of operations, and those that are due. Returns the times
/// of the calls, in seconds.
async fn calls<S: Store>(t: &Fixture<S>, seconds: u32) -> Vec<(f64, String)> {
    let mut calls = Vec::new();
    for quarter in 0..=seconds * 4 {
        let at = f64::from(quarter) / 4.0;
        loop {
            let polled = t.store.poll_work(&t.queue, "worker", LEASE, 16).await.unwrap();
            let due = t.store.claim_due(&t.queue, "worker", LEASE, 16).await.unwrap();
            let given: Vec<Claim> = polled.items.into_iter().map(|item| item.claim).chain(due).collect();
            if given.is_empty() {
                break;
            }
            for mut claim in given {
                loop {
                    calls.push((at, claim.head.message.id.to_string()));
                    match t.settle(&claim, &claim.head, resolve()).await.unwrap() {
                        Settled::Next(next) => claim.head = *next,
                        _ => break,
                    }
                }
            }
        }
        t.advance(Duration::from_millis(250));
    }
    calls
}

/// Fails unless no more letters ran by any time than the rate allows, whose burst is one letter.
pub(super) fn at_most(rate: f64, calls: &[(f64, String)]) {
    for (number, (at, _)) in calls.iter().enumerate() {
        let allowed = 1.0 + at * rate;
        assert!((number + 1) as f64 <= allowed + 1e-6, "call {} after {at} s: {calls:?}", number + 1);
    }
}

pub async fn a_rate_bounds_the_letters_behind_the_heads_too<S: Store>(t: Fixture<S>) {
    for sequence in ["a", "b"] {
        t.enqueue(sequence, &format!("{sequence}0")).await;
        for number in 1..=3 {
            t.behind(t.waiting(sequence, &format!("{sequence}{number}"))).await;
        }
    }
    let plan = t.freeze_named(Action::Retry, &["a0", "b0"]).await;
    assert_eq!((plan.letters, plan.sequences, plan.followers), (2, 2, 6));
    t.begin(&plan, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let calls = calls(&t, 12).await;
    at_most(1.0, &calls);
    let mut ran: Vec<&str> = calls.iter().map(|(_, id)| id.as_str()).collect();
    for sequence in ["a", "b"] {
        // I2
        let of_sequence: Vec<&str> = ran.iter().copied().filter(|id| id.starts_with(sequence)).collect();
        assert!(of_sequence.is_sorted(), "{ran:?}");
    }
    ran.sort_unstable();
    assert_eq!(ran, ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"], "all of them run in the end");
}

pub async fn letters_that_cannot_run_cost_nothing_of_the_rate<S: Store>(t: Fixture<S>) {
    // Fifty letters wait behind another dead letter, which the operation does not touch.
    for (sequence, action) in [("a", Action::Retry), ("b", Action::Evict)] {
        t.enqueue(sequence, &format!("{sequence}0")).await;
        t.behind(t.waiting(sequence, &format!("{sequence}1"))).await;
        t.open(t.dead(sequence, &format!("{sequence}2"))).await;
        for number in 3..53 {
            t.behind(t.waiting(sequence, &format!("{sequence}{number}"))).await;
        }
        let other = format!("other-{sequence}");
        t.enqueue(&other, &other).await;
        let plan = t.freeze_named(action, &[&format!("{sequence}0"), &other]).await;
        let rollout = RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() };
        let operation = t.begin(&plan, &rollout).await;
        at_most(1.0, &calls(&t, 5).await);
        assert_eq!(t.state_of(operation).await, OperationState::Done, "{action:?}");
        assert_eq!(t.get(&format!("{sequence}2")).await.state, LetterState::Dead);
    }
}

pub async fn a_rate_bounds_what_an_evicted_head_releases<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "a0").await;
    for number in 1..=4 {
        t.behind(t.waiting("a", &format!("a{number}"))).await;
    }
    let plan = t.freeze_named(Action::Evict, &["a0"]).await;
    assert_eq!((plan.letters, plan.followers), (1, 4));
    t.begin(&plan, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let calls = calls(&t, 8).await;
    at_most(1.0, &calls);
    assert_eq!(calls.len(), 4);
    let parked = t.enqueue("b", "b0").await;
    t.behind(t.waiting("b", "b1")).await;
    let plan = t.freeze_named(Action::Park, &[parked.message.id.as_str()]).await;
    assert_eq!((plan.letters, plan.followers), (1, 0), "a parked head releases nothing");
}

pub async fn letters_that_arrive_behind_paced_ones_run_at_once_after_them<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "a0").await;
    t.behind(t.waiting("a", "a1")).await;
    let plan = t.freeze_named(Action::Retry, &["a0"]).await;
    t.begin(&plan, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let first = calls(&t, 0).await;
    assert_eq!(first.len(), 1);
    for number in 2..=4 {
        t.behind(t.waiting("a", &format!("a{number}"))).await;
    }
    let rest = calls(&t, 2).await;
    let ran: Vec<&str> = rest.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(ran, ["a1", "a2", "a3", "a4"]);
    assert!(rest[3].0 - rest[0].0 < 1.0, "only what stood behind the plan has its pace: {rest:?}");
}

pub async fn paced_letters_do_not_wait_for_a_clock_that_was_set_back<S: Store>(t: Fixture<S>) {
    t.advance(secs(7200));
    for sequence in ["a", "b"] {
        t.enqueue(sequence, &format!("{sequence}0")).await;
        for number in 1..=3 {
            t.behind(t.waiting(sequence, &format!("{sequence}{number}"))).await;
        }
    }
    t.advance(secs(3600));
    let plan = t.freeze_named(Action::Retry, &["a0", "b0"]).await;
    t.begin(&plan, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let before = calls(&t, 2).await;
    t.set_back(secs(1800));
    let after = calls(&t, 16).await;
    at_most(1.0, &before);
    at_most(1.0, &after);
    assert_eq!(before.len() + after.len(), 8, "{before:?} {after:?}");
}
