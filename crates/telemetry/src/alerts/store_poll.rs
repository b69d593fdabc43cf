//! Polls the store for groups and operations beside the service loop, so that an unresponsive store delays no alert.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lazaret_core::LetterState;
use lazaret_core::store::{AuditHead, Counts, Group, GroupId, Operation, Store};

use super::event_buffer::EventBuffer;
use super::notice::Subject;

/// The maximum number of operations per poll.
const OPERATIONS: usize = 1000;

/// A poll in progress. It only reads, so it may be dropped at any time.
pub(super) type StorePoll = Pin<Box<dyn Future<Output = PollResult> + Send>>;

/// The result of a poll.
#[derive(Default)]
pub(super) struct PollResult {
    /// Groups without letters that need manual action.
    pub(super) ended: Vec<(Subject, GroupId)>,
    /// Operations that are not over; `None` when the store failed.
    pub(super) operations: Option<Vec<Operation>>,
    /// The last entry of the audit; `None` without a hash chain, or when the store failed.
    pub(super) audit_head: Option<AuditHead>,
}

/// Reads these groups and the operations in progress.
pub(super) fn poll(
    store: Arc<dyn Store>,
    buffer: Arc<EventBuffer>,
    groups: Vec<(Subject, GroupId)>,
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
        result.operations = store.under_way(OPERATIONS).await.ok();
        result.audit_head = store.audit_head(None).await.ok().flatten();
        result
    })
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
