//! Distinguishes copies of a message from different messages with the same id.
//!
//! The writer of a dead letter identifies its message by an id or a position. Both can be wrong: the id
//! may be forged, and the position may belong to a topic that was deleted and recreated. A dead letter
//! is therefore a copy of a stored letter only if id, key and payload are equal. If a different message
//! has the id, the dead letter gets a new id derived from its content. Each adoption therefore gives it
//! the same id.

use futures_util::stream::{self, StreamExt};
use lazaret_core::store::{LetterStore, PayloadDigest, StoreError};
use lazaret_core::{Letter, LetterId, Message, MessageId, Timestamp};

use crate::foreign::ForeignLetter;
use crate::target::{Target, WARNINGS};

/// The number of letters looked up at once (I7).
const CONCURRENCY: usize = 32;

/// A letter that is adopted unless the queue holds a copy of its message.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) letter: Letter,
    payload_is_rebuilt: bool,
    has_own_id: bool,
    /// Whether the store reported a letter with this id.
    is_held: bool,
}

/// The result of looking up a candidate in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    /// A letter with the same message.
    Copy,
    /// A letter with the same id and a different message.
    Other,
}

impl Candidate {
    pub(crate) fn new(target: &Target, foreign: ForeignLetter, address: String, now: Timestamp) -> Self {
        let payload_is_rebuilt = foreign.payload_is_rebuilt;
        let letter = target.letter(foreign, address, now);
        Self { letter, payload_is_rebuilt, has_own_id: false, is_held: false }
    }

    /// Returns `true` if the letter's diagnostics hold warnings.
    pub(crate) fn is_damaged(&self) -> bool {
        self.letter.diagnostics.contains_key(WARNINGS)
    }

    pub(crate) fn has_own_id(&self) -> bool {
        self.has_own_id
    }

    /// Records that the store has a letter with this id.
    pub(crate) fn mark_held(&mut self) {
        self.is_held = true;
    }

    /// Returns `true` if a stored letter with the same message id holds the same message.
    fn is_held_by(&self, held: &Letter) -> bool {
        let is_delivered = held.id == LetterId::of(&held.queue, &held.message.id);
        let is_rebuilt = is_delivered && self.payload_is_rebuilt;
        let is_comparable = !(held.payload_left_out || self.letter.payload_left_out || is_rebuilt);
        // If the letter was edited, its original payload counts.
        let payload = held.edits.first().map_or(&held.message.payload, |edit| &edit.original);
        held.message.key == self.letter.message.key
            && (!is_comparable || *payload == self.letter.message.payload)
    }

    /// Looks up the message. `is_delivered` is set if the source delivered a message with this id, and
    /// that message has a letter.
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
        // Only the ids of purged letters remain for comparison.
        let is_purged = (self.is_held && adopted.is_none()) || (is_delivered && delivered.is_none());
        let mut found = adopted.iter().chain(&delivered);
        if is_purged || found.clone().any(|held| self.has_own_id || self.is_held_by(held)) {
            return Ok(Held::Copy);
        }
        Ok(found.next().map_or(Held::Nothing, |_| Held::Other))
    }

    /// Returns `true` if the queue holds a copy of the message. If its id belongs to a different
    /// message, gives it a new id first.
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

/// Returns, for each candidate, whether the queue holds a copy of its message. Candidates whose id
/// belongs to a different message get a new id.
///
/// Adopted letters are looked up only for candidates that the store reported as held, or for all
/// candidates if the store was not asked.
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

/// Returns an id that distinguishes the message from other messages with its id.
fn own_id(message: &Message) -> MessageId {
    let mut content = Vec::new();
    for part in [&message.key, &message.payload] {
        // The lengths separate key and payload, and distinguish an absent part from an empty one.
        content.extend(part.as_ref().map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
        content.extend(part.iter().flat_map(|bytes| bytes.iter()));
    }
    let digest = PayloadDigest::of(Some(&content));
    let mut start = [0; 8];
    start.copy_from_slice(&digest.as_bytes()[..8]);
    MessageId::new(format!("{}~{:016x}", message.id, u64::from_be_bytes(start)))
}
