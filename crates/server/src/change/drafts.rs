//! Admits new plans, within the limits on drafts.

use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::store::{DraftLimits, Result, Store};

/// The plans that are being frozen. A plan takes a while to write, and counts from the start.
#[derive(Default)]
pub(crate) struct Drafts {
    /// Their authors.
    under_way: Arc<Mutex<Vec<String>>>,
    /// Held from the check to the entry in the list, so that two callers do not take the last place.
    admission: tokio::sync::Mutex<()>,
}

/// The place of a plan that is being frozen. It is free again once this is dropped.
pub(crate) struct Place {
    who: String,
    under_way: Arc<Mutex<Vec<String>>>,
}

impl Drafts {
    /// Takes a place for a plan of this person.
    pub(crate) async fn admit(
        &self,
        store: &(dyn Store + 'static),
        limits: &DraftLimits,
        who: &str,
    ) -> Result<Place> {
        let _admission = self.admission.lock().await;
        let under_way = lock(&self.under_way).clone();
        limits.check(store, who, &under_way).await?;
        lock(&self.under_way).push(who.to_owned());
        Ok(Place { who: who.to_owned(), under_way: self.under_way.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = lock(&self.under_way);
        if let Some(place) = under_way.iter().position(|who| *who == self.who) {
            under_way.swap_remove(place);
        }
    }
}

fn lock(names: &Mutex<Vec<String>>) -> std::sync::MutexGuard<'_, Vec<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lazaret_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_plan_that_is_being_frozen_takes_a_place() {
        let (store, drafts) = (MemoryStore::default(), Drafts::default());
        let limits = DraftLimits { per_person: 1, ..DraftLimits::default() };
        let place = drafts.admit(&store, &limits, "ada").await.unwrap();
        let refused = drafts.admit(&store, &limits, "Ada").await.err().unwrap();
        assert_eq!(refused.limit(), Some("drafts-per-person"));
        let other = drafts.admit(&store, &limits, "bob").await.unwrap();
        drop(place);
        drafts.admit(&store, &limits, "ada").await.unwrap();
        drop(other);
    }
}
