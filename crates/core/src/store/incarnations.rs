//! The incarnations of a consumer's streams, as one [key-value pair](super::KeyValue) per consumer.

use bytes::Bytes;

use super::key_value::{KeyValue, Reading, update};
use super::{ErrorKind, Result, StoreError};
use crate::incarnation::{Beginning, Incarnations};
use crate::message::ConsumerName;

const SPACE: &str = "incarnations";

/// Reads the incarnations of a consumer's streams, for stores that keep them as key-value pairs.
///
/// # Errors
/// When the store cannot be read, or holds something else in their place.
pub async fn read_incarnations<K: KeyValue + ?Sized>(
    store: &K,
    consumer: &ConsumerName,
) -> Result<Incarnations> {
    decode(&store.read(SPACE, consumer.as_str()).await?, "incarnations")
}

/// Records a [beginning](Incarnations::begin), for stores that keep incarnations as key-value pairs.
///
/// # Errors
/// When the store cannot be read or written, or holds something else in their place.
pub async fn begin_incarnation<K: KeyValue + ?Sized>(
    store: &K,
    consumer: &ConsumerName,
    beginning: &Beginning,
) -> Result<Incarnations> {
    const OPERATION: &str = "begin_incarnation";
    update(store, (SPACE, consumer.as_str()), |reading| {
        let mut known = decode(reading, OPERATION)?;
        let value = match known.begin(beginning, reading.now) {
            true => Some(serde_json::to_vec(&known).map(Bytes::from).map_err(|error| {
                StoreError::not_done(ErrorKind::Invalid, OPERATION, "failed to encode the incarnations")
                    .with_source(error)
            })?),
            false => None,
        };
        Ok((known, value))
    })
    .await
}

fn decode(reading: &Reading, operation: &'static str) -> Result<Incarnations> {
    let Some(found) = &reading.found else { return Ok(Incarnations::default()) };
    serde_json::from_slice(&found.value).map_err(|error| {
        StoreError::not_done(ErrorKind::Corrupt, operation, "failed to decode the incarnations")
            .with_source(error)
    })
}
