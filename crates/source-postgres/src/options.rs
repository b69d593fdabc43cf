//! Options of an outbox.

use std::fmt;
use std::time::Duration;

use lazaret_core::StreamName;
use lazaret_core::source::SourceError;
use serde::{Deserialize, Serialize};

/// The default channel on which writers announce rows.
pub const DEFAULT_CHANNEL: &str = "lazaret_outbox";

/// The maximum length of a name in PostgreSQL, in bytes. It truncates longer names.
const NAME_BYTES: usize = 63;

/// How settled rows are acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ack {
    /// Settled rows are deleted. The table has one consumer.
    #[default]
    Delete,
    /// Settled rows stay, and only the position in the store moves. Several consumers may read the same
    /// table, and a job of the service removes old rows.
    Position,
}

/// The columns of an outbox. The table must have `id`, `key` and `payload`. The other columns may be
/// missing under their default names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// An integer from a sequence without cache, `NOT NULL`, and first in an index. Default: `id`.
    pub id: String,
    /// The key by which messages are ordered, of any type. `None` for messages without a key. Default: `key`.
    pub key: Option<String>,
    /// The type of the event. Default: `type`.
    pub event_type: String,
    /// `bytea`, or any other type as text. Default: `payload`.
    pub payload: String,
    /// A `json` or `jsonb` object. Default: `headers`.
    pub headers: String,
    /// A `timestamptz`, or a `timestamp` in UTC. Default: `created_at`.
    pub created_at: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            id: "id".into(),
            key: Some("key".into()),
            event_type: "type".into(),
            payload: "payload".into(),
            headers: "headers".into(),
            created_at: "created_at".into(),
        }
    }
}

/// Options of an [`OutboxSource`](crate::OutboxSource).
///
/// ```
/// use lazaret_source_postgres::{Ack, Columns, OutboxOptions};
/// let options = OutboxOptions {
///     columns: Columns { key: Some("aggregate_id".into()), ..Columns::default() },
///     ack: Ack::Position,
///     ..OutboxOptions::new("postgres://orders@db.example/shop", "shop.outbox")
/// };
/// assert_eq!(options.stream.as_str(), "shop.outbox");
/// ```
#[derive(Clone)]
pub struct OutboxOptions {
    /// The server, as a URL (`postgres://user@host/database`) or as a list of `key=value` pairs in
    /// libpq's format. It must be the primary, without a pooler in between.
    pub dsn: String,
    /// The table, with its schema unless that is in the search path. Names follow SQL: `shop.outbox` or
    /// `"Shop"."Outbox"`.
    pub table: String,
    /// The columns of the table.
    pub columns: Columns,
    /// How settled rows are acknowledged. Default: they are deleted.
    pub ack: Ack,
    /// The name of the stream, under which its position is kept. Two consumers of the same table need
    /// two names. Default: the table.
    pub stream: StreamName,
    /// The channel on which writers announce rows with a trigger. Default: `lazaret_outbox`.
    pub channel: String,
    /// How long the source waits without an announcement before it looks for rows. Default: 1 second.
    pub poll: Duration,
    /// The time after which the server ends the session of an unresponsive instance, so that another one
    /// takes over. Default: 30 seconds.
    pub session_timeout: Duration,
    /// The maximum number of rows read at once. Default: 500.
    pub batch_rows: u32,
    /// Whether to create the table and the trigger at the start if they are missing. Default: `false`.
    pub setup: bool,
    /// The position to give up. If the source stops because rows up to this id may not be the rows that
    /// were read, it delivers every row of the table instead. The error names the position. Afterwards,
    /// the option has no further effect. Default: `None`.
    pub start_over: Option<u64>,
    /// The name of this instance, for checkpoints.
    pub instance: Option<String>,
}

impl OutboxOptions {
    /// Creates options for a table, with defaults for everything else.
    pub fn new(dsn: impl Into<String>, table: impl Into<String>) -> Self {
        let table = table.into();
        Self {
            dsn: dsn.into(),
            columns: Columns::default(),
            ack: Ack::default(),
            stream: table.as_str().into(),
            channel: DEFAULT_CHANNEL.into(),
            poll: Duration::from_secs(1),
            session_timeout: Duration::from_secs(30),
            batch_rows: 500,
            setup: false,
            start_over: None,
            instance: None,
            table,
        }
    }

    /// Rejects values that no outbox can have.
    pub(crate) fn validate(&self) -> Result<(), SourceError> {
        let refused = |why: String| Err(SourceError::permanent(why));
        if self.table.trim().is_empty() {
            return refused("the table of the outbox has no name".to_owned());
        }
        let columns = &self.columns;
        let names =
            [&columns.id, &columns.event_type, &columns.payload, &columns.headers, &columns.created_at];
        for name in names.into_iter().chain(&columns.key).chain([&self.channel]) {
            if name.is_empty() || name.len() > NAME_BYTES || name.contains('\0') {
                return refused(format!("{name:?} is no name of 1 to {NAME_BYTES} bytes"));
            }
        }
        if self.poll < Duration::from_millis(1) {
            return refused("`poll` is less than a millisecond".to_owned());
        }
        if self.session_timeout < Duration::from_secs(1) {
            return refused("`session_timeout` is less than a second".to_owned());
        }
        if self.batch_rows == 0 {
            return refused("`batch_rows` is 0".to_owned());
        }
        Ok(())
    }

    /// Returns the interval at which an idle session shows the server that it is alive.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.session_timeout / 3
    }
}

impl fmt::Debug for OutboxOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The DSN may contain a password.
        f.debug_struct("OutboxOptions")
            .field("table", &self.table)
            .field("columns", &self.columns)
            .field("ack", &self.ack)
            .field("stream", &self.stream)
            .field("channel", &self.channel)
            .field("poll", &self.poll)
            .field("session_timeout", &self.session_timeout)
            .field("batch_rows", &self.batch_rows)
            .field("setup", &self.setup)
            .field("start_over", &self.start_over)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_outbox_can_have_are_refused() {
        let good = || OutboxOptions::new("postgres://h/d", "outbox");
        assert!(good().validate().is_ok());
        let bad = [
            OutboxOptions { table: " ".into(), ..good() },
            OutboxOptions { channel: String::new(), ..good() },
            OutboxOptions { columns: Columns { id: "x".repeat(64), ..Columns::default() }, ..good() },
            OutboxOptions { poll: Duration::ZERO, ..good() },
            OutboxOptions { session_timeout: Duration::from_millis(999), ..good() },
            OutboxOptions { batch_rows: 0, ..good() },
        ];
        for options in bad {
            assert!(!options.validate().unwrap_err().is_temporary(), "{options:?}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        assert!(!format!("{:?}", OutboxOptions::new("postgres://u:hunter2@h/d", "t")).contains("hunter2"));
    }
}
