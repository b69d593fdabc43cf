//! Retry and dead letters for a MongoDB change stream, declared by attributes.
//!
//! `MONGODB_URI=mongodb://127.0.0.1:27017 cargo run -p lazaret --features macros,mongodb --example
//! change_stream` inserts four orders into a separate database, handles their changes, and checks the
//! outcome. The server must be a replica set.
//!
//! - The payment gateway times out twice for Ada's order: it is retried with growing delays.
//! - Bob's order is invalid: it becomes a dead letter at once, because `no_retry_on` names the error.
//! - Cleo's order is too large: the handler sends it to the dead letters itself.
//! - The gateway never responds for Dan's order: after the last attempt it becomes a dead letter.
//!
//! The dead letters are documents in the collection `orders_dlq`, with FlowWarden's field names.

use std::error::Error;
use std::sync::Arc;

use lazaret::declare::*;
use lazaret::mongodb::bson::{self, doc};
use lazaret::mongodb::driver::Client;
use lazaret::mongodb::{Document, Layout, MongoSource, MongoStore, MongoStoreOptions, StreamState};
use lazaret::prelude::*;
use tokio::sync::mpsc;

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
    charged: mpsc::UnboundedSender<String>,
}

#[change_stream(collection = "orders")]
#[checkpoint(every = 1, interval = "5s")]
#[retry_policy(max_attempts = 4, initial_delay = "50ms", max_delay = "1s", no_retry_on(ValidationError))]
#[dead_letter_queue(collection = "orders_dlq", ttl_days = 90)]
impl OrderHandler {
    #[on_insert]
    async fn placed(&self, Document(order): Document<Order>, context: Context) -> Result<(), HandlerError> {
        let (customer, attempt) = (order.customer, context.attempt());
        if order.cents < 0 {
            return Err(ValidationError(order.cents).into());
        }
        if order.cents > 1_000_000 {
            context.send_to_dlq("a person checks orders of this size").await?;
            return Ok(());
        }
        if customer == "dan" || attempt < 3 {
            return Err(GatewayTimeout.into());
        }
        println!("charged {} cents to {customer} on attempt {attempt}", order.cents);
        self.charged.send(customer)?;
        Ok(())
    }

    #[on_error(GatewayTimeout)]
    fn timed_out(&self, error: &GatewayTimeout, context: Context) {
        println!("attempt {} of {}: {error}", context.attempt(), context.event_id());
    }
}

/// Handles the orders of a separate database and drops the database afterwards.
async fn run(uri: &str, database: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::with_uri_str(uri).await?;
    let shop = client.database(database);
    let (charged, mut charges) = mpsc::unbounded_channel();
    let orders = OrderHandler { charged }.declare().consumer()?;

    let letters = MongoStoreOptions {
        collection: orders.dead_letter_collection().to_owned(),
        layout: Layout::FlowWarden,
        ..MongoStoreOptions::default()
    };
    let store = Arc::new(MongoStore::with_client(&client, database, letters).await?);
    let mut options = orders.mongo_options(uri).ok_or("a change stream")??;
    options.database = Some(database.to_owned());
    let source = MongoSource::open(options, store.clone())?;
    let mut status = source.status();
    let consumer = orders.builder()?.source(source).store(store.clone()).build()?;
    let (queue, stop) = (consumer.queue().clone(), CancellationToken::new());
    let running = tokio::spawn(consumer.run(stop.clone()));

    // A new stream begins with future changes, so wait until it reads.
    status.wait_for(|status| status.state == StreamState::Reading).await?;
    let placed = shop.collection::<bson::Document>("orders");
    for (customer, cents) in [("ada", 1250), ("bob", -1), ("cleo", 9_000_000), ("dan", 700)] {
        placed.insert_one(doc! { "_id": customer, "customer": customer, "cents": cents }).await?;
    }
    let handled = charges.recv().await;
    let dead = loop {
        let dead = store.counts(&queue).await?.of(LetterState::Dead);
        if dead == 3 || running.is_finished() {
            break dead;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    stop.cancel();
    running.await??;

    let letter = shop.collection::<bson::Document>("orders_dlq");
    let letter = letter.find_one(doc! { "error.type": { "$regex": "GatewayTimeout" } }).await?;
    let letter = letter.ok_or("Dan's order is a dead letter")?;
    println!(
        "dead letter: {} after {} attempts",
        letter.get_document("error")?,
        letter.get("attempts").unwrap_or(&bson::Bson::Null)
    );
    shop.drop().await?;
    match (handled.as_deref(), dead) {
        (Some("ada"), 3) => Ok(()),
        other => Err(format!("the outcome is not the expected one: {other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://127.0.0.1:27017".to_owned());
    run(&uri, &format!("lazaret_example_{}", std::process::id())).await
}

#[cfg(test)]
mod tests {
    #[tokio::test(flavor = "multi_thread")]
    async fn the_outcome_is_the_expected_one() {
        const VARIABLE: &str = "LAZARET_TEST_MONGODB";
        let Ok(uri) = std::env::var(VARIABLE) else {
            assert!(std::env::var("CI").is_err(), "{VARIABLE} is not set");
            println!("not run: {VARIABLE} is not set");
            return;
        };
        let database = format!("lazaret_example_test_{}", std::process::id());
        super::run(&uri, &database).await.expect("the example checks itself");
    }
}
