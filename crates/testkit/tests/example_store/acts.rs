//! What people do to letters by hand, and what runs out of time.

use std::collections::BTreeMap;

use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{self, AuditLine, Effects, LetterView, RestoreView, SequenceRow};
use lazaret_core::store::{
    Act, Actor, Change as Edit, Cleared, DigestKey, ErrorKind, Expired, Result, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::{Change, View};
use crate::database::Left;

impl View<'_> {
    /// The index of a letter that comes back, and the letters that move behind it.
    fn index_restored(&mut self, letter: &Letter) -> Result<(u64, Vec<Left>)> {
        let later = self.first_later(letter);
        let view = self.doc.row.as_ref().map(|row| {
            let mut free = letter.index;
            while self.doc.letters.contains_key(&free) {
                free += 1;
            }
            let out_of_order = self.open_from(0).any(|other| {
                other.message.partition() == letter.message.partition()
                    && (other.message.position.offset < letter.message.position.offset)
                        != (other.index < free)
            });
            RestoreView { row, free, out_of_order, later }
        });
        let slot = rules::place_restored(self.sequence, letter, view.as_ref(), self.now)?;
        self.index_of(slot)
    }
}

impl DocumentStore {
    /// The letter of a view, by its id. It may have left the sequence before the view was loaded, and was in flight until then.
    fn known_in(&self, view: &View<'_>, id: LetterId, operation: &'static str) -> Result<Letter> {
        let letter = self.known(view.queue, id)?.into_result(view.queue, id, operation)?;
        if letter.sequence != *view.sequence {
            let context = format!("letter {id} has just left {}", view.sequence);
            return Err(StoreError::not_done(ErrorKind::Conflict, operation, context));
        }
        Ok(letter)
    }

    /// Acts on a letter.
    pub(crate) fn act_on(&self, queue: &QueueName, id: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let sequence = self.known(queue, id)?.into_result(queue, id, "act")?.sequence;
        self.change(queue, &sequence, |view| {
            let letter = self.known_in(view, id, "act")?;
            let (effects, mut left) = if act == Act::Restore {
                let (index, left) = view.index_restored(&letter)?;
                let (row, paused) = (view.doc.row.as_ref(), self.is_paused(queue, &sequence));
                (rules::restore(&letter, index, row, paused, by, view.now), left)
            } else {
                let next = view.next(letter.index).map(|next| next.head(view.now));
                (rules::act(act, &letter, view.doc.row.as_ref(), next, by, view.now)?, Vec::new())
            };
            let (letter, mut change) = view.apply(letter, effects);
            left.append(&mut change.left);
            Ok((letter, Some(Change { left, ..change })))
        })
    }

    pub(crate) fn edit(
        &self,
        queue: &QueueName,
        id: LetterId,
        edit: &Edit,
        by: &Actor,
        key: &DigestKey,
    ) -> Result<Letter> {
        let sequence = self.known(queue, id)?.into_result(queue, id, "change")?.sequence;
        self.change(queue, &sequence, |view| {
            let mut letter = self.known_in(view, id, "change")?;
            rules::check_change(edit, &letter, view.doc.row.as_ref(), view.now)?;
            let parks = edit.parks(letter.state);
            let line = edit.apply(&mut letter, by, key, view.now)?;
            let (mut doc, mut left) = (view.doc.clone(), Vec::new());
            if parks {
                let effects = rules::act(Act::Park, &letter, doc.row.as_ref(), None, by, view.now)?;
                let change;
                (letter, change) = view.apply(letter, effects);
                (doc, left) = (change.doc, change.left);
            }
            if letter.state.is_open()
                && let Some(row) = doc.row.as_mut().filter(|row| row.head.index == letter.index)
            {
                *row = row.changed(&LetterView::of(&letter), view.now);
            }
            left.extend([Left::letter(&letter, false, view.now), self.audited(line, view.now)]);
            Ok((letter, Some(Change { doc, left })))
        })
    }

    pub(crate) fn purge_letter(&self, queue: &QueueName, id: LetterId, by: Option<&Actor>) -> Result<()> {
        let sequence = self.known(queue, id)?.into_result(queue, id, "purge")?.sequence;
        self.change(queue, &sequence, |view| {
            let letter = self.known_in(view, id, "purge")?;
            let effects = rules::purge(&LetterView::of(&letter), by)?;
            Ok(((), Some(view.apply(letter, effects).1)))
        })
    }

    pub(crate) fn erase_letter(&self, queue: &QueueName, id: LetterId, by: &Actor) -> Result<Letter> {
        let sequence = self.known(queue, id)?.into_result(queue, id, "erase")?.sequence;
        self.change(queue, &sequence, |view| {
            let letter = self.known_in(view, id, "erase")?;
            let effects = rules::erase(&letter, by, view.now)?;
            // First: a call that is cut off after it can be repeated, and an erased letter is not erased again.
            self.erase_digests(id)?;
            let (letter, change) = view.apply(letter, effects);
            Ok((letter, Some(change)))
        })
    }

    /// Closes an open letter by a rule that may leave it. `None` when it is not open any more.
    fn close_by(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        id: LetterId,
        rule: fn(&LetterView, &SequenceRow, Option<rules::Head>, Timestamp) -> Option<Effects>,
    ) -> Result<Option<bool>> {
        self.change(queue, sequence, |view| {
            let is_here = |letter: &Letter| letter.state.is_open() && letter.sequence == *sequence;
            let letter = view.letter(id).filter(is_here);
            let (Some(letter), Some(row)) = (letter, &view.doc.row) else { return Ok((None, None)) };
            let next = view.next(letter.index).map(|next| next.head(view.now));
            Ok(match rule(&LetterView::of(&letter), row, next, view.now) {
                Some(effects) => (Some(true), Some(view.apply(letter, effects).1)),
                None => (Some(false), None),
            })
        })
    }

    pub(crate) fn clear_queue(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        for (sequence, letters) in self.open_letters(queue)? {
            for id in letters {
                match self.close_by(queue, &sequence, id, rules::clear)? {
                    Some(true) => cleared.evicted += 1,
                    Some(false) => cleared.busy += 1,
                    None => {}
                }
            }
        }
        self.write_line(AuditLine::cleared(queue, &cleared, by))?;
        Ok(cleared)
    }

    pub(crate) fn expire_letters(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        let (now, limit) = (self.clock.now(), limit as u64);
        let mut done = Expired::default();
        let rows: BTreeMap<SequenceId, SequenceRow> = self.rows(queue)?.into_iter().collect();
        let is_free = |letter: &Letter| {
            rows.get(&letter.sequence).is_some_and(|row| !row.is_in_flight(letter.index, now))
        };
        for (_, id, sequence) in self.letters_by_time(queue, |doc| {
            let letter = doc.letter.as_ref().filter(|letter| letter.state.is_open() && is_free(letter));
            letter?.expires_at.filter(|at| *at <= now)
        })? {
            if done.expired >= limit {
                done.more = true;
                return Ok(done);
            }
            let closed = self.close_by(queue, &sequence, id, rules::expire)?;
            done.expired += u64::from(closed == Some(true));
        }
        let closed = |end| {
            self.letters_by_time(queue, move |doc| {
                doc.closed_at.filter(|at| doc.letter.is_some() && *at < end)
            })
        };
        for (_, id, _) in closed_before.map(closed).transpose()?.unwrap_or_default() {
            if done.expired + done.purged >= limit {
                done.more = true;
                break;
            }
            self.purge_letter(queue, id, None)?;
            done.purged += 1;
        }
        if done.purged > 0 {
            self.write_line(AuditLine::purged(queue, done.purged))?;
        }
        Ok(done)
    }
}
