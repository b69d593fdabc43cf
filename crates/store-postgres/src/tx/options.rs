//! Options of the layer.

use std::time::Duration;

use lazaret_core::store::{ErrorKind, Result, StoreError};

use super::marks::DEFAULT_MARKS;

/// Options of [`ExactlyOnce`](super::ExactlyOnce).
///
/// ```
/// use lazaret_store_postgres::ExactlyOnceOptions;
/// let options = ExactlyOnceOptions { max_connections: 64, ..ExactlyOnceOptions::default() };
/// assert_eq!(options.table, "lazaret_marks");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactlyOnceOptions {
    /// The table of the marks, with its schema unless that is in the search path. Default: `lazaret_marks`. It must be in the database
    /// that the handler writes to.
    pub table: String,
    /// Creates the table if it is missing. Default: `true`.
    pub create: bool,
    /// Maximum number of connections of this process. An attempt needs one from its start to its end, so a consumer with a higher
    /// concurrency waits for them. Default: 16.
    pub max_connections: usize,
    /// How long an attempt waits for a free connection, and for a new one to be established. Default: 10 seconds.
    pub acquire_timeout: Duration,
    /// How long the server works on one statement before it cancels it. An attempt at a message that another process is handling waits
    /// at most this long for its outcome. Default: 30 seconds.
    pub statement_timeout: Duration,
    /// How long a transaction may be idle before the server rolls it back, as one of a stopped process. A handler must not take longer
    /// between two statements. Default: 60 seconds.
    pub idle_timeout: Duration,
}

impl Default for ExactlyOnceOptions {
    fn default() -> Self {
        Self {
            table: DEFAULT_MARKS.to_owned(),
            create: true,
            max_connections: 16,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

impl ExactlyOnceOptions {
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |context: &str| Err(StoreError::not_done(ErrorKind::Invalid, "open", context));
        if self.max_connections == 0 {
            return invalid("max_connections is 0: an attempt needs a connection");
        }
        if self.statement_timeout.min(self.idle_timeout) < Duration::from_millis(1) {
            return invalid("statement_timeout or idle_timeout is less than a millisecond");
        }
        Ok(())
    }

    /// The settings of a session, for the `options` of a connection.
    pub(super) fn session(&self) -> String {
        let millis = |time: Duration| time.as_millis().min(i32::MAX.cast_unsigned().into());
        format!(
            "-c statement_timeout={} -c idle_in_transaction_session_timeout={}",
            millis(self.statement_timeout),
            millis(self.idle_timeout)
        )
    }
}
