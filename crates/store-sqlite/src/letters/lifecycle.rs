//! Letters on their way out: what people note on them, what runs out of time, and what is removed for good.
//!
//! Of a purged letter the row stays, without anything that came with the message: its id and state say that it was there
//! and how it ended (I8). Such a row has neither a `sid`, as open letters have, nor a `closed_at`, as closed ones have,
//! and no payload row.

use lazaret_core::letter::LetterId;
use lazaret_core::store::{Actor, Change, ErrorKind, Expired};
use lazaret_core::{Letter, LetterState, SequenceId, Timestamp};
use rusqlite::{Row, params};

use super::{Found, Queue, SequenceRow, select_found};
use crate::audit;
use crate::error::{Fault, Work};
use crate::rows::{Body, letter_id, limit as rows_of, nanos};

/// How many letters are taken in hand at a time where all of them are wanted (I7).
const PAGE: usize = 512;

pub(crate) const EXPIRING: &str = select_found!(
    ", sequence, expires_at FROM letters WHERE qid = ?1 AND sid IS NOT NULL AND expires_at <= ?2
     AND (expires_at, lid) > (?3, ?4) ORDER BY expires_at, lid LIMIT ?5"
);
pub(crate) const CLOSED_BEFORE: &str =
    select_found!("FROM letters WHERE qid = ?1 AND closed_at < ?2 ORDER BY closed_at, lid LIMIT ?3");

/// An open letter whose time has run out.
struct Due {
    letter: Found,
    sequence: SequenceId,
    expires_at: i64,
}

impl Due {
    fn read(row: &Row<'_>) -> Work<Self> {
        let sequence = SequenceId::new(row.get::<_, String>(9)?);
        Ok(Self { letter: Found::read(row)?, sequence, expires_at: row.get(10)? })
    }
}

impl Queue<'_> {
    pub(crate) fn note(&mut self, id: LetterId, change: &Change, by: &Actor) -> Work<Letter> {
        const OPERATION: &str = "change";
        let (found, sequence) = self.find_kept(id, OPERATION)?;
        let row = self.sequence(&sequence)?.filter(|_| found.state.is_open());
        let is_payload = matches!(change, Change::Payload(_));
        if is_payload && let Some(why) = self.not_editable(&found, row.as_ref()) {
            let context = format!("cannot change the payload of letter {id}: {why}");
            return Self::refuse(ErrorKind::Conflict, OPERATION, context);
        }
        let mut letter = self.whole(found.lid)?;
        let noted = change.apply(&mut letter, by, crate::rows::time(self.now))?;
        if is_payload {
            let mut update =
                self.connection.prepare_cached("UPDATE payloads SET payload = ?2 WHERE lid = ?1")?;
            update.execute(params![found.lid, letter.message.payload.as_deref()])?;
        }
        let expires_at = letter.expires_at.map(nanos);
        let (body, _) = Body::of(letter);
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET body = ?2, expires_at = ?3, touched_at = ?4 WHERE lid = ?1",
        )?;
        update.execute(params![found.lid, body.encode()?, expires_at, self.now])?;
        if let Some(mut row) = row {
            self.refresh(&mut row)?;
        }
        let (before, after) = (noted.before.as_deref(), noted.after.as_deref());
        audit::write(self.connection, self.now, by, change.as_str(), &id.to_string(), before, after)?;
        self.whole(found.lid)
    }

    /// Why the payload of a letter cannot be changed now, if so.
    fn not_editable(&self, letter: &Found, row: Option<&SequenceRow>) -> Option<String> {
        if !letter.state.is_open() {
            return Some(format!("it is {}", letter.state));
        }
        row.is_some_and(|row| row.is_in_work(letter, self.now)).then(|| "somebody is working on it".into())
    }

    pub(crate) fn purge(&mut self, id: LetterId, by: &Actor) -> Work<()> {
        const OPERATION: &str = "purge";
        let (letter, _) = self.find_kept(id, OPERATION)?;
        if letter.state.is_open() {
            let context = format!("cannot purge letter {id}: it is {}", letter.state);
            return Self::refuse(ErrorKind::Conflict, OPERATION, context);
        }
        self.forget(&letter)?;
        let before = Some(letter.state.as_str());
        audit::write(self.connection, self.now, by, "purge", &id.to_string(), before, Some("purged"))
    }

    /// A letter that is stored and was not purged, with its sequence.
    fn find_kept(&self, id: LetterId, operation: &'static str) -> Work<(Found, SequenceId)> {
        let context = match self.find(id)? {
            Some((letter, _)) if letter.purged => {
                format!("letter {id} was {} and then purged", letter.state)
            }
            Some(found) => return Ok(found),
            None => format!("there is no letter {id} in {}", self.name),
        };
        Self::refuse(ErrorKind::NotFound, operation, context)
    }

    /// Removes all of a closed letter but its trace.
    fn forget(&mut self, letter: &Found) -> Work<()> {
        self.count(Some(letter.standing()), None)?;
        self.connection.prepare_cached("DELETE FROM payloads WHERE lid = ?1")?.execute([letter.lid])?;
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET gid = NULL, closed_at = NULL, attempts = 0, crash_attempts = 0, replay_attempts = 0,
             poison = 0, touched_at = ?2, expires_at = NULL, first_failed_at = NULL, last_failed_at = NULL,
             partition = 0, position = 0, stream = '', sequence = '', message = '', event_type = NULL, reason = NULL, body = ?3
             WHERE lid = ?1",
        )?;
        update.execute(params![letter.lid, self.now, Body::default().encode()?])?;
        Ok(())
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
            for Due { letter, sequence, .. } in &page {
                let missing = || Fault::Corrupt(format!("a letter is open in {sequence}, which is not"));
                let mut row = self.sequence(sequence)?.ok_or_else(missing)?;
                if row.is_in_work(letter, self.now) {
                    continue;
                }
                if done.expired >= limit {
                    done.more = true;
                    return Ok(());
                }
                self.close(&mut row, letter, LetterState::Expired)?;
                self.refresh(&mut row)?;
                let (before, after) = (Some(letter.state.as_str()), Some(LetterState::Expired.as_str()));
                let (by, subject) = (Actor::engine("its time ran out"), letter_id(&letter.id)?.to_string());
                audit::write(self.connection, self.now, &by, "expire", &subject, before, after)?;
                done.expired += 1;
            }
        }
    }

    /// The next open letters whose time has run out, the earliest first.
    fn expiring(&self, (expires_at, lid): (i64, i64)) -> Work<Vec<Due>> {
        let mut select = self.connection.prepare_cached(EXPIRING)?;
        let mut rows = select.query([self.facts.qid, self.now, expires_at, lid, rows_of(PAGE)])?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            page.push(Due::read(row)?);
        }
        Ok(page)
    }

    fn purge_closed(&mut self, end: i64, limit: u64, done: &mut Expired) -> Work<()> {
        loop {
            let room = usize::try_from(limit - done.expired - done.purged).unwrap_or(usize::MAX);
            let page = self.closed_before(end, room.saturating_add(1).min(PAGE))?;
            done.more = page.len() > room;
            if page.is_empty() || room == 0 {
                break;
            }
            for letter in page.iter().take(room) {
                self.forget(letter)?;
                done.purged += 1;
            }
        }
        if done.purged == 0 {
            return Ok(());
        }
        let by = Actor::engine("the time to keep closed letters ran out");
        let (subject, after) = (self.name.as_str(), format!("{} purged", done.purged));
        audit::write(self.connection, self.now, &by, "purge", subject, None, Some(&after))
    }

    /// Letters that were closed before this time, the earliest first.
    fn closed_before(&self, end: i64, limit: usize) -> Work<Vec<Found>> {
        let mut select = self.connection.prepare_cached(CLOSED_BEFORE)?;
        let mut rows = select.query([self.facts.qid, end, rows_of(limit)])?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            page.push(Found::read(row)?);
        }
        Ok(page)
    }
}
