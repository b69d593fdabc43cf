//! Limits on drafts: plans that were frozen and not started (I7).

use super::error::{ErrorKind, Result, StoreError};
use super::operations::{Operations, Plan, PlanRequest, Selection};
use super::triage::Triage;
use crate::person::is_same_person;

const FREEZE: &str = "freeze";

/// How many drafts there may be. A plan that has an operation or has expired is no draft, and does not count.
///
/// ```
/// use lazaret_core::store::DraftLimits;
/// # use std::time::Duration;
/// # use lazaret_core::query::Query;
/// # use lazaret_core::store::{Action, Actor, Operations, PlanRequest, Result, Selection, Store};
/// async fn freeze(store: &impl Store, by: &Actor) -> Result<()> {
///     let limits = DraftLimits { per_person: 10, ..DraftLimits::default() };
///     limits.check(store, &by.who, &[]).await?;
/// #   let (selection, valid_for) = (Selection::Query(Query::everything()), Duration::from_secs(60));
///     let request = PlanRequest { action: Action::Evict, selection, valid_for, max_letters: 100 };
///     store.freeze(&request, by).await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLimits {
    /// The maximum number of drafts of one person.
    pub per_person: usize,
    /// The maximum number of drafts.
    pub total: usize,
    /// With this number of letters in all drafts, no further plan is frozen.
    pub letters: u64,
}

/// A plan that is being frozen. It counts as a draft from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftUnderWay {
    /// Its author.
    pub by: String,
    /// The most letters that it may have.
    pub letters: u64,
}

impl DraftUnderWay {
    /// The plan of this request.
    pub fn new(by: &str, request: &PlanRequest) -> Self {
        let letters = match &request.selection {
            Selection::Letters(letters) => request.max_letters.min(letters.len() as u64),
            Selection::Query(_) => request.max_letters,
        };
        Self { by: by.to_owned(), letters }
    }
}

impl Default for DraftLimits {
    /// 50 drafts of one person, 200 in all, 2,000,000 letters in them.
    fn default() -> Self {
        Self { per_person: 50, total: 200, letters: 2_000_000 }
    }
}

impl DraftLimits {
    /// Checks whether a person may freeze another plan now, besides those `under_way`. How many letters a plan has is known at its end:
    /// until then it counts with the most that it may have, and with no more than there are open letters.
    ///
    /// # Errors
    /// `Conflict` if a limit is reached; it [names](StoreError::limit) the limit, and says when the first draft expires.
    pub async fn check<S>(&self, store: &S, by: &str, under_way: &[DraftUnderWay]) -> Result<()>
    where
        S: Operations + Triage + ?Sized,
    {
        // With so many drafts the second limit is reached, whatever is behind them.
        let drafts = store.drafts(None, self.total.max(1)).await?;
        let mut open = u64::MAX;
        if !under_way.is_empty() && letters_in(&drafts, under_way, open) >= self.letters {
            // Asked only if it decides: in some stores the answer takes a while.
            open = store.queues().await?.iter().map(|queue| queue.counts.open()).sum();
        }
        self.check_drafts(&drafts, by, under_way, open)
    }

    fn check_drafts(&self, drafts: &[Plan], by: &str, under_way: &[DraftUnderWay], open: u64) -> Result<()> {
        let of_person = || drafts.iter().filter(move |plan| is_same_person(&plan.by.who, by));
        let own = of_person().count() + under_way.iter().filter(|plan| is_same_person(&plan.by, by)).count();
        if own >= self.per_person {
            let what =
                format!("{by} has {own} plans that were not started, the limit is {}", self.per_person);
            return refuse("drafts-per-person", &what, of_person());
        }
        let all = drafts.len() + under_way.len();
        if all >= self.total {
            let what = format!("there are {all} plans that were not started, the limit is {}", self.total);
            return refuse("drafts", &what, drafts);
        }
        let letters = letters_in(drafts, under_way, open);
        if letters >= self.letters {
            let what =
                format!("plans that were not started have {letters} letters, the limit is {}", self.letters);
            return refuse("draft-letters", &what, drafts);
        }
        Ok(())
    }
}

/// The most letters that all these plans have, when there are so many open ones.
fn letters_in(drafts: &[Plan], under_way: &[DraftUnderWay], open: u64) -> u64 {
    let under_way = under_way.iter().map(|plan| plan.letters.min(open));
    drafts.iter().map(|plan| plan.letters).chain(under_way).fold(0, u64::saturating_add)
}

fn refuse<'a>(limit: &'static str, what: &str, drafts: impl IntoIterator<Item = &'a Plan>) -> Result<()> {
    let first = drafts.into_iter().min_by_key(|plan| plan.expires_at);
    let way_out = match first {
        Some(plan) => format!("start one of them, or wait until {} expires at {}", plan.id, plan.expires_at),
        None => "wait until those that are being frozen are complete".to_owned(),
    };
    Err(StoreError::not_done(ErrorKind::Conflict, FREEZE, format!("{what}: {way_out}")).with_limit(limit))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::store::{Action, Actor, PlanId};

    fn draft(id: u64, who: &str, letters: u64) -> Plan {
        let now = Timestamp::UNIX_EPOCH;
        Plan {
            id: PlanId(id),
            action: Action::Evict,
            query: None,
            letters,
            sequences: letters,
            followers: 0,
            excluded: Vec::new(),
            hash: String::new(),
            by: Actor::new(who, "cli", "plan"),
            frozen_at: now,
            expires_at: now + std::time::Duration::from_secs(id),
        }
    }

    #[test]
    fn each_limit_is_named_with_the_way_out() {
        let limits = DraftLimits { per_person: 2, total: 4, letters: 100 };
        let drafts = [draft(3, "ada", 1), draft(2, "Ada ", 1), draft(1, "bob", 1)];
        let refused = |by: &str, drafts: &[Plan], under_way: &[&str]| {
            let under_way = under_way.iter().map(|who| DraftUnderWay { by: (*who).to_owned(), letters: 1 });
            let error = limits.check_drafts(drafts, by, &under_way.collect::<Vec<_>>(), 1000).err()?;
            assert_eq!(error.kind(), ErrorKind::Conflict);
            Some((error.limit().unwrap(), error.context().to_owned()))
        };
        let (limit, context) = refused("ada", &drafts, &[]).unwrap();
        assert_eq!(limit, "drafts-per-person");
        assert_eq!(
            context,
            "ada has 2 plans that were not started, the limit is 2: start one of them, or wait until p_2 expires at \
             1970-01-01T00:00:02Z"
        );
        assert_eq!(refused("bob", &drafts, &[]), None);
        assert_eq!(refused("bob", &drafts, &["BOB"]).unwrap().0, "drafts-per-person");
        let (limit, context) = refused("eve", &drafts, &["bob"]).unwrap();
        assert_eq!(limit, "drafts");
        assert!(context.contains("p_1 expires"), "{context}");
        assert_eq!(refused("eve", &[draft(1, "bob", 99)], &[]), None);
        assert_eq!(refused("eve", &[draft(1, "bob", 100)], &[]).unwrap().0, "draft-letters");
        assert_eq!(refused("eve", &[draft(1, "bob", 99)], &["bob"]).unwrap().0, "draft-letters");
    }

    #[test]
    fn a_plan_that_is_being_frozen_counts_with_the_most_letters_that_it_may_have() {
        let selection = Selection::Letters(Vec::new());
        let valid_for = std::time::Duration::from_secs(60);
        let named = PlanRequest { action: Action::Evict, selection, valid_for, max_letters: 70 };
        assert_eq!(DraftUnderWay::new("ada", &named).letters, 0);
        let selection = Selection::Query(crate::query::Query::everything());
        let large = DraftUnderWay::new("ada", &PlanRequest { selection, ..named });
        assert_eq!(large, DraftUnderWay { by: "ada".into(), letters: 70 });
        let limits = DraftLimits { per_person: 9, total: 9, letters: 100 };
        let under_way = [large.clone(), large];
        let check = |open| limits.check_drafts(&[], "bob", &under_way, open);
        assert_eq!(check(u64::MAX).unwrap_err().limit(), Some("draft-letters"));
        assert_eq!(check(50).unwrap_err().limit(), Some("draft-letters"));
        assert!(check(49).is_ok(), "there are not so many letters");
    }
}
