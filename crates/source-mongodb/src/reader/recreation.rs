//! Detects that the stream is a different one: its collection was recreated, or the history of the
//! server was replaced.

use bson::{Timestamp as ClusterTime, Uuid};

use super::{Exit, Reader};
use crate::error::{ErrorClass, StreamError};
use crate::event::ReadEvent;
use crate::incarnation::{self, Life};
use crate::position::{MAX_LAG, StreamPosition, next_time, wall_time};

/// The number of consecutive checks with a small lag after which the history counts as replaced. The
/// delays in between are the delays of restarts.
const LOOKS: u32 = 6;

impl Reader {
    /// Returns `true` if an event is the first one of a new incarnation. It is the first change of a
    /// document in a collection with a different UUID, or after an invalidation.
    pub(super) fn begins_incarnation(&mut self, event: &ReadEvent) -> bool {
        if !event.is_of_document() {
            return false;
        }
        let collection = event.collection.filter(|_| self.context.options.collection.is_some());
        match (self.life.collection, collection) {
            (Some(known), Some(now)) if known == now => {
                // The collection was renamed and got its name back.
                self.after_invalidation = false;
                false
            }
            (Some(_), Some(_)) => true,
            _ if self.after_invalidation => true,
            (None, Some(_)) => {
                self.life.collection = collection;
                false
            }
            (_, None) => false,
        }
    }

    /// Ends an incarnation when everything delivered from it is settled, and records the next one. Its
    /// first event is read again.
    pub(super) async fn recreated(&self, collection: Option<Uuid>) -> Exit {
        self.context.writer.until_settled(self.tail.as_ref()).await;
        let collection = collection.filter(|_| self.context.options.collection.is_some());
        match self.continue_in_next(collection).await {
            Ok(()) => Exit::Recreated,
            Err(error) => Exit::Failed(error),
        }
    }

    async fn continue_in_next(&self, collection: Option<Uuid>) -> Result<(), StreamError> {
        let life = self.next_life(collection).await?;
        let written = self.context.writer.continue_in(&life).await;
        self.written(written).await
    }

    /// Records the next incarnation. This comes before its position: a position of the new incarnation
    /// under the old number would be worse than a number without a position.
    pub(super) async fn next_life(&self, collection: Option<Uuid>) -> Result<Life, StreamError> {
        let (registry, stream) = (self.context.registry(), &self.context.options.stream);
        let life = incarnation::begin(registry.as_deref(), stream, &self.life, collection).await?;
        let text = |life: &Life| life.collection.map(|id| id.to_string());
        tracing::warn!(
            %stream,
            incarnation = life.number,
            collection = text(&life),
            before = text(&self.life),
            "new incarnation of the change stream began"
        );
        Ok(life)
    }

    /// Checks that a position is not later than the last operation of the server. Otherwise changes
    /// between the two would be skipped without an error (I1). The position directly after the last
    /// operation is allowed.
    pub(super) fn check_reached(
        &mut self,
        position: &StreamPosition,
        newest: Option<ClusterTime>,
    ) -> Result<(), StreamError> {
        let Some((time, newest)) = position.time().zip(newest) else { return Ok(()) };
        if time <= next_time(newest) {
            let looks = std::mem::take(&mut self.behind);
            if (1..LOOKS).contains(&looks) {
                self.decide(format!(
                    "the last operation of the server was before the position, and has passed it since: if the server was restored, \
                     changes up to {} were not read",
                    wall_time(time)
                ));
            }
            return Ok(());
        }
        let is_far = time.time.saturating_sub(newest.time) > MAX_LAG;
        self.behind = if is_far { LOOKS } else { (self.behind + 1).min(LOOKS) };
        let class = if self.behind < LOOKS { ErrorClass::ServerBehind } else { ErrorClass::HistoryReplaced };
        let (time, newest) = (wall_time(time), wall_time(newest));
        Err(StreamError::new(class, format!("the checkpoint is of {time}, the last operation of {newest}")))
    }
}
