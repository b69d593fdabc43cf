//! What is done after a decision, in other documents. Whoever does it again, however late, changes nothing.
//!
//! The order: letters, groups, the audit and outcomes, at once; then sequences of letters that left, and ends; then the document of the
//! sequence without what was left to do, and with its new revision; or the batch is deleted. Chunks that no letter refers to any more are
//! deleted at the end.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use futures_util::future;
use lazaret_core::QueueName;
use lazaret_core::store::{GroupId, Result};
use serde::Deserialize;

use crate::batches::IdDoc;
use crate::database::{Guarded, by_ids, encode};
use crate::documents::batch::{BATCH_VERSION, is_batch};
use crate::documents::end::EndedDoc;
use crate::documents::group::{Decision, GroupDoc, Pending};
use crate::documents::left::{CountDoc, Left, LineDoc, OutcomeDoc};
use crate::documents::sequence::SequenceDoc;
use crate::store::MongoStore;
use crate::together::{self, Line, done_together, same_for_all};

/// Maximum number of sequences that one statement finishes. Small, for servers that compare each document with every id.
const IDS: usize = 50;

/// Sequences that one statement finishes.
struct Alike {
    version: i64,
    /// Number of revisions that they need: 0 if they were not opened.
    places: u64,
    ids: Vec<String>,
}

/// Sorts sequences by what finishes them: their version, and whether they were opened. Two that have the same place, of different
/// decisions, need different revisions.
fn alike(docs: Vec<SequenceDoc>) -> Vec<Alike> {
    let mut sets: BTreeMap<(i64, Option<usize>), Alike> = BTreeMap::new();
    let mut taken: BTreeMap<(i64, u64), usize> = BTreeMap::new();
    for doc in docs {
        let (version, place) = (doc.version, doc.opened_as());
        let round = place.map(|place| {
            let taken = taken.entry((version, place)).or_default();
            *taken += 1;
            *taken
        });
        let set = sets.entry((version, round)).or_insert(Alike { version, places: 0, ids: Vec::new() });
        set.places = set.places.max(place.map_or(0, |place| place + 1));
        set.ids.push(doc.id);
    }
    sets.into_values().collect()
}

/// All that is left to do for some sequences.
#[derive(Default)]
struct Work {
    letters: Vec<(RawDocumentBuf, bool)>,
    groups: BTreeMap<GroupId, Vec<Decision>>,
    detached: Vec<SequenceDoc>,
    ends: BTreeMap<QueueName, Vec<EndedDoc>>,
    lines: Vec<(String, LineDoc)>,
    outcomes: Vec<OutcomeDoc>,
    /// Chunks to be deleted.
    claims: Vec<String>,
}

impl Work {
    /// Takes what is left to do out of a sequence. Groups remember it by the id and the version of the document that holds it.
    fn add(&mut self, doc: &mut SequenceDoc, holder: (&str, i64)) {
        for (place, left) in std::mem::take(&mut doc.left).into_iter().enumerate() {
            match left {
                Left::Letter { document, new } => self.letters.push((document, new)),
                Left::Sequence(doc) => self.detached.push(*doc),
                Left::Chunks(claim) => self.claims.push(claim),
                Left::Counts(counts) => self.count(&doc.queue, &counts, holder),
                Left::Audit(line) => self.lines.push((format!("{}#{}#{place}", doc.id, doc.version), line)),
                Left::End(end) => self.ends.entry(doc.queue.clone()).or_default().push(end),
                Left::Outcome(outcome) => self.outcomes.push(outcome),
                // Only plans have these.
                Left::Outcomes(_) | Left::Items { .. } => {}
            }
        }
    }

    /// Adds changes to the groups that they concern. A group counts all changes of one document as one decision.
    fn count(&mut self, queue: &QueueName, counts: &[CountDoc], (holder, version): (&str, i64)) {
        let mut concerned: Vec<_> = counts.iter().flat_map(|count| count.groups()).collect();
        concerned.sort_unstable();
        concerned.dedup();
        for fingerprint in concerned {
            let group = GroupId { queue: queue.clone(), fingerprint };
            let decisions = self.groups.entry(group).or_default();
            match decisions.last_mut() {
                Some(last) if last.holder == holder => last.counts.extend_from_slice(counts),
                _ => decisions.push(Decision { holder: holder.to_owned(), version, counts: counts.to_vec() }),
            }
        }
    }
}

/// Decisions of many callers, which one worker counts: in an outage all of them concern one group, and its document lets one through at
/// a time.
pub(crate) struct CountGroups;

impl together::Work for CountGroups {
    type Item = BTreeMap<GroupId, Vec<Decision>>;
    type Answer = ();
    type Kind = ();
    type Key = ();

    const MOST: usize = 64;
    const WORKERS: usize = 1;

    fn line(store: &MongoStore) -> &Line<Self> {
        &store.lines().groups
    }

    fn kind(_: &Self::Item) {}

    fn key(_: &Self::Item) -> Option<()> {
        None
    }

    async fn run(store: &MongoStore, items: Vec<Self::Item>) -> Vec<Result<()>> {
        let callers = items.len();
        let mut groups: BTreeMap<GroupId, Vec<Decision>> = BTreeMap::new();
        for (group, decisions) in items.into_iter().flatten() {
            groups.entry(group).or_default().extend(decisions);
        }
        same_for_all(store.count_all(groups).await, callers)
    }
}

impl MongoStore {
    /// Does what is left to do in documents of sequences, and takes it out of them.
    pub(crate) async fn carry_out(&self, mut docs: Vec<SequenceDoc>) -> Result<()> {
        let mut work = Work::default();
        for doc in &mut docs {
            let (id, version) = (doc.id.clone(), doc.version);
            work.add(doc, (id.as_str(), version));
        }
        let claims = std::mem::take(&mut work.claims);
        docs.extend(self.do_all(work).await?);
        self.clear_left(docs).await?;
        if !claims.is_empty() {
            self.db().delete(&self.db().chunks, doc! { "claim": { "$in": claims } }).await?;
        }
        Ok(())
    }

    /// Does what is left to do for sequences of a batch, which is there until then. They are new: no other sequence is opened, and no
    /// chunk dropped.
    pub(crate) async fn carry_out_batch(&self, batch: &str, mut docs: Vec<SequenceDoc>) -> Result<()> {
        let mut work = Work::default();
        for doc in &mut docs {
            work.add(doc, (batch, BATCH_VERSION));
        }
        self.do_all(work).await.map(drop)
    }

    /// Does all but the deletion of chunks. Returns the sequences that were opened, which have something left to do.
    async fn do_all(&self, work: Work) -> Result<Vec<SequenceDoc>> {
        let Work { letters, groups, detached, ends, lines, outcomes, claims: _ } = work;
        // At once: none reads what another one writes.
        let (letters, groups) = (self.write_letters(letters), self.count_groups(groups));
        let (lines, outcomes) = (self.append_lines(lines), Box::pin(self.write_outcomes(outcomes)));
        future::try_join4(letters, groups, lines, outcomes).await?;
        let opened = self.open_detached(detached).await?;
        // Behind the letters: whoever reads an end finds its letter, and whoever begins to watch finds those that were not listed here.
        for (queue, ends) in ends {
            self.list_ended(&queue, ends).await?;
        }
        Ok(opened)
    }

    /// Opens the sequences of letters that left theirs, and writes the letters: groups have counted them before. A letter leaves its
    /// sequence once, and no document is deleted: one that is there was opened by the same decision.
    async fn open_detached(&self, mut docs: Vec<SequenceDoc>) -> Result<Vec<SequenceDoc>> {
        if docs.is_empty() {
            return Ok(docs);
        }
        let new = docs.iter().map(encode).collect::<Result<Vec<RawDocumentBuf>>>()?;
        self.db().insert_all(&self.db().sequences, &new).await?;
        let left = docs.iter_mut().flat_map(|doc| std::mem::take(&mut doc.left));
        let letters = left.filter_map(|left| match left {
            Left::Letter { document, new } => Some((document, new)),
            _ => None,
        });
        self.write_letters(letters.collect()).await?;
        Ok(docs)
    }

    /// Takes what was done out of the documents. Sequences that were opened get a revision now, after they are open: who has seen
    /// a revision has seen all sequences with an earlier one, or finishes them.
    async fn clear_left(&self, docs: Vec<SequenceDoc>) -> Result<()> {
        let sets = alike(docs);
        let opened = sets.iter().map(|set| set.places).sum();
        let mut revision = match opened {
            0 => 0,
            opened => self.db().count_up("revision", opened).await? - opened,
        };
        let mut updates = Vec::with_capacity(sets.len());
        for Alike { version, places, ids } in sets {
            let done = doc! { "version": version + 1, "opened": false, "unfinished": false };
            let mut update = doc! { "$set": done, "$unset": { "left": "" } };
            if places > 0 {
                update.insert("$inc", doc! { "revision": SequenceDoc::to_revision(revision + 1) });
            }
            revision += places;
            // One that is late has another version: it was finished by another call.
            for ids in ids.chunks(IDS) {
                let filter = doc! { "_id": { "$in": ids }, "version": version };
                updates.push(rawdoc! { "q": encode(&filter)?, "u": encode(&update)?, "multi": true });
            }
        }
        self.db().update_all(&self.db().sequences, &updates).await.map(drop)
    }

    /// Writes letters, each unless a later decision about it was written before.
    async fn write_letters(&self, letters: Vec<(RawDocumentBuf, bool)>) -> Result<()> {
        let (mut new, mut known) = (Vec::new(), Vec::new());
        for (document, is_new) in letters {
            if is_new { new.push(document) } else { known.push(document) }
        }
        // One that is there was written by another call, or an earlier attempt of this one.
        for late in self.db().insert_all(&self.db().letters, &new).await? {
            known.push(new[late].clone());
        }
        let mut updates = Vec::with_capacity(known.len());
        for document in known {
            let kept = document.get_document("lazaret");
            let decided = kept.and_then(|kept| kept.get_i64("decided")).unwrap_or_default();
            let id = document.get_str("_id").unwrap_or_default();
            let filter = rawdoc! { "_id": id, "lazaret.decided": { "$lt": decided } };
            updates.push(rawdoc! { "q": filter, "u": document, "upsert": true });
        }
        self.db().update_all(&self.db().letters, &updates).await.map(drop)
    }

    /// Counts decisions in their groups, each once, together with those of other callers.
    async fn count_groups(&self, groups: BTreeMap<GroupId, Vec<Decision>>) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        done_together::<CountGroups>(self, groups).await
    }

    async fn count_all(&self, mut groups: BTreeMap<GroupId, Vec<Decision>>) -> Result<()> {
        while !groups.is_empty() {
            let ids: Vec<String> = groups.keys().map(ToString::to_string).collect();
            let found: Vec<GroupDoc> = by_ids(&self.db().groups, &ids, Document::new()).await?;
            let mut known: BTreeMap<GroupId, GroupDoc> =
                found.into_iter().map(|doc| (doc.group_id(), doc)).collect();
            // Read after the groups: what is not pending any more was counted before.
            let decided = groups.values().flatten().map(|decision| &decision.holder);
            let remembered = known.values().flat_map(GroupDoc::remembered);
            let pending = self.pending(decided.chain(remembered).cloned().collect()).await?;
            let (mut counted, mut writes) = (Vec::new(), Vec::new());
            for (id, decisions) in groups {
                let new = || GroupDoc::new(&id.queue, id.fingerprint);
                let mut doc = known.remove(&id).unwrap_or_else(new);
                if !doc.count(&decisions, &pending) {
                    continue;
                }
                let version = doc.version;
                doc.version += 1;
                writes.push(Guarded::new(doc.id.as_str(), version, &doc)?);
                counted.push((id, decisions));
            }
            let written = self.db().put_all(&self.db().groups, writes).await?;
            let late = counted.into_iter().zip(written).filter(|(_, written)| !written);
            groups = late.map(|(counted, _)| counted).collect();
        }
        Ok(())
    }

    /// The versions of those of these sequences and batches whose decisions are not carried out to the end.
    async fn pending(&self, holders: BTreeSet<String>) -> Result<Pending> {
        #[derive(Deserialize)]
        struct VersionDoc {
            #[serde(rename = "_id")]
            id: String,
            version: i64,
            #[serde(default)]
            unfinished: bool,
        }
        let (batches, sequences): (Vec<String>, Vec<String>) =
            holders.into_iter().partition(|id| is_batch(id));
        let fields = doc! { "version": 1, "unfinished": 1 };
        let (batches, docs): (Vec<IdDoc>, Vec<VersionDoc>) = future::try_join(
            by_ids(&self.db().batches, &batches, doc! { "_id": 1 }),
            by_ids(&self.db().sequences, &sequences, fields),
        )
        .await?;
        let batches = batches.into_iter().map(|doc| (doc.id, BATCH_VERSION));
        let unfinished = docs.into_iter().filter(|doc| doc.unfinished).map(|doc| (doc.id, doc.version));
        Ok(batches.chain(unfinished).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(name: &str, version: i64, place: Option<usize>) -> SequenceDoc {
        let mut doc = SequenceDoc::new(&"a/b".into(), &name.into());
        (doc.version, doc.opened) = (version, place.is_some());
        doc.open_as(place.unwrap_or_default());
        doc
    }

    #[test]
    fn the_sequences_of_a_batch_are_finished_by_one_statement() {
        let sets = alike((0..500).map(|place| decided(&place.to_string(), 1, Some(place))).collect());
        let sizes: Vec<_> = sets.iter().map(|set| (set.version, set.places, set.ids.len())).collect();
        assert_eq!(sizes, [(1, 500, 500)]);
    }

    #[test]
    fn no_two_sequences_of_different_decisions_get_one_revision() {
        // Interrupted calls that are finished together: places repeat.
        let docs = vec![
            decided("a", 1, Some(0)),
            decided("b", 1, Some(0)),
            decided("c", 1, Some(4)),
            decided("d", 2, Some(0)),
            decided("e", 1, None),
        ];
        let mut sets: Vec<_> =
            alike(docs).iter().map(|set| (set.version, set.places, set.ids.len())).collect();
        sets.sort_unstable();
        assert_eq!(sets, [(1, 0, 1), (1, 1, 1), (1, 5, 2), (2, 1, 1)]);
    }

    #[test]
    fn a_sequence_without_a_revision_is_behind_no_reader() {
        let doc = decided("a", 1, Some(3));
        assert!(doc.revision.unwrap() < 0);
        assert_eq!(doc.revision.unwrap() + SequenceDoc::to_revision(7), 10);
    }
}
