//! The duplicate filter (idempotent receiver), stored as [key-value pairs](super::KeyValue).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::error::Result;
use super::key_value::{Expect, KeyValue, Written};
use crate::message::{MessageId, QueueName};

/// The result of a claim of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeClaim {
    /// Claimed: no other owner can claim the message until the claim ends.
    Claimed,
    /// Another owner is handling it; the outcome is not known yet.
    InFlight,
    /// It was handled within the window.
    Done,
}

/// Records, per queue, which messages were handled. Callers report `done` after the effect, never before it: the claim of a
/// crashed owner expires, and the message is handled again.
///
/// Claims and marks last for the time that they were given for, whatever clocks are set to meanwhile
/// ([`ExpiryClock`](super::ExpiryClock)).
#[async_trait]
pub trait Dedupe: Send + Sync + 'static {
    /// Claims a message for `lease`. An owner can renew its own claim.
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim>;

    /// Records a claimed message as handled, for `window`. Takes effect even if the claim has expired, because the
    /// handler's effect has happened.
    async fn done(&self, queue: &QueueName, id: &MessageId, owner: &str, window: Duration) -> Result<()>;

    /// Releases a claim without an effect.
    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()>;
}

const SPACE: &str = "dedupe";

/// The value of a handled message. The value of a message in flight is its owner with a prefix.
const DONE: &[u8] = b"";

/// The key of a message. The length prefix keeps ("ab", "c") and ("a", "bc") apart.
pub fn dedupe_key(queue: &QueueName, id: &MessageId) -> String {
    format!("{}:{queue}{id}", queue.as_str().len())
}

/// The value of a message in flight, claimed by this owner.
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
        // A concurrent claim of another owner stays.
        match self.read(SPACE, &name).await?.found {
            Some(found) if found.value == mine => {
                self.write(SPACE, &name, Expect::Version(found.version), None, None).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}
