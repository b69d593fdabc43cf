//! Outcomes of letters, many in one decision about the document of a plan.

use lazaret_core::store::rules;
use lazaret_core::store::{OperationId, Result};

use crate::documents::left::OutcomeDoc;
use crate::store::MongoStore;
use crate::together::{Line, Work, done_together, same_for_all};
use crate::values::time;

/// Outcomes of many callers, which one worker writes: the document of a plan lets one through at a time.
pub(crate) struct WriteOutcomes;

impl Work for WriteOutcomes {
    type Item = (OperationId, Vec<OutcomeDoc>);
    type Answer = ();
    type Kind = OperationId;
    type Key = ();

    const MOST: usize = 64;
    const WORKERS: usize = 1;

    fn line(store: &MongoStore) -> &Line<Self> {
        &store.lines().outcomes
    }

    fn kind((operation, _): &Self::Item) -> OperationId {
        *operation
    }

    fn key(_: &Self::Item) -> Option<()> {
        None
    }

    async fn run(store: &MongoStore, items: Vec<Self::Item>) -> Vec<Result<()>> {
        let callers = items.len();
        let Some((operation, _)) = items.first() else { return Vec::new() };
        let operation = *operation;
        let outcomes: Vec<OutcomeDoc> = items.into_iter().flat_map(|(_, outcomes)| outcomes).collect();
        same_for_all(store.write_outcomes_of(operation, &outcomes).await, callers)
    }
}

impl MongoStore {
    /// Records the outcomes of letters, and of those behind them, together with those of other callers. A letter that has its outcome
    /// keeps it.
    pub(crate) async fn write_outcomes(&self, mut outcomes: Vec<OutcomeDoc>) -> Result<()> {
        while let Some(operation) = outcomes.first().map(OutcomeDoc::operation) {
            let of_operation = outcomes.extract_if(.., |outcome| outcome.operation() == operation).collect();
            done_together::<WriteOutcomes>(self, (operation, of_operation)).await?;
        }
        Ok(())
    }

    async fn write_outcomes_of(&self, operation: OperationId, outcomes: &[OutcomeDoc]) -> Result<()> {
        let letters: Vec<_> = outcomes.iter().map(|outcome| outcome.letter).collect();
        while let Some(mut view) = self.load_plan(operation).await? {
            let pending = self.pending_letters(view.plan(), &letters).await?;
            let mut last = None;
            for outcome in outcomes {
                // Two callers may carry out one decision.
                let item = pending.get(&outcome.letter).filter(|item| !view.has_outcome(item.ordinal));
                let Some(item) = item else { continue };
                let at = time(outcome.at);
                for (ordinals, of) in rules::item_outcomes(item, outcome.outcome).outcomes {
                    if *ordinals.start() == item.ordinal && *ordinals.end() == item.ordinal {
                        view.write_item(item.ordinal, of, at);
                    } else {
                        self.write_items(&mut view, ordinals, Vec::new(), of, at).await?;
                    }
                }
                view.machine.spend(u64::from(outcome.spend), at);
                view.machine.pace_released(outcome.released(), at);
                last = last.max(Some(at));
            }
            let Some(at) = last else { return Ok(()) };
            self.advance(&mut view, at).await?;
            if self.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }
}
