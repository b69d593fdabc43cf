//! The effects of a message, and the mark that it was handled, commit together or not at all.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::handler::{BoxHandler, Context, DeadLetterSink, Delivery, Handler, Text, handler};
use lazaret_core::store::{ErrorKind, LetterStore, StoreError};
use lazaret_core::{HandlerError, LetterState, Message, Position, QueueName, Reason, Verdict};
use lazaret_engine::Consumer;
use lazaret_memory::{MemoryLog, MemoryStore};
use lazaret_store_postgres::{ExactlyOnce, ExactlyOnceOptions, Tx};
use tokio::sync::Barrier;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::{TestSchema, server};

/// A schema with the table that the handlers write to, and a layer for it.
struct Shop {
    schema: TestSchema,
    client: Client,
    once: ExactlyOnce,
}

impl Shop {
    async fn new() -> Option<Self> {
        let schema = TestSchema::new(server()?);
        let admin = crate::support::connect(&schema.dsn).await;
        admin.batch_execute(&format!("CREATE SCHEMA {}", schema.name)).await.unwrap();
        let client = schema.client().await;
        client
            .batch_execute("CREATE TABLE effects (text text NOT NULL CHECK (text <> 'bad'))")
            .await
            .unwrap();
        let once = layer(&schema, "orders").await;
        Some(Self { schema, client, once })
    }

    fn handler<A: 'static>(&self, function: impl Handler<A>) -> BoxHandler {
        handler(function.layer(self.once.clone()))
    }

    async fn count(&self, table: &str) -> i64 {
        self.client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
    }

    /// Waits until the server has rolled back what was left of an attempt.
    async fn until_no_transaction(&self) {
        let sql =
            "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND application_name = $1";
        while self.client.query_one(sql, &[&self.schema.name]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    }
}

async fn layer(schema: &TestSchema, scope: &str) -> ExactlyOnce {
    let between = if schema.dsn.contains('?') { '&' } else { '?' };
    let dsn = format!(
        "{}{between}application_name={}&options=-c%20search_path={}",
        schema.dsn, schema.name, schema.name
    );
    let options = ExactlyOnceOptions { max_connections: 4, ..ExactlyOnceOptions::default() };
    ExactlyOnce::connect(&dsn, scope, options).await.unwrap()
}

fn delivery(id: &str) -> Delivery {
    Delivery::new(Message::new(id, "orders", Position::new(0, 0)).with_payload(id.to_owned()))
}

async fn write(Text(text): Text, tx: Tx) -> Result<(), HandlerError> {
    tx.execute("INSERT INTO effects VALUES ($1)", &[&text]).await?;
    Ok(())
}

fn is_duplicate(outcome: Result<(), HandlerError>) -> bool {
    outcome.unwrap_err().asked_verdict() == Some(Verdict::Duplicate)
}

#[tokio::test]
async fn a_message_that_comes_again_has_no_second_effect() {
    let Some(shop) = Shop::new().await else { return };
    let write = shop.handler(write);
    write.handle(delivery("e-1")).await.unwrap();
    assert!(is_duplicate(write.handle(delivery("e-1")).await));
    write.handle(delivery("e-2")).await.unwrap();
    // An id that is longer than an entry of an index.
    let long = "x".repeat(10_000);
    write.handle(delivery(&long)).await.unwrap();
    assert!(is_duplicate(write.handle(delivery(&long)).await));
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (3, 3));
    // Another handler of the same messages has effects of its own.
    let other = layer(&shop.schema, "mails").await;
    handler(self::write.layer(other)).handle(delivery("e-1")).await.unwrap();
    assert_eq!(shop.count("effects").await, 4);
}

#[tokio::test]
async fn a_failed_attempt_leaves_nothing_and_its_retry_has_its_effect() {
    let Some(shop) = Shop::new().await else { return };
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let third_time = shop.handler(move |text: Text, tx: Tx| {
        let calls = counted.clone();
        async move {
            write(text, tx).await?;
            match calls.fetch_add(1, Ordering::SeqCst) {
                0 => Err(HandlerError::msg("no").reason(Reason::CONFLICT)),
                1 => panic!("boom"),
                _ => Ok(()),
            }
        }
    });
    let error = third_time.handle(delivery("e-1")).await.unwrap_err();
    assert_eq!(error.asked_reason(), Some(&Reason::CONFLICT), "the failure is the handler's own");
    let panicking = third_time.clone();
    assert!(
        tokio::spawn(async move { panicking.handle(delivery("e-1")).await }).await.unwrap_err().is_panic()
    );
    shop.until_no_transaction().await;
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (0, 0));
    third_time.handle(delivery("e-1")).await.unwrap();
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (1, 1));
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_nothing() {
    let Some(shop) = Shop::new().await else { return };
    let written = Arc::new(Barrier::new(2));
    let reached = written.clone();
    let stuck = shop.handler(move |text: Text, tx: Tx| {
        let written = reached.clone();
        async move {
            write(text, tx).await?;
            written.wait().await;
            std::future::pending::<Result<(), HandlerError>>().await
        }
    });
    let attempt = tokio::spawn(async move { stuck.handle(delivery("e-1")).await });
    written.wait().await;
    // As a timeout or a revoked partition does.
    attempt.abort();
    assert!(attempt.await.unwrap_err().is_cancelled());
    shop.until_no_transaction().await;
    shop.handler(write).handle(delivery("e-1")).await.unwrap();
    assert_eq!(shop.count("effects").await, 1);
}

#[tokio::test]
async fn an_error_of_the_server_that_the_handler_ignores_is_no_success() {
    // The server answers the commit of a failed transaction with a rollback that looks like success.
    let Some(shop) = Shop::new().await else { return };
    let careless = shop.handler(|text: Text, tx: Tx| async move {
        write(text, tx).await.ok();
        Ok::<_, HandlerError>(())
    });
    let error = careless.handle(delivery("bad")).await.unwrap_err();
    assert_ne!(error.asked_verdict(), Some(Verdict::Duplicate));
    assert_eq!(shop.count("lazaret_marks").await, 0);
    careless.handle(delivery("good")).await.unwrap();
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_attempts_at_one_message_at_the_same_time_one_has_effects() {
    // I6: a late owner and its successor.
    let Some(shop) = Shop::new().await else { return };
    let other = layer(&shop.schema, "orders").await;
    for round in 0..20 {
        let (one, two) = (shop.handler(write), handler(write.layer(other.clone())));
        let id = format!("e-{round}");
        let (first, second) = tokio::join!(one.handle(delivery(&id)), two.handle(delivery(&id)));
        assert_ne!(first.is_ok(), second.is_ok(), "one of them");
        assert!(is_duplicate(if first.is_ok() { second } else { first }));
        assert_eq!(shop.count("effects").await, round + 1);
    }
}

#[tokio::test]
async fn a_commit_whose_response_was_lost_is_found_by_the_retry() {
    let Some(shop) = Shop::new().await else { return };
    let unsure = shop.handler(|text: Text, tx: Tx| async move {
        write_and_commit(text, tx).await?;
        Err::<(), _>(HandlerError::msg("the connection was lost"))
    });
    // The server has committed, and the attempt counts as failed.
    unsure.handle(delivery("e-1")).await.unwrap_err();
    assert!(is_duplicate(unsure.handle(delivery("e-1")).await));
    assert_eq!(shop.count("effects").await, 1);
}

async fn write_and_commit(Text(text): Text, tx: Tx) -> Result<(), HandlerError> {
    tx.execute("INSERT INTO effects VALUES ($1)", &[&text]).await?;
    tx.batch_execute("COMMIT").await?;
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_outlives_its_handler_is_not_committed() {
    let Some(shop) = Shop::new().await else { return };
    let kept = Arc::new(Mutex::new(None));
    let slot = kept.clone();
    let keeping = shop.handler(move |Text(text): Text, tx: Tx| {
        let slot = slot.clone();
        async move {
            tx.execute("INSERT INTO effects VALUES ($1)", &[&text]).await?;
            *slot.lock().unwrap() = Some(tx);
            Ok::<_, HandlerError>(())
        }
    });
    let error = keeping.handle(delivery("e-1")).await.unwrap_err();
    assert!(error.to_string().contains("outlived"), "{error}");
    drop(kept.lock().unwrap().take());
    shop.until_no_transaction().await;
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (0, 0));
}

#[tokio::test]
async fn a_message_that_the_handler_sends_to_the_dead_letters_is_not_marked() {
    struct Sink;

    #[async_trait]
    impl DeadLetterSink for Sink {
        async fn send_to_dlq(&self, delivery: &Delivery, _: Reason, _: String) -> Result<(), StoreError> {
            assert!(delivery.mark_sent(delivery.attempt()));
            Ok(())
        }
    }

    let Some(shop) = Shop::new().await else { return };
    let giving_up = shop.handler(|text: Text, tx: Tx, context: Context| async move {
        write(text, tx).await?;
        context.send_to_dlq("no").await?;
        Ok::<_, HandlerError>(())
    });
    let message = Message::new("e-1", "orders", Position::new(0, 0)).with_payload("e-1");
    giving_up.handle(Delivery::live(message, Arc::new(Sink))).await.unwrap();
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (0, 0));
    // Its replay has its effect.
    shop.handler(write).handle(delivery("e-1")).await.unwrap();
    assert_eq!(shop.count("effects").await, 1);
}

#[tokio::test]
async fn a_letter_whose_effects_were_committed_is_resolved_by_its_replay() {
    // I8
    let Some(shop) = Shop::new().await else { return };
    let (log, store) = (MemoryLog::new("orders", 1), Arc::new(MemoryStore::default()));
    log.push(0, "order-7", "e-1");
    let refuse = Arc::new(AtomicBool::new(true));
    let refuses = refuse.clone();
    let write = shop.handler(move |text: Text, tx: Tx| {
        let refuse = refuses.clone();
        async move {
            write(text, tx).await?;
            match refuse.load(Ordering::SeqCst) {
                true => Err(HandlerError::msg("no").reason(Reason::DOMAIN_INVALID)),
                false => Ok(()),
            }
        }
    });
    let builder = Consumer::builder("shop").source(log.join()).store(store.clone());
    let consumer = builder.handler(write.clone()).build().unwrap();
    let (handle, drain) = (consumer.handle(), CancellationToken::new());
    let running = tokio::spawn(consumer.run(drain.clone()));
    let queue = QueueName::of("shop", "shop");
    let counted = async |state| store.counts(&queue).await.unwrap().of(state);
    while counted(LetterState::Dead).await == 0 {
        tokio::task::yield_now().await;
    }
    // Its effects are committed elsewhere: in a process that crashed before it could settle the letter.
    refuse.store(false, Ordering::SeqCst);
    let page = store.heads(&queue, None, 1).await.unwrap();
    write.handle(Delivery::new((*page.heads[0].message).clone())).await.unwrap();
    assert!(handle.replayer("shop").unwrap().process_any().await.unwrap());
    assert_eq!((counted(LetterState::Resolved).await, counted(LetterState::Dead).await), (1, 0));
    assert_eq!((shop.count("effects").await, shop.count("lazaret_marks").await), (1, 1));
    drain.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_handler_without_the_layer_is_told_what_is_missing() {
    let error = handler(write).handle(delivery("e-1")).await.unwrap_err();
    assert!(error.to_string().contains("ExactlyOnce"), "{error}");
    assert_eq!(error.asked_verdict(), Some(Verdict::Stop), "no message is lost to a mistake in the program");
}

#[tokio::test]
async fn old_marks_are_removed() {
    let Some(shop) = Shop::new().await else { return };
    let write = shop.handler(write);
    write.handle(delivery("e-1")).await.unwrap();
    write.handle(delivery("e-2")).await.unwrap();
    let back = "UPDATE lazaret_marks SET marked_at = now() - interval '31 days' WHERE message = 'e-1'";
    shop.client.batch_execute(back).await.unwrap();
    assert_eq!(shop.once.purge(Duration::from_secs(30 * 86_400)).await.unwrap(), 1);
    assert!(is_duplicate(write.handle(delivery("e-2")).await));
    write.handle(delivery("e-1")).await.unwrap();
    assert_eq!(shop.count("effects").await, 3);
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_at_the_start() {
    let Some(shop) = Shop::new().await else { return };
    let connect = |table: &str, create| {
        let options = ExactlyOnceOptions { table: table.into(), create, ..ExactlyOnceOptions::default() };
        let dsn = shop.schema.dsn.clone();
        async move { ExactlyOnce::connect(&dsn, "orders", options).await.unwrap_err().kind() }
    };
    assert_eq!(connect("No Table", true).await, ErrorKind::Invalid);
    assert_eq!(connect(&format!("{}.nothing", shop.schema.name), false).await, ErrorKind::Invalid);
    assert_eq!(connect(&format!("{}.effects", shop.schema.name), true).await, ErrorKind::Invalid);
    let options = ExactlyOnceOptions { max_connections: 0, ..ExactlyOnceOptions::default() };
    let error = ExactlyOnce::connect(&shop.schema.dsn, "orders", options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
