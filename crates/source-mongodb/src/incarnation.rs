//! The incarnations of a stream: determines which collection is read, and whether it is the one that was
//! read before.
//!
//! A collection gets a UUID when it is created, and the resume token of each of its events contains it.
//! A collection that was dropped and recreated is therefore detected by its first event, without the
//! right to list collections. A database has no such id. A new one begins after the invalidation by its
//! drop. The history of a server that was restored or set up again also begins an incarnation, because
//! its cluster times may belong to other events.

use std::sync::Arc;

use bson::Uuid;
use lazaret_core::StreamName;
use lazaret_core::incarnation::{Incarnation, IncarnationRegistry};
use lazaret_core::store::{Checkpoint, Result as StoreResult};

use crate::checkpoint::is_invalidated;
use crate::error::{ErrorClass, StreamError};
use crate::position::{StreamPosition, collection_of_token};

/// The metadata key for the number of the incarnation. Absent in the first incarnation.
const INCARNATION: &str = "incarnation";
/// The metadata key for the UUID of the collection.
const COLLECTION: &str = "collection";

/// The incarnation that a checkpoint belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// The number of the incarnation.
    pub(crate) number: u32,
    /// The UUID of the collection, once an event has contained it. Streams of several collections have none.
    pub(crate) collection: Option<Uuid>,
}

impl Life {
    /// Returns the incarnation of a checkpoint. In checkpoints of earlier versions, only the last
    /// settled event shows the collection. An invalidation does not: it may come from a rename, and
    /// contain the collection that has since got the name.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let text = |name: &str| checkpoint.metadata.get(name);
        let number = text(INCARNATION).and_then(|number| number.parse().ok()).unwrap_or(0);
        let collection = match text(COLLECTION) {
            Some(id) => Uuid::parse_str(id).ok(),
            None if is_invalidated(checkpoint) => None,
            None => checkpoint.processed.as_ref().and_then(|anchor| collection_of(&anchor.token)),
        };
        Self { number, collection }
    }

    /// Writes the incarnation into a checkpoint.
    pub(crate) fn put(&self, checkpoint: &mut Checkpoint) {
        let number = Some(self.number).filter(|number| *number > 0);
        let fields = [
            (INCARNATION, number.map(|number| number.to_string())),
            (COLLECTION, self.collection.map(|id| id.to_string())),
        ];
        for (name, value) in fields {
            match value {
                Some(value) => checkpoint.metadata.insert(name.to_owned(), value),
                None => checkpoint.metadata.remove(name),
            };
        }
    }
}

/// Returns the collection of the event with this token.
fn collection_of(token: &[u8]) -> Option<Uuid> {
    match StreamPosition::from_bytes(token).ok()? {
        StreamPosition::After(token) => token.get_str("_data").ok().and_then(collection_of_token),
        StreamPosition::At(_) => None,
    }
}

/// An incarnation to continue in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continued {
    /// The number of the incarnation.
    pub(crate) number: u32,
    /// Whether it was recorded just now.
    pub(crate) begun: bool,
}

/// Returns the incarnation in which a stream continues after its checkpoint, and records it unless it is
/// known.
///
/// A number that the registry does not have is not used. The registry may belong to a different store,
/// or be an older state of it, and may know letters of another incarnation under that number.
pub(crate) async fn resume(
    registry: Option<&dyn IncarnationRegistry>,
    stream: &StreamName,
    life: &Life,
) -> Result<Continued, StreamError> {
    let Some(registry) = registry else { return Ok(Continued { number: life.number, begun: false }) };
    let current = current(registry, stream, life).await?;
    let id = text_of(life.collection);
    // A later incarnation was recorded, and the process ended before its position was written. Its first
    // event is delivered again.
    let is_announced =
        current.number > life.number && current.id.is_some() && current.id.as_deref() != id.as_deref();
    if current.number == life.number || is_announced {
        return Ok(Continued { number: life.number, begun: false });
    }
    let number = record(registry, stream, life.collection, &current).await?;
    Ok(Continued { number, begun: true })
}

/// Records that an incarnation begins after this one, and returns it.
pub(crate) async fn begin(
    registry: Option<&dyn IncarnationRegistry>,
    stream: &StreamName,
    life: &Life,
    collection: Option<Uuid>,
) -> Result<Life, StreamError> {
    let Some(registry) = registry else { return Ok(Life { number: life.number + 1, collection }) };
    let current = current(registry, stream, life).await?;
    let id = text_of(collection);
    // It was recorded before a crash.
    let is_known = current.number > life.number && id.is_some() && current.id.as_deref() == id.as_deref();
    let number = match is_known {
        true => current.number,
        false => record(registry, stream, collection, &current).await?,
    };
    Ok(Life { number, collection })
}

/// Returns the current incarnation of the registry. Records the first one.
async fn current(
    registry: &dyn IncarnationRegistry,
    stream: &StreamName,
    life: &Life,
) -> Result<Incarnation, StreamError> {
    let current = registry.current_or_first(stream, text_of(life.collection).as_ref()).await;
    recorded(current)
}

/// Records the incarnation after the current one, and returns its number.
async fn record(
    registry: &dyn IncarnationRegistry,
    stream: &StreamName,
    collection: Option<Uuid>,
    current: &Incarnation,
) -> Result<u32, StreamError> {
    let begun = registry.begin_after(current.number, stream, text_of(collection).as_ref()).await;
    Ok(recorded(begun)?.number)
}

fn recorded(found: StoreResult<Option<Incarnation>>) -> Result<Incarnation, StreamError> {
    let found = found.map_err(|error| StreamError::of_store(NOT_RECORDED, &error))?;
    found.ok_or_else(|| StreamError::new(ErrorClass::Unknown, NOT_RECORDED))
}

const NOT_RECORDED: &str = "the incarnation of the stream was not recorded";

fn text_of(collection: Option<Uuid>) -> Option<Arc<str>> {
    collection.map(|id| id.to_string().into())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use lazaret_core::Timestamp;
    use lazaret_core::incarnation::{Beginning, Incarnations};
    use lazaret_core::store::Anchor;

    use super::*;

    #[derive(Default)]
    struct Registry(Mutex<Incarnations>);

    #[async_trait]
    impl IncarnationRegistry for Registry {
        async fn incarnations(&self) -> StoreResult<Incarnations> {
            Ok(self.0.lock().unwrap().clone())
        }

        async fn begin(&self, beginning: &Beginning) -> StoreResult<Incarnations> {
            let mut known = self.0.lock().unwrap();
            known.begin(beginning, Timestamp::UNIX_EPOCH);
            Ok(known.clone())
        }
    }

    fn collection(number: u8) -> Option<Uuid> {
        Some(Uuid::from_bytes([number; 16]))
    }

    fn life(number: u32, id: u8) -> Life {
        Life { number, collection: collection(id) }
    }

    async fn resumed(registry: &Registry, life: Life) -> (u32, bool) {
        let Continued { number, begun } = resume(Some(registry), &"orders".into(), &life).await.unwrap();
        (number, begun)
    }

    async fn begun(registry: &Registry, before: Life, id: Option<Uuid>) -> u32 {
        begin(Some(registry), &"orders".into(), &before, id).await.unwrap().number
    }

    #[tokio::test]
    async fn every_collection_of_a_stream_has_a_number_of_its_own() {
        // I1
        let registry = Registry::default();
        assert_eq!(resumed(&registry, Life::default()).await, (0, false));
        assert_eq!(begun(&registry, life(0, 1), collection(2)).await, 1);
        assert_eq!(resumed(&registry, life(1, 2)).await, (1, false));
        assert_eq!(begun(&registry, life(1, 2), collection(1)).await, 2, "the first one was renamed back");
        let known = registry.incarnations().await.unwrap();
        let current = &known.0[&StreamName::from("orders")].stream;
        assert_eq!(current.id.as_deref(), Some("01010101-0101-0101-0101-010101010101"));
    }

    #[tokio::test]
    async fn a_crash_between_the_record_and_the_position_begins_nothing_twice() {
        let registry = Registry::default();
        resumed(&registry, life(0, 1)).await;
        assert_eq!(begun(&registry, life(0, 1), collection(2)).await, 1);
        // The position still belongs to the first incarnation, whose events may be delivered again.
        assert_eq!(resumed(&registry, life(0, 1)).await, (0, false));
        assert_eq!(begun(&registry, life(0, 1), collection(2)).await, 1);
    }

    #[tokio::test]
    async fn without_ids_each_beginning_is_another_one() {
        // I1: this is a database, or a server that was restored with the same collections.
        let registry = Registry::default();
        resumed(&registry, Life::default()).await;
        assert_eq!(begun(&registry, Life::default(), None).await, 1);
        assert_eq!(begun(&registry, Life::default(), None).await, 2);
        assert_eq!(resumed(&registry, Life::default()).await, (3, true), "which one began is not known");
    }

    #[tokio::test]
    async fn a_number_that_the_store_of_the_letters_does_not_have_is_not_used() {
        let registry = Registry::default();
        assert_eq!(resumed(&registry, life(4, 1)).await, (1, true));
        assert_eq!(resumed(&registry, life(1, 1)).await, (1, false));
    }

    #[tokio::test]
    async fn without_a_registry_the_checkpoint_counts() {
        let stream = StreamName::from("orders");
        let resumed = resume(None, &stream, &life(2, 1)).await.unwrap();
        assert_eq!(resumed, Continued { number: 2, begun: false });
        assert_eq!(begin(None, &stream, &life(2, 1), collection(2)).await.unwrap(), life(3, 2));
    }

    #[test]
    fn a_checkpoint_tells_its_incarnation() {
        let mut checkpoint = Checkpoint::default();
        assert_eq!(Life::of(&checkpoint), Life::default());
        life(3, 7).put(&mut checkpoint);
        assert_eq!(Life::of(&checkpoint), life(3, 7));
        Life::default().put(&mut checkpoint);
        assert_eq!(checkpoint, Checkpoint::default(), "the first one is not written");
    }

    #[test]
    fn a_checkpoint_of_an_earlier_version_tells_its_collection_by_the_last_event() {
        let id = "07".repeat(16);
        let data = format!("8267C867A2000000192B042C0100296E5A1004{id}463C6F7004");
        let token = format!(r#"{{"_data":"{data}"}}"#).into();
        let processed = Some(Anchor { token, at: Timestamp::UNIX_EPOCH });
        let mut checkpoint = Checkpoint { processed, ..Checkpoint::default() };
        assert_eq!(Life::of(&checkpoint), life(0, 7));
        checkpoint.metadata.insert("invalidated".into(), "true".into());
        assert_eq!(Life::of(&checkpoint), Life::default());
    }
}
