//! The content of a checkpoint: the settled part of a stream, in anchors and metadata.

use std::ops::RangeInclusive;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::{Anchor, Checkpoint};

/// The metadata key for the fence of the leader that wrote last.
pub(super) const FENCE: &str = "fence";
/// The metadata key for the offset of the processed anchor.
pub(super) const OFFSET: &str = "offset";
/// The metadata key for the settled ranges beyond the processed anchor.
pub(super) const SETTLED: &str = "settled";
/// The metadata key for the processed anchor after which the seen one was certified.
pub(super) const SEEN_AFTER: &str = "seen-after";
/// The metadata key that marks the processed anchor as an invalidation. The stream then continues only
/// by starting after it.
pub(super) const INVALIDATED: &str = "invalidated";
/// The value of that key once the incarnation after the invalidation has begun.
pub(super) const PASSED: &str = "passed";
/// The maximum number of settled ranges (I7).
const MAX_RANGES: usize = 1024;

/// The settled part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The token of the last settled event. `None` if nothing was settled yet.
    pub(crate) token: Option<Bytes>,
    pub(crate) offset: u64,
    /// The settled ranges beyond it.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
}

impl Progress {
    /// Returns the progress that a checkpoint holds.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let number = |name: &str| checkpoint.metadata.get(name).and_then(|text| text.parse().ok());
        let ranges = checkpoint.metadata.get(SETTLED).and_then(|text| serde_json::from_str(text).ok());
        let ranges: Vec<(u64, u64)> = ranges.unwrap_or_default();
        Self {
            token: checkpoint.processed.as_ref().map(|anchor| anchor.token.clone()),
            offset: number(OFFSET).unwrap_or(0),
            settled: ranges.into_iter().map(|(start, end)| start..=end).collect(),
        }
    }

    pub(super) fn put(&self, checkpoint: &mut Checkpoint) {
        if let Some(token) = &self.token {
            let seconds = i64::try_from(self.offset >> 31).unwrap_or(i64::MAX);
            let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
            checkpoint.processed = Some(Anchor { token: token.clone(), at });
            checkpoint.metadata.insert(OFFSET.into(), self.offset.to_string());
        }
        let ranges: Vec<_> =
            self.settled.iter().take(MAX_RANGES).map(|range| (*range.start(), *range.end())).collect();
        match ranges.is_empty() {
            true => checkpoint.metadata.remove(SETTLED),
            // Pairs of numbers always serialize.
            false => {
                checkpoint.metadata.insert(SETTLED.into(), serde_json::to_string(&ranges).unwrap_or_default())
            }
        };
    }
}

/// Returns `true` if the processed anchor is an invalidation.
pub(crate) fn is_invalidated(checkpoint: &Checkpoint) -> bool {
    checkpoint.metadata.contains_key(INVALIDATED)
}

/// Returns `true` if the processed anchor is an invalidation after which no incarnation has begun yet.
pub(crate) fn is_incarnation_ended(checkpoint: &Checkpoint) -> bool {
    checkpoint.metadata.get(INVALIDATED).is_some_and(|value| value != PASSED)
}

/// Returns `true` if the seen anchor was certified after the processed one, so that nothing lies in between.
pub(crate) fn is_seen_after_processed(checkpoint: &Checkpoint) -> bool {
    match (&checkpoint.processed, checkpoint.metadata.get(SEEN_AFTER)) {
        (Some(processed), Some(after)) => text_of(&processed.token) == *after,
        (None, None) => true,
        _ => false,
    }
}

/// Returns the event time of the anchor from which the stream would resume.
pub(super) fn resumable_at(checkpoint: &Checkpoint) -> Option<Timestamp> {
    let processed = checkpoint.processed.as_ref().map(|anchor| anchor.at);
    let seen = checkpoint.seen.as_ref().map(|anchor| anchor.at);
    match is_seen_after_processed(checkpoint) {
        true => seen.or(processed),
        false => processed.or(seen),
    }
}

pub(super) fn text_of(token: &[u8]) -> String {
    match std::str::from_utf8(token) {
        Ok(text) => text.to_owned(),
        Err(_) => token.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

pub(super) fn fence_of(checkpoint: &Checkpoint) -> u64 {
    checkpoint.metadata.get(FENCE).and_then(|fence| fence.parse().ok()).unwrap_or(0)
}
