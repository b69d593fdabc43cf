//! Handlers as users write them: with state, layers, errors of their libraries, and their own retry
//! policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use lazaret::Timeout;
use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;

#[derive(Clone, Default)]
struct App {
    placed: Arc<AtomicU32>,
}

async fn place(Text(cents): Text, State(app): State<App>) -> anyhow::Result<()> {
    let cents: u32 = cents.parse().context("no amount")?;
    app.placed.fetch_add(cents, Ordering::Relaxed);
    Ok(())
}

async fn ship(Text(text): Text) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let _: u32 = text.parse()?;
    Ok(())
}

async fn hang() {
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_router_with_state_layers_and_policies_runs_in_a_consumer() {
    let log = MemoryLog::new("orders", 1);
    for (event_type, key, payload) in
        [("Placed", "a", "7"), ("Placed", "b", "x"), ("Shipped", "c", "x"), ("Audited", "d", "1")]
    {
        log.push_with(0, |message| message.with_type(event_type).with_key(key).with_payload(payload));
    }
    log.close();
    let (app, store) = (App::default(), Arc::new(MemoryStore::default()));
    let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let router = Router::new()
        .on("Placed", place)
        .on("Shipped", ship)
        .on("Audited", hang.layer(Timeout::new(Duration::from_secs(1))))
        .retry(once)
        .with_state(app.clone());
    let consumer = Consumer::builder("shop")
        .source(log.join())
        .store(store.clone())
        .handler(router)
        .classifier(Classifier::default().no_retry_on::<std::num::ParseIntError>())
        .until_idle()
        .build()
        .unwrap();
    let queue = consumer.queue().clone();
    let stats = consumer.run(CancellationToken::new()).await.unwrap();

    assert_eq!((stats.handled, app.placed.load(Ordering::Relaxed)), (1, 7));
    let cause = async |key: &str| {
        let letters = store.sequence(&queue, &key.into(), 0, 10).await.unwrap();
        assert_eq!(
            (letters.len(), letters[0].state, letters[0].attempts),
            (1, LetterState::Dead, 1),
            "{key}"
        );
        letters[0].cause.clone().unwrap()
    };
    let placed = cause("b").await;
    assert_eq!((&*placed.message, &*placed.chain[0].message), ("no amount", "invalid digit found in string"));
    assert_eq!(cause("c").await.message, "invalid digit found in string");
    assert_eq!(cause("d").await.reason, Reason::TIMEOUT);
    let counts = format!("{:?}", store.counts(&queue).await.unwrap());
    assert!(counts.contains("dead: 3, parked: 0"), "{counts}");
}
