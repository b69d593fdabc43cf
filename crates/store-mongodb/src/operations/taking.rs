//! The next letter of a sequence, which an operation takes with the settlement of the one before it.

use lazaret_core::Timestamp;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, ItemView, SequenceRow};
use lazaret_core::store::{OperationId, Outcome, PayloadDigest, Result};

use crate::documents::letter::Held;
use crate::store::MongoStore;

impl MongoStore {
    /// Whether an operation takes the letter that becomes the head of its sequence when another one succeeds.
    ///
    /// It does not if it has a rate: what is deducted from that stands in the document of the plan, and not in those of the sequences
    /// whose settlements would ask at once.
    pub(crate) async fn takes_next(
        &self,
        id: OperationId,
        succeeded: LetterId,
        next: &Held,
        row: &SequenceRow,
        now: Timestamp,
    ) -> Result<bool> {
        let Some(mut view) = self.load_plan(id).await?.filter(|view| !view.machine.has_rate()) else {
            return Ok(false);
        };
        let settled = self.pending_letter(view.plan(), succeeded).await?;
        let item = self.pending_letter(view.plan(), next.letter.id).await?;
        let (Some(settled), Some(item)) = (settled, item) else { return Ok(false) };
        // As the operation stands when the outcome is written, which comes after the decision about the sequence.
        self.write_items(&mut view, settled.ordinal..=settled.ordinal, Vec::new(), Outcome::Ok, now).await?;
        self.advance(&mut view, now).await?;
        let asked = ItemView {
            letter: Some(&next.letter),
            digest: PayloadDigest::of(next.letter.message.payload.as_deref()),
            row: Some(row),
            in_earlier: self.is_in_earlier(next.letter.id, id).await?,
            now,
        };
        Ok(rules::takes_next(&mut view.machine, &item, &asked))
    }
}
