//! Checks that positions were committed with the store of this member.

use std::sync::Arc;

use lazaret_core::source::SourceError;

use crate::options::{KafkaOptions, MEMORY_STORE};
use crate::positions::metadata;
use crate::start_position::BrokerOffsets;

/// Checks that the positions of a group were committed with the store of this member. The store holds
/// the letters and what is known of messages. With a different store, messages would run although their
/// predecessors wait in the first one.
#[derive(Clone, Debug)]
pub(crate) struct StoreCheck {
    group: String,
    own: Option<Arc<str>>,
    replaced: Vec<String>,
}

impl StoreCheck {
    pub(crate) fn new(options: &KafkaOptions) -> Self {
        let KafkaOptions { group, store, replaced_stores, .. } = options;
        Self { group: group.clone(), own: store.clone(), replaced: replaced_stores.clone() }
    }

    /// Rejects positions of a different store.
    pub(crate) fn check(&self, found: &[BrokerOffsets]) -> Result<(), SourceError> {
        let Some(own) = &self.own else { return Ok(()) };
        for BrokerOffsets { partition, committed, .. } in found {
            let store = committed.as_ref().and_then(|(_, metadata)| metadata::store_of(metadata));
            let Some(other) = store.filter(|store| !self.accepts(own, store)) else { continue };
            let group = &self.group;
            return Err(SourceError::permanent(format!(
                "the positions of the group {group} in {partition} were committed with another store: {other}, and this one is \
                 {own}; give all members of a group the same store, or, to move the group to this store, stop the other members \
                 and add {other} to `replaced-stores`"
            )));
        }
        Ok(())
    }

    /// Returns the id of this member's store.
    pub(crate) fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    fn accepts(&self, own: &str, store: &str) -> bool {
        // The content of a store in memory is gone, so there is nothing to move.
        store == own || store == MEMORY_STORE || self.replaced.iter().any(|replaced| replaced == store)
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Partition;

    use super::*;

    #[test]
    fn positions_that_were_committed_with_another_store_are_refused() {
        // I2
        let options = |store: &str| KafkaOptions::new("b", "billing", ["orders"]).with_store(store);
        let committed = |metadata: &str| {
            let (partition, metadata) = (Partition::new("orders", 3), metadata.to_owned());
            vec![BrokerOffsets { partition, log: None, committed: Some((5, metadata)), low: 0, high: 9 }]
        };
        let check = |options: &KafkaOptions, metadata: &str| {
            let checked = StoreCheck::new(options).check(&committed(metadata));
            checked.map_err(|error| (error.is_temporary(), error.to_string()))
        };
        for accepted in ["", "lz1.9JHXfwEAAemFAw", "lz2.a1.", "lz2.memory.", "another tool"] {
            assert_eq!(check(&options("a1"), accepted), Ok(()), "{accepted}");
        }
        let (is_temporary, error) = check(&options("a1"), "lz2.b2.").unwrap_err();
        assert!(!is_temporary);
        for word in ["billing", "orders/3", "b2", "a1", "replaced-stores"] {
            assert!(error.contains(word), "{error} does not contain {word}");
        }
        assert_eq!(check(&options("a1").replacing_stores(["c3", "b2"]), "lz2.b2."), Ok(()));
        assert!(check(&options(MEMORY_STORE), "lz2.b2.").is_err());
        let unknown = KafkaOptions::new("b", "billing", ["orders"]);
        assert_eq!(check(&unknown, "lz2.b2."), Ok(()), "a program that names no store is not checked");
    }
}
