//! Writes the effects of a rule to the tables.

use lazaret_core::letter::AttemptRecord;
use lazaret_core::store::rules::{
    AuditLine, CountChange, Detached, Effects, Failed, LetterChange, SequenceChange,
};
use lazaret_core::{Failure, Fingerprint, LetterId, LetterState, SequenceId};
use rusqlite::{Connection, params};

use super::{OpenSequence, Queue, edits};
use crate::audit;
use crate::encoded_letter::EncodedLetter;
use crate::error::{Fault, Work};
use crate::operations::table;
use crate::rows::{Body, bound, first, id_bytes, letter_columns, nanos};

/// A stored letter: its row, its id, and the name of its sequence, for one that may open it.
pub(super) struct Stored<'a> {
    pub(super) lid: i64,
    pub(super) id: LetterId,
    pub(super) sequence: Option<&'a SequenceId>,
}

impl Queue<'_> {
    /// The number of a group by fingerprint, which is created if necessary.
    pub(super) fn group_number(&mut self, group: Option<Fingerprint>) -> Work<Option<i64>> {
        let (qid, now) = (self.numbers.qid, self.now);
        group.map(|group| self.cache.groups.named(self.connection, qid, group, now)).transpose()
    }

    /// Stores a new letter and applies its effects.
    pub(super) fn insert(
        &mut self,
        letter: &EncodedLetter,
        before: Option<&OpenSequence>,
        effects: &Effects,
    ) -> Work<()> {
        self.count(&effects.count_change)?;
        self.record_failure(letter.cause.as_ref(), effects.failed)?;
        let sid = self.write_sequence(Some(&letter.sequence), before, &effects.sequence)?;
        let LetterChange::Insert { index, due_at } = effects.letter else {
            return Err(Fault::Corrupt(format!("effects on a new letter {} are not an insert", letter.id)));
        };
        let gid = self.group_number(letter.cause.as_ref().map(|cause| cause.fingerprint))?;
        let sid = sid.filter(|_| letter.state.is_open());
        let (index, due_at) = (bound(index), due_at.map(nanos));
        let place = NewPlace { qid: self.numbers.qid, sid, gid, index, due_at, now: self.now };
        insert_letter(self.connection, &place, letter)?;
        if effects.ended {
            self.list_end(letter.id, letter.state, letter.attempts[0])?;
        }
        Ok(())
    }

    /// Applies the effects of a rule to a stored letter.
    pub(super) fn apply(
        &mut self,
        letter: &Stored<'_>,
        before: Option<&OpenSequence>,
        effects: Effects,
    ) -> Work<()> {
        let Effects { letter: change, sequence, detached, count_change, failed, audit, ended } = effects;
        self.count(&count_change)?;
        let sid = self.write_sequence(letter.sequence, before, &sequence)?;
        if ended && matches!(change, LetterChange::Erase(_) | LetterChange::Forget) {
            // Before: of a purged letter its row keeps nothing but the state.
            self.list_closed(letter.lid)?;
        }
        match change {
            LetterChange::Close(state, None) => self.close(letter.lid, state)?,
            LetterChange::Close(state, Some(attempt)) => self.close_after(letter.lid, state, &attempt)?,
            LetterChange::Hold(state) => self.set_state(letter.lid, state)?,
            LetterChange::Release(state) => self.reset(letter.lid, state)?,
            LetterChange::Restore(index) => self.reopen(letter.lid, sid, index)?,
            LetterChange::Requeue(_) => self.rewrite(letter, change, failed, ended)?,
            LetterChange::Erase(_) => self.erase_content(letter, change, failed)?,
            LetterChange::Forget => self.forget(letter.lid)?,
            LetterChange::Insert { .. } => {
                return Err(Fault::Corrupt(format!(
                    "effects on the stored letter {} are an insert",
                    letter.id
                )));
            }
        }
        if let Some(detached) = detached {
            self.detach(letter.lid, detached)?;
        }
        audit.map_or(Ok(()), |line| self.audit(&line))
    }

    /// Moves a letter to a sequence of its own.
    fn detach(&mut self, lid: i64, detached: Detached) -> Work<()> {
        let Detached { sequence, row } = detached;
        let sid = self.write_sequence(Some(&sequence), None, &SequenceChange::Open(row))?;
        let mut update =
            self.connection.prepare_cached("UPDATE letters SET sid = ?2, sequence = ?3 WHERE lid = ?1")?;
        update.execute(params![lid, sid, sequence.as_str()])?;
        Ok(())
    }

    pub(super) fn audit(&self, line: &AuditLine) -> Work<()> {
        audit::write(self.connection, self.now, line)
    }

    /// Updates the counters of a letter and its sequence.
    fn count(&mut self, change: &CountChange) -> Work<()> {
        for (counted, by) in change.changes() {
            self.numbers.by_state[counted.state as usize] += by;
            if let Some(gid) = self.group_number(counted.group)? {
                self.cache.groups.get(self.connection, gid)?.row.count(counted.state, by);
            }
        }
        for (blocked, by) in change.blocks() {
            if let Some(gid) = self.group_number(Some(blocked.group))? {
                self.cache.groups.get(self.connection, gid)?.row.block(blocked, by);
            }
        }
        Ok(())
    }

    /// Records a failure in the group of its cause.
    fn record_failure(&mut self, cause: Option<&Failure>, failed: Option<Failed>) -> Work<()> {
        let (Some(cause), Some(Failed { at, enters })) = (cause, failed) else { return Ok(()) };
        let now = self.time();
        if let Some(gid) = self.group_number(Some(cause.fingerprint))? {
            let group = &mut self.cache.groups.get(self.connection, gid)?.row;
            if enters {
                group.enter(cause, at, now);
            } else {
                group.record_failure(cause, at);
            }
        }
        Ok(())
    }

    fn close(&self, lid: i64, state: LetterState) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET sid = NULL, state = ?2, due_at = NULL, touched_at = ?3, closed_at = ?3,
             revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, state as i64, self.now])?;
        Ok(())
    }

    /// Closes a letter with a last attempt in its history. Nothing else of the letter is read.
    fn close_after(&self, lid: i64, state: LetterState, attempt: &AttemptRecord) -> Work<()> {
        let mut select = self.connection.prepare_cached("SELECT body FROM letters WHERE lid = ?1")?;
        let body = first(select.query([lid])?, |row| {
            Body::with_attempt(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?, attempt)
        })?;
        let body = body.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is missing")))?;
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET sid = NULL, state = ?2, due_at = NULL, touched_at = ?3, closed_at = ?3, body = ?4,
             revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, state as i64, self.now, body])?;
        Ok(())
    }

    fn set_state(&self, lid: i64, state: LetterState) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET state = ?2, due_at = NULL, touched_at = ?3, revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, state as i64, self.now])?;
        Ok(())
    }

    fn reset(&self, lid: i64, state: LetterState) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET state = ?2, due_at = ?4, touched_at = ?3, attempts = 0, crash_attempts = 0, poison = 0,
             revision = revision + 1 WHERE lid = ?1",
        )?;
        let due_at = (state == LetterState::Retrying).then_some(self.now);
        update.execute(params![lid, state as i64, self.now, due_at])?;
        Ok(())
    }

    fn reopen(&self, lid: i64, sid: Option<i64>, index: u64) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET sid = ?2, idx = ?3, state = ?4, due_at = NULL, touched_at = ?5, closed_at = NULL,
             revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, sid, bound(index), LetterState::Dead as i64, self.now])?;
        Ok(())
    }

    /// Writes a requeued letter.
    fn rewrite(
        &mut self,
        stored: &Stored<'_>,
        change: LetterChange,
        failed: Option<Failed>,
        ended: bool,
    ) -> Work<()> {
        let Stored { lid, id, .. } = stored;
        // Its body is written anew: that of a damaged letter is kept.
        let mut letter = self.light_undecoded(*lid)?.decode()?;
        let had_payload = !letter.payload_left_out;
        change.apply(&mut letter, self.time());
        self.record_failure(letter.cause.as_ref(), failed)?;
        if had_payload && letter.payload_left_out {
            let mut update =
                self.connection.prepare_cached("UPDATE payloads SET payload = NULL WHERE lid = ?1")?;
            update.execute([lid])?;
        }
        let gid = self.group_number(letter.cause.as_ref().map(|cause| cause.fingerprint))?;
        let (state, attempts) = (letter.state, letter.attempts);
        let counts = [letter.attempts, letter.crash_attempts, letter.replay_attempts];
        let [due_at, first_failed_at, last_failed_at, expires_at] =
            [letter.due_at, letter.first_failed_at, letter.last_failed_at, letter.expires_at]
                .map(|at| at.map(nanos));
        let poison = letter.poison;
        let (body, _) = Body::of(letter);
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET state = ?2, due_at = ?3, touched_at = ?4, attempts = ?5, crash_attempts = ?6,
             replay_attempts = ?7, poison = ?8, first_failed_at = ?9, last_failed_at = ?10, body = ?11, gid = ?12,
             reason = ?13, expires_at = ?14, revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![
            lid,
            state as i64,
            due_at,
            self.now,
            counts[0],
            counts[1],
            counts[2],
            poison,
            first_failed_at,
            last_failed_at,
            body.encode()?,
            gid,
            body.reason(),
            expires_at,
        ])?;
        if ended { self.list_end(*id, state, attempts) } else { Ok(()) }
    }

    /// Removes the content of a letter.
    fn erase_content(
        &mut self,
        stored: &Stored<'_>,
        change: LetterChange,
        failed: Option<Failed>,
    ) -> Work<()> {
        let Stored { lid, id, .. } = *stored;
        let mut letter = self.light_by_row(lid)?;
        change.apply(&mut letter, self.time());
        self.record_failure(letter.cause.as_ref(), failed)?;
        let mut update = self
            .connection
            .prepare_cached("UPDATE payloads SET headers = NULL, payload = NULL WHERE lid = ?1")?;
        update.execute([lid])?;
        edits::delete(self.connection, lid)?;
        table::erase_digests(self.connection, id)?;
        let (body, _) = Body::of(letter);
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET body = ?2, edits = 0, touched_at = ?3, revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, body.encode()?, self.now])?;
        Ok(())
    }

    /// Removes all of a closed letter except id and state, so that a redelivered message is recognized (I8). Such a row
    /// has neither a `sid`, as open letters have, nor a `closed_at`, as closed ones have, and no payload row.
    fn forget(&self, lid: i64) -> Work<()> {
        self.connection.prepare_cached("DELETE FROM payloads WHERE lid = ?1")?.execute([lid])?;
        edits::delete(self.connection, lid)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET gid = NULL, closed_at = NULL, attempts = 0, crash_attempts = 0, replay_attempts = 0,
             poison = 0, touched_at = ?2, expires_at = NULL, first_failed_at = NULL, last_failed_at = NULL,
             partition = 0, position = 0, stream = '', sequence = '', message = '', event_type = NULL, reason = NULL, body = ?3,
             edits = 0, revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, self.now, Body::default().encode()?])?;
        Ok(())
    }

    /// Lists an ended letter, if the queue is watched.
    fn list_end(&self, id: LetterId, state: LetterState, attempts: u32) -> Work<()> {
        if self.numbers.is_watched {
            let mut insert = self
                .connection
                .prepare_cached("INSERT INTO ends (qid, letter, state, attempts) VALUES (?1, ?2, ?3, ?4)")?;
            insert.execute(params![self.numbers.qid, id_bytes(id), state as i64, attempts])?;
        }
        Ok(())
    }

    /// Lists a closed letter that is erased or purged, if the queue is watched.
    fn list_closed(&self, lid: i64) -> Work<()> {
        if self.numbers.is_watched {
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO ends (qid, letter, state, attempts) SELECT qid, id, state, attempts FROM letters
                 WHERE lid = ?1",
            )?;
            insert.execute([lid])?;
        }
        Ok(())
    }
}

/// The place of a new letter. `sid` is none for a closed one, `gid` for one without a cause.
struct NewPlace {
    qid: i64,
    sid: Option<i64>,
    gid: Option<i64>,
    index: i64,
    due_at: Option<i64>,
    now: i64,
}

/// Inserts a new letter at this place.
fn insert_letter(connection: &Connection, place: &NewPlace, letter: &EncodedLetter) -> Work<()> {
    let NewPlace { qid, sid, gid, index, due_at, now } = place;
    let [attempts, crash_attempts, replay_attempts] = letter.attempts;
    let mut insert = connection.prepare_cached(concat!(
        "INSERT INTO letters (qid, sid, gid, closed_at, ",
        letter_columns!(),
        ", reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, \
         ?21, ?22, ?23, ?24, ?25)"
    ))?;
    insert.execute(params![
        qid,
        sid,
        gid,
        sid.is_none().then_some(now),
        id_bytes(letter.id),
        index,
        letter.state as i64,
        attempts,
        crash_attempts,
        replay_attempts,
        letter.poison,
        now,
        now,
        due_at,
        letter.expires_at,
        letter.first_failed_at,
        letter.last_failed_at,
        letter.place.partition.stored(),
        bound(letter.place.offset),
        letter.place.stream.as_str(),
        letter.sequence.as_str(),
        letter.message.as_str(),
        letter.event_type.as_deref(),
        &*letter.body,
        letter.cause.as_ref().map(|cause| cause.reason.as_str()),
    ])?;
    let lid = connection.last_insert_rowid();
    let mut insert = connection
        .prepare_cached("INSERT INTO payloads (lid, key, headers, payload) VALUES (?1, ?2, ?3, ?4)")?;
    insert.execute(params![
        lid,
        letter.key.as_deref(),
        letter.headers.as_deref(),
        letter.payload.as_deref(),
    ])?;
    if letter.has_edits { move_edits(connection, lid, &letter.body) } else { Ok(()) }
}

/// Moves the edits of a new letter from its body to their table.
fn move_edits(connection: &Connection, lid: i64, body: &[u8]) -> Work<()> {
    let mut body = Body::decode(body)?;
    let number = edits::insert_all(connection, lid, &body.take_edits())?;
    let mut update = connection.prepare_cached("UPDATE letters SET body = ?2, edits = ?3 WHERE lid = ?1")?;
    update.execute(params![lid, body.encode()?, number])?;
    Ok(())
}
