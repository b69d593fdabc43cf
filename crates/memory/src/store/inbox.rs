//! Which messages were handled, for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::{Inbox, InboxClaim, Result};
use lazaret_core::{MessageId, QueueName};

use super::{MemoryStore, later};

type Key = (QueueName, MessageId);

#[derive(Default)]
pub(super) struct InboxTable {
    entries: BTreeMap<Key, Entry>,
    /// When each entry ends, so that what has ended goes away and memory stays bounded (I7).
    ends: BTreeSet<(Timestamp, Key)>,
}

struct Entry {
    /// Who is handling it; `None` when it was handled.
    owner: Option<String>,
    until: Timestamp,
}

impl InboxTable {
    fn prune(&mut self, now: Timestamp) {
        while self.ends.first().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, key)) = self.ends.pop_first() {
                self.entries.remove(&key);
            }
        }
    }

    fn put(&mut self, key: Key, owner: Option<String>, until: Timestamp) {
        self.remove(&key);
        self.ends.insert((until, key.clone()));
        self.entries.insert(key, Entry { owner, until });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.ends.remove(&(entry.until, key.clone()));
        }
    }
}

#[async_trait]
impl Inbox for MemoryStore {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<InboxClaim> {
        let (mut state, now) = self.begin();
        let inbox = &mut state.inbox;
        inbox.prune(now);
        let key = (queue.clone(), id.clone());
        match inbox.entries.get(&key) {
            Some(Entry { owner: None, .. }) => return Ok(InboxClaim::Done),
            Some(Entry { owner: Some(other), .. }) if other != owner => return Ok(InboxClaim::InFlight),
            _ => {}
        }
        inbox.put(key, Some(owner.to_owned()), later(now, lease));
        Ok(InboxClaim::Claimed)
    }

    /// Whoever says it: the effect has happened, even if the claim was lost in the meantime.
    async fn done(&self, queue: &QueueName, id: &MessageId, _owner: &str, window: Duration) -> Result<()> {
        let (mut state, now) = self.begin();
        state.inbox.put((queue.clone(), id.clone()), None, later(now, window));
        state.inbox.prune(now);
        Ok(())
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()> {
        let (mut state, now) = self.begin();
        let inbox = &mut state.inbox;
        inbox.prune(now);
        let key = (queue.clone(), id.clone());
        if inbox.entries.get(&key).is_some_and(|entry| entry.owner.as_deref() == Some(owner)) {
            inbox.remove(&key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_takes_no_room() {
        // I7
        let mut inbox = InboxTable::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        for n in 0..100 {
            inbox.put(("q".into(), MessageId::from(n.to_string())), None, at(n));
        }
        inbox.put(("q".into(), "99".into()), None, at(200));
        inbox.prune(at(150));
        assert_eq!((inbox.entries.len(), inbox.ends.len()), (1, 1));
    }
}
