//! All that the rules need for a batch, loaded in few commands.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use futures_util::future;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::rules::GrantRow;
use lazaret_core::store::{HandOff, Limits, Result};
use lazaret_core::{Partition, QueueName, SequenceId};

use crate::commit::View;
use crate::database::{by_ids, count};
use crate::documents::sequence::{SequenceDoc, sequence_key};
use crate::grants::GrantDoc;
use crate::letters::Place;
use crate::store::MongoStore;

/// All that a round has loaded, and what it decides.
pub(super) struct Round<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) limits: &'a Limits,
    pub(super) views: BTreeMap<SequenceId, View>,
    /// Where the open letters of a sequence stand, those of this round as well, if a letter had to be placed between them.
    pub(super) stored: BTreeMap<SequenceId, Vec<Place>>,
    /// Where the letters of this round stand, in sequences that were not looked up.
    pub(super) added: BTreeMap<SequenceId, Vec<Place>>,
    /// Sequences whose letters moved, so that their places are not known in this round.
    pub(super) moved: BTreeSet<SequenceId>,
    pub(super) held: BTreeMap<LetterId, LetterState>,
    pub(super) grants: BTreeMap<Partition, GrantDoc>,
    /// The rows of the grants as they shall stand, and the sequences under way.
    pub(super) rows: BTreeMap<Partition, (GrantRow, BTreeSet<SequenceId>)>,
    pub(super) revision: u64,
    pub(super) sequences: u64,
    /// The numbers for new letters.
    pub(super) next_number: u64,
}

impl Round<'_> {
    /// The row of a grant, as far as this round has decided.
    pub(super) fn row_of(&self, partition: &Partition) -> GrantRow {
        let decided = self.rows.get(partition).map(|(row, _)| *row);
        decided.unwrap_or_else(|| self.grants.get(partition).map(GrantDoc::row).unwrap_or_default())
    }
}

impl MongoStore {
    /// Loads all that the rules need for these items.
    pub(super) async fn load_round<'a>(
        &self,
        queue: &'a QueueName,
        limits: &'a Limits,
        items: &[HandOff],
        batch: &[usize],
    ) -> Result<Round<'a>> {
        let items = || batch.iter().map(|number| &items[*number]);
        // A sequence that is opened after the views has a later revision.
        let revision = self.db().counter("revision").await?;
        let partitions = items().flat_map(|item| {
            let granted = item.grant.as_ref().map(|grant| grant.partition.clone());
            granted.into_iter().chain([item.letter.message.partition()])
        });
        let sequences: BTreeSet<SequenceId> = items().map(|item| item.letter.sequence.clone()).collect();
        let views = async {
            let docs = self.finished(queue, &sequences).await?;
            // Behind the sequences: a letter that is decided later makes this decision late.
            let held = self.states_of(queue, items().map(|item| item.letter.id)).await?;
            Ok((docs, held))
        };
        let (grants, paused, (docs, held)) =
            future::try_join3(self.grants(queue, partitions.collect()), self.paused_sequences(queue), views)
                .await?;
        let opens = limits.max_sequences.filter(|_| docs.values().any(|doc| !doc.open));
        let sequences = match opens {
            Some(max) => self.count_open(queue, max).await?,
            None => 0,
        };
        let letters = batch.len() as u64;
        // Behind the views: a letter that is appended has a larger index than all that are there.
        let next_number = self.db().count_up("letters", letters).await? - letters + 1;
        let views = self.views(queue, docs.into_values().collect(), &paused).await?;
        Ok(Round {
            queue,
            limits,
            views,
            stored: BTreeMap::new(),
            added: BTreeMap::new(),
            moved: BTreeSet::new(),
            held,
            grants,
            rows: BTreeMap::new(),
            revision,
            sequences,
            next_number,
        })
    }

    /// The documents of these sequences, in which nothing is left to do.
    pub(crate) async fn finished(
        &self,
        queue: &QueueName,
        sequences: &BTreeSet<SequenceId>,
    ) -> Result<BTreeMap<SequenceId, SequenceDoc>> {
        let ids: Vec<String> = sequences.iter().map(|sequence| sequence_key(queue, sequence)).collect();
        let docs: Vec<SequenceDoc> = by_ids(&self.db().sequences, &ids, Document::new()).await?;
        let docs = self.finished_docs(queue, docs).await?;
        let mut known: BTreeMap<SequenceId, SequenceDoc> =
            docs.into_iter().map(|doc| (doc.sequence.clone(), doc)).collect();
        for sequence in sequences {
            known.entry(sequence.clone()).or_insert_with(|| SequenceDoc::new(queue, sequence));
        }
        Ok(known)
    }

    /// These documents of sequences of a queue. Those in which something is left to do are read again when it is done.
    pub(crate) async fn finished_docs(
        &self,
        queue: &QueueName,
        docs: Vec<SequenceDoc>,
    ) -> Result<Vec<SequenceDoc>> {
        let (mut finished, mut read) = (Vec::with_capacity(docs.len()), docs);
        loop {
            let (unfinished, docs): (Vec<_>, Vec<_>) = read.into_iter().partition(|doc| doc.unfinished);
            finished.extend(docs);
            if unfinished.is_empty() {
                break;
            }
            let ids: Vec<String> = unfinished.iter().map(|doc| sequence_key(queue, &doc.sequence)).collect();
            self.carry_out_left(unfinished).await?;
            read = by_ids(&self.db().sequences, &ids, Document::new()).await?;
        }
        self.finish_batches_of(&finished).await?;
        Ok(finished)
    }

    /// The number of open sequences of a queue, counted no further than needed.
    async fn count_open(&self, queue: &QueueName, max: u64) -> Result<u64> {
        let filter = doc! { "queue": queue.as_str(), "open": true };
        count(&self.db().sequences, filter, Some(max.saturating_add(1).min(1 << 31))).await
    }
}
