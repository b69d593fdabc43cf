//! A scenario of its own for I3: no message of a healthy key waits for a failing key beyond its share.
//!
//! There are no faults, and virtual time passes only while everything waits. Failing keys wait for retries, or for a budget;
//! a healthy message that is handled after the first of these waits has ended has waited for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::handler::{Delivery, Handle as Handler, HandlerFuture};
use lazaret_core::policy::{BudgetPolicy, RetryPolicy};
use lazaret_core::{HandlerError, Reason};
use lazaret_engine::{Consumer, Options};
use lazaret_memory::{MemoryLog, MemoryStore};
use lazaret_testkit::TokioClock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::mutation::{self, Mutation};
use crate::random::Random;

/// The delay of every retry, which no healthy message may wait for.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long the scenario may take, in virtual time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Fails the messages of bad keys, and records when the last message of a good one was handled.
#[derive(Clone)]
struct FailsBadKeys {
    started: Instant,
    handled: Arc<AtomicU64>,
    last: Arc<Mutex<Duration>>,
}

impl Handler for FailsBadKeys {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let this = self.clone();
        Box::pin(async move {
            let key = delivery.message().key.clone().unwrap_or_default();
            if key.starts_with(b"bad") {
                return Err(HandlerError::msg("not yet").reason(Reason::DEPENDENCY_UNAVAILABLE));
            }
            *this.last.lock().unwrap_or_else(PoisonError::into_inner) = this.started.elapsed();
            this.handled.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

/// Runs the scenario of one seed. Returns the violation, if there is one.
pub(crate) async fn check(seed: u64, mutation: Option<Mutation>) -> Option<String> {
    let mut random = Random::new(seed).fork(4);
    let clock = Arc::new(TokioClock::new());
    let window = random.between(8, 48) as usize;
    let throttled = random.chance(300);
    let options = Options {
        concurrency: random.between(1, 8) as usize,
        shards: random.between(1, 3) as usize,
        window,
        hold_limit: random.between(4, 200) as usize,
        retry: RetryPolicy {
            hold: Duration::from_secs(60),
            max_attempts: 10,
            initial_delay: RETRY_DELAY,
            max_delay: RETRY_DELAY,
            multiplier: 1.0,
            jitter: 0.0,
            ..RetryPolicy::default()
        },
        budget: BudgetPolicy {
            rate: throttled.then(|| "1/h".parse().expect("a rate")),
            ..BudgetPolicy::default()
        },
        breaker: None,
        fuse: None,
        seed: seed | 1,
        ..Options::default()
    };
    let log = MemoryLog::new("stream", 1);
    let (bad_keys, bad_share) = (random.between(1, 12), random.between(50, 500));
    let mut good = 0;
    for number in 0..random.between(100, 400) {
        let key = if random.chance(bad_share) {
            format!("bad-{}", random.below(bad_keys))
        } else {
            good += 1;
            format!("good-{number}")
        };
        log.push(0, key, number.to_string());
    }
    let handler = FailsBadKeys { started: Instant::now(), handled: Arc::default(), last: Arc::default() };
    let consumer = Consumer::builder("isolation")
        .source(log.join().with_batch(random.between(1, 16) as usize))
        .store(Arc::new(MemoryStore::new(clock.clone())))
        .clock(clock)
        .options(mutation::engine_options(mutation, options))
        .component("isolation", handler.clone())
        .build()
        .expect("the options are valid");
    let drain = CancellationToken::new();
    let running = tokio::spawn(Box::pin(consumer.run(drain.clone())));
    let all_handled = async {
        while handler.handled.load(Ordering::SeqCst) < good {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(TIMEOUT, all_handled).await.is_ok();
    running.abort();
    let last = *handler.last.lock().unwrap_or_else(PoisonError::into_inner);
    let handled = handler.handled.load(Ordering::SeqCst);
    (!in_time || last >= RETRY_DELAY).then(|| {
        format!(
            "I3: with {bad_keys} failing keys and a window of {window}, {handled} of {good} healthy messages were \
             handled, the last one after {} ms",
            last.as_millis()
        )
    })
}
