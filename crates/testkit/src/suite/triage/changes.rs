//! What people note on letters.

use lazaret_core::LetterState;
use lazaret_core::store::{
    Act, COMMENT_CHARS, COMMENTS_LIMIT, Change, DigestKey, ErrorKind, PayloadDigest, Settled, Store,
};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{fail_again, ids, kind, operator, resolve};
use crate::suite::secs;

pub async fn a_new_payload_keeps_the_original<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    t.advance(secs(1));
    let first = t.change("1", Change::Payload(Some("[1]".into()))).await.unwrap();
    assert_eq!(first, t.get("1").await, "the answer is what is stored");
    t.advance(secs(1));
    t.change("1", Change::Payload(None)).await.unwrap();
    t.advance(secs(1));
    let last = t.change("1", Change::Payload(Some("".into()))).await.unwrap();
    let originals: Vec<_> = last.edits.iter().map(|edit| edit.original.as_deref()).collect();
    assert_eq!(originals, [Some(b"{}".as_slice()), Some(b"[1]"), None], "each one, oldest first");
    assert_eq!((last.edits[0].by.as_str(), last.edits[0].why.as_str()), ("ada", "the service is back"));
    assert_eq!((last.edits[2].at, last.last_touched_at), (t.now(), t.now()));
    assert_eq!(last.message.payload.as_deref(), Some(b"".as_slice()), "empty is not none");
    // I5: nothing but the payload is another one.
    let mut expected = (*before.message).clone();
    expected.payload = last.message.payload.clone();
    assert_eq!(*last.message, expected);
    assert_eq!((last.state, last.cause, last.index), (before.state, before.cause, before.index));
}

pub async fn a_held_edit_parks_the_letter<S: Store>(t: Fixture<S>) {
    t.fill("a", 2).await;
    let edit = || Change::HeldPayload(Some("[]".into()));
    let letter = t.change("a-1", edit()).await.unwrap();
    assert_eq!((letter.state, letter.due_at), (LetterState::Parked, None));
    assert_eq!(letter, t.get("a-1").await, "the answer is what is stored");
    assert_eq!((letter.message.payload.as_deref(), letter.edits.len()), (Some(b"[]".as_slice()), 1));
    let counts = t.store.counts(&t.queue).await.unwrap();
    assert_eq!((counts.of(LetterState::Parked), counts.open()), (1, 2));
    t.act("a-0", Act::Resolve).await.unwrap();
    assert_eq!(t.get("a-1").await.state, LetterState::Parked, "the new head");
    let actions: Vec<_> = t.audit().await.into_iter().map(|entry| entry.action).collect();
    assert_eq!(actions, ["park", "edit", "resolve"]);
    // A head, and one that is held already.
    t.enqueue("b", "1").await;
    assert_eq!(t.change("1", edit()).await.unwrap().state, LetterState::Parked);
    t.act("1", Act::Quarantine).await.unwrap();
    assert_eq!(t.change("1", edit()).await.unwrap().state, LetterState::Quarantined, "it stays isolated");
}

pub async fn a_payload_can_be_changed_only_while_the_letter_is_not_leased<S: Store>(t: Fixture<S>) {
    // I6
    t.fill("a", 2).await;
    let claim = t.claim("a", "w").await.unwrap();
    let edit = || Change::Payload(Some("[]".into()));
    assert_eq!(kind(t.change("a-0", edit()).await), ErrorKind::Conflict);
    assert!(t.get("a-0").await.edits.is_empty());
    // The letter behind is changed, and the worker gets it as it is then.
    t.change("a-1", edit()).await.unwrap();
    let Settled::Next(next) = t.settle(&claim, &claim.head, resolve()).await.unwrap() else {
        panic!("a replay goes on");
    };
    assert_eq!(next.message.payload.as_deref(), Some(b"[]".as_slice()));
    assert_eq!(kind(t.change("a-0", edit()).await), ErrorKind::Conflict, "it is closed");
    t.store.release(&claim.lease).await.unwrap();
    t.change("a-1", edit()).await.unwrap();
}

pub async fn comments_are_kept_in_order<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.change("1", Change::Comment("known since May".into())).await.unwrap();
    t.advance(secs(1));
    let letter = t.change("1", Change::Comment("fixed".into())).await.unwrap();
    let texts: Vec<_> = letter.comments.iter().map(|comment| comment.text.as_str()).collect();
    assert_eq!(texts, ["known since May", "fixed"]);
    assert_eq!((letter.comments[1].by.as_str(), letter.comments[1].at), ("ada", t.now()));
    assert_eq!(letter, t.get("1").await);
}

pub async fn comments_are_bounded<S: Store>(t: Fixture<S>) {
    // I7
    t.enqueue("a", "1").await;
    let too_long = Change::Comment("x".repeat(COMMENT_CHARS + 1));
    assert_eq!(kind(t.change("1", too_long).await), ErrorKind::Invalid);
    for _ in 0..COMMENTS_LIMIT {
        t.change("1", Change::Comment("x".repeat(COMMENT_CHARS))).await.unwrap();
    }
    assert_eq!(kind(t.change("1", Change::Comment("x".into())).await), ErrorKind::Invalid);
    assert_eq!(t.get("1").await.comments.len(), COMMENTS_LIMIT);
    assert_eq!(t.audit().await.len(), COMMENTS_LIMIT, "what was refused is not audited");
}

pub async fn owner_assignee_and_expiry_are_set_and_taken_back<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    let later = t.now() + secs(60);
    t.change("1", Change::Assignee(Some("grace".into()))).await.unwrap();
    t.change("1", Change::Owner(Some("payments".into()))).await.unwrap();
    t.change("1", Change::ExpiresAt(Some(later))).await.unwrap();
    let letter = t.get("1").await;
    assert_eq!((letter.assignee.as_deref(), letter.owner.as_deref()), (Some("grace"), Some("payments")));
    assert_eq!(letter.expires_at, Some(later));
    for change in [Change::Assignee(None), Change::Owner(None), Change::ExpiresAt(None)] {
        t.change("1", change).await.unwrap();
    }
    assert_eq!(t.get("1").await, before, "nothing else was changed");
}

pub async fn what_is_noted_on_a_letter_in_work_stays<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    let claim = t.claim("a", "w").await.unwrap();
    let later = t.now() + secs(60);
    t.change("1", Change::Comment("I look at it".into())).await.unwrap();
    t.change("1", Change::Assignee(Some("grace".into()))).await.unwrap();
    t.change("1", Change::ExpiresAt(Some(later))).await.unwrap();
    t.settle(&claim, &claim.head, fail_again(&claim.head)).await.unwrap();
    let letter = t.get("1").await;
    assert_eq!((letter.comments.len(), letter.assignee.as_deref()), (1, Some("grace")));
    assert_eq!(letter.expires_at, Some(later));
}

pub async fn closed_letters_can_be_noted_on<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.change("1", Change::Comment("was a test".into())).await.unwrap();
    let letter = t.change("1", Change::Owner(Some("payments".into()))).await.unwrap();
    assert_eq!((letter.state, letter.comments.len()), (LetterState::Evicted, 1));
    assert!(!t.contains("a").await);
}

pub async fn a_noted_head_was_touched_and_its_sequence_with_it<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.enqueue("b", "2").await;
    t.advance(secs(1));
    t.change("1", Change::Comment("seen".into())).await.unwrap();
    let heads = t.heads(10).await;
    assert_eq!(ids(&heads), ["2", "1"], "the longest untouched first");
    assert_eq!(heads[1].last_touched_at, t.now());
}

pub async fn every_change_is_audited_and_none_shows_a_payload<S: Store>(t: Fixture<S>) {
    // I11
    t.enqueue("a", "1").await;
    let later = t.now() + secs(60);
    for change in [
        Change::Payload(Some("secret".into())),
        Change::Comment("seen".into()),
        Change::Assignee(Some("grace".into())),
        Change::Assignee(Some("alan".into())),
        Change::Owner(Some("payments".into())),
        Change::ExpiresAt(Some(later)),
    ] {
        t.change("1", change).await.unwrap();
    }
    let audit = t.audit().await;
    let actions: Vec<_> = audit.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["edit", "comment", "assign", "assign", "owner", "expire-at"]);
    let assigned = (audit[3].before.as_deref(), audit[3].after.as_deref());
    assert_eq!(assigned, (Some("grace"), Some("alan")));
    assert_eq!(audit[5].after.as_deref(), Some(later.to_string().as_str()));
    // Which payload was there, and which is: only the store can tell, with its key.
    let digests = (audit[0].before.clone().unwrap_or_default(), audit[0].after.clone().unwrap_or_default());
    let key = t.store.digest_key().await.unwrap();
    let sealed = |payload: &[u8]| key.seal(PayloadDigest::of(Some(payload)));
    assert_eq!(digests, (format!("2 bytes, {}", sealed(b"{}")), format!("6 bytes, {}", sealed(b"secret"))));
    for entry in &audit {
        assert_eq!((&entry.by, entry.subject.clone()), (&operator(), t.id_of("1").to_string()));
        assert!(!format!("{entry:?}").contains("secret"));
    }
}

pub async fn the_key_of_digests_is_created_once<S: Store>(t: Fixture<S>) {
    let calls = std::array::from_fn::<_, 8, _>(|_| t.store.digest_key());
    let keys = futures_util::future::join_all(calls).await;
    let first = keys[0].as_ref().unwrap().clone();
    for key in keys {
        assert_eq!(key.unwrap(), first, "of those who ask at once, one creates it");
    }
    t.enqueue("a", "1").await;
    t.change("1", Change::Payload(Some("secret".into()))).await.unwrap();
    assert_eq!(t.store.digest_key().await.unwrap(), first);
    assert_ne!(DigestKey::random(), first, "no other store has it");
}

pub async fn a_letter_that_is_not_there_cannot_be_noted_on<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    for change in [Change::Payload(None), Change::Comment("seen".into())] {
        assert_eq!(kind(t.change("nobody", change).await), ErrorKind::NotFound);
    }
    assert!(t.audit().await.is_empty());
}

pub async fn the_audit_of_a_letter_is_found_by_its_id<S: Store>(t: Fixture<S>) {
    for message in ["1", "2", "3"] {
        t.enqueue(message, message).await;
    }
    t.change("1", Change::Assignee(Some("bob".into()))).await.unwrap();
    t.change("2", Change::Comment("known since May".into())).await.unwrap();
    t.change("1", Change::Assignee(None)).await.unwrap();
    t.change("3", Change::Owner(Some("payments".into()))).await.unwrap();
    t.act("1", Act::Park).await.unwrap();
    let all = t.audit().await;
    let cases: [(&[&str], usize); 7] = [
        (&["1"], 10),
        (&["1", "2"], 10),
        (&["2", "1", "1"], 10),
        (&["2", "1"], 2),
        (&["another"], 10),
        (&[], 10),
        (&["1"], 0),
    ];
    for (messages, limit) in cases {
        let subjects: Vec<String> = messages.iter().map(|message| t.id_of(message).to_string()).collect();
        let about = all.iter().rev().filter(|entry| subjects.contains(&entry.subject));
        let expected: Vec<_> = about.take(limit).cloned().collect();
        assert_eq!(
            t.store.audit_about(&subjects, limit).await.unwrap(),
            expected,
            "{limit} about {messages:?}"
        );
    }
    let found = t.store.audit_about(&[t.id_of("1").to_string()], 10).await.unwrap();
    let found: Vec<_> = found.iter().map(|entry| (entry.action.as_str(), entry.after.as_deref())).collect();
    assert_eq!(found, [("park", Some("parked")), ("assign", None), ("assign", Some("bob"))]);
}
