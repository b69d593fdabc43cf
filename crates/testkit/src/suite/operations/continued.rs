//! Settlements that take the next letter of an operation with them.

use std::collections::BTreeSet;
use std::time::Duration;

use lazaret_core::letter::LetterState;
use lazaret_core::store::{
    Act, Action, Change, Command, ErrorKind, Lease, LeaseUse, OperationState, Outcome, PauseScope,
    RolloutPolicy, Settled, Store, WorkItem,
};

use super::fixture::{names, ramp};
use super::interference::workers_share_no_letter;
use super::replays::at_most;
use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{LEASE, fail_again, kind, operator, resolve, seq};
use crate::suite::secs;

/// Settles a letter as handled, and lets its operation take the next one. Returns the message of that, if it was taken.
async fn go_on<S: Store>(t: &Fixture<S>, lease: &Lease, message: &str) -> Option<String> {
    match t.store.settle_and_continue(lease, t.id_of(message), resolve()).await.unwrap() {
        Settled::Next(next) => Some(next.message.id.to_string()),
        Settled::Closed | Settled::Blocked => None,
        Settled::Requeued => panic!("{message} was handled"),
    }
}

/// Opens a sequence of two letters, begins an operation on both and polls the first.
async fn two_letters<S: Store>(t: &Fixture<S>, sequence: &str) -> WorkItem {
    t.fill(sequence, 2).await;
    let plan = t.freeze_named(Action::Retry, &[&format!("{sequence}-0"), &format!("{sequence}-1")]).await;
    t.begin(&plan, &RolloutPolicy::unlimited()).await;
    t.poll_one().await
}

pub async fn a_settlement_takes_the_next_letter_under_the_same_lease<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 3).await;
    t.fill("b", 1).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let items = t.poll(10).await.items;
    assert_eq!(names(&items), ["a-0", "b-0"]);
    let lease = &items[0].claim.lease;
    let settled = t.store.settle_and_continue(lease, t.id_of("a-0"), resolve()).await.unwrap();
    let Settled::Next(next) = settled else { panic!("{settled:?}") };
    assert_eq!(*next, t.get("a-1").await);
    assert_eq!((t.state("a-0").await, t.tally(id).await), (LetterState::Resolved, (1, 0, 0, 3)));
    assert!(t.poll(10).await.items.is_empty(), "it is in work");
    assert!(t.claim("a", "other").await.is_none());
    assert_eq!(kind(t.act("a-1", Act::Evict).await), ErrorKind::Conflict);
    t.advance(LEASE - secs(1));
    t.store.renew(lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(secs(2));
    assert_eq!(go_on(&t, lease, "a-1").await.as_deref(), Some("a-2"), "the lease that was renewed goes on");
    assert_eq!(
        kind(t.store.settle_and_continue(lease, t.id_of("a-1"), resolve()).await),
        ErrorKind::NotFound
    );
    let last = t.store.settle_and_continue(lease, t.id_of("a-2"), resolve()).await.unwrap();
    assert!(matches!(last, Settled::Closed), "{last:?}");
    assert_eq!(kind(t.store.settle_and_continue(lease, t.id_of("a-2"), resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.tally(id).await, (3, 0, 0, 1));
}

pub async fn without_an_operation_it_is_an_ordinary_settlement<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.open(t.retrying("b", "b-0", secs(0))).await;
    t.open(t.dead("b", "b-1")).await;
    let replay = t.claim("a", "person").await.unwrap();
    assert_eq!(go_on(&t, &replay.lease, "a-0").await.as_deref(), Some("a-1"));
    let due = t.due_one("scheduler").await;
    assert_eq!(go_on(&t, &due.lease, "b-0").await, None, "a dead letter does not run by itself");
    assert_eq!(kind(t.store.renew(&due.lease, LEASE, LeaseUse::Attempt).await), ErrorKind::Fenced);
}

pub async fn a_settlement_takes_nothing_that_has_changed<S: Store>(t: Fixture<S>) {
    for sequence in ["quarantined", "edited", "closed"] {
        let item = two_letters(&t, sequence).await;
        let behind = format!("{sequence}-1");
        match sequence {
            "quarantined" => _ = t.act(&behind, Act::Quarantine).await.unwrap(),
            "edited" => _ = t.change(&behind, Change::Payload(Some("[]".into()))).await.unwrap(),
            _ => _ = t.act(&behind, Act::Resolve).await.unwrap(),
        }
        assert_eq!(go_on(&t, &item.claim.lease, &format!("{sequence}-0")).await, None, "{sequence}");
        assert_eq!(t.poll(10).await.settled, 1);
        let outcomes = [Some(Outcome::Ok), Some(Outcome::SkippedChanged)];
        assert_eq!(t.outcomes(item.operation).await, outcomes, "{sequence}");
    }
}

pub async fn a_settlement_takes_no_letter_outside_of_its_operation<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let plan = t.freeze_named(Action::Retry, &["a-0"]).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    assert_eq!(go_on(&t, &item.claim.lease, "a-0").await, None);
    assert_eq!((t.state_of(id).await, t.messages("a").await), (OperationState::Done, vec!["a-1".to_owned()]));
    // A letter that an operation which was started before is to park.
    t.fill("b", 2).await;
    let plan = t.freeze_named(Action::Retry, &["b-0", "b-1"]).await;
    let parking = t.freeze_named(Action::Park, &["b-1"]).await;
    let later = Some(t.now() + secs(60));
    t.begin(&parking, &RolloutPolicy { start_at: later, ..RolloutPolicy::unlimited() }).await;
    let id = t.begin(&plan, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    assert_eq!(go_on(&t, &item.claim.lease, "b-0").await, None);
    t.poll(10).await;
    assert_eq!(t.outcomes(id).await, [Some(Outcome::Ok), Some(Outcome::SkippedChanged)]);
}

pub async fn nothing_behind_a_failed_letter_is_taken<S: Store>(t: Fixture<S>) {
    // I2
    let item = two_letters(&t, "a").await;
    let failed = fail_again(&item.claim.head);
    let settled = t.store.settle_and_continue(&item.claim.lease, item.claim.head.id, failed).await.unwrap();
    assert!(matches!(settled, Settled::Requeued), "{settled:?}");
    let outcomes = [Some(Outcome::FailedAgain), Some(Outcome::SkippedBehindFailed)];
    assert_eq!(t.outcomes(item.operation).await, outcomes);
    assert!(t.claim("a", "other").await.is_some(), "it is free");
}

pub async fn a_pause_of_the_sequence_holds_what_a_settlement_would_take<S: Store>(t: Fixture<S>) {
    let item = two_letters(&t, "a").await;
    t.pause("a").await;
    assert_eq!(go_on(&t, &item.claim.lease, "a-0").await, None);
    assert!(t.poll(10).await.items.is_empty());
    t.store.resume(&t.consumer(), &PauseScope::Sequence(seq("a")), &operator()).await.unwrap();
    assert_eq!(names(&[t.poll_one().await]), ["a-1"]);
}

pub async fn commands_hold_what_a_settlement_would_take<S: Store>(t: Fixture<S>) {
    t.fill("a", 4).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    t.command(id, Command::Pause).await;
    assert_eq!(go_on(&t, &item.claim.lease, "a-0").await, None);
    assert!(t.poll(10).await.items.is_empty());
    t.command(id, Command::Resume).await;
    let item = t.poll_one().await;
    assert_eq!(go_on(&t, &item.claim.lease, "a-1").await.as_deref(), Some("a-2"));
    t.command(id, Command::Cancel).await;
    assert_eq!(t.tally(id).await, (2, 0, 1, 1), "what was taken is in work, and is finished");
    assert_eq!(go_on(&t, &item.claim.lease, "a-2").await, None);
    assert_eq!(t.tally(id).await, (3, 0, 1, 0));
    assert!(t.claim("a", "other").await.is_some(), "it is free");
}

pub async fn stages_hold_for_letters_that_settlements_take<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    t.fill("b", 2).await;
    let id = t.start(Action::Retry, &ramp(&[3])).await;
    let items = t.poll(10).await.items;
    assert_eq!(names(&items), ["a-0", "b-0"]);
    assert_eq!(go_on(&t, &items[1].claim.lease, "b-0").await, None, "the stage has three letters");
    assert_eq!(go_on(&t, &items[0].claim.lease, "a-0").await.as_deref(), Some("a-1"));
    assert!(t.poll(10).await.items.is_empty(), "the stage is not over");
    assert_eq!(go_on(&t, &items[0].claim.lease, "a-1").await, None);
    assert_eq!(names(&[t.poll_one().await]), ["b-1"]);
    assert_eq!((t.operation(id).await.stage, t.tally(id).await), (1, (3, 0, 0, 1)));
}

pub async fn the_stop_rule_looks_before_a_letter_is_taken<S: Store>(t: Fixture<S>) {
    t.letters("a", 19).await;
    t.fill("b", 2).await;
    let id = t.start(Action::Retry, &RolloutPolicy { stop_at: Some(0.05), ..ramp(&[]) }).await;
    let items = t.poll(30).await.items;
    assert_eq!(items.len(), 20);
    for (n, item) in items[..19].iter().enumerate() {
        if n < 2 {
            t.fail_item(item).await
        } else {
            t.succeed(item).await
        };
    }
    assert_eq!(t.state_of(id).await, OperationState::Running);
    assert_eq!(go_on(&t, &items[19].claim.lease, "b-0").await, None, "2 of 20 are 10 %");
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Paused, (18, 2, 0, 1)));
}

pub async fn a_rate_bounds_the_letters_that_settlements_take<S: Store>(t: Fixture<S>) {
    t.fill("a", 4).await;
    t.fill("b", 3).await;
    t.start(Action::Retry, &RolloutPolicy { rate: Some(1.0), ..RolloutPolicy::unlimited() }).await;
    let mut calls = Vec::new();
    for quarter in 0..40_u32 {
        let at = f64::from(quarter) / 4.0;
        for item in t.store.poll_work(&t.queue, "worker", LEASE, 16).await.unwrap().items {
            let mut next = Some(item.claim.head.message.id.to_string());
            while let Some(message) = next {
                next = go_on(&t, &item.claim.lease, &message).await;
                calls.push((at, message));
            }
        }
        t.advance(Duration::from_millis(250));
    }
    at_most(1.0, &calls);
    let ran: BTreeSet<&str> = calls.iter().map(|(_, message)| message.as_str()).collect();
    assert_eq!((calls.len(), ran.len()), (7, 7), "{calls:?}");
}

pub async fn a_letter_that_a_settlement_took_is_offered_again<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 3).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let first = t.poll_one().await.claim.lease;
    assert_eq!(go_on(&t, &first, "a-0").await.as_deref(), Some("a-1"));
    t.store.release(&first).await.unwrap();
    assert_eq!(t.tally(id).await, (1, 0, 0, 2));
    let second = t.poll_one().await.claim;
    assert_eq!(second.head.message.id.as_str(), "a-1");
    assert!(second.lease.fence > first.fence);
    assert_eq!(kind(t.store.settle_and_continue(&first, t.id_of("a-1"), resolve()).await), ErrorKind::Fenced);
    assert_eq!(go_on(&t, &second.lease, "a-1").await.as_deref(), Some("a-2"));
    t.advance(LEASE);
    assert_eq!(
        kind(t.store.settle_and_continue(&second.lease, t.id_of("a-2"), resolve()).await),
        ErrorKind::Fenced
    );
    let third = t.poll_one().await.claim;
    assert_eq!(third.head.message.id.as_str(), "a-2");
    assert_eq!(go_on(&t, &third.lease, "a-2").await, None);
    assert_eq!((t.state_of(id).await, t.tally(id).await), (OperationState::Done, (3, 0, 0, 0)));
}

pub async fn a_letter_that_was_only_taken_was_not_interrupted<S: Store>(t: Fixture<S>) {
    // I4: its attempt may not have begun, and attempts of replays are not counted by leases.
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    let id = t.start(Action::Retry, &RolloutPolicy::unlimited()).await;
    let item = t.poll_one().await;
    assert_eq!(go_on(&t, &item.claim.lease, "1").await.as_deref(), Some("2"));
    t.command(id, Command::Cancel).await;
    t.advance(LEASE);
    assert_eq!(t.poll(10).await.settled, 1);
    assert_eq!(t.outcomes(id).await, [Some(Outcome::Ok), Some(Outcome::SkippedCancelled)]);
    let claim = t.due_one("scheduler").await;
    assert_eq!((claim.head.message.id.as_str(), claim.interrupted), ("2", false));
}

pub async fn many_workers_that_continue_never_share_a_letter<S: Store>(t: Fixture<S>) {
    // I6
    workers_share_no_letter(t, true).await;
}
