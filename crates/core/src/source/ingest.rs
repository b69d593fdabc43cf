//! Sources that messages can be posted to.

use async_trait::async_trait;

use super::new_message::{NewMessage, Posted};
use crate::store::Result;

/// How much waits to be consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many messages are not consumed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The side of an inbox where messages are posted. A store that can keep an inbox has one per consumer.
#[async_trait]
pub trait Ingest: Send + Sync + 'static {
    /// Takes messages, in order. Those that were taken are durable when this returns.
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>>;

    /// How much waits to be consumed. What was delivered and is not committed counts.
    async fn backlog(&self) -> Result<Backlog>;
}
