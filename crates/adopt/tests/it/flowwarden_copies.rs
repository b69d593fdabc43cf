//! Copies of dead letters in a collection: all of them, in FlowWarden's layout, and in their current
//! state. Needs a MongoDB server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lazaret_adopt::flowwarden::Copies;
use lazaret_core::store::{Act, Actor, HandOff, LetterStore, Limits, Outbox, Placement, Settlement, Triage};
use lazaret_core::{Failure, Letter, LetterId, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::bson::{Bson, Document, doc};
use lazaret_source_mongodb::driver::{Client, Collection, Database};
use tokio_util::sync::CancellationToken;

/// The maximum wait for an event that must occur.
const LONG: Duration = Duration::from_secs(240);

/// A store of a different kind, and a private database for the copies.
struct Shop {
    store: Arc<MemoryStore>,
    database: Database,
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
        let name = format!("fwc_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let database = Client::with_uri_str(&uri).await.unwrap().database(&name);
        Some(Self { store: Arc::new(MemoryStore::default()), database })
    }

    fn copies(&self) -> Collection<Document> {
        self.database.collection("orders_dlq")
    }

    async fn hand_off(&self, letters: impl IntoIterator<Item = Letter>) {
        let items =
            letters.into_iter().map(|letter| HandOff { letter, placement: Placement::Open, grant: None });
        for placed in self.store.hand_off(&queue(), &Limits::NONE, items.collect()).await.unwrap() {
            placed.unwrap();
        }
    }

    /// Copies until the token is cancelled.
    fn run(&self) -> (CancellationToken, tokio::task::JoinHandle<()>) {
        let (store, stop) = (self.store.clone(), CancellationToken::new());
        let copies =
            Copies::of(queue(), &self.database, "orders_dlq").refreshing_every(Duration::from_millis(1));
        let token = stop.clone();
        (stop, tokio::spawn(async move { copies.run(&*store, token.cancelled()).await }))
    }

    async fn copy(&self, letter: LetterId) -> Option<Document> {
        self.copies().find_one(doc! { "_id": letter.to_string() }).await.unwrap()
    }

    /// Waits until the copy of a letter has this status. `None` means no copy.
    async fn has_status(&self, letter: LetterId, status: Option<&str>) {
        self.becomes(letter, &format!("{status:?}"), |copy| {
            copy.map(|copy| copy.get_str("status").unwrap()) == status
        })
        .await;
    }

    /// Waits until no end is listed. A copy is visible before its end is removed from the list.
    async fn all_told(&self) {
        let began = Instant::now();
        while !self.store.ends(&queue(), 0, 1).await.unwrap().ends.is_empty() {
            assert!(began.elapsed() < LONG, "ends are still listed");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the copy of a letter meets the condition.
    async fn becomes(&self, letter: LetterId, what: &str, is_so: impl Fn(Option<&Document>) -> bool) {
        let began = Instant::now();
        loop {
            let copy = self.copy(letter).await;
            if is_so(copy.as_ref()) {
                return;
            }
            assert!(began.elapsed() < LONG, "it never became {what}: {copy:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn letter(name: &str, state: LetterState) -> Letter {
    let message = Message::new(name, "orders", Position::new(0, 0)).with_key(name.to_owned());
    let message = message.with_payload(r#"{"total": 5, "of": {"$ref": "customers", "$id": 7}}"#);
    // Rounded to milliseconds, the precision of dates in MongoDB.
    let now = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).unwrap();
    let mut letter = Letter::new(queue(), name.into(), message.into(), now);
    letter.state = state;
    let failure = Failure::new(Reason::HANDLER_ERROR, "java.lang.IllegalStateException", "boom");
    letter.cause = Some(failure.with_backtrace("at shop.Pay.charge(Pay.java:7)"));
    letter.attempts = 3;
    letter.expires_at = Some(now + Duration::from_secs(30 * 86_400));
    letter
}

#[tokio::test]
async fn dead_letters_of_any_store_are_copied_once_and_again_after_a_restart() {
    let Some(shop) = Shop::open().await else { return };
    let (before, parked) = (letter("before", LetterState::Dead), letter("parked", LetterState::Parked));
    let quarantined = letter("quarantined", LetterState::Quarantined);
    let mut adopted = letter("adopted", LetterState::Dead);
    adopted.diagnostics.insert("adopted-from".into(), "_fw_dlq/1".into());
    shop.hand_off([before.clone(), parked.clone(), quarantined.clone(), adopted.clone()]).await;
    let (stop, running) = shop.run();
    shop.has_status(before.id, Some("PENDING")).await;
    shop.has_status(parked.id, Some("PENDING")).await;
    let copy = shop.copy(before.id).await.unwrap();
    assert_eq!(copy.get_str("streamName").unwrap(), "orders");
    let document = doc! { "total": 5, "of": { "$ref": "customers", "$id": 7 } };
    assert_eq!(copy.get_document("fullDocument").unwrap(), &document);
    let error = copy.get_document("error").unwrap();
    assert_eq!(error.get_str("type").unwrap(), "java.lang.IllegalStateException");
    assert_eq!(error.get_str("stackTrace").unwrap(), "at shop.Pay.charge(Pay.java:7)");
    // The time to live counts from the decision about the letter. `createdAt` is when the store had it, hardly later.
    let date = |name: &str| copy.get_datetime(name).unwrap().timestamp_millis();
    let expires_at = before.expires_at.unwrap();
    assert_eq!(date("expiresAt"), expires_at.as_millisecond());
    let decided_at = (expires_at - Duration::from_secs(30 * 86_400)).as_millisecond();
    assert!((decided_at..=Timestamp::now().as_millisecond()).contains(&date("createdAt")), "{copy}");
    // Ends are listed even while no copying runs.
    stop.cancel();
    running.await.unwrap();
    let later = letter("later", LetterState::Dead);
    shop.hand_off([later.clone()]).await;
    let (stop, running) = shop.run();
    shop.has_status(later.id, Some("PENDING")).await;
    shop.all_told().await;
    stop.cancel();
    running.await.unwrap();
    for absent in [quarantined.id, adopted.id] {
        assert_eq!(shop.copy(absent).await, None);
    }
    assert_eq!(shop.copies().count_documents(doc! {}).await.unwrap(), 3);
    shop.database.drop().await.unwrap();
}

#[tokio::test]
async fn copies_follow_their_letters_and_documents_of_others_are_left_alone() {
    let Some(shop) = Shop::open().await else { return };
    let theirs = doc! { "_id": "x", "streamName": "orders", "status": "PENDING", "expiresAt": Bson::Null };
    shop.copies().insert_one(theirs.clone()).await.unwrap();
    let (resolved, evicted) = (letter("resolved", LetterState::Dead), letter("evicted", LetterState::Dead));
    shop.hand_off([resolved.clone(), evicted.clone()]).await;
    let (stop, running) = shop.run();
    shop.has_status(resolved.id, Some("PENDING")).await;
    shop.has_status(evicted.id, Some("PENDING")).await;
    let ada = Actor::new("ada", "cli", "by hand");
    shop.store.act(&queue(), resolved.id, Act::Resolve, &ada).await.unwrap();
    shop.has_status(resolved.id, Some("RESOLVED")).await;
    shop.store.act(&queue(), evicted.id, Act::Evict, &ada).await.unwrap();
    shop.has_status(evicted.id, Some("EVICTED")).await;
    shop.store.act(&queue(), evicted.id, Act::Restore, &ada).await.unwrap();
    shop.has_status(evicted.id, Some("PENDING")).await;
    shop.store.act(&queue(), evicted.id, Act::Evict, &ada).await.unwrap();
    shop.store.purge(&queue(), evicted.id, &ada).await.unwrap();
    shop.has_status(evicted.id, None).await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(shop.copies().find_one(doc! { "_id": "x" }).await.unwrap(), Some(theirs));
    shop.database.drop().await.unwrap();
}

#[tokio::test]
async fn copies_of_erased_letters_lose_their_content_and_those_of_purged_ones_go() {
    let Some(shop) = Shop::open().await else { return };
    let [resolved, skipped, evicted, purged, old] =
        ["resolved", "skipped", "evicted", "purged", "old"].map(|name| letter(name, LetterState::Dead));
    let mut adopted = letter("adopted", LetterState::Dead);
    adopted.diagnostics.insert("adopted-from".into(), "_fw_dlq/1".into());
    let all = [&resolved, &skipped, &evicted, &purged, &old, &adopted];
    shop.hand_off(all.map(Clone::clone)).await;
    let (stop, running) = shop.run();
    // A letter that is closed before it is copied gets no copy, so the test waits for the copies.
    for letter in [&resolved, &skipped, &evicted, &purged, &old] {
        shop.has_status(letter.id, Some("PENDING")).await;
    }
    let ada = Actor::new("ada", "cli", "erasure request");
    for letter in [&resolved, &purged, &old] {
        shop.store.act(&queue(), letter.id, Act::Resolve, &ada).await.unwrap();
        shop.has_status(letter.id, Some("RESOLVED")).await;
    }
    let lease = Duration::from_secs(3600);
    let claim = shop.store.claim(&queue(), &"skipped".into(), "w", lease).await.unwrap().unwrap();
    shop.store.settle(&claim.lease, skipped.id, Settlement::Skip("not needed".into())).await.unwrap();
    shop.has_status(skipped.id, Some("SKIPPED")).await;
    for letter in [&evicted, &adopted] {
        shop.store.act(&queue(), letter.id, Act::Evict, &ada).await.unwrap();
    }
    shop.has_status(evicted.id, Some("EVICTED")).await;
    let has_content = |copy: &Document| {
        let error = copy.get_document("error").unwrap();
        copy.get_document("fullDocument").is_ok()
            && error.get_str("message").unwrap() == "boom"
            && error.get_str("stackTrace").is_ok()
    };
    for letter in [&resolved, &skipped, &evicted] {
        assert!(shop.copy(letter.id).await.as_ref().is_some_and(has_content), "{}", letter.id);
    }
    // This also holds for erasures while no copying runs.
    stop.cancel();
    running.await.unwrap();
    for letter in [&resolved, &evicted, &adopted] {
        shop.store.erase(&queue(), letter.id, &ada).await.unwrap();
    }
    let (stop, running) = shop.run();
    shop.store.erase(&queue(), skipped.id, &ada).await.unwrap();
    for letter in [&resolved, &skipped, &evicted] {
        shop.becomes(letter.id, "empty", |copy| copy.is_some_and(|copy| !has_content(copy))).await;
        let copy = shop.copy(letter.id).await.unwrap();
        assert_eq!(copy.get("fullDocument"), Some(&Bson::Null));
        let error = copy.get_document("error").unwrap();
        assert_eq!(error.get_str("message").unwrap(), "[erased]");
        assert_eq!(error.get("stackTrace"), Some(&Bson::Null));
    }
    // Letters are purged by a person, and by retention.
    shop.store.purge(&queue(), purged.id, &ada).await.unwrap();
    shop.has_status(purged.id, None).await;
    shop.store.expire(&queue(), Some(Timestamp::MAX), 100).await.unwrap();
    for letter in [&old, &resolved, &skipped, &evicted] {
        shop.has_status(letter.id, None).await;
    }
    shop.all_told().await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(shop.copies().count_documents(doc! {}).await.unwrap(), 0, "an adopted letter has no copy");
    shop.database.drop().await.unwrap();
}
