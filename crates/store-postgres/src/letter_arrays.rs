//! The columns of the rows of letters, their payloads and edits, an array each, and the statements that write letters.

use std::sync::LazyLock;

use lazaret_core::Letter;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::Work;
use crate::letter_row::body_of;
use crate::unit::NewEdit;
use crate::values::{bound, nanos, state_number, text};

/// A column of `letters`, with the type of its values.
struct Column {
    name: &'static str,
    kind: &'static str,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Names the row to update.
    Key,
    /// Keeps the value of the insert.
    Fixed,
    /// Is written by each update.
    Changes,
}

/// Declares the columns. The arrays and both statements follow from them.
macro_rules! letter_arrays {
    ($($name:ident: $value:ty as $kind:literal $role:ident,)*) => {
        /// The columns of letters, an array each.
        #[derive(Default)]
        pub(crate) struct LetterArrays {
            $($name: Vec<$value>,)*
        }

        const COLUMNS: &[Column] =
            &[$(Column { name: stringify!($name), kind: $kind, role: Role::$role },)*];

        impl LetterArrays {
            /// The arrays, in the order of the columns.
            fn arrays(&self) -> [&(dyn ToSql + Sync); COLUMNS.len()] {
                [$(&self.$name,)*]
            }
        }
    };
}

letter_arrays! {
    lid: i64 as "bigint" Key,
    id: Uuid as "uuid" Fixed,
    qid: i64 as "bigint" Fixed,
    sid: Option<i64> as "bigint" Changes,
    idx: i64 as "bigint" Changes,
    state: i16 as "smallint" Changes,
    attempts: i64 as "bigint" Changes,
    crash_attempts: i64 as "bigint" Changes,
    replay_attempts: i64 as "bigint" Changes,
    poison: bool as "boolean" Changes,
    enqueued_at: i64 as "bigint" Fixed,
    touched_at: i64 as "bigint" Changes,
    due_at: Option<i64> as "bigint" Changes,
    expires_at: Option<i64> as "bigint" Changes,
    first_failed_at: Option<i64> as "bigint" Changes,
    last_failed_at: Option<i64> as "bigint" Changes,
    closed_at: Option<i64> as "bigint" Changes,
    partition: i64 as "bigint" Fixed,
    position: i64 as "bigint" Fixed,
    stream: String as "text" Fixed,
    sequence: String as "text" Changes,
    message: String as "text" Fixed,
    event_type: Option<String> as "text" Fixed,
    reason: Option<String> as "text" Changes,
    cause_group: Option<String> as "text" Changes,
    payload_left_out: bool as "boolean" Changes,
    edits: i64 as "bigint" Changes,
    // Sent as text, and cast by the server.
    body: String as "text[]::json" Changes,
}

pub(crate) static INSERT_LETTERS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    format!("INSERT INTO letters ({}) SELECT {}", names.join(", "), unnested(COLUMNS.iter()))
});

pub(crate) static UPDATE_LETTERS: LazyLock<String> = LazyLock::new(|| {
    let changing = COLUMNS.iter().filter(|column| column.role == Role::Changes);
    let changes: Vec<String> = changing.map(|column| format!("{0} = u.{0}", column.name)).collect();
    let sent = unnested(COLUMNS.iter().filter(|column| column.role != Role::Fixed));
    format!("UPDATE letters l SET {} FROM (SELECT {sent}) u WHERE l.lid = u.lid", changes.join(", "))
});

/// A select list with a parameter for each of these columns, as [`statements`](crate::statements) has it.
fn unnested<'c>(columns: impl Iterator<Item = &'c Column>) -> String {
    let item = |(number, column): (usize, &Column)| {
        format!("unnest(${number}::{}[]) AS {}", column.kind, column.name)
    };
    (1..).zip(columns).map(item).collect::<Vec<String>>().join(", ")
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
        self.attempts.push(letter.attempts.into());
        self.crash_attempts.push(letter.crash_attempts.into());
        self.replay_attempts.push(letter.replay_attempts.into());
        self.poison.push(letter.poison);
        self.enqueued_at.push(nanos(letter.enqueued_at));
        self.touched_at.push(nanos(letter.last_touched_at));
        self.due_at.push(letter.due_at.map(nanos));
        self.expires_at.push(letter.expires_at.map(nanos));
        self.first_failed_at.push(letter.first_failed_at.map(nanos));
        self.last_failed_at.push(letter.last_failed_at.map(nanos));
        self.closed_at.push(closed_at);
        self.partition.push(message.position.partition_number().stored());
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

    pub(crate) const fn is_empty(&self) -> bool {
        self.lid.is_empty()
    }

    /// The parameters of [`INSERT_LETTERS`].
    pub(crate) fn insert(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.arrays().to_vec()
    }

    /// The parameters of [`UPDATE_LETTERS`].
    pub(crate) fn update(&self) -> Vec<&(dyn ToSql + Sync)> {
        let sent = self.arrays().into_iter().zip(COLUMNS).filter(|(_, column)| column.role != Role::Fixed);
        sent.map(|(array, _)| array).collect()
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
