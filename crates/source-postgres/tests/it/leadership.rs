//! One session reads an outbox. Another takes over when it ends, and the late one changes nothing.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::Source;
use lazaret_memory::MemoryStore;
use lazaret_postgres_testkit::{Cluster, SYNCHRONOUS};
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxState};

use crate::support::{LONG, Shop, Taker, insert, server};

/// Returns the process id of the session that reads the outbox of this schema.
async fn leader(shop: &Shop, taker: &Taker) -> i32 {
    let state = taker.source.status().borrow().state.clone();
    assert_eq!(state, OutboxState::Reading);
    let sql = "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
               WHERE l.locktype = 'advisory' AND a.query LIKE $1 OR a.query LIKE $2";
    let of_table = format!("%{}%", shop.schema);
    let own: i32 = shop.client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    // The server shows the last statement of a session, which may be a heartbeat.
    for _ in 0..600 {
        let rows = shop.client.query(sql, &[&of_table, &of_table]).await.unwrap();
        let pids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        if let Some(pid) = pids.into_iter().find(|pid| *pid != own) {
            return pid;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("one reads")
}

#[tokio::test]
async fn a_second_source_waits_until_the_first_one_leaves() {
    // I6
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    // With deletion, a table has one reader, whatever the name of its stream.
    let options =
        |stream: &str| OutboxOptions { ack: Ack::Delete, stream: stream.into(), ..shop.options("outbox") };
    let mut first = Taker::open(options("orders"), store.clone());
    first.until("it reads", |t| t.assignments == 1).await;
    let mut second = Taker::open(options("mails"), store.clone());
    let mut status = second.source.status();
    let waiting = status.wait_for(|status| matches!(status.state, OutboxState::Standby { .. }));
    let standby = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().state.clone();
    assert!(matches!(standby, OutboxState::Standby { leader: Some(_) }), "{standby:?}");
    insert(&shop.client, "1").await;
    insert(&shop.client, "2").await;
    first.until("they have come", |t| t.messages.len() == 2).await;
    first.commit(0).await.unwrap();
    second.until_quiet().await;
    assert_eq!(second.assignments, 0);
    first.source.close().await.unwrap();
    second.until("it takes over", |t| t.messages.len() == 1).await;
    assert_eq!(second.payloads(), ["2"]);
}

#[tokio::test]
async fn consumers_that_keep_positions_read_one_table_side_by_side() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let options = |stream: &str| OutboxOptions { stream: stream.into(), ..shop.options("outbox") };
    let mut orders = Taker::open(options("orders"), store.clone());
    let mut mails = Taker::open(options("mails"), store.clone());
    insert(&shop.client, "1").await;
    orders.until("it has come", |t| t.messages.len() == 1).await;
    mails.until("it has come", |t| t.messages.len() == 1).await;
    orders.commit(0).await.unwrap();
    assert_eq!(shop.count("outbox").await, 1, "rows stay");
}

#[tokio::test]
async fn a_source_whose_session_was_ended_loses_its_partition_and_reads_again() {
    // I1, I6
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    for ack in [Ack::Delete, Ack::Position] {
        let store = Arc::new(MemoryStore::default());
        shop.sql("DELETE FROM outbox").await;
        let mut taker = Taker::open(OutboxOptions { ack, ..shop.options("outbox") }, store.clone());
        for number in 0..4 {
            insert(&shop.client, &number.to_string()).await;
        }
        taker.until("they have come", |t| t.messages.len() == 4).await;
        taker.commit(0).await.unwrap();
        let pid = leader(&shop, &taker).await;
        shop.client.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
        taker.until("it is lost", |t| t.losses == 1).await;
        let before = shop.count("outbox").await;
        taker.commit(2).await.unwrap();
        assert_eq!(shop.count("outbox").await, before, "a commit without an assignment is ignored");
        taker.until("it reads again", |t| t.assignments == 2).await;
        taker.until("they have come again", |t| t.messages.len() == 3).await;
        assert_eq!(taker.payloads(), ["1", "2", "3"]);
        taker.commit(2).await.unwrap();
        taker.source.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_server_ends_a_session_that_does_not_respond_and_keeps_one_that_only_waits() {
    // I6: to the server, this looks like a process after `SIGSTOP`.
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    let store = Arc::new(MemoryStore::default());
    let options = || OutboxOptions {
        // The timeout is longer than a busy machine makes a process wait.
        session_timeout: Duration::from_secs(6),
        poll: Duration::from_secs(600),
        batch_rows: 1,
        ..shop.options("outbox")
    };
    let mut alive = Taker::open(options(), store.clone());
    alive.until("it reads", |t| t.assignments == 1).await;
    // The engine takes no more messages. The reader waits with undelivered rows for longer than the timeout.
    for number in 0..9 {
        insert(&shop.client, &number.to_string()).await;
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
    alive.until("all have come", |t| t.messages.len() == 9).await;
    assert_eq!((alive.assignments, alive.losses), (1, 0), "its heartbeat kept the session");
    drop(alive);
    // A silent session holds the lock of the same reader, like a stopped process.
    let stopped = shop.connection().await;
    stopped.batch_execute("SET idle_session_timeout = '1s'").await.unwrap();
    let free = Taker::open(options(), store.clone());
    drop(free);
    let sql = "SELECT ((classid::bigint << 32) | objid::bigint) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1";
    let mut taker = Taker::open(options(), store.clone());
    taker.until("it reads", |t| t.assignments == 1).await;
    let pid = leader(&shop, &taker).await;
    let lock: i64 = shop.client.query_one(sql, &[&pid]).await.unwrap().get(0);
    taker.source.close().await.unwrap();
    stopped.execute("SELECT pg_advisory_lock($1)", &[&lock]).await.unwrap();
    let mut next = Taker::open(options(), store);
    next.until("it takes over", |t| t.assignments == 1).await;
    assert!(stopped.execute("SELECT 1", &[]).await.is_err(), "the stopped one has no session any more");
}

#[tokio::test]
async fn a_server_that_crashes_and_comes_back_costs_nothing() {
    // I1
    let Some(mut cluster) = Cluster::for_test(&[]) else { return };
    let shop = Shop::with_outbox(cluster.dsn()).await;
    let store = Arc::new(MemoryStore::default());
    let options = OutboxOptions { ack: Ack::Delete, ..shop.options("outbox") };
    let mut taker = Taker::open(options, store.clone());
    for round in 0..3 {
        let client = shop.connection().await;
        for number in 0..5 {
            insert(&client, &format!("{round}:{number}")).await;
        }
        let expected = if round == 0 { 5 } else { 5 + 3 };
        taker.until("they have come", |t| t.messages.len() == expected).await;
        // All but the last three messages are acknowledged.
        taker.commit(expected - 4).await.unwrap();
        cluster.crash().unwrap();
        assert!(
            taker.commit(expected - 1).await.is_err_and(|error| error.is_temporary()),
            "the server is away"
        );
        cluster.run().unwrap();
        taker.until("they come again", |t| t.assignments == round + 2 && t.messages.len() == 3).await;
    }
    assert_eq!(taker.payloads(), ["2:2", "2:3", "2:4"]);
}

#[tokio::test]
async fn a_standby_that_is_promoted_is_read_from_where_the_primary_was() {
    // I1
    let Some(mut primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let standby = primary.standby().unwrap();
    let hosts = [primary.host().unwrap(), standby.host().unwrap()].join(",");
    let dsn = format!("postgres://lazaret@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable");
    let shop = Shop::with_outbox(dsn).await;
    for ack in [Ack::Delete, Ack::Position] {
        // A standby is not read, because it does not know the transactions of writers.
        let options = OutboxOptions { ack, dsn: standby.dsn(), ..shop.options("outbox") };
        let early = Taker::open(options, Arc::new(MemoryStore::default()));
        let mut status = early.source.status();
        let refused = status.wait_for(
            |status| matches!(&status.state, OutboxState::Restarting { error } if error.contains("replica")),
        );
        tokio::time::timeout(LONG, refused).await.expect("it says so").unwrap();
    }
    let options = OutboxOptions { ack: Ack::Delete, ..shop.options("outbox") };
    let mut taker = Taker::open(options, Arc::new(MemoryStore::default()));
    for number in 0..3 {
        insert(&shop.client, &number.to_string()).await;
    }
    taker.until("they have come", |t| t.messages.len() == 3).await;
    taker.commit(0).await.unwrap();
    primary.crash().unwrap();
    standby.promote().unwrap();
    taker.until("they come again", |t| t.assignments == 2 && t.messages.len() == 2).await;
    insert(&shop.connection().await, "3").await;
    taker.until("the next one has come", |t| t.messages.len() == 3).await;
    assert_eq!(taker.payloads(), ["1", "2", "3"]);
}
