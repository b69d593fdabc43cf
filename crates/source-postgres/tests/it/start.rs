//! What a source needs to start, the errors that name what is missing, and the content of messages.

use std::sync::Arc;

use lazaret_core::source::Source;
use lazaret_memory::MemoryStore;
use lazaret_source_postgres::{Ack, Columns, OutboxOptions, OutboxSource, OutboxState};

use crate::support::{LONG, Shop, Taker, insert, refusal, server};

#[tokio::test]
async fn a_table_that_does_not_do_is_refused_with_what_to_do() {
    let Some(dsn) = server() else { return };
    let shop = Shop::new(dsn).await;
    let columns = "key text, payload text";
    shop.sql(&format!(
        "CREATE TABLE no_key (id bigserial PRIMARY KEY, payload text); \
         CREATE TABLE text_id (id text PRIMARY KEY, {columns}); \
         CREATE TABLE by_hand (id bigint PRIMARY KEY, {columns}); \
         CREATE TABLE no_index (id bigserial, {columns}); \
         CREATE TABLE cached (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY, {columns}); \
         CREATE TABLE blocks (id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT 50) PRIMARY KEY, {columns}); \
         CREATE TABLE cycle (id bigint GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY, {columns}); \
         CREATE TABLE negative (id bigint GENERATED ALWAYS AS IDENTITY (MINVALUE -5) PRIMARY KEY, {columns}); \
         CREATE UNLOGGED TABLE unlogged (id bigserial PRIMARY KEY, {columns}); \
         CREATE TABLE headers (id bigserial PRIMARY KEY, {columns}, headers text); \
         CREATE TABLE times (id bigserial PRIMARY KEY, {columns}, created_at date); \
         CREATE TABLE doubled (id bigint DEFAULT 2 * nextval('times_id_seq') PRIMARY KEY, {columns}); \
         CREATE VIEW view AS SELECT * FROM no_index",
    ))
    .await;
    for (table, why) in [
        ("nothing", "there is no table"),
        ("no_key", "has no column key; name another with `key`; it has id, payload"),
        ("text_id", "is not an integer that is NOT NULL"),
        ("by_hand", "does not get its values from one sequence"),
        ("no_index", "no index of"),
        ("cached", "has CACHE 20"),
        ("blocks", "has INCREMENT 50"),
        ("cycle", "has CYCLE"),
        ("negative", "has MINVALUE -5"),
        ("unlogged", "is unlogged or temporary"),
        ("headers", "has the type text; headers are a json or jsonb object"),
        ("times", "has the type date; a time is a timestamptz or a timestamp"),
        ("doubled", "is more than the next value of a sequence"),
        ("view", "is not a table"),
    ] {
        let error = refusal(shop.options(table)).await;
        assert!(error.contains(why), "{table}: {error}");
    }
    let options = OutboxOptions {
        columns: Columns { event_type: "kind".into(), ..Columns::default() },
        ..shop.options("headers")
    };
    let error = refusal(options).await;
    assert!(error.contains("has no column kind; name another with `type`"), "{error}");
}

#[tokio::test]
async fn missing_rights_are_named_with_their_grants() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let role = format!("{}_role", shop.schema);
    shop.sql(&format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {} TO {role}", shop.schema)).await;
    let dsn = shop.dsn.replace("lazaret@", &format!("{role}@"));
    let options = || OutboxOptions { dsn: dsn.clone(), ack: Ack::Delete, ..shop.options("outbox") };
    let error = refusal(options()).await;
    assert!(error.contains("GRANT SELECT, DELETE ON"), "{error}");
    let error = refusal(OutboxOptions { ack: Ack::Position, ..options() }).await;
    assert!(error.contains("may not read the column id") && error.contains("GRANT SELECT ON"), "{error}");
    shop.sql(&format!("GRANT SELECT, DELETE ON outbox TO {role}")).await;
    let error = refusal(options()).await;
    assert!(error.contains("GRANT SELECT ON SEQUENCE"), "{error}");
    shop.sql(&format!("GRANT SELECT ON SEQUENCE outbox_id_seq TO {role}")).await;
    OutboxSource::check(&options()).await.unwrap();
    // These rights are all that the source needs.
    insert(&shop.client, "1").await;
    let mut taker = Taker::open(options(), Arc::new(MemoryStore::default()));
    taker.until("it has come", |t| t.messages.len() == 1).await;
    taker.commit(0).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
    drop(taker);
    // A policy would silently hide rows from the role.
    shop.sql("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY").await;
    let error = refusal(options()).await;
    assert!(error.contains("row-level security hides rows"), "{error}");
    shop.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let options = OutboxOptions::new("postgres://lazaret@127.0.0.1:1/postgres?sslmode=disable", "outbox");
    let mut source = OutboxSource::open(options.clone(), Arc::new(MemoryStore::default())).unwrap();
    let error = tokio::time::timeout(LONG, source.next()).await.unwrap().unwrap_err();
    assert!(error.is_temporary(), "{error}");
    assert!(matches!(source.status().borrow().state, OutboxState::Restarting { .. }));
    assert!(OutboxSource::check(&options).await.unwrap_err().is_temporary());
}

#[tokio::test]
async fn a_sequence_that_was_set_back_stops_the_source() {
    // I1: rows with ids that were already read would be skipped.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(shop.options("outbox"), store.clone());
    for _ in 0..3 {
        insert(&shop.client, "1").await;
    }
    taker.until("all have come", |t| t.messages.len() == 3).await;
    taker.commit(2).await.unwrap();
    shop.sql("TRUNCATE outbox RESTART IDENTITY").await;
    let error = taker.until_refused().await;
    assert!(error.contains("rows up to 3 were read"), "{error}");
    taker.source.close().await.unwrap();
    // After a restart, the source reports the same error, and continues once the sequence is beyond.
    insert(&shop.client, "skipped").await;
    let error = Taker::open(shop.options("outbox"), store.clone()).until_refused().await;
    assert!(
        error.contains("the last id that was drawn is 1") && error.contains("`start-over: 3`"),
        "{error}"
    );
    shop.sql(
        "SELECT setval('outbox_id_seq', 3); DELETE FROM outbox; INSERT INTO outbox (payload) VALUES ('4')",
    )
    .await;
    let mut taker = Taker::open(shop.options("outbox"), store);
    taker.until("it has come", |t| t.messages.len() == 1).await;
    assert_eq!(taker.payloads(), ["4"]);
}

#[tokio::test]
async fn the_setup_creates_what_is_missing_and_touches_nothing_else() {
    let Some(dsn) = server() else { return };
    let shop = Shop::new(dsn).await;
    let channel = shop.schema.clone();
    let options = || OutboxOptions { setup: true, channel: channel.clone(), ..shop.options("outbox") };
    let store = Arc::new(MemoryStore::default());
    // Two instances start at the same time.
    let (mut one, mut two) = (Taker::open(options(), store.clone()), Taker::open(options(), store));
    tokio::select! {
        () = one.until("it reads", |t| t.assignments == 1) => {}
        () = two.until("it reads", |t| t.assignments == 1) => {}
    }
    let listener = shop.connection().await;
    listener.batch_execute(&format!("LISTEN \"{channel}\"")).await.unwrap();
    shop.sql("INSERT INTO outbox (key, type, payload, headers) VALUES ('k', 'T', '{\"a\":  1.10}', '{\"h\": \"v\"}')").await;
    tokio::select! {
        () = one.until("it has come", |t| t.messages.len() == 1) => {}
        () = two.until("it has come", |t| t.messages.len() == 1) => {}
    }
    let message = one.messages.first().or(two.messages.first()).unwrap();
    assert_eq!(message.payload.as_deref(), Some(&b"{\"a\":  1.10}"[..]), "I5: byte for byte");
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass";
    assert_eq!(shop.client.query_one(triggers, &[]).await.unwrap().get::<_, i64>(0), 1);
    drop((one, two));
    // A busy writer does not prevent a start.
    let writer = shop.transaction().await;
    writer.batch_execute("INSERT INTO outbox (payload) VALUES ('1')").await.unwrap();
    let mut again = Taker::open(options(), Arc::new(MemoryStore::default()));
    again.until("it reads", |t| t.assignments == 1).await;
}

#[tokio::test]
async fn a_message_holds_what_the_row_holds() {
    // I5
    let Some(dsn) = server() else { return };
    let shop = Shop::new(dsn).await;
    shop.sql(
        "CREATE TABLE \"Out box\" (\"Id\" int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, aggregate uuid, kind varchar(20), \
             body bytea, meta json, happened timestamp); \
         INSERT INTO \"Out box\" (aggregate, kind, body, meta, happened) VALUES \
             ('6c84fb90-12c4-11e1-840d-7b25c5ee775a', 'Placed', '\\x00ff', \
              '{\"Content-Type\": \"text/x\", \"correlation-id\": \"c-1\", \"n\": 1.50}', '2026-01-02 03:04:05.678901'), \
             (NULL, NULL, NULL, NULL, 'infinity'), \
             (NULL, NULL, '', '[1]', NULL)",
    )
    .await;
    let options = OutboxOptions {
        columns: Columns {
            id: "Id".into(),
            key: Some("aggregate".into()),
            event_type: "kind".into(),
            payload: "body".into(),
            headers: "meta".into(),
            created_at: "happened".into(),
        },
        table: format!("{}.\"Out box\"", shop.schema),
        ..shop.options("shop")
    };
    let mut taker = Taker::open(options, Arc::new(MemoryStore::default()));
    taker.until("all have come", |t| t.messages.len() == 3).await;
    let [full, empty, broken] = &taker.messages[..] else { panic!() };
    assert_eq!((full.id.as_str(), full.stream.as_str(), full.position.offset), ("0:1", "shop", 1));
    assert_eq!(full.key.as_deref(), Some(&b"6c84fb90-12c4-11e1-840d-7b25c5ee775a"[..]));
    assert_eq!((full.event_type.as_deref(), full.payload.as_deref()), (Some("Placed"), Some(&[0, 255][..])));
    assert_eq!((full.content_type.as_deref(), full.correlation.as_deref()), (Some("text/x"), Some("c-1")));
    assert_eq!(full.headers.get_str("n"), Some("1.50"));
    assert_eq!(full.timestamp.unwrap().to_string(), "2026-01-02T03:04:05.678901Z");
    assert_eq!((&empty.key, &empty.payload, empty.timestamp, &empty.event_type), (&None, &None, None, &None));
    assert!(empty.headers.is_empty() && empty.undecodable.is_none());
    assert_eq!(broken.payload.as_deref(), Some(&b""[..]), "empty is not null");
    assert!(
        broken.undecodable.as_ref().unwrap().starts_with("headers: "),
        "it fails as a message, not as a stream"
    );
}
