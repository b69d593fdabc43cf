//! Ids that are used again: no row of a table is mistaken for another row that had its id.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::{Source, SourceError};
use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, LetterState, Message, QueueName, Verdict};
use lazaret_engine::{Consumer, DedupeOptions, Options};
use lazaret_memory::MemoryStore;
use lazaret_postgres_testkit::Cluster;
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Shop, Taker, connect, insert, server};

fn deleting(shop: &Shop) -> OutboxOptions {
    OutboxOptions { ack: Ack::Delete, ..shop.options("outbox") }
}

fn payloads(name: &str, numbers: std::ops::Range<i64>) -> Vec<String> {
    numbers.map(|number| format!("{name}:{number}")).collect()
}

async fn fill(client: &Client, name: &str, numbers: std::ops::Range<i64>) {
    for payload in payloads(name, numbers) {
        insert(client, &payload).await;
    }
}

#[tokio::test]
async fn by_deletion_a_sequence_that_begins_again_hides_no_row_while_it_is_read() {
    // I1: neither the position nor a commit of the rows that had the ids before hides a row.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = Taker::open(deleting(&shop), Arc::new(MemoryStore::default()));
    fill(&shop.client, "old", 0..5).await;
    taker.until("they have come", |t| t.messages.len() == 5).await;
    taker.commit(1).await.unwrap();
    shop.sql("TRUNCATE outbox RESTART IDENTITY").await;
    fill(&shop.client, "new", 0..9).await;
    // The engine has not been informed yet.
    let late = taker.commit(4).await;
    assert!(late.as_ref().err().is_none_or(SourceError::is_temporary), "{late:?}");
    taker.until("all rows of the table have come", |t| t.assignments == 2 && t.messages.len() == 9).await;
    assert_eq!(taker.payloads(), payloads("new", 0..9));
    assert_eq!(taker.source.status().borrow().incarnation, 1);
    taker.commit(8).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
}

/// Replaces the rows of the table in one transaction, after ten rows were delivered, while six of them
/// are unsettled and their ids are used again. Then the six are settled.
async fn replace_rows_in_flight(statements: &str, expected: std::ops::Range<i64>) {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(deleting(&shop), store.clone());
    fill(&shop.client, "old", 0..10).await;
    taker.until("they have come", |t| t.messages.len() == 10).await;
    taker.commit(3).await.unwrap();
    shop.sql(&format!("BEGIN; {statements}; COMMIT")).await;
    let late = taker.commit(9).await;
    assert!(late.as_ref().err().is_none_or(SourceError::is_temporary), "{late:?}");
    let rows = usize::try_from(expected.end).unwrap();
    taker.until("all rows of the table have come", |t| t.assignments == 2 && t.messages.len() == rows).await;
    assert_eq!(taker.payloads(), payloads("new", expected));
    assert_eq!((taker.losses, taker.source.status().borrow().incarnation), (1, 1));
    taker.commit(rows - 1).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
    // Reading continues in that incarnation.
    taker.source.close().await.unwrap();
    fill(&shop.client, "more", 0..2).await;
    let mut taker = Taker::open(deleting(&shop), store);
    taker.until("the next rows have come", |t| t.messages.len() == 2).await;
    assert_eq!(taker.source.status().borrow().incarnation, 1);
}

#[tokio::test]
async fn by_deletion_a_late_commit_deletes_no_row_that_took_an_id_of_a_delivered_one() {
    // I1: the sequence does not show it, because it was not set back.
    let insert = "INSERT INTO outbox (id, key, payload) OVERRIDING SYSTEM VALUE \
                  SELECT n + 5, 'k', 'new:' || n FROM generate_series(0, 5) n ORDER BY n";
    replace_rows_in_flight(&format!("DELETE FROM outbox; {insert}"), 0..6).await;
}

#[tokio::test]
async fn by_deletion_a_table_that_is_emptied_and_whose_sequence_is_set_back_loses_no_new_row() {
    // I1: writers have caught up before anyone checks.
    let insert =
        "INSERT INTO outbox (key, payload) SELECT 'k', 'new:' || n FROM generate_series(0, 19) n ORDER BY n";
    let set_back = "SELECT setval('outbox_id_seq', 4)";
    replace_rows_in_flight(&format!("TRUNCATE outbox; {set_back}; {insert}"), 0..20).await;
}

#[tokio::test]
async fn by_deletion_a_row_that_is_changed_after_it_was_delivered_is_delivered_again() {
    // I1: nobody has seen the new content of the row.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = Taker::open(deleting(&shop), Arc::new(MemoryStore::default()));
    fill(&shop.client, "a", 0..3).await;
    taker.until("they have come", |t| t.messages.len() == 3).await;
    shop.sql("UPDATE outbox SET payload = 'b' WHERE id = 2").await;
    let late = taker.commit(2).await;
    assert!(late.as_ref().is_err_and(SourceError::is_temporary), "{late:?}");
    assert_eq!(shop.count("outbox").await, 1, "the others are deleted");
    taker.until("it has come", |t| t.assignments == 2 && t.messages.len() == 1).await;
    assert_eq!(taker.payloads(), ["b"]);
    taker.commit(0).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
}

#[tokio::test]
async fn by_deletion_rows_with_ids_up_to_the_position_are_delivered_at_the_next_start() {
    // I1: the sequence was set back, and writers have caught up.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(deleting(&shop), store.clone());
    fill(&shop.client, "old", 0..10).await;
    taker.until("they have come", |t| t.messages.len() == 10).await;
    taker.commit(9).await.unwrap();
    taker.source.close().await.unwrap();
    shop.sql("SELECT setval('outbox_id_seq', 5)").await;
    fill(&shop.client, "new", 0..15).await;
    let mut taker = Taker::open(deleting(&shop), store.clone());
    taker.until("all rows of the table have come", |t| t.messages.len() == 15).await;
    assert_eq!(taker.payloads(), payloads("new", 0..15));
    taker.commit(14).await.unwrap();
    assert_eq!(shop.count("outbox").await, 0);
    taker.source.close().await.unwrap();
    // The table was recreated.
    shop.sql("ALTER TABLE outbox RENAME TO former").await;
    shop.sql("CREATE TABLE outbox (LIKE former INCLUDING ALL)").await;
    fill(&shop.client, "third", 0..30).await;
    let mut taker = Taker::open(deleting(&shop), store);
    taker.until("all rows of the table have come", |t| t.messages.len() == 30).await;
    assert_eq!(taker.payloads(), payloads("third", 0..30));
    assert_eq!(taker.source.status().borrow().incarnation, 2);
}

#[tokio::test]
async fn by_deletion_a_row_that_appears_behind_the_position_is_delivered() {
    // I1: the id was set by hand.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let mut taker = Taker::open(deleting(&shop), Arc::new(MemoryStore::default()));
    fill(&shop.client, "old", 0..5).await;
    taker.until("they have come", |t| t.messages.len() == 5).await;
    taker.commit(4).await.unwrap();
    shop.sql("INSERT INTO outbox (id, payload) OVERRIDING SYSTEM VALUE VALUES (2, 'late')").await;
    taker.until("it has come", |t| t.assignments == 2 && t.messages.len() == 1).await;
    assert_eq!(taker.payloads(), ["late"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_rows_with_the_ids_of_letters_and_of_marks_are_handled() {
    // I1
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let (sender, mut handled) = watch::channel(Vec::new());
    let handler = move |message: Message| {
        let payload = String::from_utf8(message.payload.unwrap_or_default().into()).unwrap();
        let answer = match payload.as_str() {
            "bad" => Err(HandlerError::msg("no").verdict(Verdict::DeadLetter)),
            _ => {
                sender.send_modify(|all: &mut Vec<String>| all.push(payload));
                Ok(())
            }
        };
        async move { answer }
    };
    let dedupe = Some(DedupeOptions { filter: store.clone(), window: Duration::from_secs(3600) });
    let consumer = Consumer::builder("shop")
        .source(OutboxSource::open(deleting(&shop), store.clone()).unwrap())
        .store(store.clone())
        .handler(handler)
        .options(Options { commit_interval: Duration::from_millis(20), dedupe, ..Options::default() })
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(consumer.run(stop.clone()));
    let mut expected = Vec::new();
    for round in ["first", "second", "third"] {
        // Without keys, a dead letter holds back no other row.
        for payload in [format!("{round}:1"), "bad".to_owned(), format!("{round}:3")] {
            shop.client.execute("INSERT INTO outbox (payload) VALUES ($1)", &[&payload]).await.unwrap();
        }
        expected.extend([format!("{round}:1"), format!("{round}:3")]);
        let all = tokio::time::timeout(LONG, handled.wait_for(|all| all.len() == expected.len()));
        let mut all = all.await.expect("they are handled").unwrap().clone();
        all.sort();
        expected.sort();
        assert_eq!(all, expected);
        while shop.count("outbox").await > 0 {
            tokio::task::yield_now().await;
        }
        shop.sql("TRUNCATE outbox RESTART IDENTITY").await;
    }
    let queue = QueueName::of("shop", "shop");
    assert_eq!(store.counts(&queue).await.unwrap().of(LetterState::Dead), 3, "each has a letter of its own");
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn by_position_a_table_that_was_created_again_stops_the_source_until_a_person_decides() {
    // I1: this holds whether the sequence is behind the position or beyond it.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let options = || shop.options("outbox");
    let mut taker = Taker::open(options(), store.clone());
    fill(&shop.client, "old", 0..5).await;
    taker.until("they have come", |t| t.messages.len() == 5).await;
    taker.commit(4).await.unwrap();
    taker.source.close().await.unwrap();
    shop.sql("TRUNCATE outbox RESTART IDENTITY").await;
    fill(&shop.client, "new", 0..3).await;
    let error = Taker::open(options(), store.clone()).until_refused().await;
    assert!(
        error.contains("the last id that was drawn is 3") && error.contains("`start-over: 5`"),
        "{error}"
    );
    fill(&shop.client, "new", 3..9).await;
    let error = Taker::open(options(), store.clone()).until_refused().await;
    assert!(error.contains("the row 5 is another one") && error.contains("from 1 to 5"), "{error}");
    // A different position is not given up.
    let other = OutboxOptions { start_over: Some(4), ..options() };
    Taker::open(other, store.clone()).until_refused().await;
    let given_up = || OutboxOptions { start_over: Some(5), ..options() };
    let mut taker = Taker::open(given_up(), store.clone());
    taker.until("all rows of the table have come", |t| t.messages.len() == 9).await;
    assert_eq!(taker.payloads(), payloads("new", 0..9));
    taker.commit(6).await.unwrap();
    taker.source.close().await.unwrap();
    // The option has no further effect.
    let mut taker = Taker::open(given_up(), store);
    taker.until("the rest has come", |t| t.messages.len() == 2).await;
    assert_eq!(taker.payloads(), payloads("new", 7..9));
}

#[tokio::test]
async fn by_position_a_table_whose_old_rows_were_removed_is_read_on() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(shop.options("outbox"), store.clone());
    fill(&shop.client, "a", 0..5).await;
    taker.until("they have come", |t| t.messages.len() == 5).await;
    taker.commit(3).await.unwrap();
    taker.source.close().await.unwrap();
    shop.sql("DELETE FROM outbox WHERE id <= 4").await;
    shop.sql("VACUUM FULL outbox").await;
    let mut taker = Taker::open(shop.options("outbox"), store);
    taker.until("the rest has come", |t| t.messages.len() == 1).await;
    assert_eq!((taker.payloads(), taker.source.status().borrow().incarnation), (payloads("a", 4..5), 0));
}

#[tokio::test]
async fn rows_that_were_acknowledged_by_position_are_not_taken_for_new_ones_by_deletion() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let mut taker = Taker::open(shop.options("outbox"), store.clone());
    fill(&shop.client, "a", 0..5).await;
    taker.until("they have come", |t| t.messages.len() == 5).await;
    taker.commit(2).await.unwrap();
    taker.source.close().await.unwrap();
    let error = Taker::open(deleting(&shop), store.clone()).until_refused().await;
    assert!(error.contains("rows from 1 to 3") && error.contains("delete the rows up to 3"), "{error}");
    shop.sql("DELETE FROM outbox WHERE id <= 3").await;
    let mut taker = Taker::open(deleting(&shop), store);
    taker.until("the rest has come", |t| t.messages.len() == 2).await;
    assert_eq!(taker.payloads(), payloads("a", 3..5));
}

#[tokio::test]
async fn a_replica_that_lacks_rows_and_gives_their_ids_again_costs_none_of_its_own() {
    // I1
    let Some(mut primary) = Cluster::for_test(&[]) else { return };
    let standby = primary.standby().unwrap();
    let hosts = [primary.host().unwrap(), standby.host().unwrap()].join(",");
    let dsn = format!("postgres://lazaret@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable");
    let shop = Shop::with_outbox(dsn).await;
    let deletes = Arc::new(MemoryStore::default());
    let stays = Arc::new(MemoryStore::default());
    shop.sql("CREATE TABLE copies (LIKE outbox INCLUDING ALL)").await;
    shop.sql("INSERT INTO outbox (payload) VALUES ('old:0'); INSERT INTO copies (payload) VALUES ('old:0')")
        .await;
    // The replica has the first row of each table, and receives no more.
    let replica = connect(&standby.dsn()).await;
    let there = format!("SELECT count(*) FROM {}.copies", shop.schema);
    for (sql, wanted) in [(there.as_str(), 1_i64), ("SELECT count(*) FROM pg_stat_wal_receiver", 0)] {
        let started = std::time::Instant::now();
        loop {
            let found = replica.query_one(sql, &[]).await.map(|row| row.get::<_, i64>(0));
            if found.is_ok_and(|count| count == wanted) {
                break;
            }
            assert!(started.elapsed() < LONG, "{sql}");
            tokio::task::yield_now().await;
        }
        if wanted == 1 {
            replica.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
            replica.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        }
    }
    // This is more than the number of ids that a sequence logs ahead.
    fill(&shop.client, "old", 1..80).await;
    shop.sql("INSERT INTO copies (payload) SELECT payload FROM outbox WHERE id > 1 ORDER BY id").await;
    let mut deleting = Taker::open(deleting(&shop), deletes);
    let mut keeping = Taker::open(shop.options("copies"), stays.clone());
    for taker in [&mut deleting, &mut keeping] {
        taker.until("they have come", |t| t.messages.len() == 80).await;
        taker.commit(79).await.unwrap();
    }
    keeping.source.close().await.unwrap();
    primary.crash().unwrap();
    standby.promote().unwrap();
    let client = connect(&standby.dsn()).await;
    client.batch_execute(&format!("SET search_path = {}", shop.schema)).await.unwrap();
    fill(&client, "new", 0..60).await;
    client
        .batch_execute(
            "INSERT INTO copies (payload) SELECT payload FROM outbox WHERE payload LIKE 'new%' ORDER BY id",
        )
        .await
        .unwrap();
    let new = payloads("new", 0..60);
    let is_complete = |t: &Taker| new.iter().all(|payload| t.payloads().contains(payload));
    deleting.until("all rows of the new primary have come", is_complete).await;
    let error = Taker::open(shop.options("copies"), stays.clone()).until_refused().await;
    assert!(error.contains("the row 80 is another one"), "{error}");
    let given_up = OutboxOptions { start_over: Some(80), ..shop.options("copies") };
    let mut keeping = Taker::open(given_up, stays);
    keeping.until("all rows of the new primary have come", is_complete).await;
}
