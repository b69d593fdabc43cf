//! Letters are decrypted at their place, and nowhere else.

use std::time::Duration;

use lazaret_core::letter::{AttemptKind, Edit};
use lazaret_core::store::{Counts, GROUP_MESSAGE_BYTES, TREND_BUCKETS};
use lazaret_core::{LetterState, MessageId, Position, Reason, Timestamp};
use lazaret_memory::MemoryStore;

use super::*;
use crate::key::EncryptionKey;
use crate::key_ring::KeyRing;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// It is in every encrypted field of [`letter`].
const SECRET: &str = "4111-1111";

async fn keys(byte: u8) -> Arc<DataKeys> {
    let store = Arc::new(MemoryStore::default());
    KeyRing::open(store, vec![EncryptionKey::new(&[byte; 32])]).await.unwrap().current()
}

fn failure(text: &str) -> Failure {
    let mut failure =
        Failure::new(Reason::TIMEOUT, "HttpError", text).with_backtrace(format!("at pay({SECRET})"));
    failure.chain.push(CauseLink { error_type: Some("Io".into()), message: SECRET.into() });
    failure
}

fn letter(id: &str) -> Letter {
    let queue = QueueName::of("orders", "orders");
    let mut message =
        Message::new(id, "orders", Position::new(0, 7)).with_payload(SECRET).with_header("card", SECRET);
    message.headers.push_null("none");
    message.undecodable = Some(SECRET.into());
    let mut letter = Letter::new(queue, "order-7".into(), message.into(), NOW);
    letter.state = LetterState::Dead;
    letter.cause = Some(failure(SECRET));
    letter.record(AttemptRecord {
        attempt: 1,
        kind: AttemptKind::Live,
        at: NOW,
        took: Duration::ZERO,
        failure: Some(failure(SECRET)),
    });
    letter.diagnostics = [("card".to_owned(), SECRET.to_owned())].into();
    letter.context = [(SECRET.to_owned(), "seen".to_owned())].into();
    for original in [Some(SECRET.into()), None] {
        letter.edits.push(Edit { by: "ada".into(), at: NOW, why: "typo".into(), original });
    }
    letter
}

fn sealed(keys: &DataKeys, letter: &Letter) -> Letter {
    let mut sealed = letter.clone();
    seal_letter(keys, &mut sealed);
    sealed
}

/// The ids of unknown keys, or why the letter cannot be read.
fn open(keys: &DataKeys, letter: &mut Letter) -> Result<usize, Unreadable> {
    let mut opener = Opener::new(keys);
    letter.open(&mut opener);
    match opener.unreadable.into_iter().next() {
        Some(first) => Err(first),
        None => Ok(opener.unknown.len()),
    }
}

#[tokio::test]
async fn a_letter_comes_back_whole_and_shows_nothing_meanwhile() {
    // I5
    let keys = keys(1).await;
    let letter = letter("evt-1");
    let mut stored = sealed(&keys, &letter);
    let shown = format!("{stored:?}");
    assert!(!shown.contains(SECRET) && !shown.contains("pay("), "{shown}");
    assert_eq!(stored.cause.as_ref().unwrap().fingerprint, letter.cause.as_ref().unwrap().fingerprint);
    assert_eq!(stored.message.id, letter.message.id);
    assert_eq!(open(&keys, &mut stored), Ok(0));
    assert_eq!(stored, letter);
}

#[tokio::test]
async fn what_is_not_there_is_not_made_up() {
    let keys = keys(1).await;
    let message = Message::new("evt-1", "orders", Position::new(0, 7));
    let mut bare = Letter::new(QueueName::of("a", "a"), "k".into(), message.into(), NOW);
    bare.cause = Some(Failure::new(Reason::TIMEOUT, "E", ""));
    let mut stored = sealed(&keys, &bare);
    assert_eq!(stored, bare);
    assert_eq!(open(&keys, &mut stored), Ok(0));
    assert_eq!(stored, bare);
}

#[tokio::test]
async fn plain_letters_stay_readable() {
    let keys = keys(1).await;
    let mut plain = letter("evt-1");
    // Whoever sends messages can write down the form, but not the id of a data key.
    let imitation = seal(&DataKey::new(DataKeyId([9; 16]), &[9; 32]), &[0; 24], b"", b"x");
    let message = Arc::make_mut(&mut plain.message);
    message.payload = Some(imitation.clone().into());
    message.headers = Headers::from_iter([(SEALED_NAME, imitation)]);
    let before = plain.clone();
    assert_eq!(open(&keys, &mut plain), Ok(1), "it names one unknown key");
    assert_eq!(plain, before);
}

#[tokio::test]
async fn a_value_under_a_key_of_another_store_is_left_as_it_is() {
    let (ours, theirs) = (keys(1).await, keys(1).await);
    let mut stored = sealed(&theirs, &letter("evt-1"));
    let before = stored.clone();
    assert_eq!(open(&ours, &mut stored), Ok(1));
    assert_eq!(stored, before);
}

#[tokio::test]
async fn a_value_of_another_letter_is_refused() {
    let keys = keys(1).await;
    let other = sealed(&keys, &letter("evt-2"));
    type Swap = fn(&mut Letter, &Letter);
    let swaps: [(&str, Swap); 8] = [
        ("payload", |letter, other| {
            Arc::make_mut(&mut letter.message).payload = other.message.payload.clone();
        }),
        ("headers", |letter, other| {
            Arc::make_mut(&mut letter.message).headers = other.message.headers.clone();
        }),
        ("undecodable", |letter, other| {
            Arc::make_mut(&mut letter.message).undecodable = other.message.undecodable.clone();
        }),
        ("failure", |letter, other| letter.cause = other.cause.clone()),
        ("failure", |letter, other| letter.history = other.history.clone()),
        ("diagnostics", |letter, other| letter.diagnostics = other.diagnostics.clone()),
        ("context", |letter, other| letter.context = other.context.clone()),
        ("payload", |letter, other| letter.edits = other.edits.clone()),
    ];
    for (field, swap) in swaps {
        let mut stored = sealed(&keys, &letter("evt-1"));
        swap(&mut stored, &other);
        let refused = open(&keys, &mut stored).unwrap_err();
        assert_eq!((refused.field, refused.owner), (field, format!("letter {}", stored.id)));
    }
}

#[tokio::test]
async fn what_cannot_be_decrypted_says_so_and_the_rest_is_shown() {
    let keys = keys(1).await;
    let whole = letter("evt-1");
    let other = sealed(&keys, &letter("evt-2"));
    let mut stored = sealed(&keys, &whole);
    Arc::make_mut(&mut stored.message).payload = other.message.payload.clone();
    stored.cause = other.cause.clone();
    stored.context = other.context.clone();
    stored.edits[0].original = other.edits[0].original.clone();
    assert!(open(&keys, &mut stored).is_err());
    assert_eq!((&stored.message.payload, stored.payload_left_out), (&None, true));
    let why = stored.message.undecodable.as_deref().unwrap();
    assert!(why.contains("payload") && why.contains(&stored.id.to_string()), "{why}");
    let said = placeholder(&Closed::Forged);
    let cause = stored.cause.as_ref().unwrap();
    assert_eq!((&cause.message, cause.chain.len(), &cause.backtrace), (&said, 0, &None));
    assert_eq!(cause.reason, Reason::TIMEOUT);
    assert_eq!(stored.context[SEALED_NAME], said);
    assert_eq!(stored.edits[0].original, Some(Bytes::from(said)));
    assert_eq!(stored.message.headers, whole.message.headers);
    assert_eq!((stored.history, stored.diagnostics), (whole.history, whole.diagnostics));
}

async fn ring(keys: &[u8], store: &Arc<MemoryStore>) -> KeyRing {
    let keys = keys.iter().map(|byte| EncryptionKey::new(&[*byte; 32])).collect();
    KeyRing::open(store.clone(), keys).await.unwrap()
}

#[tokio::test]
async fn a_payload_that_lost_its_mark_its_key_or_its_end_is_damaged() {
    let ring = ring(&[1], &Arc::default()).await;
    let keys = ring.current();
    let whole = letter("evt-1");
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 8] = [
        ("mark", |bytes| bytes[1] ^= 1),
        ("version", |bytes| bytes[3] ^= 2),
        ("key", |bytes| bytes[7] ^= 1),
        ("last byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("nonce and the rest", |bytes| bytes.truncate(30)),
        ("key and the rest", |bytes| bytes.truncate(20)),
        ("all but the mark", |bytes| bytes.truncate(3)),
        ("all", |bytes| *bytes = b"{\"card\":1}".to_vec()),
    ];
    for (lost, damage) in damages {
        let mut stored = sealed(&keys, &whole);
        let mut payload = stored.message.payload.clone().unwrap().to_vec();
        damage(&mut payload);
        Arc::make_mut(&mut stored.message).payload = Some(payload.into());
        let unreadable = ring.open_content(&mut stored).await.unwrap();
        let fields: Vec<_> = unreadable.iter().map(|one| one.field).collect();
        assert_eq!(fields, ["payload"], "{lost}");
        assert_eq!((&stored.message.payload, stored.payload_left_out), (&None, true), "{lost}");
        assert_eq!(
            (&stored.message.headers, &stored.cause),
            (&whole.message.headers, &whole.cause),
            "{lost}"
        );
    }
}

#[tokio::test]
async fn a_text_that_lost_its_end_is_damaged() {
    let ring = ring(&[1], &Arc::default()).await;
    let mut stored = sealed(&ring.current(), &letter("evt-1"));
    let cause = stored.cause.as_mut().unwrap();
    cause.message.truncate(20);
    let unreadable = ring.open_content(&mut stored).await.unwrap();
    assert_eq!(unreadable.first().map(|one| one.field), Some("failure"));
    assert_eq!(stored.cause.unwrap().message, placeholder(&Closed::Forged));
}

#[tokio::test]
async fn an_edit_of_a_plain_letter_encrypts_its_payload_only() {
    let ring = ring(&[1], &Arc::default()).await;
    let keys = ring.current();
    let whole = letter("evt-1");
    let mut edited = whole.clone();
    let change = Change::Payload(Some("another".into()));
    let Change::Payload(payload) = seal_change(&keys, &whole.queue, whole.id, Some(&whole), &change) else {
        panic!("it stays an edit of the payload");
    };
    Arc::make_mut(&mut edited.message).payload = payload;
    // What fails anew is encrypted, too.
    edited.cause = sealed(&keys, &whole).cause;
    assert!(ring.open_content(&mut edited).await.unwrap().is_empty());
    assert_eq!(edited.message.payload.as_deref(), Some(&b"another"[..]));
    let mut retried = Letter { cause: sealed(&keys, &whole).cause, ..whole.clone() };
    assert!(ring.open_content(&mut retried).await.unwrap().is_empty());
    assert_eq!(retried, whole, "its payload is plain");
}

#[tokio::test]
async fn a_letter_under_two_data_keys_is_opened_when_both_are_known() {
    let store = Arc::new(MemoryStore::default());
    let older = [ring(&[1, 2], &store).await, ring(&[1, 2], &store).await];
    let newer = ring(&[2, 1], &store).await;
    let whole = letter("evt-1");
    for (reader, is_edited_later) in older.iter().zip([true, false]) {
        let (old, new) = (reader.current(), newer.current());
        let (first, second) = if is_edited_later { (&old, &new) } else { (&new, &old) };
        let mut stored = sealed(first, &whole);
        let edited = sealed(second, &whole).message.payload.clone();
        Arc::make_mut(&mut stored.message).payload = edited;
        assert!(reader.open_content(&mut stored).await.unwrap().is_empty());
        assert_eq!(stored, whole);
    }
}

#[tokio::test]
async fn what_was_decrypted_is_plain_whatever_it_looks_like() {
    let ring = ring(&[1], &Arc::default()).await;
    let imitation = Bytes::from_static(b"\0LZ\x01 and the rest");
    let mut whole = letter("evt-1");
    Arc::make_mut(&mut whole.message).payload = Some(imitation.clone());
    let mut stored = sealed(&ring.current(), &whole);
    // It makes the ring be read again.
    let others = keys(2).await;
    stored.diagnostics = sealed(&others, &whole).diagnostics;
    assert!(ring.open_content(&mut stored).await.unwrap().is_empty());
    assert_eq!((&stored.message, stored.payload_left_out), (&whole.message, false));
}

#[tokio::test]
async fn without_data_keys_no_value_is_damaged() {
    let ring = KeyRing::without_keys(Arc::new(MemoryStore::default()));
    let mut plain = letter("evt-1");
    Arc::make_mut(&mut plain.message).payload = Some(Bytes::from_static(b"\0LZ\x01"));
    let before = plain.clone();
    assert!(ring.open_content(&mut plain).await.unwrap().is_empty());
    assert_eq!(plain, before);
}

#[tokio::test]
async fn a_value_of_another_field_is_refused() {
    let keys = keys(1).await;
    let mut stored = sealed(&keys, &letter("evt-1"));
    stored.context = stored.diagnostics.clone();
    assert_eq!(open(&keys, &mut stored).unwrap_err().field, "context");
    let mut stored = sealed(&keys, &letter("evt-1"));
    let cause = stored.cause.as_mut().unwrap();
    cause.fingerprint = Failure::new(Reason::TIMEOUT, "Another", "failure").fingerprint;
    assert_eq!(open(&keys, &mut stored).unwrap_err().field, "failure", "the message of another group");
}

fn group(queue: &QueueName, failure: &Failure) -> Group {
    Group {
        id: GroupId { queue: queue.clone(), fingerprint: failure.fingerprint },
        reason: failure.reason.clone(),
        error_type: failure.error_type.clone(),
        message: excerpt(&failure.message, GROUP_MESSAGE_BYTES).into_owned(),
        counts: Counts::default(),
        blocked_behind: 0,
        oldest: None,
        next_expiry: None,
        first_seen: NOW,
        last_seen: NOW,
        trend: [0; TREND_BUCKETS],
    }
}

#[tokio::test]
async fn a_group_shows_the_message_of_one_of_its_letters() {
    let keys = keys(1).await;
    for text in [SECRET.to_owned(), "x".repeat(5000)] {
        let failed = failure(&text);
        let stored = sealed(&keys, &Letter { cause: Some(failed.clone()), ..letter("evt-1") });
        let cause = stored.cause.unwrap();
        assert!(cause.message.len() <= GROUP_MESSAGE_BYTES, "it is copied whole");
        let mut shown = group(&stored.queue, &cause);
        shown.open(&mut Opener::new(&keys));
        assert_eq!(shown.message, excerpt(&text, EXCERPT_BYTES));
        // A message from another queue.
        let mut moved = group(&QueueName::of("other", "other"), &cause);
        let mut opener = Opener::new(&keys);
        moved.open(&mut opener);
        assert_eq!((opener.unreadable.len(), moved.message), (1, placeholder(&Closed::Forged)));
        let mut whole = Letter { cause: Some(cause), ..letter("evt-1") };
        open(&keys, &mut whole).unwrap();
        assert_eq!(whole.cause, Some(failed), "the letter has all of it");
    }
}

#[tokio::test]
async fn the_first_payload_comes_back_as_it_was_encrypted() {
    let keys = keys(1).await;
    let letter = letter("evt-1");
    let stored = sealed(&keys, &letter);
    let payload = |change: Change| match change {
        Change::Payload(payload) => payload.unwrap(),
        other => panic!("{other:?}"),
    };
    let change = |text: &'static str| {
        let change = Change::Payload(Some(text.into()));
        payload(seal_change(&keys, &letter.queue, letter.id, Some(&stored), &change))
    };
    assert_eq!(Some(change(SECRET)), stored.edits[0].original);
    assert_ne!(change("another"), change("another"), "every other one is new");
}

#[tokio::test]
async fn a_message_that_is_posted_twice_gives_the_same_bytes() {
    let keys = keys(1).await;
    let post = |id: Option<&str>, text: &'static str| {
        let place = Place::post("orders", id);
        let sealer = PostSealer { key: keys.active(), place, is_repeatable: id.is_some() };
        let (mut payload, mut headers, mut why) = (Some(Bytes::from(text)), Headers::new(), None);
        sealer.seal(&mut payload, &mut headers, &mut why);
        payload.unwrap()
    };
    assert_eq!(post(Some("evt-1"), SECRET), post(Some("evt-1"), SECRET));
    assert_ne!(post(Some("evt-1"), SECRET), post(Some("evt-1"), "another"));
    assert_ne!(post(Some("evt-1"), SECRET), post(Some("evt-2"), SECRET));
    assert_ne!(post(None, SECRET), post(None, SECRET));
    let mut moved = Message::new(MessageId::from("evt-2"), "orders", Position::new(0, 1));
    moved.payload = Some(post(Some("evt-1"), SECRET));
    let place = Place::post("orders", Some("evt-2"));
    assert_eq!(Opener::new(&keys).message(&place, &mut moved), [(Field::Payload, Closed::Forged)]);
    let place = Place::post("orders", Some("evt-1"));
    assert!(Opener::new(&keys).message(&place, &mut moved).is_empty());
    assert_eq!(moved.payload.as_deref(), Some(SECRET.as_bytes()));
}
