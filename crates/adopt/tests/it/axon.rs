//! Axon's dead-letter tables: every layout is read, letters keep their order, and nothing is adopted
//! twice. Needs a PostgreSQL server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lazaret_adopt::axon::{AdoptErrorKind, Adoption};
use lazaret_adopt::{ADOPTED_FROM, Target};
use lazaret_core::query::Query;
use lazaret_core::store::{Act, Actor, LetterStore, Limits, Triage};
use lazaret_core::{Letter, LetterState, QueueName};
use lazaret_memory::MemoryStore;
use tokio_postgres::{Client, NoTls};

/// The tables as Axon's own schema factories and Hibernate create them.
const JDBC_5: &str = "CREATE TABLE DeadLetterEntry (deadLetterIdentifier VARCHAR(255) PRIMARY KEY, \
    processingGroup VARCHAR(255) NOT NULL, sequenceIdentifier VARCHAR(255) NOT NULL, sequenceIndex BIGINT NOT NULL, \
    eventType VARCHAR(255) NOT NULL, eventIdentifier VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, \
    timestamp VARCHAR(255) NOT NULL, payload BYTEA NOT NULL, metadata BYTEA, aggregateType VARCHAR(255), \
    aggregateIdentifier VARCHAR(255), sequenceNumber BIGINT, tokenType VARCHAR(255), token BYTEA, \
    enqueuedAt VARCHAR(255) NOT NULL, lastTouched VARCHAR(255), processingStarted VARCHAR(255), \
    causeType VARCHAR(255), causeMessage VARCHAR(1023), diagnostics BYTEA, \
    UNIQUE (processingGroup, sequenceIdentifier, sequenceIndex))";
const JDBC_4: &str = "CREATE TABLE DeadLetterEntry (deadLetterIdentifier VARCHAR(255) PRIMARY KEY, \
    processingGroup VARCHAR(255) NOT NULL, sequenceIdentifier VARCHAR(255) NOT NULL, sequenceIndex BIGINT NOT NULL, \
    messageType VARCHAR(255) NOT NULL, eventIdentifier VARCHAR(255) NOT NULL, timeStamp VARCHAR(255) NOT NULL, \
    payloadType VARCHAR(255) NOT NULL, payloadRevision VARCHAR(255), payload BYTEA NOT NULL, metaData BYTEA, \
    type VARCHAR(255), aggregateIdentifier VARCHAR(255), sequenceNumber BIGINT, tokenType VARCHAR(255), token BYTEA, \
    enqueuedAt VARCHAR(255) NOT NULL, lastTouched VARCHAR(255), processingStarted VARCHAR(255), \
    causeType VARCHAR(255), causeMessage VARCHAR(255), diagnostics BYTEA)";
const JPA_5: &str = "CREATE TABLE dead_letter_entry (dead_letter_id VARCHAR(255) PRIMARY KEY, \
    processing_group VARCHAR(255) NOT NULL, sequence_identifier VARCHAR(255) NOT NULL, sequence_index BIGINT NOT NULL, \
    identifier VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, timestamp VARCHAR(255) NOT NULL, \
    payload BYTEA NOT NULL, metadata BYTEA, aggregate_type VARCHAR(255), aggregate_identifier VARCHAR(255), \
    aggregate_sequence_number BIGINT, token_type VARCHAR(255), token BYTEA, \
    enqueued_at TIMESTAMP(6) WITH TIME ZONE NOT NULL, last_touched TIMESTAMP(6) WITH TIME ZONE, \
    processing_started TIMESTAMP(6) WITH TIME ZONE, cause_type VARCHAR(255), cause_message VARCHAR(1023), \
    diagnostics BYTEA)";
/// A JPA table with `@Lob`, which Hibernate maps to large objects for PostgreSQL by default.
const JPA_4: &str = "CREATE TABLE dead_letter_entry (dead_letter_id VARCHAR(255) PRIMARY KEY, \
    processing_group VARCHAR(255) NOT NULL, sequence_identifier VARCHAR(255) NOT NULL, sequence_index BIGINT NOT NULL, \
    message_type VARCHAR(255) NOT NULL, event_identifier VARCHAR(255) NOT NULL, time_stamp VARCHAR(255) NOT NULL, \
    payload_type VARCHAR(255) NOT NULL, payload_revision VARCHAR(255), payload OID NOT NULL, meta_data OID, \
    type VARCHAR(255), aggregate_identifier VARCHAR(255), sequence_number BIGINT, token_type VARCHAR(255), token OID, \
    enqueued_at TIMESTAMP NOT NULL, last_touched TIMESTAMP, processing_started TIMESTAMP, cause_type VARCHAR(255), \
    cause_message VARCHAR(255), diagnostics OID)";

/// A layout: the table, and the statement that writes an entry. `$1` id, `$2` sequence, `$3` index, `$4`
/// payload, `$5` cause.
struct Layout {
    name: &'static str,
    create: &'static str,
    insert: &'static str,
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        name: "JDBC 5.x",
        create: JDBC_5,
        insert: "INSERT INTO DeadLetterEntry VALUES ('d-' || $1, 'billing', $2, $3, 'EventMessage', $1, \
            'com.example.OrderPlaced#2', '2026-03-01T10:00:00Z', $4::bytea, '{\"trace\":\"t-1\"}', 'Order', 'o-1', 4, \
            'GlobalSequenceTrackingToken', '{\"globalIndex\":99}', '2026-03-01T10:00:01Z', '2026-03-01T11:00:00Z', \
            NULL, 'java.lang.IllegalStateException', $5, '{\"attempt\":\"3\"}')",
    },
    Layout {
        name: "JDBC 4.x",
        create: JDBC_4,
        insert: "INSERT INTO DeadLetterEntry VALUES ('d-' || $1, 'billing', $2, $3, 'EventMessage', $1, \
            '2026-03-01T10:00:00Z', 'com.example.OrderPlaced', '2', $4::bytea, '{\"trace\":\"t-1\"}', 'Order', 'o-1', 4, \
            'GlobalSequenceTrackingToken', '{\"globalIndex\":99}', '2026-03-01T10:00:01Z', '2026-03-01T11:00:00Z', \
            NULL, 'java.lang.IllegalStateException', $5, '{\"attempt\":\"3\"}')",
    },
    Layout {
        name: "JPA 5.x",
        create: JPA_5,
        insert: "INSERT INTO dead_letter_entry VALUES ('d-' || $1, 'billing', $2, $3, $1, 'com.example.OrderPlaced#2', \
            '2026-03-01T10:00:00Z', $4::bytea, '{\"trace\":\"t-1\"}', 'Order', 'o-1', 4, 'GlobalSequenceTrackingToken', \
            '{\"globalIndex\":99}', '2026-03-01T11:00:01+01', '2026-03-01T12:00:00+01', NULL, \
            'java.lang.IllegalStateException', $5, '{\"attempt\":\"3\"}')",
    },
    Layout {
        name: "JPA 4.x",
        create: JPA_4,
        insert: "INSERT INTO dead_letter_entry VALUES ('d-' || $1, 'billing', $2, $3, 'EventMessage', $1, \
            '2026-03-01T10:00:00Z', 'com.example.OrderPlaced', '2', lo_from_bytea(0, $4::bytea), \
            lo_from_bytea(0, '{\"trace\":\"t-1\"}'), 'Order', 'o-1', 4, 'GlobalSequenceTrackingToken', \
            lo_from_bytea(0, '{\"globalIndex\":99}'), '2026-03-01 10:00:01', '2026-03-01 11:00:00', NULL, \
            'java.lang.IllegalStateException', $5, lo_from_bytea(0, '{\"attempt\":\"3\"}'))",
    },
];

/// A private schema with an empty table.
struct Shop {
    client: Client,
    insert: &'static str,
}

impl Shop {
    /// Opens the schema. Without a server, the test prints that it did not run. In CI, it fails instead.
    async fn open(layout: &Layout) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Ok(dsn) = std::env::var("LAZARET_TEST_POSTGRES") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(
                !must,
                "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it"
            );
            println!(
                "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
        tokio::spawn(connection);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        let name = format!("axon_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        client.batch_execute(&format!("CREATE SCHEMA {name}; SET search_path = {name}")).await.unwrap();
        client.batch_execute(layout.create).await.unwrap();
        Some(Self { client, insert: layout.insert })
    }

    async fn insert(&self, id: &str, sequence: &str, index: i64, cause: Option<&str>) {
        let payload = format!(r#"{{"order":"{id}"}}"#).into_bytes();
        self.client.execute(self.insert, &[&id, &sequence, &index, &payload, &cause]).await.unwrap();
        if cause.is_none() {
            let clear = self.insert.split_whitespace().nth(2).unwrap();
            // Axon writes no cause for an event that only follows a failed one.
            let column = if clear.contains('_') { "cause_type" } else { "causeType" };
            let id_column = if clear.contains('_') { "dead_letter_id" } else { "deadLetterIdentifier" };
            let query = format!("UPDATE {clear} SET {column} = NULL WHERE {id_column} = 'd-' || $1");
            self.client.execute(&query, &[&id]).await.unwrap();
        }
    }

    fn adoption(&self) -> Adoption<'_> {
        Adoption::of(&self.client, "billing", Target::new(queue()))
    }

    async fn close(self) {
        let drop = "DO $$ BEGIN EXECUTE format('DROP SCHEMA %I CASCADE', current_schema()); END $$";
        self.client.batch_execute(drop).await.unwrap();
    }
}

fn queue() -> QueueName {
    QueueName::of("billing", "billing")
}

/// Returns the letters of a sequence in order.
async fn letters(store: &MemoryStore, sequence: &str) -> Vec<Letter> {
    let query = Query::parse(&format!("seq:{sequence}")).unwrap();
    let mut letters = store.find(&query, None, 1000).await.unwrap().letters;
    letters.sort_by_key(|letter| letter.index);
    letters
}

#[tokio::test]
async fn the_tables_of_both_versions_and_both_adapters_are_read() {
    for layout in &LAYOUTS {
        let Some(shop) = Shop::open(layout).await else { return };
        shop.insert("e-1", "order-1", 0, Some("no stock")).await;
        shop.insert("e-2", "order-1", 1, None).await;
        let store = MemoryStore::default();
        let preview = shop.adoption().preview(&store).await.unwrap();
        assert_eq!((preview.counts.adopted, preview.groups.len()), (2, 1), "{}", layout.name);
        assert_eq!((preview.groups[0].entries, preview.groups[0].sequences), (2, 1));
        let report = shop.adoption().run(&store).await.unwrap();
        assert_eq!((report.run.adopted, report.run.damaged, report.left), (2, 0, 0), "{}", layout.name);

        let letters = letters(&store, "order-1").await;
        let [head, behind] = &letters[..] else { panic!("{}: {} letters", layout.name, letters.len()) };
        let message = &head.message;
        assert_eq!((message.id.as_str(), message.key.as_deref()), ("e-1", Some(&b"order-1"[..])));
        assert_eq!(message.payload.as_deref(), Some(&br#"{"order":"e-1"}"#[..]), "{}", layout.name);
        assert_eq!(message.event_type.as_deref(), Some("com.example.OrderPlaced"), "{}", layout.name);
        assert_eq!(message.schema.as_ref().unwrap().version.as_deref(), Some("2"), "{}", layout.name);
        assert_eq!(message.timestamp, "2026-03-01T10:00:00Z".parse().ok());
        assert_eq!(message.headers.get_str("axon-metadata-trace"), Some("t-1"), "{}", layout.name);
        assert_eq!(message.headers.get_str("axon-message-aggregate-type"), Some("Order"), "{}", layout.name);
        assert_eq!(message.headers.get_str("axon-message-aggregate-seq"), Some("4"), "{}", layout.name);
        let cause = head.cause.as_ref().unwrap();
        assert_eq!(
            (cause.error_type.as_str(), cause.message.as_str()),
            ("java.lang.IllegalStateException", "no stock")
        );
        assert_eq!(head.context["axon-diagnostics-attempt"], "3", "{}", layout.name);
        assert_eq!(head.context["axon-token"], r#"{"globalIndex":99}"#, "{}", layout.name);
        assert_eq!(head.first_failed_at, "2026-03-01T10:00:01Z".parse().ok(), "{}", layout.name);
        assert_eq!(head.last_failed_at, "2026-03-01T11:00:00Z".parse().ok(), "{}", layout.name);
        assert!(head.diagnostics[ADOPTED_FROM].ends_with("/d-e-1"));
        assert_eq!((head.state, head.attempts), (LetterState::Dead, 1));
        assert_eq!((behind.state, behind.attempts, &behind.cause), (LetterState::Waiting, 0, &None));
        // I1: the letters claim nothing about what a source delivers.
        let claimed = store.lookup(&queue(), &["e-1".into(), "e-2".into()]).await.unwrap();
        assert_eq!(claimed, [None, None], "{}", layout.name);
        shop.close().await;
    }
}

#[tokio::test]
async fn letters_keep_the_order_of_axon_and_a_second_run_adopts_only_what_is_new() {
    let Some(shop) = Shop::open(&LAYOUTS[0]).await else { return };
    // The entries need more than one batch, and are not written in sequence order.
    for index in (0..150).rev() {
        let cause = (index == 0).then_some("no stock");
        shop.insert(&format!("a-{index}"), "order-1", index, cause).await;
    }
    shop.insert("b-0", "order-2", 0, Some("no stock")).await;
    let store = MemoryStore::default();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let adoption = shop.adoption().on_progress(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(adoption.run(&store).await.unwrap().run.adopted, 151);
    assert!(calls.load(Ordering::Relaxed) >= 3);
    let ids = |letters: &[Letter]| -> Vec<String> {
        letters.iter().map(|letter| letter.message.id.to_string()).collect()
    };
    let all: Vec<String> = (0..150).map(|index| format!("a-{index}")).collect();
    assert_eq!(ids(&letters(&store, "order-1").await), all);

    // One letter is resolved in the store, and one entry is added to the table.
    let head = letters(&store, "order-2").await.remove(0);
    store.act(&queue(), head.id, Act::Resolve, &Actor::new("ann", "test", "repaired")).await.unwrap();
    shop.insert("b-1", "order-2", 1, Some("no stock")).await;
    let preview = shop.adoption().preview(&store).await.unwrap();
    assert_eq!((preview.counts.adopted, preview.counts.already_there), (1, 151));
    let again = shop.adoption().run(&store).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there, again.total.adopted), (1, 151, 152));
    shop.close().await;
}

#[tokio::test]
async fn an_adoption_that_stopped_continues_where_it_was() {
    let Some(shop) = Shop::open(&LAYOUTS[2]).await else { return };
    for index in 0..100 {
        shop.insert(&format!("e-{index:03}"), &format!("order-{index:03}"), 0, Some("no stock")).await;
    }
    let store = MemoryStore::default();
    let limits = Limits { max_sequences: Some(70), ..Limits::default() };
    let small = Target { limits, ..Target::new(queue()) };
    let error = Adoption::of(&shop.client, "billing", small).run(&store).await.unwrap_err();
    assert!(matches!(error.kind, AdoptErrorKind::Full(_)), "{error}");
    assert_eq!(error.report.run.adopted, 70);
    let report = shop.adoption().run(&store).await.unwrap();
    // Nothing before the place where the first run stopped is read again.
    assert_eq!((report.run.read, report.run.adopted, report.total.adopted), (30, 30, 100));
    shop.close().await;
}

#[tokio::test]
async fn other_groups_stay_where_they_are_and_are_listed() {
    let Some(shop) = Shop::open(&LAYOUTS[1]).await else { return };
    shop.insert("e-1", "order-1", 0, Some("no stock")).await;
    let store = MemoryStore::default();
    let other = Adoption::of(&shop.client, "shipping", Target::new(queue()));
    let preview = other.preview(&store).await.unwrap();
    assert_eq!((preview.counts.read, preview.groups[0].group.as_str()), (0, "billing"));
    assert_eq!(other.run(&store).await.unwrap().run.read, 0);
    shop.close().await;
}

#[tokio::test]
async fn a_missing_table_and_one_of_something_else_are_told_with_a_remedy() {
    let Some(shop) = Shop::open(&LAYOUTS[0]).await else { return };
    let store = MemoryStore::default();
    let error = shop.adoption().from_table("letters").run(&store).await.unwrap_err();
    assert!(error.to_string().contains("there is no table letters"), "{error}");
    shop.client.batch_execute("CREATE TABLE letters (id BIGINT, payload BYTEA)").await.unwrap();
    let error = shop.adoption().from_table("letters").run(&store).await.unwrap_err();
    assert!(error.to_string().contains("no column for id, group, sequence, index"), "{error}");
    let rename = "ALTER TABLE DeadLetterEntry RENAME TO \"Axon Letters\"";
    shop.client.batch_execute(rename).await.unwrap();
    let error = shop.adoption().run(&store).await.unwrap_err();
    assert!(error.to_string().contains("dead_letter_entry and deadletterentry"), "{error}");
    shop.adoption().from_table("Axon Letters").run(&store).await.unwrap();
    shop.close().await;
}
