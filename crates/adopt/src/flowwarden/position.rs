//! Takes over the position at which a FlowWarden stream stopped.

use std::sync::Arc;

use lazaret_core::Timestamp;
use lazaret_core::store::KeyValue;
use lazaret_source_mongodb::bson::{Document, doc};
use lazaret_source_mongodb::driver::Collection;
use lazaret_source_mongodb::{
    ForeignAnchor, ForeignPosition, MongoSource, MongoSourceOptions, TakeOverError, TakeOverOptions,
    TakenOver,
};

use super::read_error;

/// The collection of FlowWarden's positions.
pub const CHECKPOINTS: &str = "_fw_checkpoints";

/// Turns the position of a FlowWarden stream into the checkpoint of a consumer, so that the consumer's
/// stream continues there. FlowWarden must be stopped. Adopt the dead letters first, because events
/// before the position are not delivered again (I1).
///
/// Returns `None` if the collection has no position of this stream. The stream then has no
/// `@Checkpoint`, or a different name. See [`MongoSource::take_over`].
///
/// # Errors
/// When the consumer is running, the server accepts no position, or the server or the store fails.
pub async fn adopt_position(
    consumer: &MongoSourceOptions,
    store: Arc<dyn KeyValue>,
    checkpoints: &Collection<Document>,
    stream: &str,
    how: TakeOverOptions,
) -> Result<Option<TakenOver>, TakeOverError> {
    let found = checkpoints.find_one(doc! { "_id": stream }).await;
    let found = found.map_err(|error| read_error(&checkpoints.namespace().to_string(), error))?;
    let Some(found) = found else { return Ok(None) };
    MongoSource::take_over(consumer, store, &position(&found), how).await.map(Some)
}

/// Reads a document of FlowWarden's positions. Fields that were never set are absent.
fn position(document: &Document) -> ForeignPosition {
    let anchor = |token: &str, time: &str| {
        let token = document.get_document(token).ok().filter(|token| token.contains_key("_data"))?;
        let at = document.get_datetime(time).ok();
        let at = at.and_then(|at| Timestamp::from_millisecond(at.timestamp_millis()).ok());
        Some(ForeignAnchor { token: token.clone(), at: at.unwrap_or_else(Timestamp::now) })
    };
    ForeignPosition {
        processed: anchor("lastProcessedToken", "lastProcessedTimestamp"),
        seen: anchor("lastSeenToken", "lastSeenTimestamp"),
    }
}

#[cfg(test)]
mod tests {
    use lazaret_source_mongodb::bson::{Bson, DateTime};

    use super::*;

    #[test]
    fn both_positions_are_read_and_missing_ones_are_none() {
        let whole = doc! {
            "_id": "order-stream",
            "lastSeenToken": { "_data": "8201" }, "lastSeenTimestamp": DateTime::from_millis(2_000),
            "lastProcessedToken": { "_data": "8200" }, "lastProcessedTimestamp": DateTime::from_millis(1_000),
            "lastHeartbeatTimestamp": DateTime::from_millis(2_000), "metadata": {},
        };
        let read = position(&whole);
        let anchor = |data: &str, millis| {
            let at = Timestamp::from_millisecond(millis).unwrap();
            Some(ForeignAnchor { token: doc! { "_data": data }, at })
        };
        assert_eq!(read, ForeignPosition { processed: anchor("8200", 1_000), seen: anchor("8201", 2_000) });
        let bare =
            doc! { "_id": "order-stream", "lastSeenToken": Bson::Null, "lastHeartbeatTimestamp": Bson::Null };
        assert_eq!(position(&bare), ForeignPosition::default());
    }
}
