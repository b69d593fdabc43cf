//! One key that always fails: the throughput of the other keys (I3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::HandlerError;
use lazaret_core::handler::Payload;
use lazaret_core::policy::{PoisonPolicy, RetryPolicy, Strategy};
use lazaret_engine::Options;
use tokio_util::sync::CancellationToken;

use super::{BENCH, Bench, clear_away, options, rate};
use crate::Scale;
use crate::source::{Plan, is_bad};
use crate::table::{Bar, Compared, Row};

/// Many short rounds: a target of 2 % is below the noise of a few long ones on a shared machine.
const MESSAGES: usize = 250_000;
const KEYS: u32 = 10_000;
const SHARE: f64 = 0.01;
const ROUNDS: usize = 120;
/// The poll interval of the counters.
const LOOK: Duration = Duration::from_millis(1);

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    let count = scale.count(MESSAGES);
    let plan = Plan::with_hot_key(count, KEYS, SHARE);
    let (mut succeeds, mut fails) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // The second run finds a used heap, so the order alternates.
        if round % 2 == 0 {
            succeeds.push(others_rate(&plan, false).await);
            fails.push(others_rate(&plan, true).await);
        } else {
            fails.push(others_rate(&plan, true).await);
            succeeds.push(others_rate(&plan, false).await);
        }
    }
    let compared = Compared::new(&fails, &succeeds);
    vec![
        Row::compared(BENCH, "hot failing key/throughput of the others", "msg/s", &compared)
            .with_bar(Bar::RatioAtLeast(0.98)),
    ]
}

/// Measures messages per second of the other keys until the last is handled, with a hot key that fails or does not. The failing
/// key keeps failing, so the run is drained afterwards, untimed.
async fn others_rate(plan: &Arc<Plan>, fails: bool) -> f64 {
    let others = plan.len() - plan.count_of_key(KEYS);
    let handled = (plan.len() - if fails { plan.bad_count() } else { 0 }) as u64;
    let Bench { consumer, store, .. } =
        Bench::new(plan, hot_options(), move |payload: Payload| refuse_bad(payload, fails));
    let handle = consumer.handle();
    let drain = CancellationToken::new();
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(drain.clone()));
    while handle.stats().handled < handled {
        tokio::time::sleep(LOOK).await;
    }
    let took = started.elapsed();
    drain.cancel();
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(stats.handled, handled, "the others are handled once, the failing key never");
    drop(handle);
    clear_away(store).await;
    rate(others, took)
}

/// Moves the failing key to the store at its first failure and retries it from there for the whole run.
fn hot_options() -> Options {
    Options {
        until_idle: false,
        retry: RetryPolicy {
            strategy: Strategy::Ordered,
            hold: Duration::ZERO,
            initial_delay: Duration::from_millis(10),
            max_attempts: u32::MAX,
            ..RetryPolicy::default()
        },
        poison: PoisonPolicy { same_failure: None },
        ..options()
    }
}

async fn refuse_bad(Payload(payload): Payload, fails: bool) -> Result<(), HandlerError> {
    if fails && is_bad(payload.as_ref()) {
        return Err(HandlerError::msg("this key always fails"));
    }
    Ok(())
}
