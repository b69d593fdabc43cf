//! Admits new plans, within the limits on drafts.

use std::sync::{Arc, Mutex, PoisonError};

use lazaret_core::store::{DraftLimits, DraftUnderWay, PlanRequest, Result, Store};

/// The plans that are being frozen. A plan takes a while to write, and counts from the start.
#[derive(Default)]
pub(crate) struct Drafts {
    under_way: Arc<Mutex<Vec<DraftUnderWay>>>,
    /// Held from the check to the entry in the list, so that two callers do not take the last place.
    admission: tokio::sync::Mutex<()>,
}

/// The place of a plan that is being frozen. It is free again once this is dropped.
pub(crate) struct Place {
    plan: DraftUnderWay,
    under_way: Arc<Mutex<Vec<DraftUnderWay>>>,
}

impl Drafts {
    /// Takes a place for a plan of this person.
    pub(crate) async fn admit(
        &self,
        store: &(dyn Store + 'static),
        limits: &DraftLimits,
        who: &str,
        request: &PlanRequest,
    ) -> Result<Place> {
        let _admission = self.admission.lock().await;
        let under_way = lock(&self.under_way).clone();
        limits.check(store, who, &under_way).await?;
        let plan = DraftUnderWay::new(who, request);
        lock(&self.under_way).push(plan.clone());
        Ok(Place { plan, under_way: self.under_way.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = lock(&self.under_way);
        if let Some(place) = under_way.iter().position(|plan| *plan == self.plan) {
            under_way.swap_remove(place);
        }
    }
}

fn lock(plans: &Mutex<Vec<DraftUnderWay>>) -> std::sync::MutexGuard<'_, Vec<DraftUnderWay>> {
    plans.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_core::query::Query;
    use lazaret_core::store::{Action, HandOff, LetterStore, Limits, Placement, Selection};
    use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
    use lazaret_memory::MemoryStore;

    use super::*;

    fn request() -> PlanRequest {
        let selection = Selection::Query(Query::everything());
        PlanRequest {
            action: Action::Evict,
            selection,
            valid_for: Duration::from_secs(60),
            max_letters: 1000,
        }
    }

    #[tokio::test]
    async fn a_plan_that_is_being_frozen_takes_a_place() {
        let (store, drafts) = (MemoryStore::default(), Drafts::default());
        let limits = DraftLimits { per_person: 1, ..DraftLimits::default() };
        let place = drafts.admit(&store, &limits, "ada", &request()).await.unwrap();
        let refused = drafts.admit(&store, &limits, "Ada", &request()).await.err().unwrap();
        assert_eq!(refused.limit(), Some("drafts-per-person"));
        let other = drafts.admit(&store, &limits, "bob", &request()).await.unwrap();
        drop(place);
        drafts.admit(&store, &limits, "ada", &request()).await.unwrap();
        drop(other);
    }

    #[tokio::test]
    async fn the_letters_of_a_plan_that_is_being_frozen_count() {
        // I7
        let (store, drafts) = (MemoryStore::default(), Drafts::default());
        let limits = DraftLimits { letters: 1, ..DraftLimits::default() };
        let place = drafts.admit(&store, &limits, "ada", &request()).await.unwrap();
        let empty = drafts.admit(&store, &limits, "bob", &request()).await;
        assert!(empty.is_ok(), "the store has no letters");
        let queue = QueueName::of("orders", "orders");
        let message = Message::new("m", "orders", Position::new(0, 0)).into();
        let letter = Letter::new(queue.clone(), "k".into(), message, Timestamp::UNIX_EPOCH);
        let item = HandOff { letter, placement: Placement::Open, grant: None };
        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
        let refused = drafts.admit(&store, &limits, "bob", &request()).await.err().unwrap();
        assert_eq!(refused.limit(), Some("draft-letters"));
        drop(place);
    }
}
