//! Copies dead letters into a collection in MongoDB, if configured.

use std::time::Duration;

use lazaret_adopt::flowwarden::Copies;
use lazaret_config::{Consumer as ConsumerConfig, CopiesCollection};
use lazaret_core::QueueName;
use lazaret_source_mongodb::describe;
use tokio_util::sync::CancellationToken;

use super::mongodb::{SERVER_TIMEOUT, Server};
use super::store::Stores;

/// The interval of checking whether all letters are copied.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Between two attempts to find the servers of a URI.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Copies dead letters into a collection until `stop`, if configured.
pub(super) async fn run(config: &ConsumerConfig, stores: &Stores, stop: CancellationToken) {
    let (Some(collection), Some(outbox)) = (collection(config), &stores.outbox) else {
        return stop.cancelled().await;
    };
    let own = collection.uri.as_ref().map(lazaret_config::Secret::reveal);
    // The configuration was checked: without a URI of its own, the store is in MongoDB.
    let Some(uri) = own.or(stores.mongodb_uri.as_deref()) else {
        tracing::error!(
            consumer = config.name,
            "dead letters not copied: `collection` needs `collection-uri`"
        );
        return stop.cancelled().await;
    };
    let Some(server) = stop.run_until_cancelled(server(&config.name, uri)).await else { return };
    let database = server.client.database(&server.store_database());
    let copies = Copies::of(queue(config), &database, &collection.name);
    copies.run(&**outbox, stop.cancelled()).await;
}

/// Waits until every dead letter is copied, if configured. Does not return while the server is unavailable.
pub(super) async fn copied(config: &ConsumerConfig, stores: &Stores) {
    let (Some(_), Some(outbox)) = (collection(config), &stores.outbox) else { return };
    while !outbox.ends(&queue(config), 0, 1).await.is_ok_and(|page| page.ends.is_empty()) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Creates a client. Only the names of a `mongodb+srv` URI are looked up here, and that may fail for a while.
async fn server(consumer: &str, uri: &str) -> Server {
    loop {
        match Server::of_store(uri, SERVER_TIMEOUT).await {
            Ok(server) => return server,
            Err(error) => {
                let error = describe(&error);
                tracing::warn!(consumer, error, "server of the copies of dead letters not found, retrying");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

fn collection(config: &ConsumerConfig) -> Option<&CopiesCollection> {
    config.dead_letter.as_ref()?.collection.as_ref()
}

fn queue(config: &ConsumerConfig) -> QueueName {
    QueueName::of(&config.name, &config.name)
}
