//! Claims, leases, settlements and due times.

use lazaret_core::store::{
    Act, Change, Claim, Dismissal, ErrorKind, LeaseUse, PauseScope, Placed, Requeue, Settled, Settlement,
    Store,
};
use lazaret_core::{LetterState, QueueName};

use super::fixture::{Fixture, LEASE, fail_again, failure, ids, kind, operator, requeued, resolve, seq};
use crate::suite::secs;

fn sequences(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.lease.sequence.as_str()).collect()
}

pub async fn a_retry_is_claimed_at_its_due_time_and_not_before<S: Store>(t: Fixture<S>) {
    // I12
    t.open(t.retrying("a", "1", secs(10))).await;
    assert!(t.due("w", 10).await.is_empty());
    t.advance(secs(9));
    assert!(t.due("w", 10).await.is_empty());
    t.advance(secs(1));
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "1");
}

pub async fn the_earliest_due_is_claimed_first<S: Store>(t: Fixture<S>) {
    for (sequence, after) in [("c", 1), ("a", 3), ("b", 2), ("d", 99)] {
        t.open(t.retrying(sequence, sequence, secs(after))).await;
    }
    t.advance(secs(10));
    assert_eq!(sequences(&t.due("w", 10).await), ["c", "b", "a"]);
}

pub async fn no_more_than_the_limit_is_claimed<S: Store>(t: Fixture<S>) {
    for (sequence, after) in [("c", 1), ("a", 3), ("b", 2)] {
        t.open(t.retrying(sequence, sequence, secs(after))).await;
    }
    t.advance(secs(10));
    assert!(t.due("w", 0).await.is_empty());
    assert_eq!(sequences(&t.due("w", 2).await), ["c", "b"]);
    assert_eq!(sequences(&t.due("w", 2).await), ["a"]);
    assert!(t.due("w", 2).await.is_empty());
}

pub async fn a_waiting_head_is_due_at_once<S: Store>(t: Fixture<S>) {
    t.open(t.waiting("a", "1")).await;
    assert!(t.store.next_due(&t.queue).await.unwrap().is_some_and(|due| due <= t.now()));
    assert_eq!(t.due_one("w").await.head.state, LetterState::Waiting);
}

pub async fn a_waiting_letter_is_due_once_its_head_has_left<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    assert!(t.due("w", 10).await.is_empty(), "a dead head holds it back");
    t.act("1", Act::Resolve).await.unwrap();
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "2");
}

pub async fn heads_that_need_a_person_are_not_claimed<S: Store>(t: Fixture<S>) {
    for (n, state) in
        [LetterState::Dead, LetterState::Parked, LetterState::Quarantined].into_iter().enumerate()
    {
        let mut letter = t.dead(&format!("s{n}"), &n.to_string());
        letter.state = state;
        t.open(letter).await;
    }
    t.advance(secs(100));
    assert!(t.due("w", 10).await.is_empty());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
}

pub async fn a_leased_sequence_is_not_claimed_again<S: Store>(t: Fixture<S>) {
    // I6
    t.open(t.retrying("a", "1", secs(0))).await;
    t.due_one("first").await;
    assert!(t.due("second", 10).await.is_empty());
    assert!(t.claim("a", "second").await.is_none());
    assert!(t.claim("a", "first").await.is_none(), "not even by its owner");
}

pub async fn a_claim_reports_that_the_lease_before_it_expired<S: Store>(t: Fixture<S>) {
    // I4: the attempt under the lost lease counts.
    t.open(t.retrying("a", "1", secs(0))).await;
    let first = t.due_one("w").await;
    assert!(!first.interrupted && !first.lost, "there was none before it");
    t.store.renew(&first.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(LEASE + secs(1));
    let unheard = t.due_one("w").await;
    assert!(unheard.interrupted && unheard.lost);
    t.advance(LEASE + secs(1));
    let second = t.due_one("w").await;
    assert!(second.interrupted && second.lost, "until a settlement counts it");
    t.store.release(&second.lease).await.unwrap();
    let third = t.due_one("w").await;
    assert!(!third.interrupted && !third.lost, "the one before it was released");
    t.store.renew(&third.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.store.settle(&third.lease, third.head.id, fail_again(&third.head)).await.unwrap();
    assert!(!t.due_one("w").await.interrupted, "the one before it was settled");
}

pub async fn replays_do_not_hide_that_a_lease_expired<S: Store>(t: Fixture<S>) {
    // I4: the lost attempt is counted by the next claim for due letters, whatever replays came before it.
    t.open(t.retrying("a", "1", secs(0))).await;
    let attempt = t.due_one("w").await;
    t.store.renew(&attempt.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(LEASE + secs(1));
    let given_up = t.claim("a", "person").await.unwrap();
    t.store.renew(&given_up.lease, LEASE, LeaseUse::Wait).await.unwrap();
    t.store.release(&given_up.lease).await.unwrap();
    let failed = t.claim("a", "person").await.unwrap();
    t.store.settle(&failed.lease, failed.head.id, fail_again(&failed.head)).await.unwrap();
    t.claim("a", "person").await.unwrap();
    t.advance(LEASE + secs(1));
    let counted = t.due_one("w").await;
    assert!(counted.interrupted);
    t.store.settle(&counted.lease, counted.head.id, fail_again(&counted.head)).await.unwrap();
    t.claim("a", "person").await.unwrap();
    t.advance(LEASE + secs(1));
    assert!(!t.due_one("w").await.interrupted, "it was counted, and a replay that is cut off is not");
}

pub async fn an_expired_lease_says_nothing_about_the_letter_behind<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.behind(t.waiting("a", "2")).await;
    t.behind(t.waiting("a", "3")).await;
    let attempt = t.due_one("w").await;
    t.store.renew(&attempt.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(LEASE + secs(1));
    t.act("1", Act::Resolve).await.unwrap();
    let second = t.due_one("w").await;
    assert_eq!((ids([&second.head]), second.interrupted), (vec!["2"], false), "no attempt at it was lost");
    t.store.renew(&second.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(LEASE + secs(1));
    let replay = t.claim("a", "person").await.unwrap();
    let settled = t.store.settle(&replay.lease, replay.head.id, resolve()).await.unwrap();
    assert!(matches!(settled, Settled::Next(_)));
    t.store.release(&replay.lease).await.unwrap();
    let third = t.due_one("w").await;
    assert_eq!((ids([&third.head]), third.interrupted), (vec!["3"], false));
}

/// Claims the only due sequence, renews the lease for these uses, lets it expire, and returns what the next claim reports.
async fn was_interrupted<S: Store>(t: &Fixture<S>, uses: &[LeaseUse]) -> bool {
    let claim = t.due_one("w").await;
    for used_for in uses {
        t.store.renew(&claim.lease, LEASE, *used_for).await.unwrap();
    }
    t.advance(LEASE + secs(1));
    let next = t.due_one("w").await;
    assert!(next.lost);
    t.store.release(&next.lease).await.unwrap();
    next.interrupted
}

pub async fn a_lease_that_expired_while_its_owner_waited_was_no_attempt<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.behind(t.waiting("a", "2")).await;
    assert!(!was_interrupted(&t, &[]).await, "it may never have learnt of the claim");
    assert!(!was_interrupted(&t, &[LeaseUse::Wait]).await);
    assert!(was_interrupted(&t, &[LeaseUse::Attempt]).await);
    assert!(was_interrupted(&t, &[LeaseUse::Wait, LeaseUse::Attempt]).await, "it began after the wait");
    assert!(!was_interrupted(&t, &[LeaseUse::Attempt, LeaseUse::Wait]).await);
    // The attempt at one letter says nothing about the next one.
    let claim = t.due_one("w").await;
    t.store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    let settled = t.store.settle(&claim.lease, claim.head.id, resolve()).await.unwrap();
    assert!(matches!(settled, Settled::Next(_)));
    t.advance(LEASE + secs(1));
    let next = t.due_one("w").await;
    assert!(!next.interrupted && next.lost);
}

pub async fn a_lease_names_its_sequence_owner_and_end<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let lease = t.due_one("w").await.lease;
    assert_eq!((lease.queue, lease.sequence, lease.owner.as_str()), (t.queue.clone(), seq("a"), "w"));
    assert_eq!(lease.until, t.now() + LEASE);
}

pub async fn a_lease_that_ended_frees_the_sequence<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let first = t.due_one("first").await;
    t.advance(LEASE - secs(1));
    assert!(t.due("second", 10).await.is_empty());
    t.advance(secs(1));
    let second = t.due_one("second").await;
    assert!(second.lease.fence > first.lease.fence);
}

pub async fn a_settlement_after_the_lease_ended_is_fenced<S: Store>(t: Fixture<S>) {
    // I6: even when no other worker holds it now, for one may have held it in between.
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.advance(LEASE);
    for settlement in
        [resolve(), fail_again(&claim.head), Settlement::Skip("x".into()), Settlement::Evict("x".into())]
    {
        assert_eq!(kind(t.settle(&claim, &claim.head, settlement).await), ErrorKind::Fenced);
    }
    assert_eq!(t.get("1").await, claim.head);
}

pub async fn a_settlement_under_an_old_fence_is_refused<S: Store>(t: Fixture<S>) {
    // I6
    t.open(t.retrying("a", "1", secs(0))).await;
    let old = t.due_one("first").await;
    t.store.release(&old.lease).await.unwrap();
    let new = t.due_one("second").await;
    assert_eq!(kind(t.settle(&old, &old.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(kind(t.store.renew(&old.lease, LEASE, LeaseUse::Attempt).await), ErrorKind::Fenced);
    assert!(matches!(t.settle(&new, &new.head, resolve()).await.unwrap(), Settled::Closed));
}

pub async fn a_second_settlement_of_one_letter_is_refused<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert_eq!(kind(t.settle(&claim, &claim.head, resolve()).await), ErrorKind::NotFound);
    let last = t.get("a-1").await;
    t.settle(&claim, &last, resolve()).await.unwrap();
    assert_eq!(
        kind(t.settle(&claim, &last, resolve()).await),
        ErrorKind::Fenced,
        "the lease went with the sequence"
    );
}

pub async fn the_fence_grows_on_after_a_sequence_was_closed<S: Store>(t: Fixture<S>) {
    // I6: a worker from before the closing must not be taken for one from after it.
    t.open(t.retrying("a", "1", secs(0))).await;
    let old = t.due_one("first").await;
    t.settle(&old, &old.head, resolve()).await.unwrap();
    t.open(t.retrying("a", "2", secs(0))).await;
    let new = t.due_one("second").await;
    assert!(new.lease.fence > old.lease.fence);
    assert_eq!(kind(t.settle(&old, &new.head, resolve()).await), ErrorKind::Fenced);
}

pub async fn a_renewed_lease_lasts_from_now<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let mut claim = t.due_one("w").await;
    for _ in 0..5 {
        t.advance(LEASE - secs(1));
        let renewed = t.store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
        assert_eq!((renewed.fence, renewed.until), (claim.lease.fence, t.now() + LEASE));
        claim.lease = renewed;
        assert!(t.due("other", 10).await.is_empty());
    }
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
}

pub async fn a_lease_that_ended_cannot_be_renewed<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.advance(LEASE);
    assert_eq!(kind(t.store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await), ErrorKind::Fenced);
}

pub async fn a_renewal_counts_for_the_settlement_whichever_copy_is_shown<S: Store>(t: Fixture<S>) {
    // The fence names the lease. Its end is the store's to know.
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.advance(LEASE - secs(1));
    t.store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(secs(5));
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
}

pub async fn a_released_lease_frees_the_sequence_unchanged<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.get("1").await, claim.head);
    assert_eq!(t.due_one("w").await.head, claim.head);
}

pub async fn releasing_an_old_lease_is_no_error_and_frees_nothing<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let old = t.due_one("first").await;
    t.advance(LEASE);
    let new = t.due_one("second").await;
    t.store.release(&old.lease).await.unwrap();
    assert!(t.due("third", 10).await.is_empty());
    t.settle(&new, &new.head, resolve()).await.unwrap();
    t.store.release(&new.lease).await.unwrap();
    t.store.release(&old.lease).await.unwrap();
}

pub async fn a_resolved_head_gives_the_lease_to_the_next_letter<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.behind(t.waiting("a", "2")).await;
    let claim = t.due_one("w").await;
    let Settled::Next(next) = t.settle(&claim, &claim.head, resolve()).await.unwrap() else {
        panic!("one is left")
    };
    assert_eq!(next.message.id.as_str(), "2");
    assert!(t.due("other", 10).await.is_empty(), "the lease goes on");
    assert!(matches!(t.settle(&claim, &next, resolve()).await.unwrap(), Settled::Closed));
    assert!(!t.contains("a").await);
}

pub async fn a_letter_appended_meanwhile_is_handled_in_the_same_run<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    assert_eq!(t.behind(t.waiting("a", "2")).await, Placed::Appended);
    let settled = t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(matches!(settled, Settled::Next(next) if next.message.id.as_str() == "2"));
}

pub async fn a_retry_stops_before_a_letter_that_needs_a_person<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.open(t.dead("a", "2")).await;
    let claim = t.due_one("w").await;
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Blocked));
    assert_eq!(t.messages("a").await, ["2"]);
    assert!(t.due("w", 10).await.is_empty());
    assert!(t.claim("a", "replay").await.is_some(), "the lease was released");
}

pub async fn a_retry_stops_before_a_letter_that_is_not_due<S: Store>(t: Fixture<S>) {
    // I12
    t.open(t.retrying("a", "1", secs(0))).await;
    t.open(t.retrying("a", "2", secs(50))).await;
    let claim = t.due_one("w").await;
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Blocked));
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(t.now() + secs(50)));
    t.advance(secs(50));
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "2");
}

pub async fn a_retry_stops_when_its_sequence_was_paused<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.behind(t.waiting("a", "2")).await;
    let claim = t.due_one("w").await;
    t.pause("a").await;
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Blocked));
    assert!(t.due("w", 10).await.is_empty());
}

pub async fn a_replay_goes_on_whatever_the_state<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let mut parked = t.dead("a", "2");
    parked.state = LetterState::Parked;
    t.open(parked).await;
    t.open(t.retrying("a", "3", secs(99))).await;
    t.pause("a").await;
    assert_eq!(t.process_all().await, (true, vec!["1".into(), "2".into(), "3".into()]));
}

pub async fn a_requeue_writes_all_it_is_given_and_frees_the_sequence<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.advance(secs(2));
    let mut requeue = Requeue::of(&claim.head);
    requeue.due_at = Some(t.now() + secs(7));
    requeue.cause = Some(failure("second"));
    (requeue.attempts, requeue.crash_attempts, requeue.replay_attempts) = (2, 1, 4);
    requeue.poison = true;
    requeue.diagnostics = [("k".to_owned(), "v".to_owned())].into();
    requeue.attempt = Some(t.failed_attempt(2, "second"));
    let settled = t.settle(&claim, &claim.head, requeued(requeue.clone())).await.unwrap();
    assert!(matches!(settled, Settled::Requeued));
    let stored = t.get("1").await;
    assert_eq!(
        (stored.state, stored.due_at, stored.index),
        (LetterState::Retrying, requeue.due_at, claim.head.index)
    );
    assert_eq!(
        (stored.attempts, stored.crash_attempts, stored.replay_attempts, stored.poison),
        (2, 1, 4, true)
    );
    assert_eq!((stored.cause, stored.diagnostics), (requeue.cause, requeue.diagnostics));
    assert_eq!(stored.history, [requeue.attempt.unwrap()]);
    assert_eq!((stored.first_failed_at, stored.last_failed_at), (claim.head.first_failed_at, Some(t.now())));
    assert_eq!(stored.last_touched_at, t.now());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), stored.due_at);
}

pub async fn a_waiting_letter_that_fails_gets_its_first_cause<S: Store>(t: Fixture<S>) {
    t.open(t.waiting("a", "1")).await;
    let claim = t.due_one("w").await;
    t.advance(secs(1));
    let mut requeue = Requeue::of(&claim.head);
    requeue.state = LetterState::Dead;
    requeue.cause = Some(failure("first"));
    requeue.attempt = Some(t.failed_attempt(1, "first"));
    t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    let stored = t.get("1").await;
    assert_eq!((stored.state, stored.cause), (LetterState::Dead, Some(failure("first"))));
    assert_eq!((stored.first_failed_at, stored.last_failed_at), (Some(t.now()), Some(t.now())));
}

pub async fn a_requeue_cannot_close_a_letter<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    let mut requeue = Requeue::of(&claim.head);
    requeue.state = LetterState::Resolved;
    assert_eq!(kind(t.settle(&claim, &claim.head, requeued(requeue)).await), ErrorKind::Invalid);
    assert_eq!(t.get("1").await, claim.head);
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
}

pub async fn a_success_is_remembered_in_the_history<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    t.advance(secs(1));
    let mut attempt = t.failed_attempt(2, "");
    attempt.failure = None;
    t.settle(&claim, &claim.head, Settlement::Resolve(Some(attempt.clone()))).await.unwrap();
    let stored = t.get("1").await;
    assert_eq!((stored.state, stored.history), (LetterState::Resolved, vec![attempt]));
    assert_eq!(stored.last_touched_at, t.now());
}

pub async fn the_attempt_before_a_dismissal_is_remembered_in_the_history<S: Store>(t: Fixture<S>) {
    // I11
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    let attempts = ["not ours", "not needed"].map(|message| t.failed_attempt(2, message));
    let skip = Settlement::Skip(Dismissal::after(Some(attempts[0].clone()), "known bad"));
    let Settled::Next(next) = t.settle(&claim, &claim.head, skip).await.unwrap() else {
        panic!("one is left")
    };
    let evict = Settlement::Evict(Dismissal::after(Some(attempts[1].clone()), "too old"));
    t.settle(&claim, &next, evict).await.unwrap();
    for (before, attempt) in [&claim.head, &*next].into_iter().zip(attempts) {
        let stored = t.store.get(&t.queue, before.id).await.unwrap().unwrap();
        let history = [before.history.clone(), vec![attempt]].concat();
        assert_eq!((stored.state.is_open(), stored.history), (false, history));
        assert_eq!((stored.attempts, stored.cause), (before.attempts, before.cause.clone()));
    }
}

pub async fn leaving_out_and_giving_up_are_audited<S: Store>(t: Fixture<S>) {
    // I11
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    let next = t.settle(&claim, &claim.head, Settlement::Skip("known bad".into())).await.unwrap();
    let Settled::Next(next) = next else { panic!("one is left") };
    t.settle(&claim, &next, Settlement::Evict("too old".into())).await.unwrap();
    let audit = t.audit().await;
    let lines: Vec<_> = audit
        .iter()
        .map(|entry| {
            (entry.action.as_str(), entry.by.via.as_str(), entry.by.why.as_str(), entry.after.as_deref())
        })
        .collect();
    assert_eq!(
        lines,
        [("skip", "engine", "known bad", Some("skipped")), ("evict", "engine", "too old", Some("evicted"))]
    );
    assert_eq!(audit[0].subject, claim.head.id.to_string());
    assert_eq!((t.state("a-0").await, t.state("a-1").await), (LetterState::Skipped, LetterState::Evicted));
}

pub async fn the_next_due_time_is_the_earliest_of_all<S: Store>(t: Fixture<S>) {
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
    t.open(t.retrying("a", "1", secs(20))).await;
    t.open(t.retrying("b", "2", secs(10))).await;
    t.enqueue("dead", "3").await;
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(t.now() + secs(10)));
}

pub async fn a_leased_sequence_is_due_at_the_end_of_its_lease<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let claim = t.due_one("w").await;
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(claim.lease.until));
    let renewed = t.store.renew(&claim.lease, LEASE * 2, LeaseUse::Attempt).await.unwrap();
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(renewed.until));
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
}

pub async fn a_replayed_sequence_is_not_due_before_its_time<S: Store>(t: Fixture<S>) {
    // I12
    let letter = t.retrying("a", "1", LEASE * 3);
    let due = letter.due_at;
    t.open(letter).await;
    t.claim("a", "replay").await.unwrap();
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), due);
    t.advance(LEASE * 2);
    assert!(t.due("w", 10).await.is_empty());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), due);
}

pub async fn a_paused_sequence_is_not_claimed_until_it_is_resumed<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.open(t.retrying("b", "2", secs(0))).await;
    t.pause("a").await;
    // A sequence may be paused before it is opened.
    t.pause("c").await;
    t.open(t.retrying("c", "3", secs(0))).await;
    assert_eq!(sequences(&t.due("w", 10).await), ["b"]);
    let scope = PauseScope::Sequence(seq("a"));
    assert!(t.store.resume(&t.consumer(), &scope, &operator()).await.unwrap());
    assert_eq!(sequences(&t.due("w", 10).await), ["a"]);
}

pub async fn a_paused_sequence_makes_nothing_due<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.pause("a").await;
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
    t.store.resume(&t.consumer(), &PauseScope::Sequence(seq("a")), &operator()).await.unwrap();
    assert!(t.store.next_due(&t.queue).await.unwrap().is_some_and(|due| due <= t.now()));
}

pub async fn a_pause_of_another_consumer_holds_nothing_back<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.store.pause(&"another".into(), PauseScope::Sequence(seq("a")), &operator()).await.unwrap();
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn claims_keep_to_their_queue<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    let other = QueueName::of("orders", "other");
    assert!(t.store.claim_due(&other, "w", LEASE, 10).await.unwrap().is_empty());
    assert!(t.store.claim(&other, &seq("a"), "w", LEASE).await.unwrap().is_none());
    assert_eq!(t.store.next_due(&other).await.unwrap(), None);
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn a_clock_that_is_set_back_does_not_prolong_a_dead_lease<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(0))).await;
    t.advance(secs(7200));
    t.open(t.retrying("b", "2", secs(0))).await;
    let dead = t.due("dead", 1).await.remove(0);
    let living = t.due("living", 1).await.remove(0);
    assert_eq!((dead.lease.sequence.as_str(), living.lease.sequence.as_str()), ("a", "b"));
    t.set_back(secs(3600));
    // The claims of other workers notice it; the living owner renews.
    assert!(t.due("w", 10).await.is_empty(), "both are leased");
    t.advance(LEASE.min(secs(30)) / 2);
    t.store.renew(&living.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.advance(LEASE.max(secs(30)));
    assert_eq!(sequences(&t.due("w", 10).await)[0], "a", "the lease of the dead owner has ended");
}

pub async fn a_retry_does_not_wait_for_a_clock_that_was_set_back<S: Store>(t: Fixture<S>) {
    t.advance(secs(7200));
    t.open(t.retrying("a", "1", secs(60))).await;
    t.open(t.waiting("b", "2")).await;
    t.behind(t.waiting("b", "3")).await;
    t.set_back(secs(3600));
    let claim = t.due_one("w").await;
    assert_eq!(claim.lease.sequence.as_str(), "b", "what only waited runs at once");
    let Settled::Next(next) = t.settle(&claim, &claim.head, resolve()).await.unwrap() else {
        panic!("the next letter runs at once, too")
    };
    t.settle(&claim, &next, resolve()).await.unwrap();
    let due = t.now() + secs(60);
    assert_eq!(t.get("1").await.due_at, Some(due), "its delay, from now");
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(due));
    t.advance(secs(59));
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.advance(secs(1));
    assert_eq!(t.due_one("w").await.head.due_at, Some(due));
}

pub async fn a_clock_that_is_set_back_twice_makes_no_retry_early<S: Store>(t: Fixture<S>) {
    // I12
    t.advance(secs(7200));
    t.open(t.retrying("a", "1", secs(60))).await;
    for _ in 0..2 {
        t.set_back(secs(1800));
        assert!(t.due("w", 10).await.is_empty());
        t.advance(secs(10));
        assert!(t.due("w", 10).await.is_empty());
    }
    t.advance(secs(49));
    assert!(t.due("w", 10).await.is_empty(), "its delay, from when the last step was noticed");
    t.advance(secs(1));
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn a_letter_that_becomes_the_head_does_not_wait_for_a_clock_that_was_set_back<S: Store>(
    t: Fixture<S>,
) {
    t.advance(secs(7200));
    for (sequence, head, next) in [("a", "a1", "a2"), ("b", "b1", "b2")] {
        t.enqueue(sequence, head).await;
        t.open(t.retrying(sequence, next, secs(60))).await;
    }
    let claim = t.claim("b", "replay").await.unwrap();
    t.set_back(secs(3600));
    assert!(t.due("w", 10).await.is_empty());
    t.act("a1", Act::Resolve).await.unwrap();
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.settle(&claim, &claim.head, resolve()).await.unwrap();
    t.store.release(&claim.lease).await.unwrap();
    t.advance(secs(60));
    let mut claims = t.due("w", 10).await;
    claims.sort_by_key(|claim| claim.lease.sequence.clone());
    assert_eq!(sequences(&claims), ["a", "b"]);
    for claim in claims {
        assert!(claim.head.due_at.is_some_and(|due| due <= t.now()), "as its row says");
    }
}

pub async fn a_letter_that_is_commented_does_not_wait_for_a_clock_that_was_set_back<S: Store>(t: Fixture<S>) {
    t.advance(secs(7200));
    t.open(t.retrying("a", "1", secs(60))).await;
    t.set_back(secs(3600));
    let comment = Change::Comment("the clock was wrong".into());
    let letter = t.store.change(&t.queue, t.id_of("1"), &comment, &operator()).await.unwrap();
    assert_eq!(letter.due_at, Some(t.now() + secs(60)));
    assert_eq!(t.get("1").await.due_at, letter.due_at);
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.advance(secs(60));
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn a_letter_that_is_stored_after_the_clock_was_set_back_waits_for_its_delay<S: Store>(
    t: Fixture<S>,
) {
    t.advance(secs(7200));
    let failed = t.retrying("a", "1", secs(60));
    t.set_back(secs(3600));
    t.open(failed).await;
    let due = t.now() + secs(60);
    assert_eq!(t.get("1").await.due_at, Some(due), "its delay, from now");
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), Some(due));
    t.advance(secs(59));
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.advance(secs(1));
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn a_letter_that_is_requeued_after_the_clock_was_set_back_waits_for_its_delay<S: Store>(
    t: Fixture<S>,
) {
    t.advance(secs(7200));
    t.open(t.waiting("a", "1")).await;
    let claim = t.due_one("w").await;
    let requeue = Requeue {
        state: LetterState::Retrying,
        due_at: Some(t.now() + secs(60)),
        attempt: Some(t.failed_attempt(1, "no answer")),
        ..Requeue::of(&claim.head)
    };
    t.set_back(secs(3600));
    t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
    let due = t.now() + secs(60);
    assert_eq!(t.get("1").await.due_at, Some(due), "its delay, from now");
    t.advance(secs(59));
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.advance(secs(1));
    assert_eq!(t.due_one("w").await.head.due_at, Some(due));
}

pub async fn a_head_that_is_claimed_after_the_clock_was_set_back_has_its_delay_left<S: Store>(t: Fixture<S>) {
    t.advance(secs(7200));
    t.open(t.retrying("a", "1", secs(60))).await;
    t.set_back(secs(3600));
    let claim = t.claim("a", "replay").await.unwrap();
    let due = t.now() + secs(60);
    assert_eq!(claim.head.due_at, Some(due), "by the clock as it is set");
    t.store.release(&claim.lease).await.unwrap();
    t.advance(secs(59));
    assert!(t.due("w", 10).await.is_empty(), "I12");
    t.advance(secs(1));
    assert_eq!(t.due("w", 10).await.len(), 1);
}
