//! The three steps of every change, without transactions: load a view, ask the rule, decide by compare-and-set.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, RawDocumentBuf, doc};
use futures_util::future;
use lazaret_core::letter::Letter;
use lazaret_core::store::rules::{AuditLine, Detached, Effects, LetterChange, SequenceChange, SequenceRow};
use lazaret_core::store::{OperationId, Result};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::database::{Guarded, find_one, get, project};
use crate::documents::end::EndedDoc;
use crate::documents::left::{CountDoc, Left};
use crate::documents::letter::{Encoded, Held};
use crate::documents::sequence::{SequenceDoc, sequence_key};
use crate::error::maybe_done;
use crate::layout::Layout;
use crate::store::MongoStore;

/// A sequence as the rules see it, and what a call decides about it. Nothing is left to do in it.
pub(crate) struct View {
    pub(crate) doc: SequenceDoc,
    /// Its row, with what other documents say about it: whether it is paused, and whether its operation still keeps it.
    pub(crate) row: Option<SequenceRow>,
    /// `true` if a person paused the sequence.
    pub(crate) paused: bool,
    pub(crate) now: Timestamp,
    /// The layout of the letters that are written.
    layout: Layout,
    changed: bool,
    left: Vec<Left>,
    counts: Vec<CountDoc>,
    chunks: Vec<RawDocumentBuf>,
}

impl View {
    fn new(doc: SequenceDoc, row: Option<SequenceRow>, paused: bool, now: Timestamp, layout: Layout) -> Self {
        let (left, counts, chunks) = (Vec::new(), Vec::new(), Vec::new());
        Self { doc, row, paused, now, layout, changed: false, left, counts, chunks }
    }

    /// The view of a document, of which other documents say whether it is paused, and whether its operation still keeps it.
    fn of(doc: SequenceDoc, paused: bool, is_kept: bool, now: Timestamp, layout: Layout) -> Self {
        let mut row = doc.row();
        if let Some(row) = &mut row {
            row.paused = paused;
            row.reserved = row.reserved.filter(|_| is_kept);
        }
        Self::new(doc, row, paused, now, layout)
    }

    /// Writes nothing: what was decided is refused.
    pub(crate) const fn refuse(&mut self) {
        self.changed = false;
    }

    pub(crate) const fn is_changed(&self) -> bool {
        self.changed
    }

    /// The version that the decision has, if it happens.
    const fn decided(&self) -> i64 {
        self.doc.version + 1
    }

    /// Sets the row.
    pub(crate) fn put(&mut self, row: Option<SequenceRow>) {
        self.doc.set_row(row.as_ref());
        self.row = row;
        self.changed = true;
    }

    /// Gives the sequence a new version, whatever it holds.
    pub(crate) const fn touch(&mut self) {
        self.changed = true;
    }

    /// The size of the letters that the decision holds until they are written.
    pub(crate) fn size_of_letters(&self) -> usize {
        let size = |left: &Left| match left {
            Left::Letter { document, .. } => document.as_bytes().len(),
            _ => 0,
        };
        self.left.iter().map(size).sum()
    }

    /// Adds something that is left to do.
    pub(crate) fn leave(&mut self, left: Left) {
        self.left.push(left);
        self.changed = true;
    }

    /// Adds a line for the audit.
    pub(crate) fn audit(&mut self, line: AuditLine) {
        self.leave(Left::audit(line, self.now));
    }

    /// Writes a letter as it stands. A later form of the same decision replaces an earlier one.
    pub(crate) fn write_letter(&mut self, held: &Held, new: bool) -> Result<()> {
        let encoded = held.encode(self.decided(), self.now, self.layout)?;
        self.leave_letter(encoded, &held.letter.id.to_string(), new);
        Ok(())
    }

    fn leave_letter(&mut self, encoded: Encoded, id: &str, new: bool) {
        if !new {
            self.left.retain(|left| match left {
                Left::Letter { document, .. } => document.get_str("_id").ok() != Some(id),
                _ => true,
            });
        }
        self.chunks.extend(encoded.chunks);
        self.leave(Left::Letter { document: encoded.document, new });
        encoded.dropped.into_iter().for_each(|claim| self.leave(Left::Chunks(claim)));
    }

    /// Turns the effects on a letter into the sequence as it shall stand, and what is left to do then. Returns the letter.
    pub(crate) fn apply(&mut self, mut held: Held, effects: Effects) -> Result<Letter> {
        let Effects { letter: change, sequence, detached, count_change, failed, audit, ended } = effects;
        let new = matches!(change, LetterChange::Insert { .. });
        let count = self.row.as_ref().map_or(0, |row| row.count);
        if matches!(change, LetterChange::Forget) {
            let encoded = held.encode_purged(self.decided(), self.now, self.layout)?;
            self.leave_letter(encoded, &held.letter.id.to_string(), false);
        } else if let Some(Detached { sequence, row }) = detached {
            change.apply(&mut held.letter, self.now);
            held.letter.sequence = sequence;
            self.detach(&held, &row)?;
            self.doc.move_ahead(&held.letter.id.to_string(), None, count);
        } else {
            change.apply(&mut held.letter, self.now);
            self.write_letter(&held, new)?;
            let index = held.letter.state.is_open().then_some(held.letter.index);
            self.doc.move_ahead(&held.letter.id.to_string(), index, count);
        }
        if matches!(sequence, SequenceChange::Open(_) | SequenceChange::Reopen(_)) {
            self.doc.opened = true;
        }
        match sequence {
            SequenceChange::Keep => {}
            SequenceChange::Open(row) | SequenceChange::Put(row) | SequenceChange::Reopen(row) => {
                self.put(Some(row));
            }
            SequenceChange::Remove => self.put(None),
        }
        self.doc.taken_in += i64::from(new);
        for (counted, by) in count_change.changes() {
            self.doc.by_state[counted.state as usize] += by;
        }
        self.counts.extend(CountDoc::of(&count_change, failed, held.letter.cause.as_ref(), self.now));
        if let Some(line) = audit {
            self.audit(line);
        }
        if ended {
            self.leave(Left::End(EndedDoc::of(&held.letter, held.number, self.decided())));
        }
        self.changed = true;
        Ok(held.letter)
    }

    /// Leaves the sequence of a letter that leaves this one to be opened. Its document has the version of this decision, so that those
    /// about the letter go on from there, and the letter as what is left to do: who finds the document finds the letter.
    fn detach(&mut self, held: &Held, row: &SequenceRow) -> Result<()> {
        let (letter, version) = (&held.letter, self.decided());
        let Encoded { document, chunks, dropped } = held.encode(version, self.now, self.layout)?;
        let mut doc = SequenceDoc::new(&self.doc.queue, &letter.sequence);
        doc.set_row(Some(row));
        doc.move_ahead(&letter.id.to_string(), Some(letter.index), 0);
        doc.by_state[letter.state as usize] = 1;
        (doc.version, doc.taken_in, doc.opened, doc.unfinished) = (version, 1, true, true);
        doc.open_as(0);
        doc.left = vec![Left::Letter { document, new: false }];
        self.doc.by_state[letter.state as usize] -= 1;
        self.chunks.extend(chunks);
        self.leave(Left::Sequence(Box::new(doc)));
        dropped.into_iter().for_each(|claim| self.leave(Left::Chunks(claim)));
        Ok(())
    }

    /// The document as it shall be written, and the chunks that it refers to. `place` is its place among those of this decision.
    pub(crate) fn into_write(self, place: usize) -> (SequenceDoc, Vec<RawDocumentBuf>) {
        let mut doc = self.doc;
        doc.open_as(place);
        doc.batch = None;
        doc.left = self.left;
        if !self.counts.is_empty() {
            doc.left.push(Left::Counts(self.counts));
        }
        doc.unfinished = doc.opened || !doc.left.is_empty();
        (doc, self.chunks)
    }
}

/// The write of a document that has the version before it.
pub(crate) fn next_version(doc: &mut SequenceDoc) -> Result<Guarded> {
    let version = doc.version;
    doc.version += 1;
    Guarded::new(doc.id.as_str(), version, doc)
}

impl MongoStore {
    /// Loads a sequence.
    pub(crate) async fn load(&self, queue: &QueueName, sequence: &SequenceId) -> Result<View> {
        let doc = self.finish(&sequence_key(queue, sequence)).await?;
        let doc = doc.unwrap_or_else(|| SequenceDoc::new(queue, sequence));
        let paused = self.paused_sequences(queue).await?.contains(sequence);
        self.view(doc, paused).await
    }

    /// The view of a document in which nothing is left to do. The time is taken after the document, so that times never run
    /// against the order of the decisions.
    pub(crate) async fn view(&self, doc: SequenceDoc, paused: bool) -> Result<View> {
        let is_kept = match doc.reserved() {
            Some(operation) => self.keeps(operation, &doc.queue, &doc.sequence).await?,
            None => false,
        };
        Ok(View::of(doc, paused, is_kept, self.now().await?, self.layout()))
    }

    /// The views of sequences of a queue.
    pub(crate) async fn views(
        &self,
        queue: &QueueName,
        docs: Vec<SequenceDoc>,
        paused: &BTreeSet<SequenceId>,
    ) -> Result<BTreeMap<SequenceId, View>> {
        let mut reserved: BTreeMap<OperationId, Vec<&SequenceId>> = BTreeMap::new();
        for doc in &docs {
            if let Some(operation) = doc.reserved() {
                reserved.entry(operation).or_default().push(&doc.sequence);
            }
        }
        let kept = self.kept(queue, reserved).await?;
        let now = self.now().await?;
        let view = |doc: SequenceDoc| {
            let (paused, is_kept) = (paused.contains(&doc.sequence), kept.contains(&doc.sequence));
            (doc.sequence.clone(), View::of(doc, paused, is_kept, now, self.layout()))
        };
        Ok(docs.into_iter().map(view).collect())
    }

    /// Loads sequences of a queue.
    pub(crate) async fn load_all(
        &self,
        queue: &QueueName,
        sequences: &BTreeSet<SequenceId>,
    ) -> Result<BTreeMap<SequenceId, View>> {
        let (docs, paused) =
            future::try_join(self.finished(queue, sequences), self.paused_sequences(queue)).await?;
        self.views(queue, docs.into_values().collect(), &paused).await
    }

    /// Writes the decision. `None` if another call came between: load and decide again. A refusal, and an answer that changes
    /// nothing, is about one moment, too.
    pub(crate) async fn commit<T>(&self, view: View, answer: Result<T>) -> Result<Option<T>> {
        let happened = match &answer {
            Ok(_) if view.is_changed() => self.write(view).await?,
            _ => self.is_current(&view.doc).await?,
        };
        if happened { answer.map(Some) } else { Ok(None) }
    }

    /// Writes a decision: from here on the call has happened. Then does what is left to do.
    async fn write(&self, view: View) -> Result<bool> {
        let (mut doc, chunks) = view.into_write(0);
        let under_way = self.under_way().begin(vec![doc.id.clone()]);
        self.db().insert_all(&self.db().chunks, &chunks).await?;
        let write = next_version(&mut doc)?;
        if !self.db().put(&self.db().sequences, write).await? {
            return Ok(false);
        }
        if doc.unfinished {
            Box::pin(self.carry_out(vec![doc])).await.map_err(maybe_done)?;
        }
        drop(under_way);
        Ok(true)
    }

    async fn is_current(&self, doc: &SequenceDoc) -> Result<bool> {
        let filter = doc! { "_id": &doc.id };
        let found = find_one(&self.db().sequences, filter, doc! { "version": 1 }).await?;
        Ok(found.map_or(0, |found| found.get_i64("version").unwrap_or_default()) == doc.version)
    }

    /// Does what is left to do since the last decision about a sequence, and returns its document.
    pub(crate) async fn finish(&self, key: &str) -> Result<Option<SequenceDoc>> {
        loop {
            let Some(doc) = get::<SequenceDoc>(&self.db().sequences, key).await? else { return Ok(None) };
            if !doc.unfinished {
                self.finish_batches_of(std::slice::from_ref(&doc)).await?;
                return Ok(Some(doc));
            }
            self.carry_out_left(vec![doc]).await?;
        }
    }

    /// Does what others have left to do in these documents, or waits until they have done it: those of this process are at it.
    pub(crate) async fn carry_out_left(&self, docs: Vec<SequenceDoc>) -> Result<()> {
        let (own, left): (Vec<_>, Vec<_>) = docs.into_iter().partition(|doc| self.under_way().has(&doc.id));
        if !left.is_empty() {
            Box::pin(self.carry_out(left)).await?;
        }
        let own: Vec<&str> = own.iter().map(|doc| doc.id.as_str()).collect();
        self.under_way().wait_for(&own).await;
        Ok(())
    }

    /// Gives a sequence a new version: a decision that is under way on the old one fails, and is taken again.
    pub(crate) async fn interrupt(&self, queue: &QueueName, sequence: &SequenceId) -> Result<()> {
        loop {
            let mut view = self.load(queue, sequence).await?;
            view.touch();
            if self.commit(view, Ok(())).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Does what interrupted calls have left, so that a listing shows it.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        let unfinished = || doc! { "unfinished": true };
        let sequences: Vec<SequenceDoc> =
            project(&self.db().sequences, unfinished(), Document::new(), Document::new()).await?;
        self.carry_out_left(sequences).await?;
        self.finish_batches().await?;
        self.finish_plans().await?;
        self.finish_pauses().await
    }
}
