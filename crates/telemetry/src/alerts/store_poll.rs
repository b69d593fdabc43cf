//! Polls the store for groups and operations beside the service loop, so that an unresponsive store delays no alert.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lazaret_core::LetterState;
use lazaret_core::store::{Counts, Group, GroupId, Operation, OperationState, PlanId, Result, Store};

use super::event_buffer::EventBuffer;
use super::notice::{AuditAnchor, Subject};
use super::rules::AlertEvent;

/// The maximum number of operations per poll.
const OPERATIONS: usize = 1000;
/// The letters of a plan that are read for their consumers: the size of a page, and the maximum number of pages.
const PLAN_PAGE: usize = 1000;
const PLAN_PAGES: usize = 20;
/// The maximum number of consumers that are told about one operation.
const CONSUMERS: usize = 100;

/// A poll in progress. It only reads, so it may be dropped at any time.
pub(super) type StorePoll = Pin<Box<dyn Future<Output = PollResult> + Send>>;

/// The result of a poll.
#[derive(Default)]
pub(super) struct PollResult {
    /// Groups without letters that need manual action.
    pub(super) ended: Vec<(Subject, GroupId)>,
    /// Operations that are not over, and the consumers of the plans of those that need a decision; `None` when the store failed.
    pub(super) operations: Option<(Vec<Operation>, Plans)>,
    /// The last entry of the audit; `None` without a hash chain, or when the store failed.
    pub(super) audit_head: Option<AuditAnchor>,
}

/// The consumers of plans.
pub(super) type Plans = BTreeMap<PlanId, Vec<String>>;

/// Reads these groups and the operations in progress. `plans` are those that were read before.
pub(super) fn poll(
    store: Arc<dyn Store>,
    buffer: Arc<EventBuffer>,
    groups: Vec<(Subject, GroupId)>,
    plans: Plans,
) -> StorePoll {
    Box::pin(async move {
        let mut result = PollResult::default();
        for (subject, group) in groups {
            // Before the read: a letter that arrives from here on is buffered, whatever the store answers.
            buffer.forget_group(&group);
            let found = store.group(&group).await;
            let open = |found: Option<Group>| found.map_or(0, |group| needs_action(&group.counts));
            match found.map(open) {
                Ok(0) => result.ended.push((subject, group)),
                Ok(_) => buffer.add_group(&group),
                Err(_) => {
                    buffer.add_group(&group);
                    break;
                }
            }
        }
        result.operations = operations(&*store, plans).await.ok();
        result.audit_head = AuditAnchor::last(&*store).await.ok().flatten();
        result
    })
}

/// Reads the operations in progress, and the plans of those that need a decision, each once.
async fn operations(store: &dyn Store, mut known: Plans) -> Result<(Vec<Operation>, Plans)> {
    let operations = store.under_way(OPERATIONS).await?;
    let mut plans = Plans::new();
    for operation in operations.iter().filter(|operation| needed_decision(operation).is_some()) {
        let consumers = match known.remove(&operation.plan) {
            Some(consumers) => consumers,
            None => consumers_of(store, operation.plan).await?,
        };
        plans.insert(operation.plan, consumers);
    }
    Ok((operations, plans))
}

/// The consumers of the letters of a plan, as far as its first pages tell.
async fn consumers_of(store: &dyn Store, plan: PlanId) -> Result<Vec<String>> {
    let (mut consumers, mut from) = (BTreeSet::new(), 0);
    for _ in 0..PLAN_PAGES {
        let items = store.plan_items(plan, from, PLAN_PAGE).await?;
        consumers.extend(items.iter().map(|item| item.queue.consumer().to_owned()));
        match items.last() {
            Some(last) if items.len() == PLAN_PAGE && consumers.len() < CONSUMERS => from = last.ordinal + 1,
            _ => break,
        }
    }
    Ok(consumers.into_iter().take(CONSUMERS).collect())
}

/// Waits for the poll in progress; for ever when there is none.
pub(super) async fn finished(poll: &mut Option<StorePoll>) -> PollResult {
    let Some(running) = poll else { return std::future::pending().await };
    let result = running.await;
    *poll = None;
    result
}

/// Counts the letters that are not retried automatically.
pub(super) fn needs_action(counts: &Counts) -> u64 {
    [LetterState::Dead, LetterState::Parked, LetterState::Quarantined]
        .iter()
        .map(|state| counts.of(*state))
        .sum()
}

/// The event of an operation that a person has to decide on.
pub(super) fn needed_decision(operation: &Operation) -> Option<AlertEvent> {
    match operation.state {
        OperationState::AwaitingApproval => Some(AlertEvent::ApprovalNeeded),
        OperationState::Paused if operation.is_stopped() => Some(AlertEvent::OperationStopped),
        _ => None,
    }
}
