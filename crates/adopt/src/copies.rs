//! Distinguishes copies of a message from other messages with the same id.
//!
//! The writer of a dead letter identifies its message by an id or a position. Both can be wrong: the id may be forged, and the position
//! may belong to a topic that was deleted and recreated. A dead letter is therefore a copy of a stored letter only if id, key and
//! payload are equal. If another message has its id, the dead letter gets a new id, which is derived from its content. So each adoption
//! gives it the same id.

use futures_util::stream::{self, StreamExt};
use lazaret_core::store::{LetterStore, PayloadDigest, StoreError};
use lazaret_core::{Letter, LetterId, Message, MessageId, Timestamp};

use crate::foreign::ForeignLetter;
use crate::target::{Target, WARNINGS};

/// The number of letters that are looked up at once (I7).
const CONCURRENCY: usize = 32;

/// A letter that is adopted unless the queue holds a copy of its message.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) letter: Letter,
    payload_is_rebuilt: bool,
    has_own_id: bool,
    /// The store said that a letter with its id exists.
    is_held: bool,
}

/// What the queue holds of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// A letter with its message.
    Copy,
    /// A letter with its id, and another message.
    Other,
}

impl Candidate {
    pub(crate) fn new(target: &Target, foreign: ForeignLetter, address: String, now: Timestamp) -> Self {
        let payload_is_rebuilt = foreign.payload_is_rebuilt;
        let letter = target.letter(foreign, address, now);
        Self { letter, payload_is_rebuilt, has_own_id: false, is_held: false }
    }

    /// Returns whether its diagnostics hold warnings.
    pub(crate) fn is_damaged(&self) -> bool {
        self.letter.diagnostics.contains_key(WARNINGS)
    }

    pub(crate) fn has_own_id(&self) -> bool {
        self.has_own_id
    }

    /// Notes that the store has a letter with its id.
    pub(crate) fn mark_held(&mut self) {
        self.is_held = true;
    }

    /// Returns whether a letter with its message id holds its message.
    fn is_held_by(&self, held: &Letter) -> bool {
        let is_delivered = held.id == LetterId::of(&held.queue, &held.message.id);
        let is_rebuilt = is_delivered && self.payload_is_rebuilt;
        let is_comparable = !(held.payload_left_out || self.letter.payload_left_out || is_rebuilt);
        // That of a letter that was edited is the one it came with.
        let payload = held.edits.first().map_or(&held.message.payload, |edit| &edit.original);
        held.message.key == self.letter.message.key
            && (!is_comparable || *payload == self.letter.message.payload)
    }

    /// Looks up its message. `is_delivered`: the source delivered a message with this id, and that message has a letter.
    async fn held<S: LetterStore + ?Sized>(
        &self,
        store: &S,
        target: &Target,
        is_delivered: bool,
    ) -> Result<Held, StoreError> {
        let (queue, message) = (&target.queue, &self.letter.message);
        let adopted = store.get(queue, self.letter.id).await?;
        let delivered = match is_delivered {
            true => store.get(queue, LetterId::of(queue, &message.id)).await?,
            false => None,
        };
        // Nothing but the ids of purged letters is left to compare.
        let is_purged = (self.is_held && adopted.is_none()) || (is_delivered && delivered.is_none());
        let mut found = adopted.iter().chain(&delivered);
        if is_purged || found.clone().any(|held| self.has_own_id || self.is_held_by(held)) {
            return Ok(Held::Copy);
        }
        Ok(found.next().map_or(Held::Nothing, |_| Held::Other))
    }

    /// Returns whether the queue holds a copy of it. If its id is that of another message, it has an id of its own then.
    async fn find<S: LetterStore + ?Sized>(
        &mut self,
        store: &S,
        target: &Target,
        is_delivered: bool,
    ) -> Result<bool, StoreError> {
        let mut held = self.held(store, target, is_delivered).await?;
        if held == Held::Other {
            self.letter = target.with_id(self.letter.clone(), own_id(&self.letter.message));
            (self.has_own_id, self.is_held) = (true, false);
            held = self.held(store, target, false).await?;
        }
        Ok(held == Held::Copy)
    }
}

/// Returns, for each candidate, whether the queue holds a copy of it. Those with the id of another message have an id of their own
/// then.
///
/// A letter that was adopted is looked for only if the store said that it is held, or for all candidates if it was not asked.
pub(crate) async fn find<S: LetterStore + ?Sized>(
    store: &S,
    target: &Target,
    candidates: Vec<&mut Candidate>,
    was_asked: bool,
) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
    let ids: Vec<MessageId> =
        candidates.iter().map(|candidate| candidate.letter.message.id.clone()).collect();
    let delivered = store.lookup(&target.queue, &ids).await?;
    let found = candidates.into_iter().zip(delivered).map(|(candidate, delivered)| async move {
        match candidate.is_held || delivered.is_some() || !was_asked {
            true => candidate.find(store, target, delivered.is_some()).await,
            false => Ok(false),
        }
    });
    Ok(stream::iter(found.collect::<Vec<_>>()).buffered(CONCURRENCY).collect().await)
}

/// Returns an id that tells a message from others with its id.
fn own_id(message: &Message) -> MessageId {
    let mut content = Vec::new();
    for part in [&message.key, &message.payload] {
        // The length tells a key from the payload, and nothing from an empty one.
        content.extend(part.as_ref().map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
        content.extend(part.iter().flat_map(|bytes| bytes.iter()));
    }
    let digest = PayloadDigest::of(Some(&content));
    let mut start = [0; 8];
    start.copy_from_slice(&digest.as_bytes()[..8]);
    MessageId::new(format!("{}~{:016x}", message.id, u64::from_be_bytes(start)))
}
