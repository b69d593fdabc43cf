//! What settlements under leases of an operation ask about it, and the next letter of a sequence, which it takes with the settlement of the
//! one before it.

use std::collections::{BTreeMap, BTreeSet};

use lazaret_core::Timestamp;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, ItemView, Pace, Pending, SequenceRow};
use lazaret_core::store::{OperationId, Outcome, PayloadDigest, Result};

use super::plans::PlanView;
use crate::documents::letter::Held;
use crate::documents::plan::PlanDoc;
use crate::store::MongoStore;

/// An operation, and those of some letters that have no outcome in it.
pub(crate) struct OperationLetters {
    plan: Option<PlanDoc>,
    pending: BTreeMap<LetterId, Pending>,
    /// Those that an operation that was begun before has still before it.
    in_earlier: BTreeSet<LetterId>,
}

impl OperationLetters {
    /// Whether the operation goes on with the letters behind this one.
    pub(crate) fn continues(&self, letter: LetterId, outcome: Outcome) -> bool {
        let live = self.plan.as_ref().is_some_and(|plan| plan.live);
        let item = self.pending.get(&letter).filter(|_| live);
        item.is_some_and(|item| rules::item_outcomes(item, outcome).continues)
    }

    /// Whether a letter has no outcome in the operation.
    pub(crate) fn is_pending(&self, letter: LetterId) -> bool {
        self.pending.contains_key(&letter)
    }

    /// Whether an operation that was begun before has a letter still before it.
    pub(crate) fn is_in_earlier(&self, letter: LetterId) -> bool {
        self.in_earlier.contains(&letter)
    }

    /// Whether the operation bounds how many letters it runs in a second.
    pub(crate) fn has_rate(&self) -> bool {
        self.plan.as_ref().and_then(PlanDoc::machine).is_some_and(|machine| machine.has_rate())
    }

    /// The pace of letters that the operation lets run automatically. The outcome that is left behind deducts them from its rate.
    pub(crate) fn pace(&self, letters: u64, now: Timestamp) -> Option<Pace> {
        self.plan.as_ref().and_then(PlanDoc::machine)?.pace_released(letters, now)
    }
}

impl MongoStore {
    /// An operation as it stands, and which of these letters have no outcome in it.
    pub(crate) async fn operation_letters(
        &self,
        id: OperationId,
        letters: &[LetterId],
    ) -> Result<OperationLetters> {
        let plan = self.plan_of(id).await?;
        let (own, others): (Vec<_>, Vec<_>) = self
            .pending_items(letters)
            .await?
            .into_iter()
            .partition(|item| plan.as_ref().is_some_and(|plan| plan.id == item.plan));
        let in_earlier = self.in_earlier(&others, id).await?;
        let pending = own.into_iter().map(|item| Ok((item.letter, item.pending()?)));
        Ok(OperationLetters { pending: pending.collect::<Result<_>>()?, plan, in_earlier })
    }

    /// Whether an operation takes the letter that becomes the head of its sequence when another one succeeds.
    ///
    /// It does not if it has a rate: what is deducted from that stands in the document of the plan, and not in those of the sequences
    /// whose settlements would ask at once. Of other settlements at the same time it is not assumed that they happen.
    pub(crate) async fn takes_next(
        &self,
        operation: &OperationLetters,
        succeeded: LetterId,
        next: &Held,
        row: &SequenceRow,
        now: Timestamp,
    ) -> Result<bool> {
        let OperationLetters { plan, pending, in_earlier } = operation;
        let view = plan.clone().and_then(|plan| PlanView::new(plan, now));
        let Some(mut view) = view.filter(|view| !view.machine.has_rate()) else { return Ok(false) };
        let (settled, item) = (pending.get(&succeeded), pending.get(&next.letter.id));
        let (Some(settled), Some(item)) = (settled, item) else { return Ok(false) };
        // As the operation stands when the outcome is written, which comes after the decision about the sequence.
        view.write_item(settled.ordinal, Outcome::Ok, now);
        self.advance(&mut view, now).await?;
        let asked = ItemView {
            letter: Some(&next.letter),
            digest: PayloadDigest::of(next.letter.message.payload.as_deref()),
            row: Some(row),
            in_earlier: in_earlier.contains(&next.letter.id),
            now,
        };
        Ok(rules::takes_next(&mut view.machine, item, &asked))
    }
}
