//! The witness in the database: triggers that note which session takes a partition, a sequence or an inbox, and which one writes what
//! only its owner may write. It does not rely on the fences of the store, so it sees a write that they should have refused.

use tokio_postgres::{Client, Error, NoTls, Row};

use crate::check::{Act, Note};

const TRIGGERS: &str = include_str!("witness.sql");
const NOTES: &str = "SELECT txn, session, takes, thing, key, what FROM witness.notes ORDER BY note";
const GRANTS_OF_OTHERS: &str =
    "SELECT count(*) FROM witness.notes WHERE takes AND thing = 'partition' AND session <> $1";
/// What the name of the session of a process begins with.
const SESSION: &str = "process-";

/// The name of the sessions of a process.
pub(super) fn session_of(process: u32) -> String {
    format!("{SESSION}{process}")
}

/// A connection to the database of the run.
pub(super) struct Witness(Client);

impl Witness {
    pub(super) async fn connect(dsn: &str) -> Result<Self, String> {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.map_err(failed)?;
        // Ends with the client, which gets its errors.
        tokio::spawn(connection);
        Ok(Self(client))
    }

    /// Installs the triggers on the tables of the store.
    pub(super) async fn install(&self) -> Result<(), String> {
        self.0.batch_execute(TRIGGERS).await.map_err(failed)
    }

    /// The number of grants so far that other processes than this one took.
    pub(super) async fn grants_of_others(&self, process: u32) -> Result<i64, String> {
        let row = self.0.query_one(GRANTS_OF_OTHERS, &[&session_of(process)]).await.map_err(failed)?;
        row.try_get(0).map_err(failed)
    }

    /// All notes, in their order.
    pub(super) async fn notes(&self) -> Result<Vec<Note>, String> {
        let rows = self.0.query(NOTES, &[]).await.map_err(failed)?;
        rows.iter().map(read).collect::<Result<_, _>>().map_err(failed)
    }
}

fn failed(error: Error) -> String {
    format!("the witness in the database failed: {error:?}")
}

fn read(row: &Row) -> Result<Note, Error> {
    let session: String = row.try_get("session")?;
    Ok(Note {
        transaction: row.try_get("txn")?,
        process: session.strip_prefix(SESSION).and_then(|number| number.parse().ok()),
        act: if row.try_get("takes")? { Act::Takes } else { Act::Writes },
        thing: (row.try_get("thing")?, row.try_get("key")?),
        what: row.try_get("what")?,
    })
}
