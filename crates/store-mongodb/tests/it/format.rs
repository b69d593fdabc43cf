//! The stored format: documents as this version writes them are kept as a fixture. They are read, and a change of their shape is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::store::{
    Action, Actor, Anchor, AttemptNote, Audit, Change, Checkpoint, Checkpoints, GrantFence, HandOff,
    LetterStore, Limits, Locks, OperationState, Operations, Outbox, PauseScope, Placement, PlanRequest,
    RolloutPolicy, Selection, Settled, Settlement, Triage,
};
use lazaret_core::{
    Clock, Failure, Letter, LetterId, LetterState, Message, Partition, Position, QueueName, Reason,
};
use lazaret_store_mongodb::{FORMAT_VERSION, MongoStore};
use lazaret_testkit::ManualClock;

use crate::support::{TestDatabase, server};

const LEASE: Duration = Duration::from_secs(30);
const LEASE_OF_STREAM: &str = "change-stream/orders";
/// The prefix of all collections.
const COLLECTIONS: &str = "_fw_dlq";

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn id(message: &str) -> LetterId {
    LetterId::of(&queue(), &message.into())
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn partition() -> Partition {
    Partition::new("orders", 0)
}

fn failure() -> Failure {
    Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at x")
}

fn checkpoint() -> Checkpoint {
    let now = ManualClock::new().now();
    let anchor = |token: &'static str| Some(Anchor { token: token.into(), at: now });
    Checkpoint {
        processed: anchor(r#"{"_data":"826A"}"#),
        seen: anchor(r#"{"_data":"826B"}"#),
        heartbeat: Some(now),
        instance: Some("host-7/1".into()),
        metadata: [("fence".to_owned(), "3".to_owned())].into_iter().collect(),
    }
}

fn note() -> AttemptNote {
    AttemptNote {
        message: "e1".into(),
        partition: partition(),
        offset: 9,
        attempts: 2,
        first_failed_at: ManualClock::new().now(),
        failure: failure(),
        same_failure: 1,
        due_at: ManualClock::new().now(),
    }
}

fn item(fence: u64, offset: u64, name: &str, state: LetterState, placement: Placement) -> HandOff {
    let message = Message::new(name, "orders", Position::new(0, offset))
        .with_payload(format!(r#"{{"name":"{name}"}}"#))
        .with_header("tenant", b"acme".to_vec());
    let now = ManualClock::new().now();
    let mut letter = Letter::new(queue(), name[..1].into(), message.into(), now);
    letter.state = state;
    letter.diagnostics.insert("build".into(), "7".into());
    if matches!(state, LetterState::Dead | LetterState::Retrying) {
        (letter.cause, letter.attempts) = (Some(failure()), 3);
        letter.due_at = (state == LetterState::Retrying).then_some(now);
    }
    let grant = Some(GrantFence { partition: partition(), fence, turn: 0 });
    HandOff { letter, placement, grant }
}

/// Writes at least one document of each kind.
async fn story(store: &MongoStore) {
    let queue = queue();
    let fence = store.assign(&queue, &[partition()]).await.unwrap()[0].fence;
    let items = vec![
        item(fence, 0, "a1", LetterState::Dead, Placement::Open),
        item(fence, 1, "a2", LetterState::Waiting, Placement::Behind),
        item(fence, 2, "b1", LetterState::Retrying, Placement::Open),
        item(fence, 3, "c1", LetterState::Skipped, Placement::Closed),
    ];
    for placed in store.hand_off(&queue, &Limits::default(), items).await.unwrap() {
        placed.unwrap();
    }
    store.note_attempts(&queue, vec![note()]).await.unwrap();
    assert_eq!(store.claim_due(&queue, "worker", LEASE, 10).await.unwrap().len(), 1);
    store.change(&queue, id("a1"), &Change::Payload(Some("{}".into())), &ada()).await.unwrap();
    store.set_pause(&"orders".into(), &PauseScope::Sequence("x".into()), true, &ada()).await.unwrap();
    let selection = Selection::Letters(vec![(queue.clone(), id("a1")), (queue, id("a2"))]);
    let request = PlanRequest { action: Action::Retry, selection, valid_for: LEASE * 100, max_letters: 10 };
    let plan = store.freeze(&request, &ada()).await.unwrap();
    store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap();
    store.watch_ends(&self::queue()).await.unwrap();
    assert_eq!(store.ends(&self::queue(), 0, 10).await.unwrap().ends.len(), 1);
    store.save("orders", checkpoint()).await.unwrap();
    Locks::acquire(store, LEASE_OF_STREAM, "host-7/1", LEASE).await.unwrap().unwrap();
}

fn fixture(version: i64) -> PathBuf {
    let name = format!("tests/fixtures/format-{version}.json");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The documents of all collections of a store, by the name of the collection.
type Dump = BTreeMap<String, Vec<Document>>;

async fn dump(test: &TestDatabase) -> Dump {
    let database = test.database().await;
    let mut dump = Dump::new();
    for name in database.list_collection_names().await.unwrap() {
        if name.starts_with(COLLECTIONS) {
            let collection = database.collection::<Document>(&name);
            let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
            let documents: Vec<Document> = found.try_collect().await.unwrap();
            if !documents.is_empty() {
                dump.insert(name, documents);
            }
        }
    }
    dump
}

/// A value that keeps its types in JSON. Those that are not here do by themselves.
fn canonical(value: Bson) -> Bson {
    match value {
        Bson::Int32(number) => doc! { "$numberInt": number.to_string() }.into(),
        Bson::Int64(number) => doc! { "$numberLong": number.to_string() }.into(),
        Bson::Double(number) => doc! { "$numberDouble": number.to_string() }.into(),
        Bson::Binary(binary) => {
            let subtype = format!("{:02x}", u8::from(binary.subtype));
            doc! { "$binary": { "base64": base64(&binary.bytes), "subType": subtype } }.into()
        }
        Bson::Array(values) => values.into_iter().map(canonical).collect::<Vec<_>>().into(),
        Bson::Document(document) => {
            let fields = document.into_iter().map(|(key, value)| (key, canonical(value)));
            fields.collect::<Document>().into()
        }
        other => other,
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let digit = move |place: usize| match place <= three.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// One document a line, as canonical extended JSON.
fn to_text(dump: &Dump) -> String {
    let collections = dump.iter().map(|(name, documents)| {
        let lines = documents.iter().map(|document| {
            let document = canonical(Bson::Document(document.clone()));
            format!("    {}", serde_json::to_string(&document).unwrap())
        });
        format!("  \"{name}\": [\n{}\n  ]", lines.collect::<Vec<_>>().join(",\n"))
    });
    format!("{{\n{}\n}}\n", collections.collect::<Vec<_>>().join(",\n"))
}

fn of_text(text: &str) -> Dump {
    serde_json::from_str(text).unwrap()
}

/// The fields of documents with their types. Values are random in part, such as tags.
fn shape(dump: &Dump) -> BTreeSet<String> {
    fn add(shape: &mut BTreeSet<String>, path: &str, value: &Bson) {
        match value {
            Bson::Document(document) => {
                shape.insert(format!("{path}: document"));
                document.iter().for_each(|(key, value)| add(shape, &format!("{path}.{key}"), value));
            }
            Bson::Array(values) => {
                shape.insert(format!("{path}: array"));
                values.iter().for_each(|value| add(shape, &format!("{path}[]"), value));
            }
            other => {
                shape.insert(format!("{path}: {:?}", other.element_type()));
            }
        }
    }
    let mut shape = BTreeSet::new();
    for (name, documents) in dump {
        documents.iter().for_each(|document| add(&mut shape, name, &Bson::Document(document.clone())));
    }
    shape
}

async fn open(test: &TestDatabase, clock: &ManualClock) -> MongoStore {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    test.open(Some(clock)).await
}

#[tokio::test]
async fn a_change_of_the_stored_format_is_noticed() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    story(&open(&test, &ManualClock::new()).await).await;
    let written = dump(&test).await;
    let fixture = fixture(FORMAT_VERSION);
    let Ok(kept) = std::fs::read_to_string(&fixture) else {
        std::fs::create_dir_all(fixture.parent().unwrap()).unwrap();
        std::fs::write(&fixture, to_text(&written)).unwrap();
        panic!("this format had no fixture; {} is new and has to be committed", fixture.display());
    };
    let (written, kept) = (shape(&written), shape(&of_text(&kept)));
    let (new, gone): (Vec<_>, Vec<_>) =
        (written.difference(&kept).collect(), kept.difference(&written).collect());
    assert!(
        new.is_empty() && gone.is_empty(),
        "the stored format has changed; an older version must still read it, or FORMAT_VERSION grows; then a new fixture is \
         written when {} is deleted\nnew: {new:#?}\ngone: {gone:#?}",
        fixture.display()
    );
}

#[tokio::test]
async fn documents_of_every_format_are_read_and_worked_on() {
    let Some(uri) = server() else { return };
    for version in 1..=FORMAT_VERSION {
        documents_are_read_and_worked_on(uri.clone(), version).await;
    }
}

/// I1, I11
async fn documents_are_read_and_worked_on(uri: String, version: i64) {
    let test = TestDatabase::new(uri);
    let database = test.database().await;
    let kept = std::fs::read_to_string(fixture(version)).expect("every format has its fixture");
    for (name, documents) in of_text(&kept) {
        database.collection::<Document>(&name).insert_many(documents).await.unwrap();
    }
    let clock = ManualClock::new();
    let (store, queue) = (open(&test, &clock).await, queue());
    let meta = database.collection::<Document>("_fw_dlq_meta");
    let format = meta.find_one(doc! { "_id": "format" }).await.unwrap().unwrap();
    assert_eq!(format.get_i64("version").unwrap(), FORMAT_VERSION, "older versions refuse it from now on");
    let letter = async |name: &str| store.get(&queue, id(name)).await.unwrap().unwrap();
    let a1 = letter("a1").await;
    assert_eq!((a1.state, a1.attempts, a1.cause), (LetterState::Dead, 3, Some(failure())));
    assert_eq!(a1.diagnostics.get("build").map(String::as_str), Some("7"));
    assert_eq!(
        (letter("a2").await.state, letter("c1").await.state),
        (LetterState::Waiting, LetterState::Skipped)
    );
    assert_eq!(store.counts(&queue).await.unwrap().open(), 3);
    assert_eq!(store.attempt_notes(&queue, &[partition()]).await.unwrap(), [note()]);
    assert_eq!(store.pauses(&"orders".into()).await.unwrap()[0].scope, PauseScope::Sequence("x".into()));
    assert_eq!(store.load("orders").await.unwrap(), Some(checkpoint()));
    let lock = store.state(LEASE_OF_STREAM).await.unwrap().unwrap();
    assert_eq!((lock.owner.as_str(), lock.fence), ("host-7/1", 1));
    // A store of format 1 had no outbox.
    store.watch_ends(&queue).await.unwrap();
    let ends = store.ends(&queue, 0, 10).await.unwrap().ends;
    assert_eq!(ends.iter().map(|end| (end.number, end.id)).collect::<Vec<_>>(), [(1, id("a1"))]);
    let check = store.verify_audit().await.unwrap().unwrap();
    assert!(check.broken.is_none() && !store.audit(0, 100).await.unwrap().is_empty());
    // The lease of a worker that died ends, and the operation is carried out.
    assert!(store.claim(&queue, &"b".into(), "heir", LEASE).await.unwrap().is_none(), "it is leased");
    clock.advance(LEASE * 2);
    let claim = store.claim(&queue, &"b".into(), "heir", LEASE).await.unwrap().unwrap();
    let settled = store.settle(&claim.lease, id("b1"), Settlement::Resolve(None)).await.unwrap();
    assert!(matches!(settled, Settled::Closed), "{settled:?}");
    loop {
        let work = store.poll_work(&queue, "heir", LEASE, 10).await.unwrap();
        for work in &work.items {
            let (lease, head) = (&work.claim.lease, work.claim.head.id);
            store.settle(lease, head, Settlement::Resolve(None)).await.unwrap();
        }
        if work.items.is_empty() && work.settled == 0 {
            break;
        }
    }
    let operation = store.operations(None, 1).await.unwrap().operations.remove(0);
    assert_eq!((operation.state, operation.ok), (OperationState::Done, 2), "{operation:?}");
    assert_eq!(store.counts(&queue).await.unwrap().open(), 0);
}
