//! What a rule has decided: the new document of the sequence, and what is left to do in other documents.

use std::sync::Arc;

use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{
    self, AuditLine, Detached, Effects, GroupRow, LetterChange, LetterLookup, LetterView, SequenceChange,
};
use lazaret_core::store::{AuditEntry, Result};
use lazaret_core::{Fingerprint, QueueName, Timestamp};

use crate::DocumentStore;
use crate::commit::{Change, View};
use crate::database::{Count, Deciding, Left, LetterDoc, Logged, SequenceDoc};
use crate::documents::Collection;

impl View<'_> {
    /// The stored letter that the sequence names. Consistent with the view, or the decision fails.
    pub(crate) fn letter(&self, id: LetterId) -> Option<Letter> {
        self.store.db.letters.get(&(self.queue.clone(), id))?.value.letter
    }

    /// The open letters from this index on, in order.
    pub(crate) fn open_from(&self, index: u64) -> impl Iterator<Item = Letter> + '_ {
        self.doc.letters.range(index..).filter_map(|(_, id)| self.letter(*id))
    }

    /// Number of letters that run automatically from this index on.
    pub(crate) fn released_letters(&self, from: u64) -> u64 {
        rules::released_letters(self.open_from(from).map(|letter| letter.state))
    }

    /// The letter behind the one with this index.
    pub(crate) fn next(&self, index: u64) -> Option<LetterView> {
        self.open_from(index + 1).next().map(|letter| LetterView::of(&letter))
    }

    /// Turns the effects on a letter into the sequence as it shall stand, and what is left to do then. Returns the letter, too.
    pub(crate) fn apply(&self, mut letter: Letter, effects: Effects) -> (Letter, Change) {
        let Effects { letter: change, sequence, detached, count_change, failed, audit, ended: _ } = effects;
        let mut doc = self.doc.clone();
        let mut left = Vec::new();
        if letter.state.is_open() {
            Arc::make_mut(&mut doc.letters).remove(&letter.index);
        }
        let is_new = matches!(change, LetterChange::Insert { .. });
        let is_purged = matches!(change, LetterChange::Forget);
        if !is_purged {
            change.apply(&mut letter, self.now);
        }
        match &detached {
            // It is written with its new sequence.
            Some(detached) => letter.sequence = detached.sequence.clone(),
            None => {
                if letter.state.is_open() {
                    Arc::make_mut(&mut doc.letters).insert(letter.index, letter.id);
                }
                left.push(Left::letter(&letter, is_purged, self.now));
            }
        }
        if is_new {
            let after = last_number(&self.store.db.arrivals);
            left.push(Left::Arrival(after, (self.queue.clone(), letter.id)));
        }
        if matches!(sequence, SequenceChange::Open(_) | SequenceChange::Reopen(_)) {
            let after = last_number(&self.store.db.opened);
            left.push(Left::Opened(after, (self.queue.clone(), self.sequence.clone())));
        }
        match sequence {
            SequenceChange::Keep => {}
            SequenceChange::Open(row) | SequenceChange::Put(row) | SequenceChange::Reopen(row) => {
                doc.row = Some(row);
            }
            SequenceChange::Remove => doc.row = None,
        }
        for (standing, by) in count_change.changes() {
            let count = &mut doc.by_state[standing.state as usize];
            *count = count.saturating_add_signed(by);
        }
        let failed = failed.zip(letter.cause.clone());
        let (queue, sequence) = (self.queue.clone(), self.sequence.clone());
        left.push(Left::Count(Box::new(Count { queue, sequence, count_change, failed, at: self.now })));
        left.extend(audit.map(|line| self.store.audited(line, self.now)));
        if let Some(detached) = detached {
            // After the count: a group must not count a later decision of the new sequence first.
            doc.by_state[letter.state as usize] -= 1;
            left.push(self.detach(&letter, detached));
        }
        (letter, Change { doc, left })
    }

    /// Opens the sequence of a letter that leaves this one.
    fn detach(&self, letter: &Letter, detached: Detached) -> Left {
        let mut doc = SequenceDoc { row: Some(detached.row), ..SequenceDoc::default() };
        Arc::make_mut(&mut doc.letters).insert(letter.index, letter.id);
        doc.by_state[letter.state as usize] = 1;
        let after = last_number(&self.store.db.opened);
        let key = (self.queue.clone(), detached.sequence);
        let left = vec![Left::letter(letter, false, self.now), Left::Opened(after, key.clone())];
        Left::Sequence(key, Box::new(Deciding { value: doc, left }))
    }
}

impl Left {
    /// Write a letter as it stands now, or what is left of it after a purge.
    pub(crate) fn letter(letter: &Letter, is_purged: bool, now: Timestamp) -> Self {
        Self::Letter(Box::new(LetterDoc {
            queue: letter.queue.clone(),
            sequence: letter.sequence.clone(),
            id: letter.id,
            state: letter.state,
            letter: (!is_purged).then(|| letter.clone()),
            closed_at: (!letter.state.is_open()).then_some(now),
            decided_by: 0,
        }))
    }
}

/// The number of the last entry of a log.
pub(crate) fn last_number<T: Clone>(log: &Collection<u64, Logged<T>>) -> u64 {
    log.last_key().unwrap_or_default()
}

/// Appends to a log, once for each token: takes the first free number behind `after`, unless the token stands before it.
/// Numbers have no gaps and are filled in order, so two that append the same meet at the same number.
fn append<T: Clone>(
    log: &Collection<u64, Logged<T>>,
    token: (u64, usize),
    after: u64,
    value: impl Fn(u64) -> T,
) -> Result<()> {
    let mut number = after + 1;
    loop {
        match log.get(&number) {
            Some(entry) if entry.value.token == token => return Ok(()),
            Some(_) => number += 1,
            None if log.put_if_version(&number, 0, Logged { token, value: value(number) })? => return Ok(()),
            // Another call was faster here: it may have written this very entry.
            None => {}
        }
    }
}

impl DocumentStore {
    /// A line for the audit that is left to be written.
    pub(crate) fn audited(&self, line: AuditLine, now: Timestamp) -> Left {
        Left::Audit(last_number(&self.db.audit), line, now)
    }

    /// Writes a line that belongs to no decision.
    pub(crate) fn write_line(&self, line: AuditLine) -> Result<()> {
        let left = self.audited(line, self.clock.now());
        self.carry_out((self.db.connection.next_version(), 0), left)
    }

    /// Does one thing that is left to do. Whoever does it again, however late, changes nothing.
    pub(crate) fn carry_out(&self, token: (u64, usize), left: Left) -> Result<()> {
        match left {
            Left::Letter(letter) => self.write_letter(LetterDoc { decided_by: token.0, ..*letter }),
            Left::Count(count) => self.count(token.0, &count),
            Left::Arrival(after, letter) => append(&self.db.arrivals, token, after, |_| letter.clone()),
            Left::Opened(after, sequence) => append(&self.db.opened, token, after, |_| sequence.clone()),
            Left::Audit(after, AuditLine { by, action, subject, before, after: is }, at) => {
                append(&self.db.audit, token, after, |number| AuditEntry {
                    number,
                    at,
                    by: by.clone(),
                    action: action.clone(),
                    subject: subject.clone(),
                    before: before.clone(),
                    after: is.clone(),
                })
            }
            Left::Outcome(outcome) => self.write_outcome(&outcome),
            Left::Sequence(key, doc) => {
                // A letter leaves its sequence once, and no document is deleted: one that is there was opened by this decision.
                self.db.sequences.put_if_version(&key, 0, *doc)?;
                self.finish(&self.db.sequences, &key).map(drop)
            }
        }
    }

    /// Writes a letter unless a later decision about it was written before.
    fn write_letter(&self, mut letter: LetterDoc) -> Result<()> {
        let key = (letter.queue.clone(), letter.id);
        loop {
            let stored = self.db.letters.get(&key);
            let (version, decided_by, closed_at) = stored.map_or((0, 0, None), |stored| {
                (stored.version, stored.value.decided_by, stored.value.closed_at)
            });
            if decided_by >= letter.decided_by {
                return Ok(());
            }
            // A closed letter that is changed was closed before.
            letter.closed_at = letter.closed_at.map(|now| closed_at.unwrap_or(now));
            if self.db.letters.put_if_version(&key, version, letter.clone())? {
                return Ok(());
            }
        }
    }

    /// Counts in the groups, in each unless it has counted this decision, or a later one of the sequence, before.
    fn count(&self, decided_by: u64, count: &Count) -> Result<()> {
        let Count { count_change, failed, at, .. } = count;
        let standings = count_change.changes().filter_map(|(standing, _)| standing.group);
        let mut groups: Vec<Fingerprint> =
            standings.chain(count_change.blocks().map(|(block, _)| block.group)).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            let key = (count.queue.clone(), group);
            loop {
                let mut doc = self.db.groups.get(&key).unwrap_or_default();
                if doc.value.counted.get(&count.sequence).is_some_and(|counted| *counted >= decided_by) {
                    break;
                }
                let mut row = doc.value.row.take().unwrap_or_else(|| GroupRow::new(*at));
                for (standing, by) in
                    count_change.changes().filter(|(standing, _)| standing.group == Some(group))
                {
                    row.count(standing.state, by);
                }
                for (blocked, by) in count_change.blocks().filter(|(blocked, _)| blocked.group == group) {
                    row.block(blocked, by);
                }
                match failed.as_ref().filter(|(_, failure)| failure.fingerprint == group) {
                    Some((failed, failure)) if failed.enters => row.enter(failure, failed.at, *at),
                    Some((failed, failure)) => row.record_failure(failure, failed.at),
                    None => {}
                }
                doc.value.row = (!row.is_empty()).then_some(row);
                doc.value.counted.insert(count.sequence.clone(), decided_by);
                if self.db.groups.put_if_version(&key, doc.version, doc.value)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The document of a letter, with all that was decided about it in its sequence.
    pub(crate) fn letter_doc(&self, queue: &QueueName, id: LetterId) -> Result<Option<LetterDoc>> {
        let key = (queue.clone(), id);
        let Some(stored) = self.db.letters.get(&key) else { return Ok(None) };
        self.finish(&self.db.sequences, &(queue.clone(), stored.value.sequence))?;
        Ok(self.db.letters.get(&key).map(|stored| stored.value))
    }

    /// What is known under the id of a letter.
    pub(crate) fn known(&self, queue: &QueueName, id: LetterId) -> Result<LetterLookup<Letter>> {
        self.catch_up()?;
        Ok(match self.letter_doc(queue, id)? {
            Some(LetterDoc { letter: Some(letter), .. }) => LetterLookup::Letter(letter),
            Some(LetterDoc { state, .. }) => LetterLookup::Purged(state),
            None => LetterLookup::Absent,
        })
    }
}
