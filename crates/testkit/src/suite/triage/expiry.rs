//! Expiry of open letters, and retention of closed ones.

use lazaret_core::store::rules::{EXPIRIES_OF_GROUP, EXPIRIES_OF_QUEUE};
use lazaret_core::store::{
    Act, Actor, Change, Expired, HandOff, LeaseUse, Limits, Placed, Placement, Requeue, Settled, Store,
};
use lazaret_core::{Failure, Letter, LetterState, MessageId, Reason, Timestamp};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{LEASE, failure, requeued, resolve};
use crate::suite::secs;

/// Opens a sequence with a dead letter that leaves after this many seconds.
async fn mortal<S: Store>(t: &Fixture<S>, sequence: &str, message: &str, seconds: u64) {
    let expires_at = Some(t.now() + secs(seconds));
    t.open(Letter { expires_at, ..t.dead(sequence, message) }).await;
}

pub async fn a_letter_expires_at_its_time_and_not_before<S: Store>(t: Fixture<S>) {
    // I11
    mortal(&t, "a", "1", 60).await;
    t.enqueue("b", "immortal").await;
    t.advance(secs(59));
    assert_eq!(t.expire(None, 10).await, Expired::default());
    t.advance(secs(1));
    assert_eq!(t.expire(None, 10).await, Expired { expired: 1, purged: 0, more: false });
    let letter = t.get("1").await;
    assert_eq!((letter.state, letter.last_touched_at), (LetterState::Expired, t.now()));
    assert!(letter.message.payload.is_some() && letter.cause.is_some(), "it is closed, not purged");
    assert!(!t.contains("a").await && t.contains("b").await);
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!((group.counts.of(LetterState::Expired), group.counts.open()), (1, 1));
    assert_eq!(t.expire(None, 10).await, Expired::default(), "once");
    // I8
    assert_eq!(t.open(t.dead("a", "1")).await, Placed::Held(LetterState::Expired));
}

pub async fn each_letter_that_expires_is_audited<S: Store>(t: Fixture<S>) {
    // I11
    mortal(&t, "a", "1", 1).await;
    mortal(&t, "a", "2", 2).await;
    t.act("2", Act::Park).await.unwrap();
    t.advance(secs(5));
    t.expire(None, 10).await;
    let audit = t.audit().await;
    let lines: Vec<_> = audit[1..]
        .iter()
        .map(|entry| (entry.action.as_str(), entry.before.as_deref(), entry.after.as_deref()))
        .collect();
    assert_eq!(
        lines,
        [("expire", Some("dead"), Some("expired")), ("expire", Some("parked"), Some("expired"))]
    );
    assert_eq!(audit[1].subject, t.id_of("1").to_string());
    assert_eq!(audit[1].by.via, Actor::engine("").via, "the engine did it");
}

pub async fn an_expired_head_releases_those_behind_it<S: Store>(t: Fixture<S>) {
    // I2
    mortal(&t, "a", "1", 60).await;
    t.behind(t.waiting("a", "2")).await;
    t.advance(secs(60));
    assert!(t.due("w", 10).await.is_empty());
    t.expire(None, 10).await;
    let claim = t.due_one("w").await;
    assert_eq!(claim.head.message.id.as_str(), "2");
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
}

pub async fn a_letter_that_waits_behind_others_does_not_expire<S: Store>(t: Fixture<S>) {
    // I1: nobody has tried it.
    mortal(&t, "a", "1", 5).await;
    for message in ["2", "3"] {
        t.behind(Letter { expires_at: Some(t.now() + secs(5)), ..t.waiting("a", message) }).await;
    }
    t.advance(secs(60));
    assert_eq!(t.expire(None, 10).await, Expired { expired: 1, purged: 0, more: false });
    assert_eq!(t.messages("a").await, ["2", "3"]);
    assert_eq!(t.expire(None, 10).await, Expired::default(), "not as the head either");
    assert_eq!((t.state("2").await, t.state("3").await), (LetterState::Waiting, LetterState::Waiting));
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "2");
}

pub async fn the_time_of_a_letter_that_waited_starts_with_its_first_failure<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.advance(secs(600));
    t.act("1", Act::Evict).await.unwrap();
    let fail = async |state, expires_at| {
        let claim = t.claim("a", "w").await.unwrap();
        let attempt = Some(t.failed_attempt(claim.head.attempts + 1, "boom"));
        let cause = Some(failure("boom"));
        let requeue = Requeue { state, cause, attempt, expires_at, ..Requeue::of(&claim.head) };
        t.settle(&claim, &claim.head, requeued(requeue)).await.unwrap();
        t.get("2").await.expires_at
    };
    let end = Some(t.now() + secs(60));
    assert_eq!(fail(LetterState::Dead, end).await, end);
    t.advance(secs(59));
    assert_eq!(
        fail(LetterState::Dead, Some(t.now() + secs(60))).await,
        end,
        "later failures do not prolong it"
    );
    assert_eq!(t.expire(None, 10).await, Expired::default());
    t.advance(secs(1));
    assert_eq!(t.expire(None, 10).await.expired, 1);
    assert_eq!(t.state("2").await, LetterState::Expired);
}

pub async fn the_next_letter_of_a_queue_to_expire_is_known_before<S: Store>(t: Fixture<S>) {
    let next = async || t.store.queues().await.unwrap()[0].next_expiry;
    t.enqueue("z", "immortal").await;
    assert_eq!(next().await, None);
    mortal(&t, "a", "1", 60).await;
    mortal(&t, "b", "2", 30).await;
    let soon = t.now() + secs(5);
    t.behind(Letter { expires_at: Some(soon), ..t.waiting("a", "3") }).await;
    assert_eq!(next().await, Some(t.now() + secs(30)), "one that waits does not expire");
    t.change("immortal", Change::ExpiresAt(Some(soon))).await.unwrap();
    assert_eq!(next().await, Some(soon));
    t.advance(secs(40));
    assert_eq!(t.expire(None, 10).await.expired, 2);
    assert_eq!(next().await, Some(t.now() + secs(20)));
    t.act("1", Act::Resolve).await.unwrap();
    assert_eq!(next().await, None);
}

/// When the next letter of the group of this failure expires: alone, and in the list of groups.
async fn next_of_group<S: Store>(t: &Fixture<S>, failure: &Failure) -> Option<Timestamp> {
    let next = t.group(failure).await.unwrap().next_expiry;
    let listed = t.groups().await.into_iter().find(|group| group.id.fingerprint == failure.fingerprint);
    assert_eq!(listed.map(|group| group.next_expiry), Some(next), "the list says the same");
    next
}

/// Fills a sequence with dead letters `sequence-0`, `sequence-1`, … that failed like this and expire one second after the other.
async fn fill_mortal<S: Store>(
    t: &Fixture<S>,
    sequence: &str,
    failure: &Failure,
    from: Timestamp,
    count: usize,
) {
    let letter = |n: usize| Letter {
        cause: Some(failure.clone()),
        expires_at: Some(from + secs(n as u64)),
        ..t.dead(sequence, &format!("{sequence}-{n}"))
    };
    let items = (0..count).map(|n| HandOff { letter: letter(n), placement: Placement::Open, grant: None });
    for placed in t.store.hand_off(&t.queue, &Limits::NONE, items.collect()).await.unwrap() {
        placed.unwrap();
    }
}

pub async fn the_next_letter_of_a_group_to_expire_is_known_before<S: Store>(t: Fixture<S>) {
    let (boom, other) = (failure("boom"), Failure::new(Reason::CONFLICT, "DbError", "no row"));
    t.enqueue("z", "immortal").await;
    assert_eq!(next_of_group(&t, &boom).await, None);
    mortal(&t, "a", "1", 60).await;
    mortal(&t, "b", "2", 30).await;
    let soon = t.now() + secs(5);
    t.open(Letter { cause: Some(other.clone()), expires_at: Some(soon), ..t.dead("c", "3") }).await;
    t.behind(Letter { expires_at: Some(soon), ..t.waiting("a", "4") }).await;
    assert_eq!(next_of_group(&t, &boom).await, Some(t.now() + secs(30)), "of its own letters");
    assert_eq!(next_of_group(&t, &other).await, Some(soon));
    t.change("immortal", Change::ExpiresAt(Some(t.now() + secs(4)))).await.unwrap();
    assert_eq!(next_of_group(&t, &boom).await, Some(t.now() + secs(4)));
    t.advance(secs(40));
    assert_eq!(t.expire(None, 10).await.expired, 3);
    assert_eq!(next_of_group(&t, &boom).await, Some(t.now() + secs(20)));
    let closed = t.group(&other).await.unwrap();
    assert_eq!((closed.counts.open(), closed.next_expiry), (0, None), "it has no open letter");
    t.act("1", Act::Resolve).await.unwrap();
    assert_eq!(t.group(&boom).await.unwrap().next_expiry, None);
}

pub async fn the_next_expiry_of_a_group_is_found_behind_many_of_others<S: Store>(t: Fixture<S>) {
    let other = Failure::new(Reason::CONFLICT, "DbError", "no row");
    let end = t.now() + secs(10_000);
    t.open(Letter { cause: Some(other.clone()), expires_at: Some(end), ..t.dead("b", "1") }).await;
    fill_mortal(&t, "a", &failure("boom"), t.now() + secs(60), EXPIRIES_OF_QUEUE).await;
    assert_eq!(next_of_group(&t, &failure("boom")).await, Some(t.now() + secs(60)));
    assert_eq!(next_of_group(&t, &other).await, Some(end));
}

pub async fn the_next_expiry_of_a_large_group_is_found_among_its_later_letters<S: Store>(t: Fixture<S>) {
    fill_mortal(&t, "a", &failure("boom"), t.now() + secs(600), EXPIRIES_OF_GROUP).await;
    mortal(&t, "b", "soon", 60).await;
    assert_eq!(next_of_group(&t, &failure("boom")).await, Some(t.now() + secs(60)));
}

pub async fn a_head_in_work_does_not_expire_under_the_worker<S: Store>(t: Fixture<S>) {
    // I6
    mortal(&t, "a", "1", 1).await;
    mortal(&t, "a", "2", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.advance(secs(5));
    let done = t.expire(None, 10).await;
    assert_eq!(
        done,
        Expired { expired: 1, purged: 0, more: false },
        "what is left to the worker is no work now"
    );
    assert_eq!(t.messages("a").await, ["1"]);
    // The worker goes on as if nothing had happened; had it died, the letter would expire later.
    t.store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    t.store.release(&claim.lease).await.unwrap();
    assert_eq!(t.expire(None, 10).await.expired, 1);
    assert!(!t.contains("a").await);
}

pub async fn no_more_than_the_limit_expires_in_one_call<S: Store>(t: Fixture<S>) {
    for n in 0..5 {
        // The latest to come is the first to go.
        mortal(&t, &format!("s{n}"), &n.to_string(), 50 - n).await;
    }
    t.advance(secs(60));
    t.claim("s4", "w").await.unwrap();
    assert_eq!(t.expire(None, 2).await, Expired { expired: 2, purged: 0, more: true });
    assert_eq!((t.state("3").await, t.state("2").await), (LetterState::Expired, LetterState::Expired));
    assert_eq!(t.state("4").await, LetterState::Dead, "it is leased");
    assert_eq!(t.expire(None, 2).await, Expired { expired: 2, purged: 0, more: false });
    assert_eq!(t.expire(None, 2).await, Expired::default());
}

pub async fn closed_letters_are_purged_when_they_were_kept_long_enough<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.act("a-0", Act::Resolve).await.unwrap();
    t.advance(secs(10));
    t.act("a-1", Act::Evict).await.unwrap();
    let bound = t.now();
    assert_eq!(t.expire(None, 10).await, Expired::default(), "without a retention");
    assert_eq!(t.expire(Some(bound), 10).await, Expired { expired: 0, purged: 1, more: false });
    assert_eq!(t.store.get(&t.queue, t.id_of("a-0")).await.unwrap(), None);
    assert_eq!(t.state("a-1").await, LetterState::Evicted, "closed at that time is not before it");
    let known = t.store.lookup(&t.queue, &[MessageId::from("a-0")]).await.unwrap();
    assert_eq!(known, [Some(LetterState::Resolved)]);
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!((group.counts.of(LetterState::Resolved), group.counts.of(LetterState::Evicted)), (0, 1));
    // I11: that something was purged is on record.
    let entry = t.audit().await.pop().unwrap();
    assert_eq!((entry.action.as_str(), entry.subject.as_str()), ("purge", t.queue.as_str()));
    assert_eq!(t.expire(Some(bound), 10).await, Expired::default());
    assert_eq!(t.audit().await.pop().unwrap(), entry, "nothing happened, nothing is audited");
}

pub async fn a_note_on_a_closed_letter_does_not_keep_it_longer<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.advance(secs(10));
    let bound = t.now();
    t.advance(secs(10));
    t.change("1", Change::Comment("was a test".into())).await.unwrap();
    assert_eq!(t.expire(Some(bound), 10).await.purged, 1);
}

pub async fn a_letter_that_was_restored_is_not_purged<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.act("1", Act::Restore).await.unwrap();
    t.advance(secs(10));
    assert_eq!(t.expire(Some(t.now()), 10).await, Expired::default());
    t.act("1", Act::Evict).await.unwrap();
    assert_eq!(t.expire(Some(t.now()), 10).await.purged, 0, "it counts from when it was closed last");
    t.advance(secs(1));
    assert_eq!(t.expire(Some(t.now()), 10).await.purged, 1);
}

pub async fn letters_stored_closed_and_expired_ones_are_purged_in_time<S: Store>(t: Fixture<S>) {
    t.put(Letter { state: LetterState::Skipped, ..t.waiting("a", "skipped") }, Placement::Closed).await;
    mortal(&t, "b", "mortal", 5).await;
    t.advance(secs(5));
    let done = t.expire(Some(t.now()), 10).await;
    assert_eq!(done, Expired { expired: 1, purged: 1, more: false }, "what has just expired is kept");
    t.advance(secs(5));
    assert_eq!(t.expire(Some(t.now()), 10).await.purged, 1);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().by_state, [0; 9]);
}

pub async fn expiring_and_purging_share_the_limit<S: Store>(t: Fixture<S>) {
    for n in 0..4 {
        mortal(&t, &format!("m{n}"), &format!("m{n}"), 10).await;
        t.enqueue(&format!("c{n}"), &format!("c{n}")).await;
        t.act(&format!("c{n}"), Act::Resolve).await.unwrap();
    }
    t.advance(secs(10));
    let bound = Some(t.now());
    assert_eq!(t.expire(bound, 3).await, Expired { expired: 3, purged: 0, more: true });
    assert_eq!(t.expire(bound, 3).await, Expired { expired: 1, purged: 2, more: true });
    assert_eq!(t.expire(bound, 3).await, Expired { expired: 0, purged: 2, more: false });
    assert_eq!(t.expire(bound, 3).await, Expired::default());
}

pub async fn expiring_keeps_to_its_queue<S: Store>(t: Fixture<S>) {
    mortal(&t, "a", "1", 1).await;
    t.advance(secs(5));
    let done = t.store.expire(&"orders/mails".into(), Some(t.now()), 10).await.unwrap();
    assert_eq!(done, Expired::default());
    assert!(t.contains("a").await);
}
