//! The facade from end to end, as on a user's first day.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;
use lazaret::{Options, Stats};

/// Handles every text except `bad`.
async fn on_text(Text(text): Text) -> Result<(), HandlerError> {
    match &*text {
        "bad" => Err(HandlerError::msg("bad text").reason(Reason::DOMAIN_INVALID)),
        _ => Ok(()),
    }
}

fn log_of(texts: &[(&'static str, &'static str)]) -> MemoryLog {
    let log = MemoryLog::new("texts", 1);
    for (key, text) in texts {
        log.push(0, *key, *text);
    }
    log.close();
    log
}

fn until_idle() -> Options {
    Options { until_idle: true, ..Options::default() }
}

#[tokio::test]
async fn a_later_message_waits_behind_its_failed_head_and_others_do_not() {
    // I1, I2, I3
    let log = log_of(&[("a", "bad"), ("a", "good"), ("b", "good")]);
    let store = Arc::new(MemoryStore::default());
    let consumer = Consumer::builder("texts")
        .source(log.join())
        .store(store.clone())
        .handler(on_text)
        .options(until_idle())
        .build()
        .unwrap();
    let queue = consumer.queue().clone();
    let stats = consumer.run(CancellationToken::new()).await.unwrap();
    let counts = store.counts(&queue).await.unwrap();
    assert_eq!(queue, QueueName::of("texts", "texts"));
    assert_eq!((stats.handled, stats.handed_off, stats.appended), (1, 1, 1));
    assert_eq!((counts.of(LetterState::Dead), counts.of(LetterState::Waiting)), (1, 1));
    assert_eq!(log.committed(0), Some(2));
}

#[tokio::test]
async fn each_component_has_a_queue_of_its_own() {
    let log = log_of(&[("a", "bad")]);
    let store = Arc::new(MemoryStore::default());
    let seen = Arc::new(AtomicU64::new(0));
    let count = {
        let seen = seen.clone();
        move |_: Payload| {
            let seen = seen.clone();
            async move { _ = seen.fetch_add(1, Ordering::Relaxed) }
        }
    };
    let consumer = Consumer::builder("texts")
        .source(log.join())
        .store(store.clone())
        .component("strict", on_text)
        .component("counting", count)
        .options(until_idle())
        .build()
        .unwrap();
    let handle = consumer.handle();
    consumer.run(CancellationToken::new()).await.unwrap();
    assert_eq!(*handle.queue(), QueueName::of("texts", "strict"), "the first component's");
    let queues: Vec<_> = handle.queues().cloned().collect();
    assert_eq!(queues, [QueueName::of("texts", "strict"), QueueName::of("texts", "counting")]);
    assert_eq!(store.counts(&queues[0]).await.unwrap().open(), 1);
    assert_eq!(store.counts(&queues[1]).await.unwrap().open(), 0);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_consumer_that_is_drained_ends() {
    let log = MemoryLog::new("texts", 1);
    let consumer = Consumer::builder("texts")
        .source(log.join())
        .store(Arc::new(MemoryStore::default()))
        .handler(on_text)
        .build()
        .unwrap();
    let drain = CancellationToken::new();
    drain.cancel();
    assert_eq!(consumer.run(drain).await.unwrap(), Stats::default());
}
