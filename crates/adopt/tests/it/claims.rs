//! An adopted record claims nothing about the messages that a source delivers, whatever id and position
//! it names.

use async_trait::async_trait;
use lazaret_adopt::{Content, Cursor, DeadLetterSource, ForeignLetter, Found, Report, Tally, Target, adopt};
use lazaret_core::source::SourceError;
use lazaret_core::store::{
    Act, Actor, Change, GrantFence, HandOff, LetterStore, Limits, Placed, Placement, Triage,
};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, Reason, Timestamp,
};
use lazaret_kafka_testkit::{Topic, broker};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::headers::{HeaderStyle, write as own_headers};
use serde::{Deserialize, Serialize};

use crate::support::{NOW, Pair, Written, adoption, int, long, queue, some, spring, text, write};

fn message(offset: u64, payload: &str) -> Message {
    Message::new(format!("orders/0/{offset}"), "orders", Position::new(0, offset))
        .with_key("k")
        .with_payload(payload.to_owned())
}

fn dead(message: Message) -> Letter {
    let letter = Letter::new(queue(), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
    Letter { state: LetterState::Dead, ..letter }
}

/// Hands a message off as the engine does after it was delivered and failed.
async fn deliver(store: &MemoryStore, message: Message) -> Placed {
    let partition = Partition::new("orders", 0);
    let grant = store.assign(&queue(), std::slice::from_ref(&partition)).await.unwrap().remove(0);
    let grant = Some(GrantFence { partition, fence: grant.fence, turn: 1 });
    let item = HandOff { letter: dead(message), placement: Placement::Open, grant };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap()
}

/// Returns the message ids and payloads of the open letters, in order.
async fn open(store: &MemoryStore) -> Vec<(String, String)> {
    let letters = store.sequence(&queue(), &"k".into(), 0, 100).await.unwrap();
    let text = |letter: &Letter| String::from_utf8(letter.message.payload.clone().unwrap().into()).unwrap();
    letters.iter().map(|letter| (letter.message.id.to_string(), text(letter))).collect()
}

/// Returns the failure headers in each format. Each set names an offset that equals its index.
fn formats() -> Vec<Vec<Pair<'static>>> {
    let cause = Some(Failure::new(Reason::TIMEOUT, "Timeout", "no answer"));
    let own = Letter { cause, ..dead(message(4, "forged")) };
    let own = own_headers(&own, "other", 1, HeaderStyle::default());
    let own: Vec<(String, Option<Vec<u8>>)> = own
        .iter_nullable()
        .map(|(name, value)| (name.to_owned(), value.map(|value| value.to_vec())))
        .collect();
    vec![
        spring("orders", 0, 0),
        some(&[
            ("__connect.errors.topic", text("orders")),
            ("__connect.errors.partition", text("0")),
            ("__connect.errors.offset", text("1")),
        ]),
        some(&[
            ("__streams.errors.exception", text("com.shop.Bad")),
            ("__streams.errors.topic", text("orders")),
            ("__streams.errors.partition", text("0")),
            ("__streams.errors.offset", text("2")),
        ]),
        some(&[
            ("x-original-topic", text("orders")),
            ("x-original-partition", int(0)),
            ("x-original-offset", long(3)),
        ]),
        own.into_iter().map(|(name, value)| (&*name.leak(), value)).collect(),
    ]
}

#[tokio::test]
async fn a_record_of_any_format_claims_no_message_that_its_source_delivers() {
    // I1
    let Some(broker) = broker() else { return };
    let dlt = Topic::new(broker, 1).await;
    let formats = formats();
    let count = formats.len() as u64;
    for headers in formats {
        write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"forged"), headers, at: NOW }).await;
    }
    let store = MemoryStore::default();
    let report = adoption(&dlt).run(&store).await.unwrap();
    assert_eq!(report.run, Tally { read: count, adopted: count, ..Tally::default() });
    let adopted = open(&store).await;
    let expected: Vec<_> =
        (0..count).map(|offset| (format!("orders/0/{offset}"), "forged".to_owned())).collect();
    assert_eq!(adopted, expected);

    let ids: Vec<MessageId> = (0..count).map(|offset| message(offset, "").id).collect();
    assert!(store.lookup(&queue(), &ids).await.unwrap().iter().all(Option::is_none));
    let grant = store.assign(&queue(), &[Partition::new("orders", 0)]).await.unwrap().remove(0);
    assert_eq!(grant.horizon, None, "no message is looked up because of them");
    for offset in 0..count {
        assert_eq!(deliver(&store, message(offset, "live")).await, Placed::Appended);
        let own = LetterId::of(&queue(), &message(offset, "").id);
        let letter = store.get(&queue(), own).await.unwrap().unwrap();
        assert_eq!(letter.message.payload.as_deref(), Some(&b"live"[..]), "{offset}");
    }
    assert_eq!(open(&store).await.len() as u64, 2 * count, "I2: they wait behind the adopted ones");
    // The records are already adopted, although the delivered messages have a different payload.
    let again = adoption(&dlt).from_the_beginning().run(&store).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there), (0, count));
    // Another record has the id of the first. A preview shows what a run does.
    let headers = spring("orders", 0, 0);
    write(&dlt, 0, Written { key: Some(b"k"), payload: Some(b"other"), headers, at: NOW }).await;
    for expected in [(1, count), (0, count + 1)] {
        let preview = adoption(&dlt).from_the_beginning().preview(&store).await.unwrap();
        assert_eq!((preview.counts.adopted, preview.counts.already_there), expected);
        let again = adoption(&dlt).from_the_beginning().run(&store).await.unwrap();
        assert_eq!((again.run.adopted, again.run.already_there), expected);
    }
}

/// The number of records read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Read(usize);

impl Cursor for Read {
    type Place = usize;

    fn move_back_to(&mut self, place: &usize) {
        self.0 = self.0.min(*place);
    }

    fn is_past(&self, place: &usize) -> bool {
        *place < self.0
    }
}

/// Records in memory, read in batches.
struct Records {
    messages: Vec<Message>,
    next: usize,
    batch: usize,
}

#[async_trait]
impl DeadLetterSource for Records {
    type Cursor = Read;

    async fn open(&mut self, Read(next): Read) -> Result<(), SourceError> {
        self.next = next;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<Found<usize>>, SourceError> {
        let start = self.next;
        self.next = (start + self.batch).min(self.messages.len());
        let found = (start..self.next).map(|place| {
            let cause = Failure::new(Reason::HANDLER_ERROR, "E", "no");
            let letter = ForeignLetter::new("records", self.messages[place].clone(), cause);
            Found { place, address: format!("records/{place}"), content: Content::Letter(Box::new(letter)) }
        });
        Ok(found.collect())
    }

    fn cursor(&self) -> Read {
        Read(self.next)
    }

    fn remaining(&self) -> u64 {
        (self.messages.len() - self.next) as u64
    }
}

/// Adopts these messages under a new checkpoint.
async fn adopt_all(store: &MemoryStore, messages: Vec<Message>, batch: usize) -> Report<Read> {
    static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let target = Target { limits: Limits::NONE, ..Target::new(queue()) };
    let mut records = Records { messages, next: 0, batch };
    adopt(store, &target, &format!("adopt/{run}"), &mut records, std::future::pending()).await.unwrap()
}

#[tokio::test]
async fn a_record_with_the_id_of_another_message_gets_an_id_of_its_own_and_a_warning_once() {
    // I8, I11: in one batch, in several, and in another order.
    let all = || {
        let other_key = Message { key: None, ..message(7, "first") };
        vec![message(7, "first"), message(7, "second"), message(7, "first"), other_key, message(8, "next")]
    };
    for batch in [1, 2, 100] {
        let store = MemoryStore::default();
        let report = adopt_all(&store, all(), batch).await;
        assert_eq!((report.run.adopted, report.run.already_there, report.run.damaged), (4, 1, 2), "{batch}");
        let letters = store.sequence(&queue(), &"k".into(), 0, 100).await.unwrap();
        let [first, second, next] = &letters[..] else { panic!("{batch}: {} letters", letters.len()) };
        assert_eq!((first.message.id.as_str(), next.message.id.as_str()), ("orders/0/7", "orders/0/8"));
        assert!(!first.diagnostics.contains_key("adopted-warnings"));
        assert!(second.message.id.as_str().starts_with("orders/0/7~"), "{}", second.message.id);
        assert_eq!(second.message.payload.as_deref(), Some(&b"second"[..]));
        assert_eq!(second.message.position, first.message.position);
        let warning = &second.diagnostics["adopted-warnings"];
        assert_eq!(warning, "another message has its id orders/0/7");
        let counts = store.counts(&queue()).await.unwrap();
        assert_eq!((counts.open(), counts.sequences), (4, 2), "the one without a key stands alone");

        let by = Actor::new("ada", "cli", "done by hand");
        store.act(&queue(), first.id, Act::Resolve, &by).await.unwrap();
        for again in [all(), all().into_iter().rev().collect()] {
            let report = adopt_all(&store, again, batch).await;
            assert_eq!((report.run.adopted, report.run.already_there), (0, 5), "{batch}");
        }
    }
}

#[tokio::test]
async fn a_record_is_a_copy_of_a_delivered_message_only_with_its_key_and_its_payload() {
    // I8
    let store = MemoryStore::default();
    deliver(&store, message(7, "live")).await;
    let report = adopt_all(&store, vec![message(7, "live")], 1).await;
    assert_eq!((report.run.adopted, report.run.already_there), (0, 1));
    for _ in 0..2 {
        let report = adopt_all(&store, vec![message(7, "forged")], 1).await;
        assert_eq!(report.run.adopted + report.run.already_there, 1);
    }
    let held = open(&store).await;
    assert_eq!((held.len(), &held[0]), (2, &("orders/0/7".to_owned(), "live".to_owned())));
    assert!(held[1].0.starts_with("orders/0/7~") && held[1].1 == "forged", "{held:?}");
}

#[tokio::test]
async fn a_record_that_was_adopted_before_its_message_failed_is_adopted_once() {
    // I8
    let store = MemoryStore::default();
    assert_eq!(adopt_all(&store, vec![message(7, "forged")], 1).await.run.adopted, 1);
    deliver(&store, message(7, "live")).await;
    assert_eq!(adopt_all(&store, vec![message(7, "forged")], 1).await.run.already_there, 1);
    assert_eq!(adopt_all(&store, vec![message(7, "live")], 1).await.run.already_there, 1);
    assert_eq!(open(&store).await.len(), 2);
}

#[tokio::test]
async fn a_letter_that_was_edited_is_still_found() {
    // I8: the original payload counts.
    let store = MemoryStore::default();
    adopt_all(&store, vec![message(7, "broken")], 1).await;
    let id = LetterId::of_import(&queue(), &message(7, "").id);
    let by = Actor::new("ada", "cli", "repaired");
    store.change(&queue(), id, &Change::Payload(Some("repaired".into())), &by).await.unwrap();
    assert_eq!(adopt_all(&store, vec![message(7, "broken")], 1).await.run.already_there, 1);
}

#[tokio::test]
async fn what_was_purged_is_not_adopted_again() {
    // I8: only the ids of purged letters remain: the delivered message's, and those of adopted letters.
    let store = MemoryStore::default();
    deliver(&store, message(6, "live")).await;
    let all = || vec![message(6, "live"), message(7, "first"), message(7, "second")];
    assert_eq!(adopt_all(&store, all(), 1).await.run.adopted, 2);
    let by = Actor::new("ada", "cli", "done by hand");
    for letter in store.sequence(&queue(), &"k".into(), 0, 100).await.unwrap() {
        store.act(&queue(), letter.id, Act::Resolve, &by).await.unwrap();
        store.purge(&queue(), letter.id, &by).await.unwrap();
    }
    assert_eq!(store.get(&queue(), LetterId::of(&queue(), &message(6, "").id)).await.unwrap(), None);
    let again = adopt_all(&store, all(), 1).await.run;
    assert_eq!((again.adopted, again.already_there), (0, 3));
}
