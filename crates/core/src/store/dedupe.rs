//! The idempotent receiver: what was handled before is not handled again. Kept as [values by name](super::KeyValue).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::error::Result;
use super::key_value::{Expect, KeyValue, Written};
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

const SPACE: &str = "dedupe";

/// The value of a message that was handled. While it is being handled, the value is who does it, with a mark in front.
const DONE: &[u8] = b"";

/// Under which name a message is remembered. The length in front keeps ("ab", "c") and ("a", "bc") apart.
pub fn dedupe_key(queue: &QueueName, id: &MessageId) -> String {
    format!("{}:{queue}{id}", queue.as_str().len())
}

/// The value for a message that this owner is handling.
pub fn dedupe_claim(owner: &str) -> Bytes {
    format!("={owner}").into_bytes().into()
}

#[async_trait]
impl<K: KeyValue + ?Sized> Dedupe for K {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim> {
        let name = dedupe_key(queue, id);
        let mine = dedupe_claim(owner);
        let mut expect = Expect::Absent;
        loop {
            let written = self.write(SPACE, &name, expect, Some(mine.clone()), Some(lease)).await?;
            let Written::Conflict(reading) = written else { return Ok(DedupeClaim::Claimed) };
            match reading.found {
                Some(found) if found.value == DONE => return Ok(DedupeClaim::Done),
                Some(found) if found.value != mine => return Ok(DedupeClaim::InFlight),
                Some(found) => expect = Expect::Version(found.version),
                None => expect = Expect::Absent,
            }
        }
    }

    async fn done(&self, queue: &QueueName, id: &MessageId, _owner: &str, window: Duration) -> Result<()> {
        let name = dedupe_key(queue, id);
        self.write(SPACE, &name, Expect::Anything, Some(Bytes::from_static(DONE)), Some(window))
            .await
            .map(drop)
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()> {
        let name = dedupe_key(queue, id);
        let mine = dedupe_claim(owner);
        // Whoever came between has written another value, which stays.
        match self.read(SPACE, &name).await?.found {
            Some(found) if found.value == mine => {
                self.write(SPACE, &name, Expect::Version(found.version), None, None).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}
