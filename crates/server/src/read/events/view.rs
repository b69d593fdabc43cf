//! The events that a caller sees: those about its consumers.

use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::PlanId;

use crate::app::App;
use crate::auth::Caller;
use crate::read::plan_contents::may_see_plan;

/// Decides which events a caller sees.
pub(super) struct EventView {
    pub(super) app: App,
    pub(super) caller: Caller,
}

impl EventView {
    /// Returns `true` if the caller sees this event. To a limited caller, one that is about neither a consumer nor an operation is hidden.
    pub(super) async fn shows(&self, event: &Event) -> bool {
        if self.caller.identity.consumers.is_empty() || event.kind == EventKind::Reset {
            return true;
        }
        match (&event.operation, &event.consumer) {
            (Some(operation), _) => self.shows_operation(operation).await,
            (None, Some(consumer)) => self.caller.may_use(consumer),
            (None, None) => false,
        }
    }

    /// Returns `true` if the caller sees an operation in the list, too. One whose letters cannot be read now is hidden; its next event is
    /// looked at again.
    async fn shows_operation(&self, operation: &Operation) -> bool {
        let Ok(plan) = operation.plan.parse::<PlanId>() else { return false };
        let made_by = &operation.by.who;
        may_see_plan(&self.app, &self.caller, plan, operation.letters, made_by).await.unwrap_or(false)
    }
}
