//! Letters whose content is erased.

use lazaret_core::failure::CauseLink;
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{Act, Change, ErrorKind, Result, Store};
use lazaret_core::{Failure, Letter, LetterState, MessageId};

use crate::suite::letters::Fixture;
use crate::suite::letters::fixture::{failure, kind, operator};
use crate::suite::secs;

/// It is in all content of [`filled`].
const SECRET: &str = "PAN-4111-1111";

impl<S: Store> Fixture<S> {
    async fn erase(&self, message: &str) -> Result<Letter> {
        self.store.erase(&self.queue, self.id_of(message), &operator()).await
    }
}

fn secret_failure() -> Failure {
    let mut failure = failure(&format!("no answer for {SECRET}")).with_backtrace(format!("at pay({SECRET})"));
    failure.chain.push(CauseLink { error_type: None, message: SECRET.into() });
    failure
}

/// An evicted letter with content in all its fields.
async fn filled<S: Store>(t: &Fixture<S>) -> Letter {
    let mut letter = t.dead("a", "1");
    let message = (*letter.message).clone().with_payload(SECRET).with_header("card", SECRET);
    letter.message = message.into();
    letter.cause = Some(secret_failure());
    letter.last_failed_at = Some(t.now());
    letter.record(AttemptRecord {
        attempt: 1,
        kind: AttemptKind::Live,
        at: t.now(),
        took: secs(1),
        failure: Some(secret_failure()),
    });
    letter.diagnostics.insert("card".into(), SECRET.into());
    letter.context.insert("card".into(), SECRET.into());
    t.open(letter).await;
    t.change("1", Change::Payload(Some(format!("[{SECRET}]").into()))).await.unwrap();
    t.change("1", Change::Comment(SECRET.into())).await.unwrap();
    t.act("1", Act::Evict).await.unwrap();
    t.get("1").await
}

pub async fn an_erased_letter_keeps_its_skeleton_and_says_who_erased_it<S: Store>(t: Fixture<S>) {
    // I11
    let before = filled(&t).await;
    assert!(format!("{before:?}").contains(SECRET));
    t.advance(secs(1));
    let erased = t.erase("1").await.unwrap();
    assert_eq!(erased, t.get("1").await, "the answer is what is stored");
    assert!(!format!("{erased:?}").contains(SECRET), "{erased:?}");
    let record = erased.erased.clone().unwrap();
    assert_eq!((record.by.as_str(), record.at, record.why.as_str()), ("ada", t.now(), "the service is back"));
    let (message, cause) = (&erased.message, erased.cause.as_ref().unwrap());
    assert_eq!(
        (&message.id, &message.key, &message.position),
        (&before.message.id, &before.message.key, &before.message.position)
    );
    let stayed = before.cause.as_ref().unwrap();
    assert_eq!(
        (&cause.reason, &cause.error_type, cause.fingerprint),
        (&stayed.reason, &stayed.error_type, stayed.fingerprint)
    );
    assert_eq!((erased.state, erased.attempts, erased.history.len()), (before.state, before.attempts, 1));
    assert_eq!((erased.enqueued_at, erased.last_failed_at), (before.enqueued_at, before.last_failed_at));
    assert!(erased.payload_left_out && erased.edits.is_empty() && erased.comments.is_empty());
    let last = t.audit().await.pop().unwrap();
    assert_eq!(
        (last.action.as_str(), last.by, last.subject),
        ("erase", operator(), t.id_of("1").to_string())
    );
    assert!(!format!("{:?}", t.audit().await).contains(SECRET));
}

pub async fn the_group_of_an_erased_letter_forgets_its_message<S: Store>(t: Fixture<S>) {
    filled(&t).await;
    t.erase("1").await.unwrap();
    let group = t.group(&secret_failure()).await.unwrap();
    assert!(!format!("{group:?}").contains(SECRET), "{group:?}");
    assert_eq!(group.counts.of(LetterState::Evicted), 1, "it is counted as before");
    // A later failure of another letter is shown, whichever is erased.
    t.advance(secs(1));
    let later = Letter { last_failed_at: Some(t.now()), ..t.dead("b", "2") };
    t.open(Letter { cause: Some(failure("order 17 not found")), ..later }).await;
    t.advance(secs(1));
    let latest = Letter { last_failed_at: Some(t.now()), ..t.dead("c", "3") };
    t.open(Letter { cause: Some(failure("order 18 not found")), ..latest }).await;
    t.act("2", Act::Evict).await.unwrap();
    t.erase("2").await.unwrap();
    assert_eq!(t.group(&failure("order 17 not found")).await.unwrap().message, "order 18 not found");
}

pub async fn open_letters_are_not_erased<S: Store>(t: Fixture<S>) {
    let before = t.enqueue("a", "1").await;
    assert_eq!(kind(t.erase("1").await), ErrorKind::Conflict);
    assert_eq!(kind(t.erase("nobody").await), ErrorKind::NotFound);
    assert_eq!(t.get("1").await, before);
    assert!(t.audit().await.is_empty());
}

pub async fn an_erased_letter_is_not_restored_and_not_erased_again<S: Store>(t: Fixture<S>) {
    filled(&t).await;
    t.erase("1").await.unwrap();
    let erased = t.get("1").await;
    assert_eq!(kind(t.act("1", Act::Restore).await), ErrorKind::Conflict);
    assert_eq!(kind(t.erase("1").await), ErrorKind::Conflict);
    assert_eq!(t.get("1").await, erased);
    assert!(!t.contains("a").await);
}

pub async fn nothing_is_added_to_an_erased_letter<S: Store>(t: Fixture<S>) {
    filled(&t).await;
    t.change("1", Change::Assignee(Some("ada".into()))).await.unwrap();
    t.erase("1").await.unwrap();
    let (erased, audited) = (t.get("1").await, t.audit().await.len());
    let secret = || SECRET.to_owned();
    for change in [
        Change::Comment(secret()),
        Change::Payload(Some(SECRET.into())),
        Change::HeldPayload(Some(SECRET.into())),
        Change::Assignee(Some(secret())),
        Change::Owner(Some(secret())),
    ] {
        assert_eq!(kind(t.change("1", change.clone()).await), ErrorKind::Conflict, "{change:?}");
    }
    assert_eq!((t.get("1").await, t.audit().await.len()), (erased, audited));
    // A name can be taken back.
    let letter = t.change("1", Change::Assignee(None)).await.unwrap();
    assert!(letter.assignee.is_none() && letter.erased.is_some());
}

pub async fn an_erased_letter_is_purged_as_any_other<S: Store>(t: Fixture<S>) {
    filled(&t).await;
    t.erase("1").await.unwrap();
    t.purge("1").await.unwrap();
    assert!(t.group(&secret_failure()).await.is_none());
    assert_eq!(kind(t.erase("1").await), ErrorKind::NotFound);
    let known = t.store.lookup(&t.queue, &[MessageId::from("1")]).await.unwrap();
    assert_eq!(known, [Some(LetterState::Evicted)], "the message is known when it comes again");
}

pub async fn after_a_scrub_everything_else_is_there<S: Store>(t: Fixture<S>) {
    filled(&t).await;
    t.erase("1").await.unwrap();
    let other = t.enqueue("b", "2").await;
    t.store.scrub().await.unwrap();
    assert_eq!(t.get("2").await, other);
    assert!(t.get("1").await.erased.is_some());
    t.enqueue("c", "3").await;
    assert_eq!(t.store.counts(&t.queue).await.unwrap().open(), 2);
}
