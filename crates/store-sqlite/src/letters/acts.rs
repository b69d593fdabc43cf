//! What people do to letters by hand.

use lazaret_core::letter::LetterId;
use lazaret_core::store::{Act, Actor, Cleared, ErrorKind};
use lazaret_core::{Letter, LetterState, SequenceId};
use rusqlite::params;

use super::{Found, Queue, SequenceRow, first, select_found, select_sequence};
use crate::arrivals::Place;
use crate::audit;
use crate::error::Work;
use crate::rows::{bound, id_bytes, unsigned};

/// How many rows are taken in hand at a time where all of them are wanted (I7).
const PAGE: i64 = 512;

impl Queue<'_> {
    pub(crate) fn act(&mut self, id: LetterId, act: Act, by: &Actor) -> Work<Letter> {
        let Some((letter, sequence)) = self.find(id)? else {
            let context = format!("there is no letter {id} in {}", self.name);
            return Self::refuse(ErrorKind::NotFound, "act", context);
        };
        let row = self.sequence(&sequence)?;
        self.check_act(act, id, &letter, row.as_ref())?;
        match (act, row) {
            (Act::Restore, row) => self.restore(&letter, &sequence, row)?,
            (_, Some(row)) => self.change(act, &letter, row)?,
            (_, None) => {
                let what = format!("letter {id} is open in {sequence}, which is not");
                return Err(crate::error::Fault::Corrupt(what));
            }
        }
        let changed = self.whole(letter.lid)?;
        let (before, after) = (Some(letter.state.as_str()), Some(changed.state.as_str()));
        audit::write(self.connection, self.now, by, act.as_str(), &id.to_string(), before, after)?;
        Ok(changed)
    }

    pub(crate) fn find(&self, id: LetterId) -> Work<Option<(Found, SequenceId)>> {
        let mut select = self
            .connection
            .prepare_cached(select_found!(", sequence FROM letters WHERE id = ?1 AND qid = ?2"))?;
        let rows = select.query(params![id_bytes(id), self.facts.qid])?;
        first(rows, |row| Ok((Found::read(row)?, SequenceId::new(row.get::<_, String>(9)?))))
    }

    fn check_act(&self, act: Act, id: LetterId, letter: &Found, row: Option<&SequenceRow>) -> Work<()> {
        let conflict = |why: &str| {
            let context = format!("cannot {} letter {id}: {why}", act.as_str());
            Self::refuse(ErrorKind::Conflict, "act", context)
        };
        if letter.purged {
            return conflict(&format!("it was {} and then purged", letter.state));
        }
        let allowed =
            if act == Act::Restore { letter.state == LetterState::Evicted } else { letter.state.is_open() };
        if !allowed {
            return conflict(&format!("it is {}", letter.state));
        }
        if act == Act::Release && self.body(letter.lid)?.payload_left_out {
            return conflict("its payload was left out, so there is nothing to run");
        }
        // A letter at or before the head of a sequence in work: what the worker holds would no longer be the head.
        if row.is_some_and(|row| row.is_in_work(letter, self.now)) {
            return conflict("somebody is working on its sequence");
        }
        Ok(())
    }

    /// Changes an open letter.
    fn change(&mut self, act: Act, letter: &Found, mut row: SequenceRow) -> Work<()> {
        match act {
            Act::Evict => self.close(&mut row, letter, LetterState::Evicted)?,
            Act::Resolve => self.close(&mut row, letter, LetterState::Resolved)?,
            Act::Park => self.set_state(letter, LetterState::Parked, None)?,
            Act::Quarantine => self.set_state(letter, LetterState::Quarantined, None)?,
            Act::Release => {
                self.set_state(letter, LetterState::Retrying, Some(self.now))?;
                let mut update = self.connection.prepare_cached(
                    "UPDATE letters SET attempts = 0, crash_attempts = 0, poison = 0 WHERE lid = ?1",
                )?;
                update.execute([letter.lid])?;
            }
            // A closed letter; it has a way of its own.
            Act::Restore => {}
        }
        self.refresh(&mut row)
    }

    /// Brings an evicted letter back to its old place, and opens its sequence if that was closed in the meantime.
    fn restore(&mut self, letter: &Found, sequence: &SequenceId, row: Option<SequenceRow>) -> Work<()> {
        self.count(Some(letter.standing()), Some((letter.gid, LetterState::Dead)))?;
        match row {
            Some(mut row) => {
                let index = self.old_place(&row, letter)?;
                self.reopen(letter, row.sid, index)?;
                row.count += 1;
                self.refresh(&mut row)?;
                self.mark_opened(row.sid)
            }
            None => {
                let sid = self.open_sequence(sequence, letter.index, None, letter.gid)?;
                self.reopen(letter, sid, letter.index)
            }
        }
    }

    fn reopen(&self, letter: &Found, sid: i64, index: i64) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET sid = ?2, idx = ?3, state = ?4, due_at = NULL, touched_at = ?5, closed_at = NULL
             WHERE lid = ?1",
        )?;
        update.execute([letter.lid, sid, index, LetterState::Dead as i64, self.now])?;
        Ok(())
    }

    /// Where a letter that comes back stands: where it stood, unless letters of its partition that were delivered again
    /// meanwhile would be out of order with it (I2).
    fn old_place(&mut self, row: &SequenceRow, letter: &Found) -> Work<i64> {
        let index = self.free_index(row.sid, letter.index)?;
        let whole = self.whole(letter.lid)?;
        let (message, position) = (&whole.message, &whole.message.position);
        let out_of_order = {
            let mut select = self.connection.prepare_cached(
                "SELECT 1 FROM letters WHERE sid = ?1 AND stream = ?2 AND partition = ?3
                 AND ((idx < ?4 AND position > ?5) OR (idx > ?4 AND position < ?5)) LIMIT 1",
            )?;
            let stream = message.stream.as_str();
            select.exists(params![row.sid, stream, position.partition, index, bound(position.offset)])?
        };
        if !out_of_order {
            return Ok(index);
        }
        match self.earlier_place(row, &whole.sequence, &Place::of(&whole))? {
            Some(earlier) => Ok(earlier),
            None => Ok(self.next_index()),
        }
    }

    /// The first index of a sequence from this one on that no open letter has.
    fn free_index(&self, sid: i64, mut index: i64) -> Work<i64> {
        let mut select = self
            .connection
            .prepare_cached("SELECT idx FROM letters WHERE sid = ?1 AND idx >= ?2 ORDER BY idx")?;
        let mut taken = select.query([sid, index])?;
        while let Some(row) = taken.next()?
            && row.get::<_, i64>(0)? == index
        {
            index += 1;
        }
        Ok(index)
    }

    pub(crate) fn clear(&mut self, by: &Actor) -> Work<Cleared> {
        let (mut evicted, mut busy) = (0, 0);
        let mut after = i64::MIN;
        loop {
            let rows = self.rows_after(after)?;
            let Some((last, _)) = rows.last() else { break };
            after = *last;
            for (_, mut row) in rows {
                let keep = i64::from(row.is_leased(self.now));
                busy += keep;
                evicted += self.evict_all(&mut row, keep)?;
                self.refresh(&mut row)?;
            }
        }
        let cleared = Cleared { evicted: unsigned(evicted)?, busy: unsigned(busy)? };
        let after = format!("{evicted} evicted, {busy} busy");
        let subject = self.name.as_str();
        audit::write(self.connection, self.now, by, "clear", subject, None, Some(&after))?;
        Ok(cleared)
    }

    /// The next open sequences, each with its revision, by which they are ordered.
    fn rows_after(&self, revision: i64) -> Work<Vec<(i64, SequenceRow)>> {
        let mut select = self.connection.prepare_cached(select_sequence!(
            ", revision FROM sequences WHERE qid = ?1 AND revision > ?2 ORDER BY revision LIMIT ?3"
        ))?;
        let rows = select
            .query_map([self.facts.qid, revision, PAGE], |row| Ok((row.get(13)?, SequenceRow::read(row)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Evicts the letters of a sequence but the first `keep`. How many.
    fn evict_all(&mut self, row: &mut SequenceRow, keep: i64) -> Work<i64> {
        let mut evicted = 0;
        loop {
            let page = self.page_of(row.sid, keep)?;
            if page.is_empty() {
                return Ok(evicted);
            }
            for letter in &page {
                self.close(row, letter, LetterState::Evicted)?;
                evicted += 1;
            }
        }
    }

    /// The first letters of a sequence behind `skip` others.
    fn page_of(&self, sid: i64, skip: i64) -> Work<Vec<Found>> {
        let mut select = self
            .connection
            .prepare_cached(select_found!("FROM letters WHERE sid = ?1 ORDER BY idx LIMIT ?2 OFFSET ?3"))?;
        let mut rows = select.query([sid, PAGE, skip])?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            page.push(Found::read(row)?);
        }
        Ok(page)
    }
}
