//! Versioned key-value pairs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::store::{Expect, ExpiryTime, KeyValue, Reading, Result, Versioned, Written};

use super::MemoryStore;

type Name = (String, String);

#[derive(Default)]
pub(super) struct Values {
    entries: BTreeMap<Name, Versioned>,
    /// The values by expiry, so that expired ones are removed and memory stays bounded (I7).
    ends: BTreeSet<(Timestamp, Name)>,
}

impl Values {
    fn prune(&mut self, time: ExpiryTime) {
        while self.ends.first().is_some_and(|(end, _)| time.has_passed(*end)) {
            if let Some((_, name)) = self.ends.pop_first() {
                self.entries.remove(&name);
            }
        }
    }

    fn read(&self, name: &Name, now: Timestamp) -> Reading {
        Reading { found: self.entries.get(name).cloned(), now }
    }

    fn write(&mut self, name: Name, expect: Expect, value: Option<Bytes>, end: Option<Timestamp>) -> bool {
        let version = self.entries.get(&name).map(|entry| entry.version);
        let holds = match expect {
            Expect::Anything => true,
            Expect::Absent => version.is_none(),
            Expect::Version(expected) => version == Some(expected),
        };
        if holds {
            if let Some(Versioned { expires_at: Some(end), .. }) = self.entries.remove(&name) {
                self.ends.remove(&(end, name.clone()));
            }
            if let Some(value) = value {
                let version = version.unwrap_or_default() + 1;
                self.ends.extend(end.map(|end| (end, name.clone())));
                self.entries.insert(name, Versioned { value, version, expires_at: end });
            }
        }
        holds
    }
}

impl MemoryStore {
    /// The value as it is stored, expired or not.
    fn stored_value(&self, name: &Name) -> Reading {
        let (state, now) = self.begin();
        state.values.read(name, now)
    }
}

#[async_trait]
impl KeyValue for MemoryStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        let reading = self.stored_value(&(space.to_owned(), name.to_owned()));
        self.shared.expiry.unexpired(self, space, reading).await
    }

    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written> {
        let time = self.shared.expiry.time(self, space).await?;
        let name = (space.to_owned(), name.to_owned());
        let (mut state, now) = self.begin();
        state.values.prune(time);
        let written = state.values.write(name.clone(), expect, value, ttl.map(|ttl| time.end_of(ttl)));
        // A ttl of zero has expired by now.
        state.values.prune(time);
        Ok(if written { Written::Done } else { Written::Conflict(state.values.read(&name, now)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_values_use_no_memory() {
        // I7
        let mut values = Values::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let name = |n: i64| ("dedupe".to_owned(), n.to_string());
        for n in 0..100 {
            assert!(values.write(name(n), Expect::Absent, Some(Bytes::new()), Some(at(n))));
        }
        assert!(values.write(name(99), Expect::Anything, Some(Bytes::new()), Some(at(200))));
        values.prune(ExpiryTime { earliest: at(150), latest: at(150) });
        assert_eq!((values.entries.len(), values.ends.len()), (1, 1));
    }
}
