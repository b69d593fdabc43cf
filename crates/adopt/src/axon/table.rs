//! Axon's table as a source of foreign dead letters.
//!
//! The table is read by sequence and index, so that letters of a sequence are handed off in order.
//! Sequence identifiers do not reflect age, so new entries may appear anywhere. Each run therefore reads
//! everything. Only a run that was interrupted continues after the last entry.

use async_trait::async_trait;
use lazaret_core::source::SourceError;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::entry::Entry;
use super::layout::Layout;
use crate::source::{Cursor, DeadLetterSource, Found};

/// The maximum number of entries read at once (I7). Axon's columns hold whole events.
const BATCH: usize = 64;
/// The maximum number of processing groups that are counted separately (I7).
const GROUPS: i64 = 100;

/// The position up to which a group was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryCursor {
    /// The number of entries read.
    read: u64,
    /// The place of the last entry read.
    after: Option<EntryPlace>,
    /// Whether the group was read to its end. The next run then starts over, because new entries may
    /// appear anywhere.
    ended: bool,
}

/// The place of an entry in reading order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EntryPlace {
    sequence: String,
    index: i64,
}

/// The number of an entry, and the place of the entry before it.
#[derive(Clone, Debug)]
pub struct NumberedPlace {
    number: u64,
    after: Option<EntryPlace>,
}

impl Cursor for EntryCursor {
    type Place = NumberedPlace;

    fn move_back_to(&mut self, place: &NumberedPlace) {
        if self.is_past(place) {
            *self = Self { read: place.number, after: place.after.clone(), ended: false };
        }
    }

    fn is_past(&self, place: &NumberedPlace) -> bool {
        self.ended || place.number < self.read
    }
}

/// The number of entries in a processing group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GroupCount {
    /// The processing group.
    pub group: String,
    /// The number of entries.
    pub entries: u64,
    /// The number of sequences.
    pub sequences: u64,
}

/// Reads the entries of one processing group.
pub(super) struct DeadLetterTable<'a> {
    client: &'a Client,
    layout: Layout,
    group: &'a str,
    cursor: EntryCursor,
    remaining: u64,
}

impl<'a> DeadLetterTable<'a> {
    /// Finds the table.
    pub(super) async fn find(
        client: &'a Client,
        table: Option<&str>,
        group: &'a str,
    ) -> Result<Self, SourceError> {
        let layout = Layout::find(client, table).await?;
        Ok(Self { client, layout, group, cursor: EntryCursor::default(), remaining: 0 })
    }

    /// Counts the entries of every group.
    pub(super) async fn groups(&self) -> Result<Vec<GroupCount>, SourceError> {
        let Layout { table, group, sequence, .. } = &self.layout;
        let query = format!(
            "SELECT {group}::text, count(*), count(DISTINCT {sequence}) FROM {table} GROUP BY 1 ORDER BY 1 LIMIT {GROUPS}"
        );
        let rows = self.client.query(&query, &[]).await.map_err(|error| read_error(table, error))?;
        let number = |number: i64| u64::try_from(number).unwrap_or_default();
        let count = |row: &tokio_postgres::Row| GroupCount {
            group: row.get(0),
            entries: number(row.get(1)),
            sequences: number(row.get(2)),
        };
        Ok(rows.iter().map(count).collect())
    }

    /// Returns the condition that selects unread entries of the group. `$2` and `$3` are the place of
    /// the last entry read.
    fn unread(&self) -> String {
        let Layout { group, sequence, index, .. } = &self.layout;
        let after = match &self.cursor.after {
            None => "$2::text IS NULL AND $3::int8 IS NULL".to_owned(),
            Some(_) => format!("({sequence}::text, {index}::int8) > ($2::text, $3::int8)"),
        };
        format!("{group}::text = $1 AND {after}")
    }

    async fn query(&self, query: &str) -> Result<Vec<tokio_postgres::Row>, SourceError> {
        let after = self.cursor.after.as_ref();
        let (sequence, index) = (after.map(|place| &place.sequence), after.map(|place| place.index));
        let rows = self.client.query(query, &[&self.group, &sequence, &index]).await;
        rows.map_err(|error| read_error(&self.layout.table, error))
    }
}

/// Returns the error of a failed read, with advice on how to fix it.
pub(super) fn read_error(table: &str, error: Error) -> SourceError {
    let temporary = error.is_closed() || error.code().is_none();
    let advice = match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            "grant SELECT on the table, and on its large objects if it has any"
        }
        _ if temporary => "check the address, the network and the server, then run it again",
        _ => "correct the cause, then run it again",
    };
    let why = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    let text = format!("failed to read the table {table}: {why}; {advice}");
    let failed = if temporary { SourceError::temporary(text) } else { SourceError::permanent(text) };
    failed.with_source(error)
}

#[async_trait]
impl DeadLetterSource for DeadLetterTable<'_> {
    type Cursor = EntryCursor;

    async fn open(&mut self, cursor: EntryCursor) -> Result<(), SourceError> {
        self.cursor = if cursor.ended { EntryCursor::default() } else { cursor };
        let query = format!("SELECT count(*) FROM {} WHERE {}", self.layout.table, self.unread());
        let rows = self.query(&query).await?;
        self.remaining =
            rows.first().and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok()).unwrap_or_default();
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<Found<NumberedPlace>>, SourceError> {
        if self.cursor.ended {
            return Ok(Vec::new());
        }
        let Layout { table, sequence, index, .. } = &self.layout;
        let query = format!(
            "SELECT {} FROM {table} WHERE {} ORDER BY {sequence}::text, {index}::int8 LIMIT {BATCH}",
            self.layout.fields(),
            self.unread()
        );
        let rows = self.query(&query).await?;
        // The end is known from a short batch, so that no further query is needed.
        let ended = rows.len() < BATCH;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let entry = Entry::try_from(row).map_err(|error| read_error(&self.layout.table, error))?;
            let own = EntryPlace { sequence: entry.sequence.clone(), index: entry.index };
            let before = self.cursor.after.as_ref();
            let first = before.is_none_or(|place| place.sequence != own.sequence);
            let place = NumberedPlace { number: self.cursor.read, after: before.cloned() };
            let address = format!("{}/{}", self.layout.table, entry.id);
            found.push(Found { place, address, content: entry.decode(first) });
            self.cursor = EntryCursor { read: self.cursor.read + 1, after: Some(own), ended: false };
            self.remaining = self.remaining.saturating_sub(1);
        }
        self.cursor.ended = ended;
        Ok(found)
    }

    fn cursor(&self) -> EntryCursor {
        self.cursor.clone()
    }

    fn remaining(&self) -> u64 {
        self.remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(read: u64, sequence: &str, index: i64) -> EntryCursor {
        let after = Some(EntryPlace { sequence: sequence.to_owned(), index });
        EntryCursor { read, after, ended: false }
    }

    #[test]
    fn a_cursor_moves_back_to_the_first_entry_that_is_not_durable() {
        // I1: this also holds when the group was read to its end and letters of the last batch are not
        // durable.
        let place = |number, cursor: &EntryCursor| NumberedPlace { number, after: cursor.after.clone() };
        let mut cursor = EntryCursor { ended: true, ..behind(9, "k", 4) };
        assert!(cursor.is_past(&place(8, &behind(8, "k", 3))));
        cursor.move_back_to(&place(5, &behind(5, "c", 0)));
        cursor.move_back_to(&place(7, &behind(7, "k", 2)));
        assert_eq!(cursor, behind(5, "c", 0));
        assert!(!cursor.is_past(&place(5, &behind(5, "c", 0))));
    }

    #[test]
    fn a_cursor_is_stored_as_json() {
        let cursor = behind(2, "order-7", 1);
        let json = serde_json::to_string(&cursor).unwrap();
        assert_eq!(serde_json::from_str::<EntryCursor>(&json).unwrap(), cursor);
    }
}
