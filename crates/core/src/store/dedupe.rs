//! The idempotent receiver: what was handled before is not handled again.

use std::time::Duration;

use async_trait::async_trait;

use super::error::Result;
use crate::message::{MessageId, QueueName};

/// The answer to "may I handle this message?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeClaim {
    /// Yes, and nobody else may until the claim ends.
    Claimed,
    /// Somebody is handling it now; the outcome is not known yet.
    InFlight,
    /// It was handled within the window.
    Done,
}

/// Remembers, per queue, which messages were handled. `done` is said with the effect, never before it: a claim whose
/// owner dies expires, and the message is handled again.
#[async_trait]
pub trait Dedupe: Send + Sync + 'static {
    /// Claims a message for `lease`. One's own claim is claimed again.
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim>;

    /// Says that a claimed message was handled; remembered for `window`. It counts even if the claim has ended meanwhile: the
    /// effect has happened.
    async fn done(&self, queue: &QueueName, id: &MessageId, owner: &str, window: Duration) -> Result<()>;

    /// Gives a claim back without an effect.
    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()>;
}
