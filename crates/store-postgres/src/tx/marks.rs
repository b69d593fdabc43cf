//! The table of marks, and the statements on it, for any client of PostgreSQL.

use lazaret_core::store::{ErrorKind, Result, StoreError};

/// The table of marks, unless another is named.
pub const DEFAULT_MARKS: &str = "lazaret_marks";

/// The longest name in PostgreSQL, in bytes: it cuts longer ones off.
const NAME_BYTES: usize = 63;

/// A table of marks: one row for each message whose effects were committed.
///
/// The statements run on any connection, so a handler with another client than tokio-postgres does by hand what
/// [`ExactlyOnce`](super::ExactlyOnce) does. With sqlx, `execute` below is
/// `sqlx::query(&sql).bind(scope).bind(id).execute(&mut *transaction).await?.rows_affected()`:
///
/// ```
/// use lazaret_core::handler::Delivery;
/// use lazaret_core::{HandlerError, Verdict};
/// use lazaret_store_postgres::Marks;
/// # use std::future::Future;
/// # /// What the example needs of a client.
/// # trait Client: Sized + Send + Sync + Clone + 'static {
/// #     type Transaction: Send;
/// #     fn begin(&self) -> impl Future<Output = Result<Self::Transaction, HandlerError>> + Send;
/// # }
/// # trait Run: Send {
/// #     fn execute(&mut self, sql: &str, values: &[&str]) -> impl Future<Output = Result<u64, HandlerError>> + Send;
/// #     fn commit(self) -> impl Future<Output = Result<(), HandlerError>> + Send;
/// # }
///
/// async fn book<P: Client>(pool: P, delivery: Delivery) -> Result<(), HandlerError>
/// # where P::Transaction: Run
/// {
///     let marks = Marks::new("lazaret_marks").expect("a plain name");
///     let mut transaction = pool.begin().await?;
///     let marked = transaction.execute(&marks.insert_sql(), &["payments", delivery.dedupe_id().as_str()]).await?;
///     if marked == 0 {
///         // Dropping the transaction rolls it back.
///         return Err(HandlerError::msg("its effects were committed before").verdict(Verdict::Duplicate));
///     }
///     transaction.execute("UPDATE accounts SET cents = cents + 1250 WHERE id = 7", &[]).await?;
///     transaction.commit().await
/// }
/// ```
///
/// Create the table once with [`create_sql`](Self::create_sql), and remove old marks from time to time with
/// [`delete_sql`](Self::delete_sql).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    table: String,
}

impl Marks {
    /// The table with this name: `lazaret_marks`, or `shop.lazaret_marks`.
    ///
    /// # Errors
    /// `Invalid` if it is not one or two names of lower-case letters, digits and underscores.
    pub fn new(table: &str) -> Result<Self> {
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let begins = !name.starts_with(|c: char| c.is_ascii_digit());
            !name.is_empty() && name.len() <= NAME_BYTES && begins && name.chars().all(plain)
        };
        match table.split('.').count() <= 2 && table.split('.').all(is_name) {
            true => Ok(Self { table: table.to_owned() }),
            false => Err(StoreError::not_done(
                ErrorKind::Invalid,
                "open",
                format!(
                    "{table:?} is not a table name of lower-case letters, digits and underscores, with or without a schema"
                ),
            )),
        }
    }

    /// Creates the table unless it exists.
    pub fn create_sql(&self) -> String {
        let Self { table } = self;
        let index = table.rsplit('.').next().unwrap_or(table);
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (scope text COLLATE \"C\" NOT NULL, hash bytea NOT NULL, \
                 message text NOT NULL, marked_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (scope, hash)); \
             CREATE INDEX IF NOT EXISTS {index}_at ON {table} (marked_at)"
        )
    }

    /// Marks a message: `$1` is the scope, a text that no other handler of this table uses, `$2` the id of the message. One row is
    /// affected, or none if the message is marked already. A message that another transaction is marking is waited for.
    pub fn insert_sql(&self) -> String {
        // An id may be longer than an entry of an index. Its start is for people.
        format!(
            "INSERT INTO {} (scope, hash, message) \
             VALUES ($1::text, sha256(convert_to($2::text, 'UTF8')), left($2::text, 200)) ON CONFLICT DO NOTHING",
            self.table
        )
    }

    /// Removes marks: at most `$2` of those that are older than `$1` seconds. A message that comes again afterwards has its effects again.
    pub fn delete_sql(&self) -> String {
        let Self { table } = self;
        format!(
            "DELETE FROM {table} WHERE (scope, hash) IN (SELECT scope, hash FROM {table} \
             WHERE marked_at < now() - make_interval(secs => $1::double precision) ORDER BY marked_at LIMIT $2::bigint)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_plain_name() {
        for good in ["lazaret_marks", "shop.marks_2", "_m"] {
            assert!(Marks::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a.b.c", "Marks", "a b", "m;", "1m", "a.", ".a", &"m".repeat(64)] {
            assert_eq!(Marks::new(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
