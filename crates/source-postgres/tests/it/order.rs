//! No row is skipped because a later id was committed first, and the rows of a key arrive in the order
//! of its commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use lazaret_memory::MemoryStore;
use lazaret_postgres_testkit::Cluster;
use lazaret_source_postgres::{Ack, OutboxOptions};
use tokio_postgres::Client;

use crate::support::{self, LONG, Shop, Taker, connect, insert, server};

fn taker(shop: &Shop) -> Taker {
    Taker::open(shop.options("outbox"), Arc::new(MemoryStore::default()))
}

async fn end(transaction: &Client, how: &str) {
    transaction.batch_execute(how).await.unwrap();
}

#[tokio::test]
async fn a_row_that_is_committed_late_is_delivered_before_later_ids() {
    // I1, I2
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = taker(&shop);
    insert(&shop.client, "before").await;
    taker.until("the first has come", |t| t.messages.len() == 1).await;
    let late = shop.transaction().await;
    insert(&late, "late").await;
    insert(&shop.client, "early").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), ["before"]);
    let status = taker.source.status();
    assert_eq!(status.borrow().waits_for.len(), 1, "the transaction is named");
    end(&late, "COMMIT").await;
    taker.until("all have come", |t| t.messages.len() == 3).await;
    assert_eq!(taker.payloads(), ["before", "late", "early"]);
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_leaves_a_gap_that_nobody_waits_for() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = taker(&shop);
    let failing = shop.transaction().await;
    insert(&failing, "never").await;
    insert(&shop.client, "a").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    end(&failing, "ROLLBACK").await;
    taker.until("it has come", |t| t.messages.len() == 1).await;
    // A connection that breaks also rolls back.
    let breaking = shop.transaction().await;
    insert(&breaking, "never").await;
    insert(&shop.client, "b").await;
    drop(breaking);
    taker.until("it has come", |t| t.messages.len() == 2).await;
    assert_eq!(taker.payloads(), ["a", "b"]);
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_does_not_hide_the_transaction() {
    // The lock on the table ends with the savepoint. The lock on the sequence stays.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = taker(&shop);
    let writer = shop.transaction().await;
    end(&writer, "SAVEPOINT s").await;
    insert(&writer, "never").await;
    end(&writer, "ROLLBACK TO s").await;
    insert(&writer, "1").await;
    end(&writer, "SAVEPOINT t").await;
    insert(&writer, "2").await;
    end(&writer, "RELEASE t").await;
    insert(&shop.client, "3").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    end(&writer, "COMMIT").await;
    taker.until("all have come", |t| t.messages.len() == 3).await;
    assert_eq!(taker.payloads(), ["1", "2", "3"]);
}

#[tokio::test]
async fn an_id_that_was_drawn_before_the_row_was_written_is_waited_for() {
    // I1: object mappers draw ids first. At that point, the transaction holds no lock on the table.
    let Some(dsn) = server() else { return };
    let shop = Shop::new(dsn).await;
    shop.sql("CREATE TABLE outbox (id serial PRIMARY KEY, key text, payload text)").await;
    let mut taker = taker(&shop);
    let early = shop.transaction().await;
    let id: i64 = early.query_one("SELECT nextval('outbox_id_seq')", &[]).await.unwrap().get(0);
    insert_serial(&shop.client, "2").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    let sql = "INSERT INTO outbox (id, key, payload) VALUES ($1::bigint, 'k', '1')";
    early.execute(sql, &[&id]).await.unwrap();
    end(&early, "COMMIT").await;
    taker.until("all have come", |t| t.messages.len() == 2).await;
    assert_eq!(taker.payloads(), ["1", "2"]);
}

async fn insert_serial(client: &Client, payload: &str) {
    client.execute("INSERT INTO outbox (key, payload) VALUES ('k', $1)", &[&payload]).await.unwrap();
}

#[tokio::test]
async fn partitions_triggers_and_copies_are_written_like_any_row() {
    let Some(dsn) = server() else { return };
    let shop = Shop::new(dsn).await;
    shop.sql(
        "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, key text, payload text, \
                              created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (id, created_at)) \
             PARTITION BY RANGE (created_at); \
         CREATE TABLE outbox_past PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01'); \
         CREATE TABLE outbox_now PARTITION OF outbox DEFAULT; \
         CREATE TABLE orders (id int PRIMARY KEY); \
         CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO outbox (key, payload) VALUES (NEW.id, 'trigger'); RETURN NEW; END $$; \
         CREATE TRIGGER announce BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION announce()",
    )
    .await;
    let options = OutboxOptions { ack: Ack::Delete, ..shop.options("outbox") };
    let mut taker = Taker::open(options, Arc::new(MemoryStore::default()));
    let late = shop.transaction().await;
    end(&late, "INSERT INTO orders VALUES (1)").await;
    shop.sql("INSERT INTO outbox (key, payload, created_at) VALUES ('k', 'past', '2019-01-01')").await;
    shop.sql("COPY outbox (key, payload) FROM PROGRAM 'printf \"k\\tcopy\\n\"'").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    end(&late, "COMMIT").await;
    taker.until("all have come", |t| t.messages.len() == 3).await;
    assert_eq!(taker.payloads(), ["trigger", "past", "copy"]);
    taker.commit(2).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
}

#[tokio::test]
async fn a_prepared_transaction_is_waited_for() {
    // I1. The tests' shared server has no prepared transactions, and must not be restarted.
    let Some(mut cluster) = Cluster::for_test(&["max_prepared_transactions=10"]) else { return };
    let shop = Shop::with_outbox(cluster.dsn()).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(shop.options("outbox"), store.clone());
    let writer = shop.transaction().await;
    insert(&writer, "1").await;
    insert(&shop.client, "2").await;
    // The transaction is waited for before and after it is prepared.
    taker.until_quiet().await;
    end(&writer, "PREPARE TRANSACTION 'one'").await;
    drop(writer);
    insert(&shop.client, "3").await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    assert_eq!(taker.source.status().borrow().waits_for, [0], "it has no session");
    // It survives a crash of the server under a different name.
    cluster.crash().unwrap();
    cluster.run().unwrap();
    taker.until("it reads again", |t| t.assignments == 2).await;
    taker.until_quiet().await;
    assert_eq!(taker.payloads(), Vec::<String>::new());
    let after = connect(&cluster.dsn()).await;
    end(&after, &format!("SET search_path = {}", shop.schema)).await;
    insert(&after, "4").await;
    end(&after, "COMMIT PREPARED 'one'").await;
    taker.until("all have come", |t| t.messages.len() == 4).await;
    assert_eq!(taker.payloads(), ["1", "2", "3", "4"]);
    end(&after, "BEGIN").await;
    insert(&after, "never").await;
    end(&after, "PREPARE TRANSACTION 'two'").await;
    insert(&after, "5").await;
    taker.until_quiet().await;
    assert_eq!(taker.messages.len(), 4);
    end(&after, "ROLLBACK PREPARED 'two'").await;
    taker.until("it has come", |t| t.messages.len() == 5).await;
}

#[tokio::test]
async fn a_row_whose_commit_a_crash_can_undo_is_not_delivered() {
    // I1: the id would be drawn again, for a row that would be skipped.
    let settings =
        ["wal_writer_delay=10s", "wal_writer_flush_after=1GB", "autovacuum=off", "bgwriter_lru_maxpages=0"];
    let Some(mut cluster) = Cluster::for_test(&settings) else { return };
    let shop = Shop::with_outbox(cluster.dsn()).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(shop.options("outbox"), store.clone());
    insert(&shop.client, "durable").await;
    taker.until("it has come", |t| t.messages.len() == 1).await;
    taker.commit(0).await.unwrap();
    // The sequence logs 32 ids at once. More ids are drawn, so that a part of the log with the sequence
    // is lost.
    let hasty = shop.connection().await;
    end(&hasty, "SET synchronous_commit = off").await;
    end(&hasty, "INSERT INTO outbox (key, payload) SELECT 'k', 'lost' FROM generate_series(1, 200)").await;
    let is_lost = !taker.step(support::SHORT).await;
    cluster.crash().unwrap();
    cluster.run().unwrap();
    let after = connect(&cluster.dsn()).await;
    end(&after, &format!("SET search_path = {}", shop.schema)).await;
    let left: i64 =
        after.query_one("SELECT count(*) FROM outbox WHERE payload = 'lost'", &[]).await.unwrap().get(0);
    assert!(is_lost, "a row was delivered before it was durable");
    assert_eq!(left, 0, "the crash undid the commit; otherwise this test shows nothing");
    let id = insert(&after, "again").await;
    assert!(id < 201, "its id was drawn before the crash");
    taker.until("it reads again", |t| t.assignments == 2).await;
    taker.until("it has come", |t| t.messages.len() == 1).await;
    assert_eq!(taker.payloads(), ["again"]);
}

/// A generator of pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const KEYS: u64 = 5;

/// Runs one writer, with transactions of random steps. Each event carries the version of its key, which
/// only a commit makes permanent.
async fn write(client: Client, mut random: Random, transactions: u32) {
    for _ in 0..transactions {
        client.batch_execute("BEGIN").await.unwrap();
        for _ in 0..random.below(3) {
            // Draws ids without rows, writes rows in savepoints that are rolled back, and gives time to
            // others.
            let sql = match random.below(4) {
                0 => "SELECT nextval('outbox_id_seq')",
                1 => "SAVEPOINT s; INSERT INTO outbox (key, payload) VALUES ('none', 'none'); ROLLBACK TO s",
                2 => "SAVEPOINT t; SELECT 1; RELEASE t",
                _ => "SELECT pg_sleep(0.003)",
            };
            client.batch_execute(sql).await.unwrap();
        }
        // Uses one key per transaction, or two in a fixed order, so that writers cannot block each other
        // forever.
        let first = random.below(KEYS);
        for key in first..=(first + random.below(2)).min(KEYS - 1) {
            for _ in 0..=random.below(2) {
                let sql =
                    "UPDATE versions SET version = version + 1 WHERE key = $1::bigint RETURNING version";
                let version: i64 = client.query_one(sql, &[&key.cast_signed()]).await.unwrap().get(0);
                let parameters = (key.to_string(), version.to_string());
                let sql = "INSERT INTO outbox (key, payload) VALUES ($1, $2)";
                client.execute(sql, &[&parameters.0, &parameters.1]).await.unwrap();
            }
            if random.below(3) == 0 {
                client.batch_execute("SELECT pg_sleep(0.005)").await.unwrap();
            }
        }
        let end = if random.below(4) == 0 { "ROLLBACK" } else { "COMMIT" };
        client.batch_execute(end).await.unwrap();
    }
}

/// Runs writers and a reader. Returns what the reader received and the final versions.
async fn interleave(dsn: String, seed: u64, ack: Ack) -> (BTreeMap<u64, Vec<u64>>, BTreeMap<u64, u64>) {
    let shop = Shop::with_outbox(dsn).await;
    shop.sql(&format!(
        "CREATE TABLE versions (key bigint PRIMARY KEY, version bigint NOT NULL); \
         INSERT INTO versions SELECT n, 0 FROM generate_series(0, {}) n",
        KEYS - 1
    ))
    .await;
    let options = OutboxOptions { ack, batch_rows: 7, ..shop.options("outbox") };
    let mut taker = Taker::open(options, Arc::new(MemoryStore::default()));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..6 {
        let random = Random(seed * 31 + writer);
        writers.spawn(write(shop.connection().await, random, 12));
    }
    // The reader runs concurrently with the writers.
    let mut left = 6;
    while left > 0 {
        tokio::select! {
            done = writers.join_next() => { done.unwrap().unwrap(); left -= 1; }
            _ = taker.step(LONG) => {}
        }
    }
    let versions = shop.client.query("SELECT key, version FROM versions", &[]).await.unwrap();
    let versions: BTreeMap<u64, u64> = versions
        .iter()
        .map(|row| (row.get::<_, i64>(0).unsigned_abs(), row.get::<_, i64>(1).unsigned_abs()))
        .collect();
    let all: u64 = versions.values().sum();
    taker.until("all have come", |t| t.messages.len() as u64 >= all).await;
    taker.until_quiet().await;
    assert!(
        taker.messages.is_sorted_by(|a, b| a.position.offset < b.position.offset),
        "seed {seed}: in order, once"
    );
    let mut got: BTreeMap<u64, Vec<u64>> = versions.keys().map(|key| (*key, Vec::new())).collect();
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap();
    for message in &taker.messages {
        let (key, version) = (message.key.as_ref().unwrap(), message.payload.as_ref().unwrap());
        got.get_mut(&number(key)).unwrap().push(number(version));
    }
    if ack == Ack::Delete {
        taker.commit(taker.messages.len() - 1).await.unwrap();
        assert_eq!(shop.count("outbox").await, 0, "seed {seed}");
    }
    (got, versions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_once_and_in_the_order_of_commits_whatever_the_interleaving() {
    // I1, I2
    let Some(dsn) = server() else { return };
    let seeds = std::env::var("LAZARET_OUTBOX_SEEDS").map_or(0..12, |seeds| {
        let (from, to) = seeds.split_once("..").expect("LAZARET_OUTBOX_SEEDS=FROM..TO");
        from.parse().unwrap()..to.parse().unwrap()
    });
    for seed in seeds {
        let ack = if seed % 2 == 0 { Ack::Position } else { Ack::Delete };
        let (got, versions) = interleave(dsn.clone(), seed, ack).await;
        for (key, versions) in versions {
            assert_eq!(got[&key], (1..=versions).collect::<Vec<_>>(), "seed {seed}, key {key}");
        }
    }
}
