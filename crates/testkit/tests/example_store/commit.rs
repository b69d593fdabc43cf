//! The three steps of every change, without transactions: load a view, ask the rule, decide by compare-and-set.

use jiff::Timestamp;
use lazaret_core::store::rules::SequenceRow;
use lazaret_core::store::{Result, StoreError};
use lazaret_core::{QueueName, SequenceId};

use crate::DocumentStore;
use crate::database::{Deciding, Left, SequenceDoc};
use crate::documents::{Collection, Stored};

/// A sequence as a rule sees it. Nothing is left to do in it.
pub(crate) struct View<'a> {
    pub(crate) store: &'a DocumentStore,
    pub(crate) queue: &'a QueueName,
    pub(crate) sequence: &'a SequenceId,
    pub(crate) doc: SequenceDoc,
    pub(crate) now: Timestamp,
    version: u64,
}

/// A sequence as it shall stand, and what is left to do then.
pub(crate) struct Change {
    pub(crate) doc: SequenceDoc,
    pub(crate) left: Vec<Left>,
}

impl DocumentStore {
    /// Loads a sequence, asks `decide`, and writes the decision, again until no other call came between.
    pub(crate) fn change<T>(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        mut decide: impl FnMut(&mut View<'_>) -> Result<(T, Option<Change>)>,
    ) -> Result<T> {
        loop {
            let mut view = self.load(queue, sequence)?;
            let decided = decide(&mut view);
            let happened = match &decided {
                Ok((_, Some(change))) => self.commit(&view, change)?,
                // Nothing to write, but the answer must be about one moment, too.
                Ok((_, None)) | Err(_) => self.is_current(&view),
            };
            if happened {
                return decided.map(|(answer, _)| answer);
            }
        }
    }

    /// Writes the decision: from here on the call has happened. Then does what is left to do.
    fn commit(&self, view: &View<'_>, change: &Change) -> Result<bool> {
        let key = (view.queue.clone(), view.sequence.clone());
        let left = if self.forgetful { Vec::new() } else { change.left.clone() };
        let decided = Deciding { value: change.doc.clone(), left };
        if !self.db.sequences.put_if_version(&key, view.version, decided)? {
            return Ok(false);
        }
        if self.forgetful {
            let version = self.db.sequences.get(&key).map_or(0, |stored| stored.version);
            for (place, left) in change.left.iter().cloned().enumerate() {
                self.carry_out((version, place), left).map_err(maybe_done)?;
            }
        }
        self.finish(&self.db.sequences, &key).map_err(maybe_done)?;
        Ok(true)
    }

    /// Does what is left to do since the last decision of a document, and returns the document.
    pub(crate) fn finish<K: Ord + Clone, V: Clone>(
        &self,
        collection: &Collection<K, Deciding<V>>,
        key: &K,
    ) -> Result<Option<Stored<V>>> {
        loop {
            let Some(Stored { version, value: Deciding { value, left } }) = collection.get(key) else {
                return Ok(None);
            };
            if left.is_empty() {
                return Ok(Some(Stored { version, value }));
            }
            for (place, left) in left.into_iter().enumerate() {
                self.carry_out((version, place), left)?;
            }
            collection.put_if_version(key, version, Deciding { value, left: Vec::new() })?;
        }
    }
}

/// The error of a call that was cut off after its decision.
pub(crate) fn maybe_done(error: StoreError) -> StoreError {
    StoreError::maybe(error.kind(), "commit", "cut off after the decision").with_source(error)
}

impl DocumentStore {
    fn load<'a>(&'a self, queue: &'a QueueName, sequence: &'a SequenceId) -> Result<View<'a>> {
        let key = (queue.clone(), sequence.clone());
        let Stored { version, value: mut doc } = self.finish(&self.db.sequences, &key)?.unwrap_or_default();
        doc.row = doc.row.map(|row| self.current(queue, sequence, row));
        // The time is taken after the view, so that times never run against the order of the decisions.
        Ok(View { store: self, queue, sequence, doc, now: self.clock.now(), version })
    }

    /// The row with what other documents say about it now: whether it is paused, and whether its operation still keeps it.
    pub(crate) fn current(&self, queue: &QueueName, sequence: &SequenceId, row: SequenceRow) -> SequenceRow {
        let reserved = row.reserved.filter(|operation| self.keeps(*operation, queue, sequence));
        SequenceRow { paused: self.is_paused(queue, sequence), reserved, ..row }
    }

    fn is_current(&self, view: &View<'_>) -> bool {
        let key = (view.queue.clone(), view.sequence.clone());
        self.db.sequences.get(&key).map_or(0, |stored| stored.version) == view.version
    }

    /// Gives a sequence a new version: a decision that is under way on the old one fails, and is taken anew.
    pub(crate) fn interrupt(&self, queue: &QueueName, sequence: &SequenceId) -> Result<()> {
        self.change(queue, sequence, |view| {
            Ok(((), Some(Change { doc: view.doc.clone(), left: Vec::new() })))
        })
    }

    /// Does what calls have left that died, so that a listing shows it. A database has an index for such documents.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.finish_all(&self.db.sequences)?;
        self.finish_all(&self.db.plans)?;
        self.finish_all(&self.db.pauses)
    }

    fn finish_all<K: Ord + Clone, V: Clone>(&self, collection: &Collection<K, Deciding<V>>) -> Result<()> {
        for key in collection.scan(.., |key, doc| (!doc.left.is_empty()).then(|| key.clone())) {
            self.finish(collection, &key)?;
        }
        Ok(())
    }
}
