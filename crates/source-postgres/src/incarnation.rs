//! Records the incarnations of an outbox, so that no row id is mistaken for the same id of an earlier row.

use std::sync::Arc;

use lazaret_core::StreamName;
use lazaret_core::incarnation::IncarnationRegistry;

use crate::error::OutboxError;

/// Records the incarnation with this identity, and returns its number. `before` is the number that the
/// position belongs to. `begins` says whether the ids have since begun to refer to other rows.
///
/// A number that differs from the position's is not used. The registry may belong to a different store,
/// or be an older state of it, and may know letters of another incarnation under that number.
pub(crate) async fn record(
    registry: &dyn IncarnationRegistry,
    stream: &StreamName,
    identity: &str,
    before: u32,
    begins: bool,
) -> Result<u32, OutboxError> {
    let id: Option<Arc<str>> = Some(identity.into());
    let current = registry.current_or_first(stream, id.as_ref()).await?;
    let current = current.ok_or_else(|| not_recorded(stream))?;
    if !begins && current.number == before {
        return Ok(before);
    }
    let begun = registry.begin_after(current.number, stream, id.as_ref()).await?;
    Ok(begun.ok_or_else(|| not_recorded(stream))?.number)
}

fn not_recorded(stream: &StreamName) -> OutboxError {
    OutboxError::passing(format!("no incarnation of the outbox {stream} could be recorded"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use lazaret_core::Timestamp;
    use lazaret_core::incarnation::{Beginning, Incarnations};
    use lazaret_core::store::Result as StoreResult;

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

    #[tokio::test]
    async fn every_beginning_has_a_number_of_its_own() {
        // I1
        let registry = Registry::default();
        let stream = StreamName::from("outbox");
        let record = |identity, before, begins| record(&registry, &stream, identity, before, begins);
        assert_eq!(record("a", 0, false).await.unwrap(), 0);
        assert_eq!(record("a", 0, false).await.unwrap(), 0);
        assert_eq!(record("b", 0, true).await.unwrap(), 1);
        assert_eq!(record("b", 1, false).await.unwrap(), 1);
        // The process crashed before the position was written.
        assert_eq!(record("c", 1, true).await.unwrap(), 2);
        assert_eq!(record("c", 1, true).await.unwrap(), 3);
        // The position comes from an older state of the store.
        assert_eq!(record("c", 2, false).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn what_was_stored_before_the_first_record_belongs_to_the_first_incarnation() {
        // I1: the letters were written by earlier versions.
        let registry = Registry::default();
        assert_eq!(record(&registry, &"outbox".into(), "a", 0, true).await.unwrap(), 1);
    }
}
