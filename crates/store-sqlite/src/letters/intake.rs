//! Taking letters in: grants, hand-offs and the notes on attempts.

use std::collections::HashMap;

use lazaret_core::store::{
    Actor, AttemptNote, ErrorKind, Grant, GrantFence, Limits, Placed, Placement, Result,
};
use lazaret_core::{LetterState, Partition, SequenceId};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::{Queue, SequenceRow, due_of};
use crate::arrivals::{Arrival, Note, Place};
use crate::audit;
use crate::error::{Fault, Work};
use crate::facts::{GrantFacts, INDEX_STEP};
use crate::rows::{self, NewPlace, bound, insert_letter, unsigned};

const HAND_OFF: &str = "hand_off";
/// Of the room before a letter, one that goes there takes this part: many fit in order, and some out of order.
const ROOM_SHARE: i64 = 1024;

impl Queue<'_> {
    pub(crate) fn assign(&mut self, partitions: &[Partition]) -> Work<Vec<Grant>> {
        let mut grants = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let known = self.shared.grant(self.connection, self.facts.qid, partition)?.unwrap_or_default();
            let new = GrantFacts { fence: known.fence + 1, turn: 0, ..known };
            self.shared.set_grant(self.facts.qid, partition, new);
            grants.push(Grant {
                partition: partition.clone(),
                fence: unsigned(new.fence)?,
                horizon: new.horizon.map(unsigned).transpose()?,
            });
        }
        Ok(grants)
    }

    pub(crate) fn hand_off_all(&mut self, items: &[Arrival], limits: &Limits) -> Work<Vec<Result<Placed>>> {
        // Which sequences had an item refused, and why: what is behind it must not overtake it (I2).
        let mut broken: HashMap<&SequenceId, ErrorKind> = HashMap::new();
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            let sequence = &item.sequence;
            let placed = match self.hand_off(item, broken.get(sequence).copied(), limits) {
                Ok(placed) => Ok(placed),
                // Refusals come before anything is written, so the items before it stand.
                Err(Fault::Refused(error)) => {
                    broken.entry(sequence).or_insert(error.kind());
                    Err(error)
                }
                Err(fault) => return Err(fault),
            };
            answers.push(placed);
        }
        Ok(answers)
    }

    fn hand_off(&mut self, letter: &Arrival, broken: Option<ErrorKind>, limits: &Limits) -> Work<Placed> {
        let partition =
            letter.grant.as_ref().map_or_else(|| letter.place.partition(), |grant| grant.partition.clone());
        let known = match &letter.grant {
            Some(grant) => self.check_grant(grant)?,
            None => self.shared.grant(self.connection, self.facts.qid, &partition)?.unwrap_or_default(),
        };
        self.check_letter(letter)?;
        let offset = rows::number(letter.place.offset, "offset", HAND_OFF)?;
        let placed = match (self.state_of(letter.id)?, broken) {
            (Some(held), _) => Placed::Held(held),
            (None, None) => {
                // What comes under no grant comes in any order.
                let again = letter.grant.is_none() || known.horizon.is_some_and(|horizon| offset <= horizon);
                self.put(letter, again, limits)?
            }
            (None, Some(kind)) => {
                let context = "an earlier message of its sequence was refused in this call".to_owned();
                return Self::refuse(kind, HAND_OFF, context);
            }
        };
        // A message that has a letter raises the horizon too: it must be found again after the next assignment.
        if !matches!(placed, Placed::NotOpen(_)) && known.horizon < Some(offset) {
            let raised = GrantFacts { horizon: Some(offset), ..known };
            self.shared.set_grant(self.facts.qid, &partition, raised);
        }
        Ok(placed)
    }

    /// The grant as it stands, with its turn moved on; `Fenced` when this one is not current any more.
    fn check_grant(&mut self, grant: &GrantFence) -> Work<GrantFacts> {
        let known = self.shared.grant(self.connection, self.facts.qid, &grant.partition)?;
        let context = match known {
            Some(known) if unsigned(known.fence)? == grant.fence => {
                let turn = rows::number(grant.turn, "turn", HAND_OFF)?;
                if known.turn <= turn {
                    let moved = GrantFacts { turn, ..known };
                    if moved != known {
                        self.shared.set_grant(self.facts.qid, &grant.partition, moved);
                    }
                    return Ok(moved);
                }
                format!(
                    "turn {} under the grant of {} comes after turn {}",
                    grant.turn, grant.partition, known.turn
                )
            }
            _ => format!("grant {} of {} is not the current one", grant.fence, grant.partition),
        };
        Self::refuse(ErrorKind::Fenced, HAND_OFF, context)
    }

    fn check_letter(&self, letter: &Arrival) -> Work<()> {
        if letter.queue != *self.name {
            let context =
                format!("letter {} belongs to queue {}, not {}", letter.id, letter.queue, self.name);
            return Self::refuse(ErrorKind::Invalid, HAND_OFF, context);
        }
        if letter.state.is_open() == (letter.placement == Placement::Closed) {
            let Arrival { id, state, placement, .. } = letter;
            let context = format!("letter {id} is {state}, which does not fit {placement:?}");
            return Self::refuse(ErrorKind::Invalid, HAND_OFF, context);
        }
        Ok(())
    }

    fn put(&mut self, letter: &Arrival, again: bool, limits: &Limits) -> Work<Placed> {
        if letter.placement == Placement::Closed {
            self.write_closed(letter)?;
            let (index, gid) = (self.next_index(), self.arrive(letter)?);
            self.keep(letter, None, index, gid)?;
            return Ok(Placed::Closed);
        }
        let row = self.sequence(&letter.sequence)?;
        if row.is_none() && letter.placement == Placement::Behind {
            return Ok(Placed::NotOpen(unsigned(self.facts.revision)?));
        }
        if is_full(row.as_ref().map(|row| row.count), self.facts.sequences, limits) {
            let what = if row.is_some() { "the sequence" } else { "the queue" };
            let context = format!("{what} has no room for message {}", letter.message);
            return Self::refuse(ErrorKind::Full, HAND_OFF, context);
        }
        let Some(mut row) = row else {
            let (index, due) = (self.next_index(), due_of(letter.state, letter.due_at, self.now));
            let gid = self.arrive(letter)?;
            let sid = self.open_sequence(&letter.sequence, index, due, gid)?;
            self.keep(letter, Some(sid), index, gid)?;
            return Ok(Placed::Opened);
        };
        let earlier = if again { self.earlier_place(&row, &letter.sequence, &letter.place)? } else { None };
        let gid = self.arrive(letter)?;
        match earlier {
            Some(index) => {
                self.keep(letter, Some(row.sid), index, gid)?;
                row.count += 1;
                self.refresh(&mut row)?;
            }
            None => {
                let index = self.next_index();
                self.keep(letter, Some(row.sid), index, gid)?;
                self.count_one_more(&row)?;
            }
        }
        Ok(Placed::Appended)
    }

    pub(super) fn next_index(&mut self) -> i64 {
        self.facts.index += INDEX_STEP;
        self.facts.index
    }

    /// Stores a new letter of this group at this index.
    fn keep(&mut self, letter: &Arrival, sid: Option<i64>, index: i64, gid: Option<i64>) -> Work<()> {
        self.count(None, Some((gid, letter.state)))?;
        self.list_end(letter.id, None, letter.state, letter.attempts[0])?;
        let place = NewPlace { qid: self.facts.qid, sid, gid, index, now: self.now };
        insert_letter(self.connection, &place, letter)
    }

    /// The place of a message before later ones of its partition; `None` when there are none in its sequence.
    ///
    /// Letters of one partition stand in the order of their offsets, so the search goes from the end to the first one
    /// that is not later. Mostly that is the last letter of all.
    pub(super) fn earlier_place(
        &mut self,
        row: &SequenceRow,
        sequence: &SequenceId,
        place: &Place,
    ) -> Work<Option<i64>> {
        let offset = bound(place.offset);
        let mut next: Option<i64> = None;
        {
            let mut select = self.connection.prepare_cached(
                "SELECT idx, position FROM letters WHERE sid = ?1 AND stream = ?2 AND partition = ?3
                 ORDER BY idx DESC",
            )?;
            let mut letters = select.query(params![row.sid, place.stream.as_str(), place.partition])?;
            while let Some(other) = letters.next()? {
                if other.get::<_, i64>(1)? <= offset {
                    break;
                }
                next = Some(other.get(0)?);
            }
        }
        let Some(next) = next else { return Ok(None) };
        if next == row.head_index && row.is_leased(self.now) {
            let context = format!("somebody is working on a later message of {sequence}");
            return Self::refuse(ErrorKind::Conflict, HAND_OFF, context);
        }
        self.place_before(row.sid, next).map(Some)
    }

    /// A free index directly before this one.
    fn place_before(&mut self, sid: i64, next: i64) -> Work<i64> {
        let mut select =
            self.connection.prepare_cached("SELECT max(idx) FROM letters WHERE sid = ?1 AND idx < ?2")?;
        let before: Option<i64> = select.query_row([sid, next], |row| row.get(0))?;
        let before = before.unwrap_or((next - INDEX_STEP).max(-1));
        let room = next - before;
        if room > 1 { Ok(before + (room / ROOM_SHARE).max(1)) } else { self.make_room(sid, next) }
    }

    /// Gives all letters of a sequence from this index on new ones at the end, in their order, and a free index in
    /// front of them. Needed only after a million redeliveries into one gap.
    fn make_room(&mut self, sid: i64, from: i64) -> Work<i64> {
        let free = self.next_index();
        let mut select = self.connection.prepare_cached(
            "SELECT lid FROM letters WHERE sid = ?1 AND idx >= ?2 AND idx < ?3 ORDER BY idx",
        )?;
        let letters: rusqlite::Result<Vec<i64>> =
            select.query_map([sid, from, free], |row| row.get(0))?.collect();
        let mut update = self.connection.prepare_cached("UPDATE letters SET idx = ?2 WHERE lid = ?1")?;
        for lid in letters? {
            let index = self.next_index();
            update.execute([lid, index])?;
        }
        Ok(free)
    }

    /// Writes into the audit that a message was closed without ever being open (I11).
    fn write_closed(&self, letter: &Arrival) -> Work<()> {
        let action = match letter.state {
            LetterState::Resolved => "resolve",
            LetterState::Evicted => "evict",
            LetterState::Expired => "expire",
            _ => "skip",
        };
        let why = letter.cause.as_ref().map_or_else(|| "handed off closed".to_owned(), ToString::to_string);
        let (subject, after) = (letter.id.to_string(), Some(letter.state.as_str()));
        audit::write(self.connection, self.now, &Actor::engine(why), action, &subject, None, after)
    }

    /// Keeps notes, or none of them when one cannot be kept.
    pub(crate) fn note_attempts(&self, notes: &[Note]) -> Work<()> {
        let offset = |note: &Note| rows::number(note.place.offset, "offset", "note_attempts");
        let offsets = notes.iter().map(offset).collect::<Work<Vec<i64>>>()?;
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO notes (qid, stream, partition, position, message, attempts, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (qid, stream, partition, position, message)
             DO UPDATE SET attempts = excluded.attempts, body = excluded.body WHERE attempts <= excluded.attempts",
        )?;
        for (note, offset) in notes.iter().zip(offsets) {
            upsert.execute(params![
                self.facts.qid,
                note.place.stream.as_str(),
                note.place.partition,
                offset,
                note.message.as_str(),
                note.attempts,
                note.body,
            ])?;
        }
        Ok(())
    }

    pub(crate) fn forget_attempts(&self, partition: &Partition, up_to: u64) -> Work<()> {
        let mut delete = self.connection.prepare_cached(
            "DELETE FROM notes WHERE qid = ?1 AND stream = ?2 AND partition = ?3 AND position <= ?4",
        )?;
        delete.execute(params![self.facts.qid, partition.stream.as_str(), partition.index, bound(up_to)])?;
        Ok(())
    }
}

/// Whether a letter does not fit: `count` is the size of its sequence if that is open.
pub(super) fn is_full(count: Option<i64>, sequences: i64, limits: &Limits) -> bool {
    match count {
        Some(count) => limits.max_sequence_size.is_some_and(|max| count >= bound(max)),
        None => limits.max_sequences.is_some_and(|max| sequences >= bound(max)),
    }
}

/// What of a note has no column of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct NoteBody {
    first_failed_at: jiff::Timestamp,
    failure: lazaret_core::Failure,
    same_failure: u32,
    due_at: jiff::Timestamp,
}

/// The way in which the body of a note is written. It stands as the first byte of each.
const NOTE_VERSION: u8 = 1;

impl NoteBody {
    pub(crate) fn encode(note: &AttemptNote) -> Work<Vec<u8>> {
        let body = Self {
            first_failed_at: note.first_failed_at,
            failure: note.failure.clone(),
            same_failure: note.same_failure,
            due_at: note.due_at,
        };
        let mut bytes = vec![NOTE_VERSION];
        serde_json::to_writer(&mut bytes, &body)
            .map_err(|error| Fault::Corrupt(format!("a note that cannot be written: {error}")))?;
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Work<Self> {
        let json = bytes.strip_prefix(&[NOTE_VERSION]);
        let json = json.ok_or_else(|| Fault::Corrupt("a note has an unknown version".into()))?;
        serde_json::from_slice(json).map_err(|error| Fault::Corrupt(format!("a note: {error}")))
    }
}

/// The notes on messages of these partitions.
pub(crate) fn attempt_notes(
    connection: &Connection,
    qid: i64,
    partitions: &[Partition],
) -> Work<Vec<AttemptNote>> {
    let mut notes = Vec::new();
    let mut select = connection.prepare_cached(
        "SELECT position, message, attempts, body FROM notes
         WHERE qid = ?1 AND stream = ?2 AND partition = ?3 ORDER BY position, message",
    )?;
    for partition in partitions {
        let mut found = select.query(params![qid, partition.stream.as_str(), partition.index])?;
        while let Some(row) = found.next()? {
            let body = NoteBody::decode(row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?)?;
            notes.push(AttemptNote {
                message: row.get::<_, String>(1)?.into(),
                partition: partition.clone(),
                offset: unsigned(row.get(0)?)?,
                attempts: row.get(2)?,
                first_failed_at: body.first_failed_at,
                failure: body.failure,
                same_failure: body.same_failure,
                due_at: body.due_at,
            });
        }
    }
    Ok(notes)
}
