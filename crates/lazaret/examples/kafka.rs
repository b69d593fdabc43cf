//! A consumer of a Kafka topic in forty lines. Dead letters are kept in a file; Ctrl-C stops it.
//!
//! ```sh
//! cargo run -p lazaret --features kafka,sqlite --example kafka -- 127.0.0.1:9092 orders
//! ```

use std::sync::Arc;

use lazaret::Options;
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
    let [brokers, topic, rest @ ..] = &arguments[..] else {
        return Err("expected brokers and a topic".into());
    };
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
    let queue = consumer.queue().clone();

    // Ctrl-C completes the attempts in progress and commits the positions.
    let stats = consumer.run_until_ctrl_c().await?;
    let open = store.counts(&queue).await?.open();
    println!("handled {}, kept {}, open letters {open}", stats.handled, stats.handed_off);
    Ok(())
}
