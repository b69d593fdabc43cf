//! What the store checks when it is opened, and letters that do not fit into one document.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use lazaret_core::store::{
    Act, Actor, Audit, Change, Dedupe, ErrorKind, HandOff, LetterStore, Limits, Occupancy, Placed, Placement,
    Triage, store_id,
};
use lazaret_core::{
    Failure, Letter, LetterState, Message, MessageId, Position, QueueName, Reason, Timestamp,
};
use lazaret_store_mongodb::{FORMAT_VERSION, MongoStore, MongoStoreOptions};
use lazaret_testkit::ManualClock;
use mongodb::IndexModel;
use mongodb::options::IndexOptions;

use crate::support::relay::Relay;
use crate::support::{TestDatabase, server};

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn dead(message: Message) -> HandOff {
    let mut letter = Letter::new(queue(), "k".into(), message.into(), Timestamp::now());
    (letter.state, letter.cause) =
        (LetterState::Dead, Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at x")));
    HandOff { letter, placement: Placement::Open, grant: None }
}

#[tokio::test]
async fn a_collection_with_a_ttl_index_is_refused() {
    // I11
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let letters = test.database().await.collection::<Document>("_fw_dlq");
    let ttl = IndexOptions::builder().expire_after(Duration::ZERO).build();
    letters
        .create_index(IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(ttl).build())
        .await
        .unwrap();
    let refused = MongoStore::connect(&test.uri, test.options(None)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.context().contains("TTL index expiresAt_1"), "{refused}");
    let other = MongoStoreOptions { collection: "letters".into(), ..test.options(None) };
    MongoStore::connect(&test.uri, other).await.unwrap();
}

#[tokio::test]
async fn a_ttl_index_is_refused_whatever_kind_of_number_it_has() {
    // I11
    let Some(uri) = server() else { return };
    for seconds in [Bson::Double(0.0), Bson::Double(60.0), Bson::Int32(0), Bson::Int64(60)] {
        let test = TestDatabase::new(uri.clone());
        let create = doc! {
            "createIndexes": "_fw_dlq",
            "indexes": [{ "key": { "expiresAt": 1 }, "name": "old", "expireAfterSeconds": seconds.clone() }],
        };
        test.database().await.run_command(create).await.unwrap();
        let refused = MongoStore::connect(&test.uri, test.options(None)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{seconds:?}");
        assert!(refused.context().contains("TTL index old"), "{refused}");
        let client = test.database().await.client().clone();
        let checked = MongoStore::check(&client, &test.name, test.options(None)).await.unwrap_err();
        assert_eq!(checked.kind(), ErrorKind::Invalid, "{seconds:?}");
    }
}

#[tokio::test]
async fn indexes_of_earlier_versions_that_nothing_uses_are_dropped() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let letters = test.database().await.collection::<Document>("_fw_dlq");
    let own = IndexOptions::builder().name("by_number".to_owned()).build();
    for model in [
        IndexModel::builder().keys(doc! { "lazaret.number": -1 }).build(),
        IndexModel::builder()
            .keys(doc! { "lazaret.queue": 1, "lazaret.open": 1, "lazaret.closed": 1 })
            .build(),
        IndexModel::builder()
            .keys(doc! { "lazaret.queue": 1, "lazaret.state": 1, "lazaret.number": -1 })
            .build(),
        IndexModel::builder().keys(doc! { "lazaret.number": 1 }).options(own).build(),
    ] {
        letters.create_index(model).await.unwrap();
    }
    for _ in 0..2 {
        drop(test.open(None).await);
        let names = letters.list_index_names().await.unwrap();
        assert!(!names.contains(&"lazaret.number_-1".to_owned()), "{names:?}");
        assert!(!names.contains(&"lazaret.queue_1_lazaret.open_1_lazaret.closed_1".to_owned()), "{names:?}");
        assert!(names.contains(&"by_number".to_owned()), "a person created it: {names:?}");
        let by_state = "lazaret.queue_1_lazaret.state_1_lazaret.number_-1".to_owned();
        assert!(!names.contains(&by_state) && names.contains(&format!("{by_state}__id_1")), "{names:?}");
    }
}

#[tokio::test]
async fn letters_that_take_more_room_than_a_document_are_handed_off_in_one_call() {
    // I9
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = test.open(None).await;
    // As a document for people, a list of small numbers takes several times its bytes.
    let payload = format!(r#"{{"list":[1{}]}}"#, ",1".repeat(100_000));
    let items: Vec<HandOff> = (0..16)
        .map(|offset| {
            let message = Message::new(offset.to_string(), "orders", Position::new(0, offset));
            dead(message.with_payload(payload.clone()))
        })
        .collect();
    let placed = store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    let placed: Vec<_> = placed.into_iter().map(Result::unwrap).collect();
    assert_eq!(placed[0], Placed::Opened);
    assert!(placed[1..].iter().all(|placed| *placed == Placed::Appended), "{placed:?}");
    let letters = store.sequence(&queue(), &"k".into(), 0, 100).await.unwrap();
    let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
    assert_eq!(offsets, (0..16).collect::<Vec<_>>(), "in their order");
}

#[tokio::test]
async fn expired_values_do_not_accumulate() {
    // I7
    let Some(uri) = server() else { return };
    let (test, clock) = (TestDatabase::new(uri), ManualClock::new());
    let store = test.open(Some(Arc::new(clock.clone()))).await;
    let window = Duration::from_secs(3600);
    for round in 0..10 {
        for n in 0..20 {
            let message = MessageId::from(format!("{round}-{n}"));
            Dedupe::done(&store, &queue(), &message, "worker", window).await.unwrap();
        }
        clock.advance(window);
    }
    let values = test.database().await.collection::<Document>("_fw_dlq_values");
    let kept = values.count_documents(doc! { "space": "dedupe" }).await.unwrap();
    assert!((20..=40).contains(&kept), "{kept} marks are kept");
}

#[tokio::test]
async fn the_uri_names_the_collection() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let sign = if test.uri.contains('?') { '&' } else { '?' };
    let uri = format!("{}{sign}collection=orders_dlq", test.uri);
    let store = MongoStore::connect(&uri, test.options(None)).await.unwrap();
    let message = Message::new("m", "orders", Position::new(0, 0));
    store.hand_off(&queue(), &Limits::NONE, vec![dead(message)]).await.unwrap().remove(0).unwrap();
    let letters = test.database().await.collection::<Document>("orders_dlq");
    assert_eq!(letters.count_documents(doc! { "status": "PENDING" }).await.unwrap(), 1);
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    drop(test.open(None).await);
    let meta = test.database().await.collection::<Document>("_fw_dlq_meta");
    let newer = doc! { "$set": { "version": FORMAT_VERSION + 1 } };
    meta.update_one(doc! { "_id": "format" }, newer).await.unwrap();
    let refused = MongoStore::connect(&test.uri, test.options(None)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.context().contains(&format!("format {}", FORMAT_VERSION + 1)), "{refused}");
}

#[tokio::test]
async fn a_store_keeps_its_identity() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    assert_eq!(store_id(&test.open(None).await, "one").await.unwrap(), "one");
    assert_eq!(store_id(&test.open(None).await, "two").await.unwrap(), "one");
    let key = Audit::digest_key(&test.open(None).await).await.unwrap();
    assert_eq!(Audit::digest_key(&test.open(None).await).await.unwrap(), key, "and its key for digests");
    let other = TestDatabase::new(test.uri.clone());
    assert_ne!(Audit::digest_key(&other.open(None).await).await.unwrap(), key, "another store");
}

#[tokio::test]
async fn a_letter_larger_than_a_document_is_stored_changed_and_purged() {
    // I1
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = test.open(None).await;
    let payload: Vec<u8> = (0..17_u32 << 20).map(|place| (place % 251) as u8).collect();
    let large = Message::new("large", "orders", Position::new(0, 0)).with_payload(payload.clone());
    let headers = Message::new("headers", "orders", Position::new(0, 1))
        .with_payload("{}")
        .with_header("large", vec![7_u8; 3 << 20]);
    let items = vec![dead(large), dead(headers.clone())];
    let id = items[0].letter.id;
    let placed: Vec<_> = store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    let placed: Vec<_> = placed.into_iter().map(Result::unwrap).collect();
    assert_eq!(placed, [Placed::Opened, Placed::Appended]);
    let letters = test.open(None).await.sequence(&queue(), &"k".into(), 0, 10).await.unwrap();
    assert!(letters[0].message.payload.as_deref() == Some(&payload[..]), "byte for byte");
    assert_eq!(letters[1].message.headers, headers.headers);
    // An edit keeps the original, and the chunks of what is not referred to any more are deleted.
    let ada = Actor::new("ada", "cli", "too large");
    let edited = store.change(&queue(), id, &Change::Payload(Some("{}".into())), &ada).await.unwrap();
    assert!(edited.edits[0].original.as_deref() == Some(&payload[..]));
    let again = store.get(&queue(), id).await.unwrap().unwrap();
    assert!(again == edited);
    store.act(&queue(), id, Act::Evict, &ada).await.unwrap();
    store.purge(&queue(), id, &ada).await.unwrap();
    assert_eq!(store.get(&queue(), id).await.unwrap(), None);
    let chunks = test.database().await.collection::<Document>("_fw_dlq_chunks");
    assert_eq!(chunks.count_documents(doc! { "letter": id.to_string() }).await.unwrap(), 0);
    assert!(chunks.count_documents(doc! {}).await.unwrap() > 0, "those of the other letter stay");
}

/// A megabyte that no compression makes smaller.
fn incompressible() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..1_000_000).map(|_| next()).collect()
}

#[tokio::test]
async fn the_collections_of_the_store_are_measured_and_no_others() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let (store, database) = (test.open(None).await, test.database().await);
    let empty = store.occupancy().await.unwrap();
    assert!(empty.used.is_some() && empty.free.is_none(), "{empty:?}");
    let others = database.collection::<Document>("orders");
    let bytes = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: incompressible() };
    others.insert_one(doc! { "_id": 1, "bytes": bytes }).await.unwrap();
    // A server with files writes them now and then. One without does not know the command.
    let flush = async || database.client().database("admin").run_command(doc! { "fsync": 1 }).await.ok();
    flush().await;
    let with_others = store.occupancy().await.unwrap();
    assert!(with_others.used < empty.used.map(|used| used + 500_000), "{empty:?} {with_others:?}");
    let large = Message::new("m", "orders", Position::new(0, 0)).with_payload(incompressible());
    store.hand_off(&queue(), &Limits::NONE, vec![dead(large)]).await.unwrap().remove(0).unwrap();
    flush().await;
    let filled = store.occupancy().await.unwrap();
    assert!(filled.used > with_others.used.map(|used| used + 500_000), "{with_others:?} {filled:?}");
}

#[tokio::test]
async fn a_server_that_does_not_tell_sizes_is_asked_once_and_hinders_nothing() {
    let Some(uri) = server() else { return };
    let relay = Relay::start(&uri).await;
    let test = TestDatabase::new(uri);
    let store = MongoStore::connect(&relay.uri("maxPoolSize=3"), test.options(None)).await.unwrap();
    assert!(store.occupancy().await.unwrap().used.is_some());
    relay.make_unknown("collStats");
    for _ in 0..3 {
        // Not an error: the bound on letters is checked by those who ask.
        assert_eq!(store.occupancy().await.unwrap(), Occupancy::default());
    }
    assert_eq!(relay.unknown_sent(), 1);
    let message = Message::new("m", "orders", Position::new(0, 0));
    store.hand_off(&queue(), &Limits::NONE, vec![dead(message)]).await.unwrap().remove(0).unwrap();
}

#[tokio::test]
async fn a_letter_is_readable_by_the_names_of_flowwarden() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = test.open(None).await;
    let message =
        Message::new("m", "orders", Position::new(0, 0)).with_payload(r#"{"total": 5}"#).with_key("k");
    store.hand_off(&queue(), &Limits::NONE, vec![dead(message)]).await.unwrap().remove(0).unwrap();
    let letters = test.database().await.collection::<Document>("_fw_dlq");
    let filter = doc! { "streamName": "orders", "status": "PENDING", "error.type": "HttpError" };
    let found = letters.find_one(filter).await.unwrap().unwrap();
    assert_eq!(found.get_document("fullDocument").unwrap(), &doc! { "total": 5 });
    assert_eq!(found.get_document("documentKey").unwrap(), &doc! { "_id": "k" });
    assert_eq!(found.get_document("error").unwrap().get_str("stackTrace").unwrap(), "at x");
    assert!(found.get_datetime("createdAt").is_ok());
}

#[tokio::test]
async fn by_default_a_letter_has_the_words_of_the_api_in_a_collection_of_lazaret() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let store = MongoStore::connect(&test.uri, test.default_options()).await.unwrap();
    let message =
        Message::new("m", "orders", Position::new(0, 0)).with_payload(r#"{"total": 5}"#).with_key("k");
    let item = dead(message);
    let id = item.letter.id;
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let letters = test.database().await.collection::<Document>("lazaret_letters");
    let filter = doc! { "stream": "orders", "state": "dead", "error.type": "HttpError" };
    let found = letters.find_one(filter).await.unwrap().unwrap();
    assert_eq!(found.get_document("payload").unwrap(), &doc! { "total": 5 });
    assert!(!found.contains_key("streamName") && !found.contains_key("status"), "{found}");
    let ada = Actor::new("ada", "cli", "wrong");
    store.act(&queue(), id, Act::Evict, &ada).await.unwrap();
    store.purge(&queue(), id, &ada).await.unwrap();
    assert_eq!(letters.find_one(doc! {}).await.unwrap().unwrap().get_str("state").unwrap(), "purged");
    // A layout that is changed is that of the letters written from then on; those of the other are read.
    let named = format!("{}{}layout=flowwarden", test.uri, if test.uri.contains('?') { '&' } else { '?' });
    let store = MongoStore::connect(&named, test.default_options()).await.unwrap();
    let message = Message::new("n", "orders", Position::new(0, 1))
        .with_payload(r#"{"of": {"$ref": "a", "$id": 1}, "$b": 2}"#);
    store.hand_off(&queue(), &Limits::NONE, vec![dead(message)]).await.unwrap().remove(0).unwrap();
    let found = letters.find_one(doc! { "status": "PENDING" }).await.unwrap().unwrap();
    let expected = doc! { "of": { "$ref": "a", "$id": 1 }, "＄b": 2 };
    assert_eq!(found.get_document("fullDocument").unwrap(), &expected);
    let wrong = MongoStore::connect(&named.replace("flowwarden", "nested"), test.default_options()).await;
    assert!(wrong.unwrap_err().to_string().contains("there is no layout \"nested\""));
}

#[tokio::test]
async fn letters_under_the_default_name_of_earlier_versions_are_not_overlooked() {
    // I1
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    drop(test.open(None).await);
    let error = MongoStore::connect(&test.uri, test.default_options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("collection=_fw_dlq"), "{error}");
    // Nothing was created, and a store that was named is opened.
    let names = test.database().await.list_collection_names().await.unwrap();
    assert!(names.iter().all(|name| name.starts_with("_fw_dlq")), "{names:?}");
    let other = MongoStoreOptions { collection: "letters".into(), ..test.default_options() };
    MongoStore::connect(&test.uri, other).await.unwrap();
    test.open(None).await;
}

#[tokio::test]
async fn documents_of_others_in_the_collection_are_left_alone() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let letters = test.database().await.collection::<Document>("_fw_dlq");
    letters.insert_one(doc! { "_id": "x", "streamName": "orders", "status": "PENDING" }).await.unwrap();
    let store = test.open(None).await;
    let message = Message::new("m", "orders", Position::new(0, 0));
    store.hand_off(&queue(), &Limits::NONE, vec![dead(message)]).await.unwrap().remove(0).unwrap();
    let all = lazaret_core::query::Query::parse("state:open or state:closed").unwrap();
    assert_eq!(store.find(&all, None, 10).await.unwrap().letters.len(), 1);
    assert_eq!(letters.count_documents(doc! {}).await.unwrap(), 2);
}
