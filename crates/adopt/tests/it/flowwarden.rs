//! FlowWarden's collections: dead letters are adopted once and in order, even across crashes, and
//! streams continue where they stopped. Needs a MongoDB server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lazaret_adopt::flowwarden::{
    AdoptError, AdoptErrorKind, Adoption, CHECKPOINTS, DEAD_LETTERS, Report, adopt_position,
};
use lazaret_core::query::Query;
use lazaret_core::source::{Commit, Source, SourceEvent};
use lazaret_core::store::{Act, Actor, Checkpoints, HandOff, LetterStore, Limits, Placement, Triage};
use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, Operation, QueueName, Reason};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use lazaret_source_mongodb::driver::{Client, Collection, Database, IndexModel, options::IndexOptions};
use lazaret_source_mongodb::{
    ForeignAnchorKind, FullDocument, MongoSource, MongoSourceOptions, Start, TakeOverError, TakeOverOptions,
    TakenOver,
};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use lazaret_testkit::{Profile, Unreliable};
use tokio::sync::watch;

/// The maximum wait for an event that must occur.
const LONG: Duration = Duration::from_secs(240);
const STREAM: &str = "order-stream";

/// A private database.
struct Shop {
    uri: String,
    database: Database,
    /// A time before the first write.
    began: Timestamp,
}

impl Shop {
    /// Opens the database. Without a server, the test prints that it did not run. In CI, it fails instead.
    async fn open() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
            println!(
                "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let name = format!("fw_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let client = Client::with_uri_str(&uri).await.unwrap();
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
        let now = hello.get_datetime("localTime").unwrap().timestamp_millis() / 1000;
        let began = Timestamp { time: u32::try_from(now).unwrap() - 1, increment: 0 };
        Some(Self { uri, database: client.database(&name), began })
    }

    fn dlq(&self) -> Collection<Document> {
        self.database.collection(DEAD_LETTERS)
    }

    fn orders(&self) -> Collection<Document> {
        self.database.collection("orders")
    }

    /// Returns the options of the consumer, which reads from before the first write. The wire server
    /// sends the drops of all collections.
    fn consumer(&self) -> MongoSourceOptions {
        MongoSourceOptions {
            start: Start::At(self.began),
            full_document: FullDocument::UpdateLookup,
            operations: vec![Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete],
            max_await: Duration::from_millis(100),
            ..MongoSourceOptions::collection(&self.uri, self.database.name(), "orders")
        }
    }

    fn adoption(&self) -> Adoption {
        Adoption::of(&self.consumer(), &self.database, STREAM).with_limits(Limits::NONE)
    }

    async fn write(&self, documents: impl IntoIterator<Item = Document>) {
        self.dlq().insert_many(documents).await.unwrap();
    }

    /// Returns all documents of the collection, ordered by id.
    async fn dump(&self) -> Vec<Document> {
        let mut cursor = self.dlq().find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        let mut all = Vec::new();
        while cursor.advance().await.unwrap() {
            all.push(Document::try_from(cursor.current()).unwrap());
        }
        all
    }

    async fn close(self) {
        self.database.drop().await.unwrap();
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// Returns a token with a cluster time and the number of an operation in its transaction.
fn token(second: u32, increment: u32, operation: u32) -> String {
    format!("82{second:08X}{increment:08X}2B042C0100296E5A{operation:04X}")
}

/// Returns a document as FlowWarden 1.0.0-rc.6 writes it: every field, null where there is no value.
fn dead_letter(id: &str, order: i64, token: &str) -> Document {
    let now = DateTime::from_millis(1_790_000_000_123);
    doc! {
        "_id": id, "streamName": STREAM, "operationType": "UPDATE",
        // JSON turned the number into a 32-bit one.
        "documentKey": { "_id": i32::try_from(order).unwrap() },
        "fullDocument": { "_id": order, "kind": "poison", "token": token },
        "resumeToken": { "_data": token },
        "error": {
            "type": "shop.StockException", "message": "stock is negative",
            "stackTrace": "shop.StockException: stock is negative\n\tat shop.Stock.take(Stock.java:7)\n",
        },
        "attempts": 3, "status": "PENDING",
        "firstAttemptAt": now, "lastAttemptAt": now, "createdAt": now, "expiresAt": Bson::Null,
        "metadata": { "tenant": "acme" },
    }
}

async fn letter(store: &impl LetterStore, message: &str) -> Letter {
    let id = LetterId::of_import(&queue(), &MessageId::from(message));
    store.get(&queue(), id).await.unwrap().unwrap_or_else(|| panic!("no letter of {message}"))
}

/// Returns the tokens of the letters of an order, in sequence.
async fn tokens_of(store: &impl LetterStore, order: i64) -> Vec<String> {
    let sequence = format!(r#"{{"_id":{{"$numberLong":"{order}"}}}}"#);
    let letters = store.sequence(&queue(), &sequence.as_str().into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.id.as_str().trim_start_matches("orders:").to_owned()).collect()
}

/// Reads this many messages from the consumer's source.
async fn delivered(source: &mut MongoSource, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let next = tokio::time::timeout(LONG, source.next()).await.expect("timed out waiting for messages");
        if let SourceEvent::Messages(more) = next.unwrap() {
            messages.extend(more);
        }
    }
    messages
}

#[tokio::test]
async fn an_adopted_message_is_the_one_that_the_stream_delivers() {
    // I5. I1: the letter claims nothing about the message.
    let Some(shop) = Shop::open().await else { return };
    let order = doc! { "_id": 7_i64, "total": 12.5, "lines": [{ "sku": "a", "count": 2_i64 }] };
    shop.orders().insert_one(&order).await.unwrap();
    let store = Arc::new(MemoryStore::default());
    let mut source = MongoSource::open(shop.consumer(), store.clone()).unwrap();
    let live = delivered(&mut source, 1).await.remove(0);
    source.close().await.unwrap();
    let token = live.position.token.clone().unwrap();
    let token: Document = serde_json::from_slice(&token).unwrap();
    let mut written = dead_letter("a", 7, "");
    written.extend(doc! { "operationType": "INSERT", "fullDocument": order, "resumeToken": token });
    shop.write([written]).await;

    let report = shop.adoption().run(&*store).await.unwrap();
    assert_eq!((report.run.read, report.run.adopted, report.run.damaged), (1, 1, 0));
    let adopted = letter(&*store, live.id.as_str()).await;
    let message = &adopted.message;
    assert_eq!((&message.key, &message.position.token), (&live.key, &live.position.token));
    assert_eq!((message.operation, &message.stream), (live.operation, &live.stream));
    let payload = |message: &Message| -> serde_json::Value {
        serde_json::from_slice(message.payload.as_deref().unwrap()).unwrap()
    };
    let (ours, theirs) = (payload(message), payload(&live));
    // The wire server omits some of these fields.
    for field in ["_id", "operationType", "documentKey", "fullDocument", "ns"] {
        assert!(theirs[field].is_null() || ours[field] == theirs[field], "{field}: {ours} {theirs}");
    }
    assert!(!theirs["fullDocument"].is_null() && !ours["ns"].is_null());
    assert_eq!((adopted.state, adopted.attempts), (LetterState::Dead, 3));
    let cause = adopted.cause.unwrap();
    assert_eq!((cause.error_type.as_str(), &cause.reason), ("shop.StockException", &Reason::HANDLER_ERROR));
    assert_eq!(adopted.diagnostics["adopted-from"], format!("{}._fw_dlq/a", shop.database.name()));
    assert_eq!(
        (&*adopted.diagnostics["adopted-group"], &*adopted.context["metadata.tenant"]),
        (STREAM, "acme")
    );
    assert_eq!(store.lookup(&queue(), std::slice::from_ref(&live.id)).await.unwrap(), [None]);
    // When the source delivers the message and it fails, it gets its own letter. The document is a copy
    // of that letter.
    let failed = Letter {
        state: LetterState::Dead,
        ..Letter::new(queue(), "k".into(), live.into(), adopted.enqueued_at)
    };
    let delivered = MemoryStore::default();
    let item = HandOff { letter: failed, placement: Placement::Open, grant: None };
    delivered.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let report = shop.adoption().run(&delivered).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (0, 1));
    shop.close().await;
}

#[tokio::test]
async fn a_second_run_adopts_nothing_also_after_letters_were_resolved() {
    // I8
    let Some(shop) = Shop::open().await else { return };
    let tokens: Vec<String> = (1..=3).map(|second| token(second, 1, 0)).collect();
    shop.write([dead_letter("a", 1, &tokens[0]), dead_letter("b", 2, &tokens[1])]).await;
    // FlowWarden's ids are random. After a crash it writes the event again under a different id.
    shop.write([dead_letter("c", 1, &tokens[0])]).await;
    let before = shop.dump().await;
    let store = MemoryStore::default();
    let report = shop.adoption().run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there), (2, 1));

    let by = Actor::new("ada", "cli", "fixed by hand");
    let id = LetterId::of_import(&queue(), &MessageId::from(format!("orders:{}", tokens[0])));
    store.act(&queue(), id, Act::Resolve, &by).await.unwrap();
    // FlowWarden has since added a document whose id sorts before all others.
    shop.write([dead_letter("0", 3, &tokens[2])]).await;
    let report = shop.adoption().run(&store).await.unwrap();
    assert_eq!((report.run.read, report.run.adopted, report.run.already_there), (4, 1, 3));
    let report = shop.adoption().run(&store).await.unwrap();
    assert_eq!((report.run.adopted, report.run.already_there, report.left), (0, 4, 0));
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 2);
    let after: Vec<Document> = shop.dump().await.into_iter().skip(1).collect();
    assert_eq!(after, before, "the collection is not changed");
    shop.close().await;
}

#[tokio::test]
async fn letters_of_a_document_are_in_the_order_of_its_changes() {
    // I2: ids do not reflect the order, and operations of a transaction share a cluster time.
    let Some(shop) = Shop::open().await else { return };
    let order = [token(1, 1, 0), token(1, 2, 1), token(1, 2, 2), token(1, 2, 3), token(2, 1, 0)];
    let mixed = [3, 0, 4, 2, 1];
    let documents =
        mixed.iter().enumerate().map(|(at, number)| dead_letter(&format!("{at}"), 7, &order[*number]));
    shop.write(documents).await;
    shop.write([dead_letter("x", 8, &token(1, 3, 0))]).await;
    let store = MemoryStore::default();
    shop.adoption().run(&store).await.unwrap();
    assert_eq!(tokens_of(&store, 7).await, order);
    assert_eq!(store.counts(&queue()).await.unwrap().sequences, 2);
    let apart = MemoryStore::default();
    shop.adoption().in_separate_sequences().run(&apart).await.unwrap();
    assert!(tokens_of(&apart, 7).await.is_empty());
    assert_eq!(apart.counts(&queue()).await.unwrap().open(), 6);
    shop.close().await;
}

/// Writes every kind of document that may be in the collection.
async fn mixed(shop: &Shop) {
    let with = |id: &str, name: &str, value: Bson| {
        let mut document = dead_letter(id, 9, &token(9, 1, 0));
        document.insert(name, value);
        document
    };
    shop.write([
        dead_letter("a", 1, &token(1, 1, 0)),
        with("b", "streamName", "payment-stream".into()),
        with("c", "status", "REPROCESSED".into()),
        with("d", "status", "RESOLVED".into()),
        with("e", "status", "INVESTIGATING".into()),
        with("f", "resumeToken", Bson::Null),
        doc! { "_id": "g", "note": "somebody's own document" },
        doc! { "_id": 17, "lazaret": { "queue": "a/a" }, "streamName": STREAM, "status": "PENDING" },
    ])
    .await;
}

#[tokio::test]
async fn every_document_is_counted_and_unknown_ones_are_named() {
    // I11
    let Some(shop) = Shop::open().await else { return };
    mixed(&shop).await;
    let store = MemoryStore::default();
    let preview = shop.adoption().preview(&store).await.unwrap();
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 0, "a preview writes nothing");
    let report = shop.adoption().run(&store).await.unwrap();
    let run = report.run;
    assert_eq!((run.read, run.adopted, run.already_there), (7, 2, 0));
    assert_eq!((run.foreign, run.closed, run.unknown, run.damaged), (1, 2, 2, 1));
    let address = |rest: &str| format!("{}._fw_dlq/{rest}", shop.database.name());
    let mut unknown = report.unknown_at;
    unknown.sort_unstable();
    assert_eq!(unknown, [address("e: unknown status `INVESTIGATING`"), address("g: no `status`")]);
    letter(&store, "orders:~flowwarden/f").await;

    assert_eq!(preview.counts, run, "the preview told it");
    let of = |stream: Option<&str>, status: Option<&str>| {
        let is = |own: &Option<String>, wanted: Option<&str>| own.as_deref() == wanted;
        let found =
            preview.streams.iter().find(|count| is(&count.stream, stream) && is(&count.status, status));
        found.map_or(0, |count| count.documents)
    };
    assert_eq!((of(Some(STREAM), Some("PENDING")), of(Some(STREAM), Some("REPROCESSED"))), (2, 1));
    assert_eq!((of(Some("payment-stream"), Some("PENDING")), of(None, None)), (1, 1));
    let again = shop.adoption().preview(&store).await.unwrap();
    assert_eq!((again.counts.adopted, again.counts.already_there), (0, 2));

    let more = shop.adoption().with_status("INVESTIGATING").run(&store).await.unwrap();
    assert_eq!((more.run.adopted, more.run.unknown), (1, 1));
    shop.close().await;
}

#[tokio::test]
async fn an_adoption_that_crashes_anywhere_continues_without_loss_or_duplicates() {
    // I1, I8: the store fails before and after its effects. Each failure ends the run as a crash would.
    let Some(shop) = Shop::open().await else { return };
    let documents = (0..600_u32).map(|n| {
        let id = format!("{:08x}", n.wrapping_mul(2_654_435_761));
        dead_letter(&id, i64::from(n % 7), &token(n / 3, n % 3, 0))
    });
    shop.write(documents).await;
    let mut crashes = 0;
    for seed in 0..3 {
        let store = Unreliable::new(MemoryStore::default(), seed);
        store.set_profile(Profile { error: 0.05, error_after: 0.05, ..Profile::default() });
        let crashing = shop.adoption().with_store_timeout(Duration::ZERO);
        let last: Report = loop {
            match crashing.run(&store).await {
                Ok(report) => break report,
                Err(AdoptError { kind: AdoptErrorKind::Store(_), .. }) => crashes += 1,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(last.total.read >= 600, "seed {seed}: {last:?}");
        let counts = store.inner().counts(&queue()).await.unwrap();
        assert_eq!((counts.of(LetterState::Dead), counts.sequences), (600, 7));
        for order in 0..7 {
            let tokens = tokens_of(store.inner(), order).await;
            assert!(tokens.is_sorted(), "order {order}");
        }
    }
    assert!(crashes > 8, "{crashes} crashes prove little");
    shop.close().await;
}

#[tokio::test]
async fn a_task_that_is_killed_continues_behind_the_last_durable_batch() {
    // I1, I8
    let Some(shop) = Shop::open().await else { return };
    shop.write((0..700_u32).map(|n| dead_letter(&format!("{n:04}"), 1, &token(n, 1, 0)))).await;
    let store = Arc::new(Unreliable::new(MemoryStore::default(), 1));
    store.set_profile(Profile { latency: Duration::from_millis(2), ..Profile::default() });
    let (seen, mut watched) = watch::channel(0_u64);
    let killed = shop.adoption().on_progress(move |report| {
        seen.send_replace(report.run.read);
    });
    let kept = store.clone();
    let task = tokio::spawn(async move { killed.run(&*kept).await });
    tokio::time::timeout(LONG, watched.wait_for(|read| *read > 0)).await.unwrap().unwrap();
    task.abort();
    let _ = task.await;
    let durable = store.inner().counts(&queue()).await.unwrap().open();
    let report = shop.adoption().run(&*store).await.unwrap();
    if durable < 700 {
        assert!(report.run.read < 700, "it continued: {report:?}");
    }
    assert_eq!(store.inner().counts(&queue()).await.unwrap().open(), 700);
    shop.close().await;
}

#[tokio::test]
async fn the_store_and_flowwarden_may_share_a_collection() {
    let Some(shop) = Shop::open().await else { return };
    mixed(&shop).await;
    shop.dlq().delete_one(doc! { "_id": 17 }).await.unwrap();
    let theirs = shop.dump().await;
    let options =
        || MongoStoreOptions { collection: DEAD_LETTERS.to_owned(), ..MongoStoreOptions::default() };
    let client = shop.database.client();
    // FlowWarden's TTL index would delete letters of Lazaret.
    let ttl = IndexOptions::builder().expire_after(Duration::ZERO).build();
    let ttl = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(ttl).build();
    if shop.dlq().create_index(ttl).await.is_ok() {
        assert!(MongoStore::with_client(client, shop.database.name(), options()).await.is_err());
        shop.dlq().drop_index("expiresAt_1").await.unwrap();
    }
    let store = MongoStore::with_client(client, shop.database.name(), options()).await.unwrap();
    for run in 0..2 {
        let report = shop.adoption().run(&store).await.unwrap();
        let expected = if run == 0 { (7, 2, 0) } else { (7, 0, 2) };
        assert_eq!((report.run.read, report.run.adopted, report.run.already_there), expected);
    }
    // The store sees only its letters, and FlowWarden's documents are unchanged.
    let found = store.find(&Query::parse("").unwrap(), None, 100).await.unwrap().letters;
    assert_eq!(found.len(), 2);
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 2);
    let all = shop.dump().await;
    assert_eq!(all.iter().filter(|document| document.contains_key("lazaret")).count(), 2);
    let others: Vec<Document> =
        all.into_iter().filter(|document| !document.contains_key("lazaret")).collect();
    assert_eq!(others, theirs);
    shop.close().await;
}

#[tokio::test]
async fn a_wrong_name_and_a_missing_collection_are_errors_with_a_remedy() {
    let Some(shop) = Shop::open().await else { return };
    shop.database.collection::<Document>("orders_dlq").insert_one(doc! { "_id": 1 }).await.unwrap();
    let store = MemoryStore::default();
    let missing = shop.adoption().run(&store).await.unwrap_err().to_string();
    assert!(missing.contains("does not exist") && missing.contains("orders_dlq"), "{missing}");
    let other = shop.adoption().from_collection("orders_dlq").run(&store).await.unwrap();
    assert_eq!(other.run.unknown, 1);

    let whole = MongoSourceOptions { collection: None, ..shop.consumer() };
    let adoption = Adoption::of(&whole, &shop.database, STREAM).from_collection("orders_dlq");
    let unnamed = adoption.run(&store).await.unwrap_err().to_string();
    assert!(unnamed.contains("name the collection"), "{unnamed}");
    adoption.watching(shop.database.name(), "orders").run(&store).await.unwrap();
    shop.close().await;
}

/// Writes FlowWarden's position after this message.
async fn stopped_behind(shop: &Shop, message: &Message) {
    let token: Document = serde_json::from_slice(message.position.token.as_deref().unwrap()).unwrap();
    let at = DateTime::from_millis(message.timestamp.unwrap().as_millisecond());
    let position = doc! {
        "_id": STREAM, "lastProcessedToken": token, "lastProcessedTimestamp": at, "lastHeartbeatTimestamp": at,
    };
    let checkpoints = shop.database.collection::<Document>(CHECKPOINTS);
    checkpoints.replace_one(doc! { "_id": STREAM }, position).upsert(true).await.unwrap();
}

#[tokio::test]
async fn a_stream_goes_on_exactly_where_flowwarden_stopped() {
    // I1, I6
    let Some(shop) = Shop::open().await else { return };
    shop.orders().insert_many((1..=5).map(|n| doc! { "_id": n })).await.unwrap();
    let mut flowwarden = MongoSource::open(shop.consumer(), Arc::new(MemoryStore::default())).unwrap();
    let all = delivered(&mut flowwarden, 5).await;
    flowwarden.close().await.unwrap();

    let store = Arc::new(MemoryStore::default());
    let (consumer, checkpoints) = (shop.consumer(), shop.database.collection(CHECKPOINTS));
    let take = async |how: TakeOverOptions| {
        adopt_position(&consumer, store.clone(), &checkpoints, STREAM, how).await
    };
    let careful = TakeOverOptions::default();
    assert_eq!(take(careful).await.unwrap(), None, "FlowWarden has no position yet");

    stopped_behind(&shop, &all[2]).await;
    let dry = TakeOverOptions { dry_run: true, ..careful };
    let would = take(dry).await.unwrap();
    assert!(matches!(would, Some(TakenOver::Written { anchor: ForeignAnchorKind::Processed, .. })));
    assert_eq!(store.load("orders").await.unwrap(), None, "a dry run writes nothing");
    assert_eq!(take(careful).await.unwrap(), would);
    assert_eq!(take(careful).await.unwrap(), Some(TakenOver::AlreadyThere));

    let mut source = MongoSource::open(shop.consumer(), store.clone()).unwrap();
    let next = delivered(&mut source, 2).await;
    let ids = |messages: &[Message]| messages.iter().map(|message| message.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&next), ids(&all[3..]), "neither skipped nor repeated");

    // A running consumer is never moved, and a consumer that continued keeps its position.
    stopped_behind(&shop, &all[0]).await;
    let replace = TakeOverOptions { replace: true, ..careful };
    assert!(matches!(take(replace).await, Err(TakeOverError::Leading { .. })));
    let commit = Commit {
        partition: source.partition(),
        position: Some(next[0].position.clone()),
        settled_beyond: vec![],
    };
    source.commit(vec![commit]).await.unwrap();
    source.close().await.unwrap();
    assert!(matches!(take(careful).await.unwrap(), Some(TakenOver::Kept { .. })));
    let kept = store.load("orders").await.unwrap().unwrap().processed.unwrap();
    assert_eq!(Some(&kept.token), next[0].position.token.as_ref());

    // The position is replaced only on request.
    assert!(matches!(take(replace).await.unwrap(), Some(TakenOver::Written { .. })));
    let mut source = MongoSource::open(shop.consumer(), store.clone()).unwrap();
    assert_eq!(ids(&delivered(&mut source, 4).await), ids(&all[1..]));
    source.close().await.unwrap();
    shop.close().await;
}
