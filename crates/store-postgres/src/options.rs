//! Options of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Clock;
use lazaret_core::store::{ErrorKind, Result, StoreError};

/// The schema of the tables, unless the options name another.
pub const DEFAULT_SCHEMA: &str = "lazaret";

/// The longest name of a schema, in bytes: PostgreSQL cuts longer ones off.
const SCHEMA_BYTES: usize = 63;

/// Options of a [`PostgresStore`](crate::PostgresStore).
///
/// ```
/// use lazaret_store_postgres::PostgresStoreOptions;
/// let options = PostgresStoreOptions { schema: "shop".into(), ..PostgresStoreOptions::default() };
/// assert_eq!(options.max_connections, 16);
/// ```
#[derive(Clone)]
pub struct PostgresStoreOptions {
    /// The schema of the tables. Default: `lazaret`. Lower-case letters, digits and underscores.
    pub schema: String,
    /// Maximum number of connections of this process. Default: 16. There are up to two more: one for notifications, and one that reads
    /// values, such as what a health check asks for, while all others are in use.
    pub max_connections: usize,
    /// How long a call waits for a free connection, and for a new one to be established; several hosts share it. The connection for
    /// notifications is replaced if the server does not respond to it for this time. Default: 10 seconds.
    pub acquire_timeout: Duration,
    /// How long the server works on one statement, waits for locks included, before it cancels it. It also ends transactions that
    /// a stopped process has left open. Default: 30 seconds.
    pub statement_timeout: Duration,
    /// Creates and migrates the tables when the store is opened. Default: `true`. Without it, the store is refused if they are not
    /// those of this version.
    pub migrate: bool,
    /// The clock that leases and due times go by, for tests. Default: the server's.
    pub clock: Option<Arc<dyn Clock>>,
}

impl Default for PostgresStoreOptions {
    fn default() -> Self {
        Self {
            schema: DEFAULT_SCHEMA.to_owned(),
            max_connections: 16,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            migrate: true,
            clock: None,
        }
    }
}

impl fmt::Debug for PostgresStoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreOptions")
            .field("schema", &self.schema)
            .field("max_connections", &self.max_connections)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("migrate", &self.migrate)
            .finish_non_exhaustive()
    }
}

impl PostgresStoreOptions {
    /// `Invalid` for values that no store can have.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |context: String| Err(StoreError::not_done(ErrorKind::Invalid, "open", context));
        let mut characters = self.schema.chars();
        let begins = characters.next().is_some_and(|first| first.is_ascii_lowercase() || first == '_');
        let goes_on = characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !begins || !goes_on || self.schema.len() > SCHEMA_BYTES || self.schema.starts_with("pg_") {
            return invalid(format!(
                "schema {:?} is not a name of lower-case letters, digits and underscores, at most {SCHEMA_BYTES}, that does \
                 not start with a digit or pg_",
                self.schema
            ));
        }
        if self.max_connections == 0 {
            return invalid("max_connections is 0: a store needs a connection".to_owned());
        }
        if self.statement_timeout < Duration::from_millis(1) {
            return invalid("statement_timeout is less than a millisecond".to_owned());
        }
        Ok(())
    }

    /// The settings of a session, for the `options` of a connection. Those of the DSN go before the timeouts and the planner's.
    ///
    /// Each statement of the store has an index that it is meant to use. A server that plans by its statistics reads whole tables
    /// instead while they are new and seem small, and keeps to such a plan when they grow; and it plans short statements
    /// again and again, which takes longer than to run them. None of them runs long enough to be worth compiling (`jit`).
    pub(crate) fn session(&self, given: &str) -> String {
        let millis = self.statement_timeout.as_millis().min(i32::MAX.cast_unsigned().into());
        format!(
            "-c statement_timeout={millis} -c idle_in_transaction_session_timeout={millis} \
             -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
             -c jit=off {given} \
             -c search_path={} -c default_transaction_isolation=read\\ committed",
            self.schema
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_a_plain_name() {
        let of =
            |schema: &str| PostgresStoreOptions { schema: schema.into(), ..PostgresStoreOptions::default() };
        for good in ["lazaret", "_x9", &"a".repeat(63)] {
            assert!(of(good).check().is_ok(), "{good}");
        }
        for bad in ["", "9a", "Shop", "a-b", "a b", "a\"b", "pg_x", &"a".repeat(64)] {
            assert_eq!(of(bad).check().unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
