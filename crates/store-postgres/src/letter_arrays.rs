//! The columns of the rows of letters, their payloads and edits, an array each.

use lazaret_core::Letter;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::Work;
use crate::letter_row::body_of;
use crate::unit::NewEdit;
use crate::values::{bound, nanos, state_number, text};

/// The columns of letters, an array each.
#[derive(Default)]
pub(crate) struct LetterArrays {
    pub(crate) lid: Vec<i64>,
    id: Vec<Uuid>,
    qid: Vec<i64>,
    sid: Vec<Option<i64>>,
    idx: Vec<i64>,
    state: Vec<i16>,
    attempts: [Vec<i64>; 3],
    poison: Vec<bool>,
    enqueued_at: Vec<i64>,
    touched_at: Vec<i64>,
    /// Due, expiry, first and last failure, closing.
    times: [Vec<Option<i64>>; 5],
    partition: Vec<i64>,
    position: Vec<i64>,
    stream: Vec<String>,
    sequence: Vec<String>,
    message: Vec<String>,
    event_type: Vec<Option<String>>,
    reason: Vec<Option<String>>,
    cause_group: Vec<Option<String>>,
    payload_left_out: Vec<bool>,
    edits: Vec<i64>,
    body: Vec<String>,
}

impl LetterArrays {
    pub(crate) fn push(
        &mut self,
        (lid, qid, sid, edits): (i64, i64, Option<i64>, i64),
        letter: &Letter,
        closed_at: Option<i64>,
    ) -> Work<()> {
        let owned = |plain: &str| text(plain).into_owned();
        let (message, cause) = (&letter.message, letter.cause.as_ref());
        self.lid.push(lid);
        self.id.push(letter.id.as_uuid());
        self.qid.push(qid);
        self.sid.push(sid);
        self.idx.push(bound(letter.index));
        self.state.push(state_number(letter.state));
        let counts = [letter.attempts, letter.crash_attempts, letter.replay_attempts];
        for (column, count) in self.attempts.iter_mut().zip(counts) {
            column.push(count.into());
        }
        self.poison.push(letter.poison);
        self.enqueued_at.push(nanos(letter.enqueued_at));
        self.touched_at.push(nanos(letter.last_touched_at));
        let times = [letter.due_at, letter.expires_at, letter.first_failed_at, letter.last_failed_at]
            .map(|time| time.map(nanos));
        for (column, time) in self.times.iter_mut().zip(times.into_iter().chain([closed_at])) {
            column.push(time);
        }
        self.partition.push(message.position.partition.into());
        self.position.push(bound(message.position.offset));
        self.stream.push(owned(message.stream.as_str()));
        self.sequence.push(owned(letter.sequence.as_str()));
        self.message.push(owned(message.id.as_str()));
        self.event_type.push(message.event_type.as_deref().map(owned));
        self.reason.push(cause.map(|cause| owned(cause.reason.as_str())));
        self.cause_group.push(cause.map(|cause| cause.fingerprint.to_string()));
        self.payload_left_out.push(letter.payload_left_out);
        self.edits.push(edits);
        self.body.push(body_of(letter)?);
        Ok(())
    }

    /// The parameters of `INSERT_LETTERS`.
    pub(crate) fn insert(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.lid,
            &self.id,
            &self.qid,
            &self.sid,
            &self.idx,
            &self.state,
            &self.attempts[0],
            &self.attempts[1],
            &self.attempts[2],
            &self.poison,
            &self.enqueued_at,
            &self.touched_at,
            &self.times[0],
            &self.times[1],
            &self.times[2],
            &self.times[3],
            &self.times[4],
            &self.partition,
            &self.position,
            &self.stream,
            &self.sequence,
            &self.message,
            &self.event_type,
            &self.reason,
            &self.cause_group,
            &self.payload_left_out,
            &self.edits,
            &self.body,
        ]
    }

    /// The parameters of `UPDATE_LETTERS`.
    pub(crate) fn update(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.lid,
            &self.sid,
            &self.idx,
            &self.state,
            &self.attempts[0],
            &self.attempts[1],
            &self.attempts[2],
            &self.poison,
            &self.touched_at,
            &self.times[0],
            &self.times[1],
            &self.times[2],
            &self.times[3],
            &self.times[4],
            &self.reason,
            &self.cause_group,
            &self.payload_left_out,
            &self.edits,
            &self.body,
            &self.sequence,
        ]
    }
}

/// The columns of payloads, an array each.
#[derive(Default)]
pub(crate) struct PayloadArrays {
    pub(crate) lid: Vec<i64>,
    pub(crate) key: Vec<Option<Vec<u8>>>,
    pub(crate) headers: Vec<Option<Vec<u8>>>,
    pub(crate) payload: Vec<Option<Vec<u8>>>,
}

/// The columns of edits, an array each.
#[derive(Default)]
pub(crate) struct EditArrays {
    pub(crate) lid: Vec<i64>,
    pub(crate) number: Vec<i64>,
    pub(crate) who: Vec<String>,
    pub(crate) at: Vec<i64>,
    pub(crate) why: Vec<String>,
    pub(crate) kept: Vec<i64>,
    pub(crate) original: Vec<Option<Vec<u8>>>,
}

impl EditArrays {
    pub(crate) fn push(&mut self, new: &NewEdit) {
        self.lid.push(new.lid);
        self.number.push(new.number);
        self.who.push(text(&new.edit.by).into_owned());
        self.at.push(nanos(new.edit.at));
        self.why.push(text(&new.edit.why).into_owned());
        self.kept.push(i64::try_from(new.kept).unwrap_or(i64::MAX));
        self.original.push(new.edit.original.as_ref().map(|original| original.to_vec()));
    }
}
