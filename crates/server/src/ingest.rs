//! Inboxes that the server can post to.

use async_trait::async_trait;
use lazaret_api::InboxBacklog;
use lazaret_core::source::{NewMessage, Posted};
use lazaret_core::store::Result;

/// An inbox that accepts messages.
#[async_trait]
pub trait Ingest: Send + Sync + 'static {
    /// Appends messages, in order. Accepted messages are durable when this returns.
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>>;

    /// The unconsumed messages and their bytes.
    async fn backlog(&self) -> Result<InboxBacklog>;
}

#[cfg(feature = "sqlite")]
#[async_trait]
impl Ingest for lazaret_store_sqlite::InboxLog {
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>> {
        Self::post(self, messages).await
    }

    async fn backlog(&self) -> Result<InboxBacklog> {
        let backlog = Self::backlog(self).await?;
        Ok(InboxBacklog { messages: backlog.messages, bytes: backlog.bytes })
    }
}
