//! The latest rights of people whom an identity provider or a proxy has signed in. They have no token that could be looked up: what
//! they may do is known when they sign in, and with a proxy at each request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use lazaret_api::Scope;

/// The maximum number of people. Beyond it, the one who was seen least recently is forgotten.
const PEOPLE: usize = 10_000;

/// What the people of this process could do when they were seen last.
#[derive(Default)]
pub(crate) struct LatestRights(Mutex<HashMap<String, Seen>>);

struct Seen {
    at: Timestamp,
    scopes: Vec<Scope>,
}

impl LatestRights {
    /// Records the rights of a person, by the name that the audit has. None for somebody without a role.
    pub(crate) fn record(&self, person: &str, scopes: &[Scope], at: Timestamp) {
        let mut people = self.lock();
        if people.len() >= PEOPLE && !people.contains_key(person) {
            let oldest = people.iter().min_by_key(|(_, seen)| seen.at).map(|(name, _)| name.clone());
            if let Some(name) = oldest {
                people.remove(&name);
            }
        }
        people.insert(person.to_owned(), Seen { at, scopes: scopes.to_vec() });
    }

    /// Returns `true` if a person was seen after this time, and did not have the scope the last time.
    pub(crate) fn lack(&self, person: &str, scope: Scope, since: Timestamp) -> bool {
        let may = |seen: &Seen| seen.scopes.iter().any(|held| *held == scope || *held == Scope::Admin);
        self.lock().get(person).is_some_and(|seen| seen.at > since && !may(seen))
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

    #[test]
    fn only_the_latest_rights_after_a_time_count() {
        let rights = LatestRights::default();
        assert!(!rights.lack("ada", Scope::Evict, at(0)), "nobody has seen ada");
        rights.record("ada", &[Scope::Read], at(5));
        assert!(rights.lack("ada", Scope::Evict, at(4)) && !rights.lack("ada", Scope::Read, at(4)));
        assert!(!rights.lack("ada", Scope::Evict, at(5)), "before");
        assert!(!rights.lack("bob", Scope::Evict, at(4)));
        rights.record("ada", &[Scope::Admin], at(6));
        assert!(!rights.lack("ada", Scope::Evict, at(4)), "the rights are back");
        rights.record("ada", &[], at(7));
        assert!(rights.lack("ada", Scope::Evict, at(4)), "no role");
    }

    #[test]
    fn the_person_seen_least_recently_is_forgotten() {
        let rights = LatestRights::default();
        for second in 0..=10_000 {
            rights.record(&format!("person-{second}"), &[], at(second));
        }
        assert_eq!(rights.lock().len(), PEOPLE);
        assert!(
            !rights.lack("person-0", Scope::Read, at(-1)) && rights.lack("person-1", Scope::Read, at(-1))
        );
    }
}
