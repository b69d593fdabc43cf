//! Sequences that a hand-off opens, many at a time.
//!
//! The document of a batch is written first. It holds new sequences, and what is left to do for each. From then on, whoever meets it does
//! all of it: inserts the sequences, each with the id of the batch, does what is left, and deletes the batch. No sequence is
//! ever deleted, so one insert of each succeeds. A sequence that another call opened first has no id of the batch, or that of
//! another, and is left out; the hand-off to it is taken again by its caller.
//!
//! Nobody decides about a sequence whose batch is there. So a sequence has the id of its batch at least until the batch is finished,
//! and all who carry it out agree on what belongs to it.

use std::collections::{BTreeSet, VecDeque};

use bson::{Document, doc};
use lazaret_core::SequenceId;
use lazaret_core::store::Result;
use serde::Deserialize;

use crate::database::{by_ids, encode, project};
use crate::documents::batch::BatchDoc;
use crate::documents::sequence::SequenceDoc;
use crate::error::maybe_done;
use crate::store::MongoStore;
use crate::values::int;

/// Maximum number of finished batches that a process remembers.
const REMEMBERED: usize = 4096;

/// A document, reduced to its id.
#[derive(Deserialize)]
pub(crate) struct IdDoc {
    #[serde(rename = "_id")]
    pub(crate) id: String,
}

/// The batches that were last seen to be finished. The server is asked once for each, not once for each of its sequences.
#[derive(Default)]
pub(crate) struct FinishedBatches {
    ids: BTreeSet<String>,
    oldest_first: VecDeque<String>,
}

impl FinishedBatches {
    fn remember(&mut self, id: String) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.oldest_first.push_back(id);
        if self.oldest_first.len() > REMEMBERED
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

impl MongoStore {
    /// Opens sequences that were not there. Returns those that another call opened first.
    pub(crate) async fn open_batch(&self, sequences: Vec<SequenceDoc>) -> Result<BTreeSet<SequenceId>> {
        let batch = BatchDoc::new(sequences);
        self.db().insert_all(&self.db().batches, &[encode(&batch)?]).await?;
        Box::pin(self.roll_forward(batch)).await.map_err(maybe_done)
    }

    /// Does all of a batch that is not done yet. Returns the sequences that are not of this batch. One whose batch was finished by
    /// others, and about which they have decided since, can be among them: its letters are found then.
    async fn roll_forward(&self, batch: BatchDoc) -> Result<BTreeSet<SequenceId>> {
        let BatchDoc { id, mut sequences } = batch;
        // Behind the batch: who reads a revision, and finishes the batches that are there then, has seen all sequences up to it.
        let opened = sequences.iter().filter(|doc| doc.opened).count() as u64;
        let mut revision = match opened {
            0 => 0,
            opened => self.db().count_up("revision", opened).await? - opened,
        };
        let mut inserts = Vec::with_capacity(sequences.len());
        for doc in &mut sequences {
            let left = std::mem::take(&mut doc.left);
            if doc.opened {
                revision += 1;
                doc.revision = Some(int(revision));
            }
            (doc.opened, doc.unfinished) = (false, false);
            inserts.push(encode(doc)?);
            doc.left = left;
        }
        let known = self.db().insert_all(&self.db().sequences, &inserts).await?;
        let late = self.of_others(&id, &sequences, &known).await?;
        sequences.retain(|doc| !late.contains(&doc.sequence));
        self.carry_out_batch(&id, sequences).await?;
        self.db().delete(&self.db().batches, doc! { "_id": &id }).await?;
        self.finished_batches().remember(id);
        Ok(late)
    }

    /// Those of the sequences at these places that are not of this batch.
    async fn of_others(
        &self,
        batch: &str,
        sequences: &[SequenceDoc],
        places: &[usize],
    ) -> Result<BTreeSet<SequenceId>> {
        #[derive(Deserialize)]
        struct OpenedBy {
            #[serde(rename = "_id")]
            id: String,
            batch: Option<String>,
        }
        let ids: Vec<String> = places.iter().map(|place| sequences[*place].id.clone()).collect();
        let found: Vec<OpenedBy> = by_ids(&self.db().sequences, &ids, doc! { "batch": 1 }).await?;
        let own = found.into_iter().filter(|doc| doc.batch.as_deref() == Some(batch));
        let own: BTreeSet<String> = own.map(|doc| doc.id).collect();
        let others = places.iter().map(|place| &sequences[*place]).filter(|doc| !own.contains(&doc.id));
        Ok(others.map(|doc| doc.sequence.clone()).collect())
    }

    /// Finishes the batches with which these sequences were opened.
    pub(crate) async fn finish_batches_of(&self, docs: &[SequenceDoc]) -> Result<()> {
        let ids: BTreeSet<String> = {
            let finished = self.finished_batches();
            let of = docs.iter().filter_map(|doc| doc.batch.as_ref());
            of.filter(|id| !finished.ids.contains(*id)).cloned().collect()
        };
        let ids: Vec<String> = ids.into_iter().collect();
        let there: Vec<BatchDoc> = by_ids(&self.db().batches, &ids, Document::new()).await?;
        for batch in there {
            Box::pin(self.roll_forward(batch)).await?;
        }
        // A batch is written before its sequences: one that is not there was finished.
        let mut finished = self.finished_batches();
        ids.into_iter().for_each(|id| finished.remember(id));
        Ok(())
    }

    /// Finishes all batches that are under way.
    pub(crate) async fn finish_batches(&self) -> Result<()> {
        let there: Vec<BatchDoc> =
            project(&self.db().batches, Document::new(), Document::new(), Document::new()).await?;
        for batch in there {
            Box::pin(self.roll_forward(batch)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_finished_batches_are_remembered() {
        // I7
        let mut finished = FinishedBatches::default();
        for number in 0..=REMEMBERED {
            finished.remember(number.to_string());
            finished.remember(number.to_string());
        }
        assert_eq!((finished.ids.len(), finished.oldest_first.len()), (REMEMBERED, REMEMBERED));
        assert!(!finished.ids.contains("0") && finished.ids.contains("1"));
    }
}
