//! The latest rights of people whom an identity provider or a proxy has signed in. They have no token that could be looked up: what
//! they may do is known when they sign in, and with a proxy at each request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use lazaret_api::Scope;

/// The maximum number of people. Beyond it, the one who was seen least recently is forgotten.
const PEOPLE: usize = 10_000;

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    scopes: Vec<Scope>,
    /// The consumers that they are limited to; empty for all.
    consumers: Vec<String>,
}

impl Rights {
    /// None at all, of somebody without a role.
    pub(crate) const NONE: Self = Self { scopes: Vec::new(), consumers: Vec::new() };

    pub(crate) fn new(scopes: &[Scope], consumers: &[String]) -> Self {
        Self { scopes: scopes.to_vec(), consumers: consumers.to_vec() }
    }

    /// Returns `true` with this scope or `admin`.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|held| *held == scope || *held == Scope::Admin)
    }

    /// Returns `true` if they are not limited to other consumers.
    pub(crate) fn may_use(&self, consumer: &str) -> bool {
        self.consumers.is_empty() || self.consumers.iter().any(|allowed| allowed == consumer)
    }
}

/// What the people of this process could do when they were seen last.
#[derive(Default)]
pub(crate) struct LatestRights(Mutex<HashMap<String, Seen>>);

struct Seen {
    at: Timestamp,
    rights: Rights,
}

impl LatestRights {
    /// Records the rights of a person, by the name that the audit has.
    pub(crate) fn record(&self, person: &str, rights: Rights, at: Timestamp) {
        let mut people = self.lock();
        if people.len() >= PEOPLE && !people.contains_key(person) {
            let oldest = people.iter().min_by_key(|(_, seen)| seen.at).map(|(name, _)| name.clone());
            if let Some(name) = oldest {
                people.remove(&name);
            }
        }
        people.insert(person.to_owned(), Seen { at, rights });
    }

    /// The rights of a person when they were seen last; `None` if that was not after this time.
    pub(crate) fn after(&self, since: Timestamp, person: &str) -> Option<Rights> {
        self.lock().get(person).filter(|seen| seen.at > since).map(|seen| seen.rights.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn rights(scopes: &[Scope]) -> Rights {
        Rights::new(scopes, &["shop".to_owned()])
    }

    #[test]
    fn only_the_latest_rights_after_a_time_count() {
        let latest = LatestRights::default();
        assert_eq!(latest.after(at(0), "ada"), None, "nobody has seen ada");
        latest.record("ada", rights(&[Scope::Read]), at(5));
        assert_eq!(latest.after(at(4), "ada"), Some(rights(&[Scope::Read])));
        assert_eq!(latest.after(at(5), "ada"), None, "before");
        assert_eq!(latest.after(at(4), "bob"), None);
        latest.record("ada", Rights::NONE, at(6));
        assert_eq!(latest.after(at(4), "ada"), Some(Rights::NONE), "no role");
    }

    #[test]
    fn rights_are_scopes_for_some_consumers() {
        let all = Rights::new(&[Scope::Admin], &[]);
        assert!(all.may(Scope::Evict) && all.may_use("shop") && all.may_use("orders"));
        let some = rights(&[Scope::Evict]);
        assert!(some.may(Scope::Evict) && !some.may(Scope::Triage));
        assert!(some.may_use("shop") && !some.may_use("orders"));
        assert!(!Rights::NONE.may(Scope::Read));
    }

    #[test]
    fn the_person_seen_least_recently_is_forgotten() {
        let latest = LatestRights::default();
        for second in 0..=10_000 {
            latest.record(&format!("person-{second}"), Rights::NONE, at(second));
        }
        assert_eq!(latest.lock().len(), PEOPLE);
        assert_eq!(latest.after(at(-1), "person-0"), None);
        assert_eq!(latest.after(at(-1), "person-1"), Some(Rights::NONE));
    }
}
