//! Views for operators' acts, annotations and expiry.

use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AuditLine, Head, LetterView, RestoreView, SequenceChange};
use lazaret_core::store::{Act, Actor, Change, Cleared, DigestKey, Expired};
use lazaret_core::{Letter, SequenceId, Timestamp};
use rusqlite::params;

use super::apply::Stored;
use super::sequences::{OpenSequenceRow, select_sequence};
use super::{LetterColumns, LetterRow, OpenSequence, Queue, edits, select_letter_row};
use crate::encoded_letter::Place;
use crate::erasure_mark;
use crate::error::{Fault, Work};
use crate::rows::{Body, bound, limit as rows_of, nanos, unsigned};

/// Page size where all rows are processed (I7).
const PAGE: usize = 512;

/// Letters that wait (4) do not expire.
pub(crate) const EXPIRING: &str = select_letter_row!(
    ", sequence, expires_at FROM letters WHERE qid = ?1 AND sid IS NOT NULL AND expires_at <= ?2 AND state <> 4
     AND (expires_at, lid) > (?3, ?4) ORDER BY expires_at, lid LIMIT ?5"
);
pub(crate) const CLOSED_BEFORE: &str =
    select_letter_row!("FROM letters WHERE qid = ?1 AND closed_at < ?2 ORDER BY closed_at, lid LIMIT ?3");

/// A changed letter, without its edits, its row and the number of its edits.
pub(crate) struct Changed {
    pub(crate) letter: Letter,
    pub(crate) lid: i64,
    pub(crate) edits: i64,
}

/// An open letter whose TTL has passed.
struct Due {
    letter: LetterRow,
    sequence: SequenceId,
    expires_at: i64,
}

impl Queue<'_> {
    pub(crate) fn act(&mut self, id: LetterId, act: Act, by: &Actor) -> Work<Letter> {
        let lid = self.act_on(id, act, by)?;
        self.whole(lid)
    }

    /// Performs an act, and returns the row of its letter.
    fn act_on(&mut self, id: LetterId, act: Act, by: &Actor) -> Work<i64> {
        let (lid, letter) = self.light(id)?.into_result(self.name, id, "act")?;
        let mut open = self.sequence(&letter.sequence)?;
        let now = self.time();
        let effects = if act == Act::Restore {
            let index = self.place_restored(&letter, open.as_mut())?;
            let paused = open.is_none() && self.is_paused(&letter.sequence)?;
            rules::restore(&letter, index, open.as_ref().map(|open| &open.row), paused, by, now)
        } else {
            let next = self.behind(open.as_ref(), &LetterView::of(&letter))?;
            rules::act(act, &letter, open.as_ref().map(|open| &open.row), next, by, now)?
        };
        self.apply(&Stored { lid, id, sequence: Some(&letter.sequence) }, open.as_ref(), effects)?;
        Ok(lid)
    }

    /// The letter behind this one, if this one is the head.
    fn behind(&mut self, open: Option<&OpenSequence>, letter: &LetterView) -> Work<Option<Head>> {
        let Some(open) = open.filter(|open| open.row.head.index == letter.index) else { return Ok(None) };
        let next = self.first_from(open.sid, bound(letter.index).saturating_add(1))?;
        Ok(next.map(|next| next.view.head(self.time())))
    }

    /// The index of a restored letter.
    fn place_restored(&mut self, letter: &Letter, open: Option<&mut OpenSequence>) -> Work<u64> {
        let now = self.time();
        let Some(open) = open else {
            let slot = rules::place_restored(&letter.sequence, letter, None, now)?;
            return self.index_of(slot, None);
        };
        let free = self.free_index(open.sid, bound(letter.index))?;
        let (message, position) = (&letter.message, &letter.message.position);
        let out_of_order = {
            let mut select = self.connection.prepare_cached(
                "SELECT 1 FROM letters WHERE sid = ?1 AND stream = ?2 AND partition = ?3
                 AND ((idx < ?4 AND position > ?5) OR (idx > ?4 AND position < ?5)) LIMIT 1",
            )?;
            let (stream, partition) = (message.stream.as_str(), position.partition_number().stored());
            select.exists(params![open.sid, stream, partition, free, bound(position.offset)])?
        };
        let later = if out_of_order { self.first_later(open.sid, &Place::of(letter))? } else { None };
        let view = RestoreView { row: &open.row, free: unsigned(free)?, out_of_order, later };
        let slot = rules::place_restored(&letter.sequence, letter, Some(&view), now)?;
        self.index_of(slot, Some(open))
    }

    /// The first free index of a sequence at or after this one.
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
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let mut after = i64::MIN;
        loop {
            let page = self.rows_after(after)?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (_, open) in page {
                self.evict_all(open, &mut cleared)?;
            }
        }
        self.audit(&AuditLine::cleared(self.name, &cleared, by))?;
        Ok(cleared)
    }

    /// The next open sequences, each with its revision, in that order.
    fn rows_after(&mut self, revision: i64) -> Work<Vec<(i64, OpenSequence)>> {
        let mut select = self.connection.prepare_cached(select_sequence!(
            ", revision FROM sequences WHERE qid = ?1 AND revision > ?2 ORDER BY revision LIMIT ?3"
        ))?;
        let mut rows = select.query([self.numbers.qid, revision, rows_of(PAGE)])?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            page.push((row.get("revision")?, self.opened(OpenSequenceRow::read(row)?)?));
        }
        Ok(page)
    }

    /// Evicts the letters of a sequence, the last one first, so that its head changes once.
    fn evict_all(&mut self, mut open: OpenSequence, cleared: &mut Cleared) -> Work<()> {
        const LAST: &str =
            select_letter_row!("FROM letters WHERE sid = ?1 AND idx < ?2 ORDER BY idx DESC LIMIT ?3");
        let mut before = i64::MAX;
        loop {
            let page = self.find_all(LAST, [open.sid, before, rows_of(PAGE)])?;
            let Some(last) = page.last() else { return Ok(()) };
            before = bound(last.view.index);
            for LetterRow { lid, view } in &page {
                let Some(effects) = rules::clear(view, &open.row, None, self.time()) else {
                    cleared.busy += 1;
                    continue;
                };
                let row = effects.sequence.row().cloned();
                let stored = Stored { lid: *lid, id: view.id, sequence: None };
                self.apply(&stored, Some(&open), effects)?;
                cleared.evicted += 1;
                if let Some(row) = row {
                    open.row = row;
                }
            }
        }
    }

    /// Changes the annotations of a letter. The earlier edits are neither read nor written.
    pub(crate) fn change(
        &mut self,
        id: LetterId,
        change: &Change,
        by: &Actor,
        key: &DigestKey,
    ) -> Work<Changed> {
        let (lid, _) = self.light(id)?.into_result(self.name, id, "change")?;
        let (mut letter, mut edits) = self.without_edits(lid)?;
        let mut open = self.sequence(&letter.sequence)?.filter(|_| letter.state.is_open());
        let row = open.as_ref().map(|open| &open.row);
        rules::check_change(change, &letter, row, self.time())?;
        // Refusals precede any write.
        let kept = edits::kept(self.connection, lid, edits, change)?;
        let (line, edit) = change.apply_after(kept, &mut letter, by, key, self.time())?;
        if change.parks(letter.state) {
            self.act_on(id, Act::Park, by)?;
            let parked = self.light_by_row(lid)?;
            (letter.state, letter.due_at) = (parked.state, parked.due_at);
            open = self.sequence(&letter.sequence)?;
        }
        if let Some(edit) = edit {
            edits += 1;
            edits::insert(self.connection, lid, edits, kept.bytes, &edit)?;
            let mut update =
                self.connection.prepare_cached("UPDATE payloads SET payload = ?2 WHERE lid = ?1")?;
            update.execute(params![lid, letter.message.payload.as_deref()])?;
        }
        if let Some(open) = open.filter(|open| open.row.head.index == letter.index) {
            let row = open.row.changed(&LetterView::of(&letter), self.time());
            self.write_sequence(None, Some(&open), &SequenceChange::Put(row))?;
        }
        let [expires_at, due_at] = [letter.expires_at, letter.due_at].map(|at| at.map(nanos));
        let (body, _) = Body::of(letter);
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET body = ?2, expires_at = ?3, due_at = ?4, touched_at = ?5, edits = ?6, revision = revision + 1
             WHERE lid = ?1",
        )?;
        update.execute(params![lid, body.encode()?, expires_at, due_at, self.now, edits])?;
        self.audit(&line)?;
        let (letter, edits) = self.without_edits(lid)?;
        Ok(Changed { letter, lid, edits })
    }

    pub(crate) fn purge(&mut self, id: LetterId, by: &Actor) -> Work<()> {
        let (lid, letter) = self.light(id)?.into_result(self.name, id, "purge")?;
        let effects = rules::purge(&LetterView::of(&letter), Some(by))?;
        self.apply(&Stored { lid, id, sequence: None }, None, effects)
    }

    pub(crate) fn erase(&mut self, id: LetterId, by: &Actor) -> Work<Letter> {
        let (lid, letter) = self.light(id)?.into_result(self.name, id, "erase")?;
        let effects = rules::erase(&letter, by, self.time())?;
        self.apply(&Stored { lid, id, sequence: None }, None, effects)?;
        erasure_mark::set(self.connection)?;
        self.cache.has_erased = true;
        self.whole(lid)
    }

    pub(crate) fn expire(&mut self, closed_before: Option<Timestamp>, limit: usize) -> Work<Expired> {
        let mut done = Expired::default();
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        self.expire_open(limit, &mut done)?;
        if let Some(end) = closed_before.filter(|_| !done.more) {
            self.purge_closed(nanos(end), limit, &mut done)?;
        }
        Ok(done)
    }

    fn expire_open(&mut self, limit: u64, done: &mut Expired) -> Work<()> {
        let mut after = (i64::MIN, i64::MIN);
        loop {
            let page = self.expiring(after)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = (last.expires_at, last.letter.lid);
            for Due { letter: LetterRow { lid, view }, sequence, .. } in &page {
                let missing = || Fault::Corrupt(format!("a letter is open, its sequence {sequence} is not"));
                let open = self.sequence(sequence)?.ok_or_else(missing)?;
                let next = self.behind(Some(&open), view)?;
                let Some(effects) = rules::expire(view, &open.row, next, self.time()) else { continue };
                if done.expired >= limit {
                    done.more = true;
                    return Ok(());
                }
                self.apply(&Stored { lid: *lid, id: view.id, sequence: None }, Some(&open), effects)?;
                done.expired += 1;
            }
        }
    }

    /// The next open letters whose TTL has passed, the earliest first.
    fn expiring(&mut self, (expires_at, lid): (i64, i64)) -> Work<Vec<Due>> {
        let mut select = self.connection.prepare_cached(EXPIRING)?;
        let mut rows = select.query([self.numbers.qid, self.now, expires_at, lid, rows_of(PAGE)])?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            let letter = self.found(LetterColumns::read(row)?)?;
            let sequence = SequenceId::new(row.get::<_, String>(8)?);
            page.push(Due { letter, sequence, expires_at: row.get(9)? });
        }
        Ok(page)
    }

    fn purge_closed(&mut self, end: i64, limit: u64, done: &mut Expired) -> Work<()> {
        loop {
            let room = usize::try_from(limit - done.expired - done.purged).unwrap_or(usize::MAX);
            let most = rows_of(room.saturating_add(1).min(PAGE));
            let page = self.find_all(CLOSED_BEFORE, [self.numbers.qid, end, most])?;
            done.more = page.len() > room;
            if page.is_empty() || room == 0 {
                break;
            }
            for LetterRow { lid, view } in page.iter().take(room) {
                let effects = rules::purge(view, None)?;
                self.apply(&Stored { lid: *lid, id: view.id, sequence: None }, None, effects)?;
                done.purged += 1;
            }
        }
        if done.purged == 0 {
            return Ok(());
        }
        self.audit(&AuditLine::purged(self.name, done.purged))
    }
}
