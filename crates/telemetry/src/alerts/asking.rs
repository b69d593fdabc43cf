//! What only the store knows, asked for beside everything else: a store that does not answer must not keep anybody waiting.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lazaret_core::LetterState;
use lazaret_core::store::{Counts, Group, GroupId, Operation, Store};

use super::board::Board;
use super::notice::Subject;

/// How many operations are looked at.
const OPERATIONS: usize = 1000;

/// A question that is under way. It changes nothing in the store: it may be dropped at any time.
pub(super) type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// What the store said.
#[derive(Default)]
pub(super) struct Answers {
    /// The groups without letters that wait for somebody.
    pub(super) ended: Vec<(Subject, GroupId)>,
    /// The operations that are not over; `None` when the store does not tell.
    pub(super) operations: Option<Vec<Operation>>,
}

/// Asks for these groups and for the operations.
pub(super) fn ask(store: Arc<dyn Store>, board: Arc<Board>, groups: Vec<(Subject, GroupId)>) -> Asking {
    Box::pin(async move {
        let mut answers = Answers::default();
        for (subject, group) in groups {
            // Before it is asked for: a letter that comes from here on is written down, whatever the store says.
            board.forget(&group);
            let found = store.group(&group).await;
            let waits = |found: Option<Group>| found.map_or(0, |group| waits_for_somebody(&group.counts));
            match found.map(waits) {
                Ok(0) => answers.ended.push((subject, group)),
                Ok(_) => board.know(&group),
                Err(_) => {
                    board.know(&group);
                    break;
                }
            }
        }
        answers.operations = store.under_way(OPERATIONS).await.ok();
        answers
    })
}

/// Waits for the answers; for ever when nothing was asked.
pub(super) async fn answered(asking: &mut Option<Asking>) -> Answers {
    let Some(question) = asking else { return std::future::pending().await };
    let answers = question.await;
    *asking = None;
    answers
}

/// How many letters will not be tried again by themselves.
pub(super) fn waits_for_somebody(counts: &Counts) -> u64 {
    [LetterState::Dead, LetterState::Parked, LetterState::Quarantined]
        .iter()
        .map(|state| counts.of(*state))
        .sum()
}
