//! What people do by hand: acts, clearing, pauses, and the audit of all that.

use lazaret_core::store::{
    Act, Actor, AuditEntry, AuditNote, ErrorKind, PauseScope, Placed, Requeue, Settled, Store,
};
use lazaret_core::{LetterState, Partition};

use super::fixture::{Fixture, LEASE, kind, operator, requeued, resolve, seq};
use crate::suite::secs;

pub async fn an_act_changes_the_state_and_touches_the_letter<S: Store>(t: Fixture<S>) {
    for (act, state) in [
        (Act::Evict, LetterState::Evicted),
        (Act::Resolve, LetterState::Resolved),
        (Act::Park, LetterState::Parked),
        (Act::Quarantine, LetterState::Quarantined),
        (Act::Release, LetterState::Retrying),
    ] {
        let before = t.enqueue(act.as_str(), act.as_str()).await;
        t.advance(secs(1));
        let after = t.act(act.as_str(), act).await.unwrap();
        assert_eq!(after, t.get(act.as_str()).await, "the answer is what is stored");
        assert_eq!((after.state, after.last_touched_at), (state, t.now()));
        assert_eq!((after.enqueued_at, after.cause), (before.enqueued_at, before.cause));
        assert_eq!(t.contains(act.as_str()).await, state.is_open());
    }
}

pub async fn a_head_taken_out_by_hand_releases_those_behind_it<S: Store>(t: Fixture<S>) {
    for act in [Act::Evict, Act::Resolve] {
        let sequence = act.as_str();
        t.enqueue(sequence, sequence).await;
        t.behind(t.waiting(sequence, &format!("{sequence}-2"))).await;
        assert!(t.due("w", 10).await.is_empty());
        t.act(sequence, act).await.unwrap();
        let claim = t.due_one("w").await;
        assert_eq!(claim.head.message.id.as_str(), format!("{sequence}-2"));
        t.settle(&claim, &claim.head, resolve()).await.unwrap();
    }
}

pub async fn a_letter_in_the_middle_can_be_taken_out<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.act("a-1", Act::Evict).await.unwrap();
    assert_eq!(t.messages("a").await, ["a-0", "a-2"]);
}

pub async fn a_released_letter_runs_again_now_with_fresh_attempts<S: Store>(t: Fixture<S>) {
    let mut letter = t.dead("a", "1");
    letter.poison = true;
    letter.crash_attempts = 2;
    letter.record(t.failed_attempt(3, "boom"));
    t.open(letter.clone()).await;
    t.advance(secs(1));
    let released = t.act("1", Act::Release).await.unwrap();
    assert_eq!((released.attempts, released.crash_attempts, released.poison), (0, 0, false));
    assert_eq!(released.due_at, Some(t.now()));
    assert_eq!((released.cause, released.history), (letter.cause, letter.history));
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "1");
}

pub async fn a_released_letter_behind_the_head_waits_for_it<S: Store>(t: Fixture<S>) {
    // I2
    t.fill("a", 2).await;
    assert_eq!((t.state("a-1").await, t.get("a-1").await.attempts), (LetterState::Dead, 3));
    t.advance(secs(1));
    let released = t.act("a-1", Act::Release).await.unwrap();
    assert_eq!((released.state, released.due_at), (LetterState::Waiting, None));
    assert_eq!((released.attempts, released.last_touched_at), (0, t.now()));
    assert_eq!(t.get("a-1").await, released);
    assert!(t.due("w", 10).await.is_empty(), "its head is dead");
    t.act("a-0", Act::Resolve).await.unwrap();
    assert_eq!(t.due_one("w").await.head.message.id.as_str(), "a-1");
}

pub async fn a_parked_head_holds_its_sequence_until_it_is_released<S: Store>(t: Fixture<S>) {
    t.open(t.retrying("a", "1", secs(5))).await;
    assert_eq!(t.act("1", Act::Park).await.unwrap().due_at, None, "nothing will try it");
    t.advance(secs(10));
    assert!(t.due("w", 10).await.is_empty());
    assert_eq!(t.store.next_due(&t.queue).await.unwrap(), None);
    t.act("1", Act::Release).await.unwrap();
    assert_eq!(t.due("w", 10).await.len(), 1);
}

pub async fn a_restored_letter_is_dead_in_its_old_place<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    t.act("a-1", Act::Evict).await.unwrap();
    t.advance(secs(1));
    let restored = t.act("a-1", Act::Restore).await.unwrap();
    assert_eq!((restored.state, restored.last_touched_at), (LetterState::Dead, t.now()));
    assert_eq!(t.messages("a").await, ["a-0", "a-1", "a-2"]);
}

pub async fn a_restored_head_is_the_head_again<S: Store>(t: Fixture<S>) {
    // I2
    t.enqueue("a", "1").await;
    t.behind(t.waiting("a", "2")).await;
    t.act("1", Act::Evict).await.unwrap();
    t.act("1", Act::Restore).await.unwrap();
    assert_eq!(t.messages("a").await, ["1", "2"]);
    assert!(t.due("w", 10).await.is_empty(), "it holds back what waits behind it");
    assert_eq!(t.heads(10).await[0].message.id.as_str(), "1");
}

pub async fn a_restored_letter_opens_its_closed_sequence<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.act("1", Act::Restore).await.unwrap();
    assert_eq!(t.messages("a").await, ["1"]);
    assert_eq!(t.behind(t.waiting("a", "2")).await, Placed::Appended);
}

pub async fn a_letter_restored_into_a_sequence_opened_since_goes_first<S: Store>(t: Fixture<S>) {
    // I2: it is older than what came after it was evicted.
    t.enqueue("a", "old").await;
    t.act("old", Act::Evict).await.unwrap();
    t.enqueue("a", "new").await;
    t.act("old", Act::Restore).await.unwrap();
    assert_eq!(t.messages("a").await, ["old", "new"]);
}

pub async fn only_evicted_letters_are_restored<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "open").await;
    assert_eq!(kind(t.act("open", Act::Restore).await), ErrorKind::Conflict);
    t.act("open", Act::Resolve).await.unwrap();
    assert_eq!(kind(t.act("open", Act::Restore).await), ErrorKind::Conflict);
    let mut skipped = t.waiting("b", "skipped");
    skipped.state = LetterState::Skipped;
    t.put(skipped, lazaret_core::store::Placement::Closed).await;
    assert_eq!(kind(t.act("skipped", Act::Restore).await), ErrorKind::Conflict);
}

pub async fn closed_letters_can_only_be_restored<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    let before = t.get("1").await;
    for act in [Act::Evict, Act::Resolve, Act::Park, Act::Quarantine, Act::Release] {
        assert_eq!(kind(t.act("1", act).await), ErrorKind::Conflict, "{act:?}");
    }
    assert_eq!(t.get("1").await, before);
}

pub async fn the_head_of_a_sequence_in_work_is_left_to_the_worker<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    for act in [Act::Evict, Act::Resolve, Act::Park, Act::Quarantine, Act::Release] {
        assert_eq!(kind(t.act("a-0", act).await), ErrorKind::Conflict, "{act:?}");
    }
    t.act("a-1", Act::Evict).await.unwrap();
    assert!(matches!(t.settle(&claim, &claim.head, resolve()).await.unwrap(), Settled::Closed));
}

pub async fn a_letter_is_not_restored_in_front_of_a_worker<S: Store>(t: Fixture<S>) {
    // I2, I6: what the worker holds would no longer be the head.
    t.fill("a", 3).await;
    t.act("a-0", Act::Evict).await.unwrap();
    t.act("a-2", Act::Evict).await.unwrap();
    let claim = t.claim("a", "w").await.unwrap();
    assert_eq!(kind(t.act("a-0", Act::Restore).await), ErrorKind::Conflict);
    t.act("a-2", Act::Restore).await.unwrap();
    let settled = t.settle(&claim, &claim.head, resolve()).await.unwrap();
    assert!(matches!(settled, Settled::Next(next) if next.message.id.as_str() == "a-2"));
}

pub async fn after_the_lease_ended_a_person_may_act_and_the_worker_may_not<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.advance(LEASE);
    t.act("a-0", Act::Evict).await.unwrap();
    assert_eq!(kind(t.settle(&claim, &claim.head, resolve()).await), ErrorKind::Fenced);
    assert_eq!(t.state("a-0").await, LetterState::Evicted);
}

pub async fn every_act_is_audited_with_who_why_before_and_after<S: Store>(t: Fixture<S>) {
    // I11
    t.enqueue("a", "1").await;
    let acts = [Act::Park, Act::Release, Act::Quarantine, Act::Evict, Act::Restore, Act::Resolve];
    for act in acts {
        t.advance(secs(1));
        t.act("1", act).await.unwrap();
    }
    let audit = t.audit().await;
    let lines: Vec<_> = audit
        .iter()
        .map(|entry| {
            (entry.action.as_str(), entry.before.as_deref().unwrap(), entry.after.as_deref().unwrap())
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("park", "dead", "parked"),
            ("release", "parked", "retrying"),
            ("quarantine", "retrying", "quarantined"),
            ("evict", "quarantined", "evicted"),
            ("restore", "evicted", "dead"),
            ("resolve", "dead", "resolved"),
        ]
    );
    for entry in &audit {
        assert_eq!((&entry.by, entry.subject.clone()), (&operator(), t.id_of("1").to_string()));
    }
    assert!(audit.windows(2).all(|pair| pair[0].number < pair[1].number && pair[0].at < pair[1].at));
}

pub async fn what_is_more_than_one_act_is_noted_in_the_audit<S: Store>(t: Fixture<S>) {
    // I11
    t.enqueue("a", "1").await;
    t.act("1", Act::Park).await.unwrap();
    let note = |after: Option<&str>| AuditNote {
        action: "import".to_owned(),
        subject: "orders/orders".to_owned(),
        after: after.map(str::to_owned),
    };
    t.store.note(&note(Some("3 letters")), &operator()).await.unwrap();
    t.store.note(&note(None), &Actor::new("grace", "api", "again")).await.unwrap();
    t.act("1", Act::Release).await.unwrap();
    let audit = t.audit().await;
    let said = |entry: &AuditEntry| (entry.action.clone(), entry.before.clone(), entry.after.clone());
    let noted = |after: Option<&str>| ("import".to_owned(), None, after.map(str::to_owned));
    assert_eq!([said(&audit[1]), said(&audit[2])], [noted(Some("3 letters")), noted(None)]);
    assert_eq!((&audit[1].by, audit[2].by.who.as_str()), (&operator(), "grace"));
    assert_eq!((audit[1].subject.as_str(), audit[1].at), ("orders/orders", t.now()));
    assert_eq!(audit.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

pub async fn an_act_that_is_refused_is_not_audited<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    assert!(t.act("1", Act::Restore).await.is_err());
    assert!(t.act("nobody", Act::Evict).await.is_err());
    assert!(t.audit().await.is_empty());
}

pub async fn the_audit_comes_in_pages<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    for _ in 0..3 {
        t.act("1", Act::Park).await.unwrap();
    }
    let first = t.store.audit(0, 2).await.unwrap();
    let rest = t.store.audit(first[1].number, 2).await.unwrap();
    assert_eq!((first.len(), rest.len()), (2, 1));
    assert!(rest[0].number > first[1].number);
    assert!(t.store.audit(rest[0].number, 2).await.unwrap().is_empty());
}

pub async fn clearing_is_audited_once_and_can_be_taken_back<S: Store>(t: Fixture<S>) {
    // I11
    t.fill("a", 3).await;
    t.store.clear(&t.queue, &operator()).await.unwrap();
    let audit = t.audit().await;
    assert_eq!(audit.len(), 1);
    assert_eq!((audit[0].action.as_str(), audit[0].subject.as_str()), ("clear", t.queue.as_str()));
    for message in ["a-2", "a-0", "a-1"] {
        t.act(message, Act::Restore).await.unwrap();
    }
    assert_eq!(t.messages("a").await, ["a-0", "a-1", "a-2"]);
}

pub async fn clearing_after_the_lease_ended_takes_the_head_too<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    t.advance(LEASE);
    let cleared = t.store.clear(&t.queue, &operator()).await.unwrap();
    assert_eq!((cleared.evicted, cleared.busy), (2, 0));
    assert_eq!(
        kind(t.settle(&claim, &claim.head, requeued(Requeue::of(&claim.head))).await),
        ErrorKind::Fenced
    );
}

pub async fn a_pause_says_who_why_and_since_when<S: Store>(t: Fixture<S>) {
    let since = t.now();
    t.store.pause(&t.consumer(), PauseScope::Consumer, &operator()).await.unwrap();
    t.advance(secs(60));
    let pauses = t.store.pauses(&t.consumer()).await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!(
        (&pauses[0].scope, &pauses[0].by, pauses[0].since),
        (&PauseScope::Consumer, &operator(), since)
    );
}

pub async fn every_scope_can_be_paused_and_resumed<S: Store>(t: Fixture<S>) {
    let scopes = [
        PauseScope::Consumer,
        PauseScope::Stream("orders".into()),
        PauseScope::Partition(Partition::new("orders", 3)),
        PauseScope::Sequence(seq("a")),
        PauseScope::Replay,
    ];
    for scope in &scopes {
        t.store.pause(&t.consumer(), scope.clone(), &operator()).await.unwrap();
    }
    let mut paused: Vec<_> =
        t.store.pauses(&t.consumer()).await.unwrap().into_iter().map(|p| p.scope).collect();
    paused.sort();
    assert_eq!(paused, scopes);
    assert!(t.store.pauses(&"another".into()).await.unwrap().is_empty());
    for scope in &scopes {
        assert!(t.store.resume(&t.consumer(), scope, &operator()).await.unwrap());
        assert!(!t.store.resume(&t.consumer(), scope, &operator()).await.unwrap(), "it was resumed before");
    }
    assert!(t.store.pauses(&t.consumer()).await.unwrap().is_empty());
}

pub async fn pausing_what_is_paused_replaces_who_and_why<S: Store>(t: Fixture<S>) {
    t.store.pause(&t.consumer(), PauseScope::Replay, &operator()).await.unwrap();
    let other = Actor::new("grace", "console", "still broken");
    t.store.pause(&t.consumer(), PauseScope::Replay, &other).await.unwrap();
    let pauses = t.store.pauses(&t.consumer()).await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!(pauses[0].by, other);
}

pub async fn pauses_and_their_ends_are_audited<S: Store>(t: Fixture<S>) {
    // I11
    let scope = PauseScope::Sequence(seq("order-7"));
    t.store.pause(&t.consumer(), scope.clone(), &operator()).await.unwrap();
    t.store.resume(&t.consumer(), &scope, &operator()).await.unwrap();
    t.store.resume(&t.consumer(), &scope, &operator()).await.unwrap();
    let audit = t.audit().await;
    let actions: Vec<_> = audit.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["pause", "resume"], "resuming what is not paused is nothing that happened");
    assert!(audit.iter().all(|entry| entry.subject.contains(&scope.to_string()) && entry.by == operator()));
}
