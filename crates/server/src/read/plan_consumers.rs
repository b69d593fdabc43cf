//! The consumers of the letters of a plan.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{Actor, PlanId};

use crate::api_error::Result;
use crate::app::App;
use crate::auth::Caller;

/// The number of plan items per store call.
const STEP: usize = 1000;
/// The most plans whose consumers are kept.
const MAX_KEPT: usize = 10_000;

/// The consumers of plans that were asked for. The letters of a plan never change, so they are read once.
#[derive(Default)]
pub(crate) struct PlanConsumers {
    kept: Mutex<HashMap<PlanId, Arc<BTreeSet<String>>>>,
}

impl PlanConsumers {
    fn kept(&self) -> MutexGuard<'_, HashMap<PlanId, Arc<BTreeSet<String>>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, plan: PlanId) -> Option<Arc<BTreeSet<String>>> {
        self.kept().get(&plan).cloned()
    }

    fn keep(&self, plan: PlanId, consumers: &Arc<BTreeSet<String>>) {
        let mut kept = self.kept();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(plan, consumers.clone());
    }
}

/// The consumers of a plan's letters; none if it has no letters or does not exist.
pub(super) async fn consumers(app: &App, plan: PlanId) -> Result<Arc<BTreeSet<String>>> {
    if let Some(known) = app.plan_consumers.get(plan) {
        return Ok(known);
    }
    let found = Arc::new(read(app, plan).await?);
    // A plan that does not exist yet may exist later.
    if !found.is_empty() {
        app.plan_consumers.keep(plan, &found);
    }
    Ok(found)
}

async fn read(app: &App, plan: PlanId) -> Result<BTreeSet<String>> {
    let (mut found, mut from) = (BTreeSet::new(), 0);
    loop {
        let items = app.store.plan_items(plan, from, STEP).await?;
        for item in &items {
            if !found.contains(item.queue.consumer()) {
                found.insert(item.queue.consumer().to_owned());
            }
        }
        match items.last() {
            Some(last) if items.len() == STEP => from = last.ordinal + 1,
            _ => return Ok(found),
        }
    }
}

/// Returns `true` if the caller may use all consumers of a plan's letters. A plan without letters has none that a limited caller
/// could use.
pub(super) async fn may_use_plan(app: &App, caller: &Caller, plan: PlanId) -> Result<bool> {
    if caller.identity.consumers.is_empty() {
        return Ok(true);
    }
    let consumers = consumers(app, plan).await?;
    Ok(!consumers.is_empty() && consumers.iter().all(|consumer| caller.may_use(consumer)))
}

/// Returns `true` if the caller may see a plan, or its operation, of so many letters that this person made. Those who make one without
/// letters see that it has none.
pub(super) async fn may_see_plan(
    app: &App,
    caller: &Caller,
    plan: PlanId,
    letters: u64,
    by: &Actor,
) -> Result<bool> {
    if letters == 0 && by.who == caller.identity.person {
        return Ok(true);
    }
    may_use_plan(app, caller, plan).await
}
