//! What the store checks when it is opened: tables, versions, rights, and whether the server accepts writes.

use lazaret_core::store::{
    Certainty, ErrorKind, HandOff, LetterStore, Limits, Placed, Placement, Store, store_id,
};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_store_postgres::{FORMAT_VERSION, PostgresStore, PostgresStoreOptions};

use crate::support::{TestSchema, add_notes, connect, server};

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn dead(id: &str) -> HandOff {
    let message = Message::new(id, "orders", Position::new(0, 0)).with_payload("{}");
    let mut letter = Letter::new(queue(), "k".into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    HandOff { letter, placement: Placement::Open, grant: None }
}

async fn store_one(store: &impl Store, id: &str) -> lazaret_core::store::Result<Placed> {
    store.hand_off(&queue(), &Limits::NONE, vec![dead(id)]).await?.remove(0)
}

/// The DSN for another role, without a password.
fn as_role(dsn: &str, role: &str) -> String {
    let (_, rest) = dsn.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("postgres://{role}@{host}")
}

#[tokio::test]
async fn the_tables_of_the_schema_are_measured_with_their_indexes() {
    let Some(dsn) = server() else { return };
    let schema = TestSchema::new(dsn);
    let store = schema.open(None).await;
    let empty = store.occupancy().await.unwrap();
    assert!(empty.used.unwrap() > 0 && empty.free.is_none(), "{empty:?}");
    // Larger than what the tables have allocated already.
    let mut large = dead("m");
    let payload: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let message = (*large.letter.message).clone().with_payload(payload);
    large.letter.message = message.into();
    store.hand_off(&queue(), &Limits::NONE, vec![large]).await.unwrap().remove(0).unwrap();
    let filled = store.occupancy().await.unwrap();
    assert!(filled.used >= empty.used.map(|used| used + 100_000), "{empty:?} {filled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_empty_database_is_migrated_once_by_many_processes_at_once() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let opening = (0..8).map(|_| {
        let (dsn, options) = (test.dsn.clone(), test.options(None));
        tokio::spawn(async move { PostgresStore::connect(&dsn, options).await })
    });
    let opened: Vec<_> = opening.collect();
    for store in opened {
        store.await.unwrap().unwrap();
    }
    // And once more, with letters in the tables.
    assert_eq!(store_one(&test.open(None).await, "m").await.unwrap(), Placed::Opened);
    let again = test.open(None).await;
    assert_eq!(again.counts(&queue()).await.unwrap().open(), 1);
    let rows = test.client().await.query("SELECT version FROM versions ORDER BY version", &[]).await.unwrap();
    let versions: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(versions, (1..=FORMAT_VERSION).collect::<Vec<_>>());
}

/// What later versions add and replace, as version 3 had it.
const AS_IN_VERSION_3: &str = "DROP TABLE group_notes;
    ALTER TABLE failure_groups RENAME TO groups;
    DROP INDEX letters_group, letters_reason, letters_type, audit_subject;
    CREATE INDEX letters_group ON letters (qid, cause_group, lid) WHERE sid IS NOT NULL AND cause_group IS NOT NULL;
    CREATE INDEX letters_reason ON letters (reason, lid) WHERE sid IS NOT NULL AND reason IS NOT NULL;
    CREATE INDEX letters_type ON letters (md5(event_type), lid) WHERE sid IS NOT NULL AND event_type IS NOT NULL;
    DELETE FROM versions WHERE version > 3";

#[tokio::test]
async fn letters_of_version_3_are_found_by_the_indexes_of_version_4() {
    use lazaret_core::query::Query;
    use lazaret_core::store::Triage;
    use lazaret_core::{Failure, Reason};
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = test.open(None).await;
    let failed = |id: &str, reason: Reason, event_type: &str| {
        let mut item = dead(id);
        let mut message = (*item.letter.message).clone();
        message.event_type = Some(event_type.into());
        item.letter.message = message.into();
        item.letter.cause = Some(Failure::new(reason, format!("Error of {id}"), "no answer"));
        item
    };
    // A type of any length has an entry in the index.
    let long = "t".repeat(3_000);
    let (one, two) = (failed("one", Reason::TIMEOUT, "paid"), failed("two", Reason::CONFLICT, &long));
    let group = one.letter.cause.as_ref().unwrap().fingerprint;
    let answers = store.hand_off(&queue(), &Limits::NONE, vec![one, two]).await.unwrap();
    for placed in answers {
        placed.unwrap();
    }
    let client = test.client().await;
    add_notes(&store, &queue(), &client).await;
    drop(store);
    client.batch_execute(AS_IN_VERSION_3).await.unwrap();

    let store = test.open(None).await;
    // The indexes of this schema first: the definition of one that another test drops meanwhile cannot be read.
    let sql = "WITH own AS MATERIALIZED (
            SELECT indexrelid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1)
        SELECT count(*) FROM own WHERE pg_get_indexdef(indexrelid) LIKE '% ON %letters USING%hashtextextended%'";
    let hashed: i64 = client.query_one(sql, &[&test.name]).await.unwrap().get(0);
    assert_eq!(hashed, 3);
    let queries = [
        ("reason:TIMEOUT".to_owned(), "one"),
        ("reason:CONFLICT".to_owned(), "two"),
        ("type:paid".to_owned(), "one"),
        (format!("type:{long}"), "two"),
        (format!("group:{group}"), "one"),
    ];
    for (text, expected) in queries {
        let found = store.find(&Query::parse(&text).unwrap(), None, 10).await.unwrap().letters;
        let found: Vec<&str> = found.iter().map(|letter| letter.message.id.as_str()).collect();
        assert_eq!(found, [expected], "{text:.40}");
    }
}

#[tokio::test]
async fn a_newer_version_is_used_if_it_says_so_and_refused_if_not() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    drop(test.open(None).await);
    let client = test.client().await;
    // A newer process has added something while this one still runs.
    client
        .execute(
            "INSERT INTO versions (version, usable_from) VALUES ($1, $2)",
            &[&(FORMAT_VERSION + 1), &FORMAT_VERSION],
        )
        .await
        .unwrap();
    assert_eq!(store_one(&test.open(None).await, "m").await.unwrap(), Placed::Opened);
    client.batch_execute("UPDATE versions SET usable_from = version").await.unwrap();
    let refused = PostgresStore::connect(&test.dsn, test.options(None)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.context().contains("needs a Lazaret that knows version"), "{refused}");
}

#[tokio::test]
async fn without_the_permission_to_migrate_missing_tables_are_named() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let options = PostgresStoreOptions { migrate: false, ..test.options(None) };
    let refused = PostgresStore::connect(&test.dsn, options.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.context().contains("no tables of Lazaret"), "{refused}");
    drop(test.open(None).await);
    PostgresStore::connect(&test.dsn, options).await.unwrap();
}

#[tokio::test]
async fn a_role_with_the_documented_grants_can_do_all_that_a_store_does() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    drop(test.open(None).await);
    let (client, role) = (test.client().await, format!("{}_app", test.name));
    client
        .batch_execute(&format!("CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE"))
        .await
        .unwrap();
    let app = as_role(&test.dsn, &role);
    let denied = PostgresStore::connect(&app, test.options(None)).await.unwrap_err();
    assert_eq!((denied.kind(), denied.certainty()), (ErrorKind::Denied, Certainty::NotDone), "{denied}");
    let schema = &test.name;
    client
        .batch_execute(&format!(
            "GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
             REVOKE UPDATE, DELETE ON {schema}.audit FROM {role};
             REVOKE INSERT, UPDATE, DELETE ON {schema}.versions FROM {role};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};"
        ))
        .await
        .unwrap();
    let store = PostgresStore::connect(&app, test.options(None)).await.unwrap();
    whole_life(&store).await;
    drop(store);
    client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

/// A bit of everything: hand-off, claim, settlement, act, change, plan, operation, purge, pause, value.
async fn whole_life(store: &PostgresStore) {
    use lazaret_core::query::Query;
    use lazaret_core::store::{
        Act, Action, Actor, Audit, Change, Operations, PauseScope, PlanRequest, RolloutPolicy, Selection,
        Settlement, Triage,
    };
    use std::time::Duration;
    let (ada, lease) = (Actor::new("ada", "cli", "a test"), Duration::from_secs(30));
    store.assign(&queue(), &[lazaret_core::Partition::new("orders", 0)]).await.unwrap();
    let ids = ["a", "b", "c"].map(|id| dead(id).letter.id);
    for id in ["a", "b", "c"] {
        store_one(store, id).await.unwrap();
    }
    store.act(&queue(), ids[0], Act::Evict, &ada).await.unwrap();
    store.change(&queue(), ids[1], &Change::Payload(Some("{1}".into())), &ada).await.unwrap();
    let claim = store.claim(&queue(), &"k".into(), "w", lease).await.unwrap().unwrap();
    store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await.unwrap();
    store.release(&claim.lease).await.unwrap();
    let request = PlanRequest {
        action: Action::Evict,
        selection: Selection::Query(Query::parse("state:dead").unwrap()),
        valid_for: lease,
        max_letters: 10,
    };
    let plan = store.freeze(&request, &ada).await.unwrap();
    store.begin(plan.id, &RolloutPolicy::unlimited(), &ada).await.unwrap();
    assert_eq!(store.poll_work(&queue(), "w", lease, 10).await.unwrap().settled, 1);
    store.purge(&queue(), ids[0], &ada).await.unwrap();
    let scope = PauseScope::Sequence("k".into());
    store.set_pause(&"orders".into(), &scope, true, &ada).await.unwrap();
    store.set_pause(&"orders".into(), &scope, false, &ada).await.unwrap();
    store.expire(&queue(), Some(Timestamp::MAX), 10).await.unwrap();
    assert_eq!(store_id(store, "one").await.unwrap(), "one");
    let check = store.verify_audit().await.unwrap().unwrap();
    assert!(check.broken.is_none() && check.intact > 5, "{check:?}");
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_said_so_in_words() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = test.open(None).await;
    store_one(&store, "a").await.unwrap();
    let (client, role) = (test.client().await, format!("{}_ro", test.name));
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN SUPERUSER")).await.unwrap();
    let reader = as_role(&test.dsn, &role);
    let early = PostgresStore::connect(&reader, test.options(None)).await.unwrap();
    client.batch_execute(&format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await.unwrap();
    let refused = PostgresStore::connect(&reader, test.options(None)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
    assert!(refused.context().contains("default_transaction_read_only"), "{refused}");
    // One that was opened before: its new connections are refused, as after a failover to a replica.
    let sql = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    client.query(&sql, &[]).await.unwrap();
    let refused = loop {
        match store_one(&early, "b").await {
            Err(error) if error.context().contains("replica") => break error,
            // The pool finds out that its connection was ended.
            Err(error) => {
                assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
            }
            Ok(placed) => panic!("a read-only server took a letter: {placed:?}"),
        }
    };
    assert_eq!(
        (refused.kind(), refused.certainty()),
        (ErrorKind::Unavailable, Certainty::NotDone),
        "{refused}"
    );
    assert_eq!(early.counts(&queue()).await.unwrap().open(), 1, "it can still read");
    drop(early);
    client.query(&sql, &[]).await.unwrap();
    client.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn a_dsn_or_an_option_that_cannot_be_used_is_refused() {
    let Some(dsn) = server() else { return };
    let refused = async |dsn: &str, options| PostgresStore::connect(dsn, options).await.unwrap_err();
    let wrong = refused("postgres://u:secret@h/db?no_such=1", PostgresStoreOptions::default()).await;
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
    assert!(!wrong.to_string().contains("secret"), "{wrong}");
    let schema = PostgresStoreOptions { schema: "a;drop".into(), ..PostgresStoreOptions::default() };
    assert_eq!(refused(&dsn, schema).await.kind(), ErrorKind::Invalid);
    let nobody_there = refused("postgres://u@127.0.0.1:1/db", PostgresStoreOptions::default()).await;
    assert_eq!((nobody_there.kind(), nobody_there.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
    let (base, _) = dsn.split_once("?").unwrap_or((&dsn, ""));
    let (base, _) = base.rsplit_once('/').unwrap();
    let no_database =
        refused(&format!("{base}/no_such_database?sslmode=disable"), PostgresStoreOptions::default()).await;
    assert_eq!(no_database.kind(), ErrorKind::Invalid, "{no_database}");
    // A server without TLS, and a client that demands it.
    let demanded =
        refused(&format!("{base}/postgres?sslmode=require"), PostgresStoreOptions::default()).await;
    assert_eq!(demanded.kind(), ErrorKind::Unavailable, "{demanded}");
}

#[tokio::test]
async fn a_store_keeps_its_identity_and_texts_with_a_nul() {
    use lazaret_core::store::Audit;
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = test.open(None).await;
    assert_eq!(store_id(&store, "one").await.unwrap(), "one");
    assert_eq!(store_id(&test.open(None).await, "two").await.unwrap(), "one");
    let key = Audit::digest_key(&store).await.unwrap();
    assert_eq!(Audit::digest_key(&test.open(None).await).await.unwrap(), key, "and its key for digests");
    let other = TestSchema::new(test.dsn.clone());
    assert_ne!(Audit::digest_key(&other.open(None).await).await.unwrap(), key, "another store");
    let mut item = dead("m\0\\0");
    item.letter.sequence = "s\0".into();
    let (id, sequence) = (item.letter.id, item.letter.sequence.clone());
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let found = store.sequence(&queue(), &sequence, 0, 9).await.unwrap();
    assert_eq!(found[0].message.id.as_str(), "m\0\\0");
    assert_eq!(store.get(&queue(), id).await.unwrap().unwrap(), found[0]);
    // A name that is longer than an entry of an index.
    let mut long = dead("long");
    long.letter.sequence = lazaret_core::SequenceId::new("x".repeat(100_000));
    let sequence = long.letter.sequence.clone();
    store.hand_off(&queue(), &Limits::NONE, vec![long]).await.unwrap().remove(0).unwrap();
    assert_eq!(store.sequence_size(&queue(), &sequence).await.unwrap(), 1);
    connect(&test.dsn).await;
}
