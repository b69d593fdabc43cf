//! What a server and its role permit, for people who set it up. Changes nothing.

use std::time::Duration;

use lazaret_core::Timestamp;
use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use tokio_postgres::{Client, Row};

use crate::dsn::Dsn;
use crate::error::of_driver;
use crate::hosts;
use crate::options::PostgresStoreOptions;
use crate::tls;
use crate::transaction::CLOCK;
use crate::values::{key_of, time};

const OPEN: &str = "open";

/// What a probe has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The servers, the database and the schema, without credentials.
    pub place: String,
    /// The schema.
    pub schema: String,
    /// The role that is connected.
    pub role: String,
    /// The database.
    pub database: String,
    /// The version of the server, as `server_version_num` has it: 150004 for 15.4.
    pub version: i32,
    /// The version as text.
    pub version_text: String,
    /// `true` on a replica, which refuses writes.
    pub is_replica: bool,
    /// `true` if sessions of this role are read-only.
    pub is_read_only: bool,
    /// `false` if the server acknowledges commits that a crash of it can lose.
    pub is_durable: bool,
    /// The clock of this process before the server was asked for its time, the time of the server, and the clock of this process after that.
    pub clocks: [Timestamp; 3],
    /// The version of the tables, and the oldest version of this code that can use them; `None` without tables.
    pub tables: Option<(i32, i32)>,
    /// `true` if the schema exists.
    pub has_schema: bool,
    /// `true` if the role may create the tables, or migrate them.
    pub may_migrate: bool,
    /// The statements that grant what the role lacks to use the tables.
    pub missing_grants: Vec<String>,
    /// Connections that the server permits, and those that the store may use.
    pub connections: (i32, usize),
}

const SERVER: &str =
    "SELECT current_user::text, current_database()::text, current_setting('server_version_num')::int,
    current_setting('server_version'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off',
    current_setting('max_connections')::int";

/// The rights on the schema. The owner of the tables may migrate them; without tables, whoever may create them.
const SCHEMA: &str = "SELECT n.oid IS NOT NULL,
    coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
         WHEN v.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE')
         ELSE has_schema_privilege(n.oid, 'CREATE') AND pg_has_role(v.relowner, 'USAGE') END,
    v.oid IS NOT NULL, coalesce(has_table_privilege(v.oid, 'SELECT'), false)
    FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1
    LEFT JOIN pg_catalog.pg_class v ON v.relnamespace = n.oid AND v.relname = 'versions'";

/// The rights that are missing, by table and sequence. Entries of the audit are never changed, and versions only by migrations.
const GRANTS: &str = "SELECT c.relkind::text, c.relname::text, string_agg(needed, ', ' ORDER BY ordinal)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL unnest(CASE
        WHEN c.relkind = 'S' THEN ARRAY['USAGE']
        WHEN c.relname = 'versions' THEN ARRAY['SELECT']
        WHEN c.relname = 'audit' THEN ARRAY['SELECT', 'INSERT']
        ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) WITH ORDINALITY AS right_of (needed, ordinal)
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'S')
    AND NOT CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, needed)
                 ELSE has_table_privilege(c.oid, needed) END
    GROUP BY c.relkind, c.relname ORDER BY c.relkind DESC, c.relname";

/// Connects and looks at what a store would find, within this time.
///
/// # Errors
/// `Invalid` if the DSN cannot be used, `Denied` if the role is refused, `Unavailable` if the server does not answer.
pub async fn probe(dsn: &str, timeout: Duration) -> Result<Probe> {
    let dsn = Dsn::load(dsn)?;
    let options = dsn.apply(PostgresStoreOptions::default());
    options.check()?;
    match tokio::time::timeout(timeout, look(&dsn, &options, timeout)).await {
        Ok(found) => found,
        Err(_) => {
            let context = format!("no answer within {timeout:?}");
            Err(StoreError::not_done(ErrorKind::Unavailable, OPEN, context))
        }
    }
}

/// The value with this name in a namespace of the store, for checks before the start; `None` without the tables. Changes nothing.
///
/// # Errors
/// As [`probe`].
pub async fn stored_value(dsn: &str, space: &str, name: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
    let dsn = Dsn::load(dsn)?;
    let options = dsn.apply(PostgresStoreOptions::default());
    options.check()?;
    let reading = async {
        let client = connected(&dsn, timeout).await?;
        let table = format!("{}.key_values", options.schema);
        let there = client.query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&table]).await;
        if !read::<bool>(&there.map_err(failed)?, 0)? {
            return Ok(None);
        }
        let sql = format!("SELECT value FROM {table} WHERE hash = $1");
        let row = client.query_opt(&sql, &[&key_of(&[space, name])]).await.map_err(failed)?;
        row.map(|row| read(&row, 0)).transpose()
    };
    match tokio::time::timeout(timeout, reading).await {
        Ok(found) => found,
        Err(_) => {
            let context = format!("no answer within {timeout:?}");
            Err(StoreError::not_done(ErrorKind::Unavailable, OPEN, context))
        }
    }
}

/// Connects. The connection ends with the client.
async fn connected(dsn: &Dsn, timeout: Duration) -> Result<Client> {
    let tls = tls::connector(dsn.roots.as_ref(), dsn.config.get_ssl_mode())?;
    let mut config = dsn.config.clone();
    config.application_name("lazaret doctor");
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(dsn.timeout_of_host(timeout));
    }
    let (client, connection) = hosts::connect(&config, &tls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

async fn look(dsn: &Dsn, options: &PostgresStoreOptions, timeout: Duration) -> Result<Probe> {
    let client = connected(dsn, timeout).await?;
    let asked = Timestamp::now();
    let clock = client.query_one(CLOCK, &[]).await.map_err(failed)?;
    let clocks = [asked, time(read(&clock, 0)?), Timestamp::now()];
    let server = client.query_one(SERVER, &[]).await.map_err(failed)?;
    let rights = client.query_one(SCHEMA, &[&options.schema]).await.map_err(failed)?;
    let schema = options.schema.clone();
    let role: String = read(&server, 0)?;
    let (has_schema, may_use, may_migrate): (bool, bool, bool) =
        (read(&rights, 0)?, read(&rights, 1)?, read(&rights, 2)?);
    let has_tables: bool = read(&rights, 3)?;
    let may_read: bool = may_use && read(&rights, 4)?;
    let tables = if has_tables && may_read { versions(&client, &schema).await? } else { None };
    let mut missing_grants = Vec::new();
    if has_tables {
        let to = quoted(&role);
        if !may_use {
            missing_grants.push(format!("GRANT USAGE ON SCHEMA {schema} TO {to};"));
        }
        for row in client.query(GRANTS, &[&schema]).await.map_err(failed)? {
            let (kind, name, rights): (String, String, String) =
                (read(&row, 0)?, read(&row, 1)?, read(&row, 2)?);
            let what = if kind == "S" { "SEQUENCE" } else { "TABLE" };
            missing_grants.push(format!("GRANT {rights} ON {what} {schema}.{name} TO {to};"));
        }
    }
    Ok(Probe {
        place: dsn.place(options),
        schema,
        role,
        database: read(&server, 1)?,
        version: read(&server, 2)?,
        version_text: read(&server, 3)?,
        is_replica: read(&server, 4)?,
        is_read_only: read(&server, 5)?,
        is_durable: read(&server, 6)?,
        clocks,
        tables,
        has_schema,
        may_migrate,
        missing_grants,
        connections: (read(&server, 7)?, options.max_connections),
    })
}

async fn versions(client: &Client, schema: &str) -> Result<Option<(i32, i32)>> {
    let sql = format!("SELECT version, usable_from FROM {schema}.versions ORDER BY version DESC LIMIT 1");
    let row = client.query_opt(&sql, &[]).await.map_err(failed)?;
    row.map(|row| Ok((read(&row, 0)?, read(&row, 1)?))).transpose()
}

fn read<T: tokio_postgres::types::FromSqlOwned>(row: &Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    of_driver(error, OPEN, Certainty::NotDone)
}

/// A name as an identifier in SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// The rest of a message of a client, behind its length.
    async fn rest(client: &mut TcpStream) -> Vec<u8> {
        let length = client.read_u32().await.unwrap() as usize;
        let mut rest = vec![0; length - 4];
        client.read_exact(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test]
    async fn a_value_is_read_with_the_password_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let passfile = folder.path().join("passwords");
        std::fs::write(&passfile, "127.0.0.1:*:*:ada:of-file\n").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&passfile, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let asks = async {
            let (mut client, _) = server.accept().await.unwrap();
            rest(&mut client).await;
            // AuthenticationCleartextPassword.
            client.write_all(b"R\0\0\0\x08\0\0\0\x03").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'p');
            rest(&mut client).await
        };
        let (port, passfile) = (address.port(), passfile.display());
        let dsn =
            format!("host=127.0.0.1 port={port} user=ada dbname=shop sslmode=disable passfile={passfile}");
        let (password, found) =
            tokio::join!(asks, stored_value(&dsn, "space", "name", Duration::from_secs(240)));
        assert_eq!(password, b"of-file\0");
        assert!(found.is_err(), "the server went away: {found:?}");
    }
}
