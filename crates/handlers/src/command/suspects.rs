//! The messages whose last attempt crashed a worker.

use std::collections::{HashSet, VecDeque};

use lazaret_core::MessageId;

/// The maximum number of suspects (I7). A suspect beyond it is forgotten and recorded again when it
/// crashes another worker.
const LIMIT: usize = 4096;

/// A bounded set of messages. The oldest message is forgotten first.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    ids: HashSet<MessageId>,
    /// The messages in the order of their insertion, oldest first.
    order: VecDeque<MessageId>,
}

impl Suspects {
    pub(super) fn contains(&self, id: &MessageId) -> bool {
        self.ids.contains(id)
    }

    pub(super) fn insert(&mut self, id: MessageId) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_suspect_is_forgotten_first() {
        // I7
        let mut suspects = Suspects::default();
        let id = |number: usize| MessageId::from(number.to_string());
        (0..=LIMIT).for_each(|number| suspects.insert(id(number)));
        suspects.insert(id(LIMIT));
        assert_eq!((suspects.ids.len(), suspects.order.len()), (LIMIT, LIMIT));
        assert!(!suspects.contains(&id(0)) && suspects.contains(&id(1)) && suspects.contains(&id(LIMIT)));
        suspects.clear();
        assert!(!suspects.contains(&id(LIMIT)));
    }
}
