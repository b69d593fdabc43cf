//! Purging letters.

use lazaret_core::store::{Act, Change, ErrorKind, GroupsRequest, Placed, Store};
use lazaret_core::{LetterState, MessageId};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{failure, kind, operator};

pub async fn of_a_purged_letter_only_the_trace_is_left<S: Store>(t: Fixture<S>) {
    // I8
    for (message, act, state) in
        [("1", Act::Evict, LetterState::Evicted), ("2", Act::Resolve, LetterState::Resolved)]
    {
        let letter = t.dead(message, message);
        t.open(letter.clone()).await;
        t.act(message, act).await.unwrap();
        t.purge(message).await.unwrap();
        assert_eq!(t.store.get(&t.queue, t.id_of(message)).await.unwrap(), None);
        let known = t.store.lookup(&t.queue, &[MessageId::from(message)]).await.unwrap();
        assert_eq!(known, [Some(state)], "the message is known when it comes again");
        assert_eq!(t.open(letter).await, Placed::Held(state));
        assert!(!t.contains(message).await);
    }
}

pub async fn purged_letters_are_not_counted<S: Store>(t: Fixture<S>) {
    t.fill("a", 3).await;
    for message in ["a-0", "a-1"] {
        t.act(message, Act::Evict).await.unwrap();
    }
    t.purge("a-0").await.unwrap();
    let counts = t.store.counts(&t.queue).await.unwrap();
    assert_eq!((counts.of(LetterState::Evicted), counts.open()), (1, 1));
    let group = t.group(&failure("boom")).await.unwrap();
    assert_eq!((group.counts.of(LetterState::Evicted), group.counts.open()), (1, 1));
    // With its last letter the group is gone, and with it what it showed of their causes.
    t.purge("a-1").await.unwrap();
    t.act("a-2", Act::Resolve).await.unwrap();
    assert!(t.group(&failure("boom")).await.is_some());
    t.purge("a-2").await.unwrap();
    assert!(t.group(&failure("boom")).await.is_none());
    assert!(
        t.groups_of(GroupsRequest { closed: true, limit: 9, ..GroupsRequest::default() }).await.is_empty()
    );
}

pub async fn an_evicted_letter_is_restored_until_it_is_purged<S: Store>(t: Fixture<S>) {
    // I11
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.act("1", Act::Restore).await.unwrap();
    t.act("1", Act::Evict).await.unwrap();
    t.purge("1").await.unwrap();
    let refused = t.act("1", Act::Restore).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("purged"), "{refused}");
    assert!(!t.contains("a").await);
    assert_eq!(t.store.counts(&t.queue).await.unwrap().by_state, [0; 9]);
}

pub async fn open_letters_are_not_purged<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    assert_eq!(kind(t.purge("1").await), ErrorKind::Conflict);
    assert_eq!(t.get("1").await, before);
    assert_eq!(kind(t.purge("nobody").await), ErrorKind::NotFound);
    assert!(t.audit().await.is_empty());
}

pub async fn a_purged_letter_is_not_found<S: Store>(t: Fixture<S>) {
    t.enqueue("a", "1").await;
    t.act("1", Act::Resolve).await.unwrap();
    t.purge("1").await.unwrap();
    assert_eq!(kind(t.purge("1").await), ErrorKind::NotFound);
    assert_eq!(kind(t.change("1", Change::Comment("?".into())).await), ErrorKind::NotFound);
    for act in [Act::Evict, Act::Release, Act::Restore] {
        assert_eq!(kind(t.act("1", act).await), ErrorKind::Conflict, "{act:?}");
    }
}

pub async fn a_purge_is_audited<S: Store>(t: Fixture<S>) {
    // I11
    t.enqueue("a", "1").await;
    t.act("1", Act::Evict).await.unwrap();
    t.purge("1").await.unwrap();
    let entry = t.audit().await.pop().unwrap();
    assert_eq!((entry.action.as_str(), entry.subject), ("purge", t.id_of("1").to_string()));
    assert_eq!((entry.before.as_deref(), entry.by), (Some("evicted"), operator()));
}
