//! Records the incarnations of an outbox, so that no id of a row is taken for the same id of an earlier one.

use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::{Partition, StreamName};

use crate::error::OutboxError;

/// Records the incarnation with this identity, and returns its number. `before` is the number that the position belongs to, and `begins`
/// says that the ids stand for other rows since.
///
/// A number that differs from the position's is not used: the registry may be that of another store, or an older state of it, and knows
/// letters of another incarnation by it.
pub(crate) async fn record(
    registry: &dyn IncarnationRegistry,
    stream: &StreamName,
    identity: &str,
    before: u32,
    begins: bool,
) -> Result<u32, OutboxError> {
    let begin =
        |after| Beginning { stream: stream.clone(), partition: None, id: Some(identity.into()), after };
    let current = match number(&registry.incarnations().await?, stream) {
        Some(current) => Some(current),
        None => number(&registry.begin(&begin(None)).await?, stream),
    };
    if !begins && current == Some(before) {
        return Ok(before);
    }
    let begun = number(&registry.begin(&begin(current)).await?, stream);
    begun.filter(|begun| Some(*begun) > current).ok_or_else(|| {
        OutboxError::passing(format!(
            "no incarnation of the outbox {stream} could be recorded after {current:?}"
        ))
    })
}

fn number(known: &Incarnations, stream: &StreamName) -> Option<u32> {
    known.current(&Partition::new(stream.clone(), 0)).map(|current| current.number)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use lazaret_core::Timestamp;
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
        // A crash before the position was written.
        assert_eq!(record("c", 1, true).await.unwrap(), 2);
        assert_eq!(record("c", 1, true).await.unwrap(), 3);
        // The position is that of an older state of the store.
        assert_eq!(record("c", 2, false).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn what_was_stored_before_the_first_record_belongs_to_the_first_incarnation() {
        // I1: letters of earlier versions.
        let registry = Registry::default();
        assert_eq!(record(&registry, &"outbox".into(), "a", 0, true).await.unwrap(), 1);
    }
}
