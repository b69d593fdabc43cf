//! Which messages were handled, for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::rules::later;
use lazaret_core::store::{Dedupe, DedupeClaim, Result};
use lazaret_core::{MessageId, QueueName};

use super::MemoryStore;

type Key = (QueueName, MessageId);

#[derive(Default)]
pub(super) struct DedupeTable {
    entries: BTreeMap<Key, Entry>,
    /// When each entry ends, so that what has ended goes away and memory stays bounded (I7).
    ends: BTreeSet<(Timestamp, Key)>,
}

struct Entry {
    /// Who is handling it; `None` when it was handled.
    owner: Option<String>,
    until: Timestamp,
}

impl DedupeTable {
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
impl Dedupe for MemoryStore {
    async fn claim(
        &self,
        queue: &QueueName,
        id: &MessageId,
        owner: &str,
        lease: Duration,
    ) -> Result<DedupeClaim> {
        let (mut state, now) = self.begin();
        let dedupe = &mut state.dedupe;
        dedupe.prune(now);
        let key = (queue.clone(), id.clone());
        match dedupe.entries.get(&key) {
            Some(Entry { owner: None, .. }) => return Ok(DedupeClaim::Done),
            Some(Entry { owner: Some(other), .. }) if other != owner => return Ok(DedupeClaim::InFlight),
            _ => {}
        }
        dedupe.put(key, Some(owner.to_owned()), later(now, lease));
        Ok(DedupeClaim::Claimed)
    }

    /// Whoever says it: the effect has happened, even if the claim was lost in the meantime.
    async fn done(&self, queue: &QueueName, id: &MessageId, _owner: &str, window: Duration) -> Result<()> {
        let (mut state, now) = self.begin();
        state.dedupe.put((queue.clone(), id.clone()), None, later(now, window));
        state.dedupe.prune(now);
        Ok(())
    }

    async fn abandon(&self, queue: &QueueName, id: &MessageId, owner: &str) -> Result<()> {
        let (mut state, now) = self.begin();
        let dedupe = &mut state.dedupe;
        dedupe.prune(now);
        let key = (queue.clone(), id.clone());
        if dedupe.entries.get(&key).is_some_and(|entry| entry.owner.as_deref() == Some(owner)) {
            dedupe.remove(&key);
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
        let mut dedupe = DedupeTable::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        for n in 0..100 {
            dedupe.put(("q".into(), MessageId::from(n.to_string())), None, at(n));
        }
        dedupe.put(("q".into(), "99".into()), None, at(200));
        dedupe.prune(at(150));
        assert_eq!((dedupe.entries.len(), dedupe.ends.len()), (1, 1));
    }
}
