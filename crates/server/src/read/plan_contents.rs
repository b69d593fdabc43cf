//! What the letters of a plan tell about it: their consumers, and how many would run out of order.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{PlanId, Result};

use crate::api_error;
use crate::app::App;
use crate::auth::Caller;

/// The number of plan items per store call.
const STEP: usize = 1000;
/// The most plans whose contents are kept.
const MAX_KEPT: usize = 10_000;

/// What the letters of a plan tell about it.
#[derive(Default)]
pub(crate) struct Contents {
    /// Their consumers.
    pub(crate) consumers: BTreeSet<String>,
    /// How many of them left their sequences when they died.
    pub(super) out_of_order: u64,
}

/// The contents of plans that were asked for. The letters of a plan never change, so they are read once.
#[derive(Default)]
pub(crate) struct PlanContents {
    kept: Mutex<HashMap<PlanId, Arc<Contents>>>,
}

impl PlanContents {
    fn kept(&self) -> MutexGuard<'_, HashMap<PlanId, Arc<Contents>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, plan: PlanId) -> Option<Arc<Contents>> {
        self.kept().get(&plan).cloned()
    }

    fn keep(&self, plan: PlanId, contents: &Arc<Contents>) {
        let mut kept = self.kept();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(plan, contents.clone());
    }
}

/// The contents of a plan; empty if it has no letters or does not exist.
pub(crate) async fn contents(app: &App, plan: PlanId) -> Result<Arc<Contents>> {
    if let Some(known) = app.plan_contents.get(plan) {
        return Ok(known);
    }
    let found = Arc::new(read(app, plan).await?);
    // A plan that does not exist yet may exist later.
    if !found.consumers.is_empty() {
        app.plan_contents.keep(plan, &found);
    }
    Ok(found)
}

async fn read(app: &App, plan: PlanId) -> Result<Contents> {
    let (mut found, mut from) = (Contents::default(), 0);
    loop {
        let items = app.store.plan_items(plan, from, STEP).await?;
        for item in &items {
            if !found.consumers.contains(item.queue.consumer()) {
                found.consumers.insert(item.queue.consumer().to_owned());
            }
            found.out_of_order += u64::from(item.sequence.origin().is_some());
        }
        match items.last() {
            Some(last) if items.len() == STEP => from = last.ordinal + 1,
            _ => return Ok(found),
        }
    }
}

/// Returns `true` if the caller may use all consumers of a plan's letters. A plan without letters has none that a limited caller
/// could use.
pub(super) async fn may_use_plan(app: &App, caller: &Caller, plan: PlanId) -> api_error::Result<bool> {
    if caller.identity.consumers.is_empty() {
        return Ok(true);
    }
    let contents = contents(app, plan).await?;
    Ok(!contents.consumers.is_empty() && contents.consumers.iter().all(|consumer| caller.may_use(consumer)))
}

/// Returns `true` if the caller may see a plan, or its operation, of so many letters that this person made. Those who make one without
/// letters see that it has none.
pub(super) async fn may_see_plan(
    app: &App,
    caller: &Caller,
    plan: PlanId,
    letters: u64,
    made_by: &str,
) -> api_error::Result<bool> {
    if letters == 0 && made_by == caller.identity.person {
        return Ok(true);
    }
    may_use_plan(app, caller, plan).await
}
