//! Orders from a change stream, handled by a consumer that attributes declare.
//!
//! `cargo run -p lazaret --features macros --example attributes` runs the example on a source in memory,
//! which stands for the change stream. It checks its own outcome.
//!
//! - The gateway times out twice for the first order: it is retried.
//! - The second order is invalid: it becomes a dead letter at once.
//! - The third order is a test order, which the filter rejects.
//! - The fourth order is too large: the handler sends it to the dead letters itself.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lazaret::declare::*;
use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;

#[derive(serde::Deserialize)]
struct Order {
    customer: String,
    cents: i64,
}

#[derive(Debug, thiserror::Error)]
#[error("the payment gateway timed out")]
struct GatewayTimeout;

#[derive(Debug, thiserror::Error)]
#[error("{0} cents are not a price")]
struct ValidationError(i64);

/// The state that all methods share.
struct OrderHandler {
    charged: Arc<AtomicU32>,
}

#[change_stream(collection = "orders", full_document = "update-lookup")]
#[checkpoint(every = 10, interval = "5s")]
#[retry_policy(max_attempts = 4, initial_delay = "10ms", max_delay = "1s", no_retry_on(ValidationError))]
#[dead_letter_queue(collection = "orders_dlq", ttl_days = 90)]
impl OrderHandler {
    #[filter]
    fn is_real(&self, Json(order): Json<Order>) -> bool {
        order.customer != "test"
    }

    #[on_insert]
    #[on_replace]
    async fn placed(&self, Json(order): Json<Order>, context: Context) -> Result<(), HandlerError> {
        if order.cents < 0 {
            return Err(ValidationError(order.cents).into());
        }
        if order.cents > 1_000_000 {
            context.send_to_dlq("a person checks orders of this size").await?;
            return Ok(());
        }
        if context.attempt() < 3 {
            return Err(GatewayTimeout.into());
        }
        self.charged.fetch_add(1, Ordering::Relaxed);
        println!("charged {} cents to {} on attempt {}", order.cents, order.customer, context.attempt());
        Ok(())
    }

    #[on_delete]
    async fn cancelled(&self, Key(key): Key) {
        println!("cancelled {key:?}");
    }

    #[on_error(GatewayTimeout)]
    fn timed_out(&self, error: &GatewayTimeout, context: Context) {
        println!("attempt {} of {}: {error}", context.attempt(), context.event_id());
    }
}

/// A configuration file may set values that the attributes leave open.
const CONFIGURATION: &str = "
defaults:
  retry: { multiplier: 3, max-delay: 10s }
  dead-letter: { owner: shop-team }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let charged = Arc::new(AtomicU32::new(0));
    let declaration = OrderHandler { charged: charged.clone() }.declare();
    let loaded = load(("lazaret.yaml", CONFIGURATION.as_bytes()), &ProcessEnv, [declaration])?;
    let orders = &loaded.consumers[0];
    println!("{}", orders.effective());

    let log = MemoryLog::new("orders", 1);
    for (customer, cents) in [("ada", 1250), ("bob", -1), ("test", 1), ("cleo", 9_000_000)] {
        let document = format!(r#"{{"customer": "{customer}", "cents": {cents}}}"#);
        log.push_with(0, |message| message.with_key(customer).with_type("insert").with_payload(document));
    }
    log.close();

    let store = Arc::new(MemoryStore::default());
    let consumer = orders.builder()?.source(log.join()).store(store.clone()).until_idle().build()?;
    let queue = consumer.queue().clone();
    let stats = consumer.run(CancellationToken::new()).await?;

    let dead = store.counts(&queue).await?.of(LetterState::Dead);
    println!("{} handled, {} filtered, {dead} dead letters", stats.handled, stats.filtered);
    if (charged.load(Ordering::Relaxed), stats.filtered, dead) != (1, 1, 2) {
        return Err("the outcome is not the expected one".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_outcome_is_the_expected_one() {
        super::main().expect("the example checks itself");
    }
}
