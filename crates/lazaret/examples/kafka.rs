//! A consumer of a Kafka topic in forty lines. What fails for good is kept in a file; stop it with Ctrl-C.
//!
//! ```sh
//! cargo run -p lazaret --features kafka,sqlite --example kafka -- 127.0.0.1:9092 orders
//! ```

use std::sync::Arc;

use lazaret::kafka::{KafkaOptions, KafkaSource};
use lazaret::prelude::*;
use lazaret::sqlite::SqliteStore;

async fn on_order(Text(order): Text, Attempt(attempt): Attempt) -> Result<(), HandlerError> {
    if order.is_empty() {
        return Err(HandlerError::msg("an empty order").reason(Reason::DOMAIN_INVALID));
    }
    println!("{order} on attempt {attempt}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, rest @ ..] = &arguments[..] else { return Err("give brokers and a topic".into()) };
    let mut kafka = KafkaOptions::new(brokers, "shop", [topic]);
    let until_idle = rest.contains(&"--to-the-end".to_owned());
    if until_idle {
        kafka = kafka.reading_to_end();
    }
    let store = Arc::new(SqliteStore::open("shop.db", Default::default())?);
    let consumer = Consumer::builder("shop")
        .source(KafkaSource::open(kafka)?)
        .store(store.clone())
        .handler(on_order)
        .options(Options { until_idle, ..Options::default() })
        .build()?;

    let drain = CancellationToken::new();
    let stop = drain.clone();
    tokio::spawn(async move {
        // What is being handled is finished, and positions are committed.
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    let stats = consumer.run(drain).await?;
    let open = store.counts(&QueueName::of("shop", "shop")).await?.open();
    println!("handled {}, kept {}, open letters {open}", stats.handled, stats.handed_off);
    Ok(())
}
