//! Checks the table of an outbox: its columns, the sequence of its ids, its index, and the rights of the
//! role.

use std::collections::BTreeMap;

use lazaret_store_postgres::driver_error;
use tokio_postgres::{Client, Row};

use crate::error::OutboxError;
use crate::options::{Ack, Columns, OutboxOptions};

/// The first server version that ends unresponsive sessions.
const MIN_VERSION: i32 = 140_000;

/// The transaction that wrote a row. An update creates a new version.
const VERSION: &str = "xmin::text::bigint";

/// A table that can be read as an outbox.
#[derive(Debug)]
pub(crate) struct Table {
    /// The quoted name with the schema.
    pub(crate) name: String,
    oid: u32,
    /// The sequence of the ids.
    pub(crate) sequence: u32,
    sequence_name: String,
    id: String,
    /// The expressions for the content of a message, in the order of [`Table::read_sql`].
    values: [String; 5],
    /// The expression for the version of a row, which is the transaction that wrote it where rows are
    /// deleted.
    version: &'static str,
    /// Whether the payload is JSON.
    pub(crate) is_json: bool,
}

/// A column.
struct Column {
    number: i16,
    /// The base type, without its domain.
    of_type: String,
    is_not_null: bool,
    is_readable: bool,
}

impl Table {
    /// Checks the server and the table.
    pub(crate) async fn inspect(client: &Client, options: &OutboxOptions) -> Result<Self, OutboxError> {
        check_server(client).await?;
        let found = relation(client, &options.table).await?;
        let Some(found) = found else {
            return Err(OutboxError::refused(format!(
                "there is no table {} in the database; create it, correct `table`, or set `setup`",
                options.table
            )));
        };
        let (oid, name): (u32, String) = (found.get(0), found.get(1));
        let (kind, persistence): (String, String) = (found.get(2), found.get(3));
        if kind != "r" && kind != "p" {
            return Err(OutboxError::refused(format!("{name} is not a table")));
        }
        if persistence != "p" {
            return Err(OutboxError::refused(format!(
                "the table {name} is unlogged or temporary: its rows do not survive a crash of the server"
            )));
        }
        if options.ack == Ack::Delete && !found.get::<_, bool>(4) {
            return Err(OutboxError::refused(format!(
                "the role may not delete from {name}; GRANT SELECT, DELETE ON {name} TO the role, or set `ack: position`"
            )));
        }
        if found.get(6) {
            return Err(OutboxError::refused(format!(
                "row-level security hides rows of {name} from the role; ALTER ROLE the role BYPASSRLS, or read as the owner"
            )));
        }
        let columns = columns(client, oid).await?;
        let at = |option: &str, column: &str| required(&columns, &name, option, column);
        let id = at("id", &options.columns.id)?;
        check_id(client, (oid, &name), &options.columns.id, id).await?;
        let (sequence, sequence_name) = sequence(client, (oid, &name), &options.columns.id, id).await?;
        let payload = at("payload", &options.columns.payload)?;
        let key = match &options.columns.key {
            None => "NULL::bytea".to_owned(),
            Some(key) => bytes_of(key, at("key", key)?),
        };
        let optional = Columns::default();
        let if_there = |option, column: &String, default: &String| match columns.contains_key(column) {
            false if column == default => Ok(None),
            _ => required(&columns, &name, option, column).map(Some),
        };
        let event_type = if_there("type", &options.columns.event_type, &optional.event_type)?;
        let headers = if_there("headers", &options.columns.headers, &optional.headers)?;
        let created_at = if_there("created-at", &options.columns.created_at, &optional.created_at)?;
        if let Some(headers) = headers.filter(|headers| !is_json(headers)) {
            return Err(OutboxError::refused(format!(
                "the column {} of {name} has the type {}; headers are a json or jsonb object",
                options.columns.headers, headers.of_type
            )));
        }
        let created_at = match created_at {
            None => "NULL::bigint".to_owned(),
            Some(column) => micros_of(&options.columns.created_at, column).ok_or_else(|| {
                OutboxError::refused(format!(
                    "the column {} of {name} has the type {}; a time is a timestamptz or a timestamp",
                    options.columns.created_at, column.of_type
                ))
            })?,
        };
        let version = match options.ack {
            Ack::Delete if !found.get::<_, bool>(7) => {
                return Err(OutboxError::refused(format!(
                    "the role may read columns of {name} only, and not which transaction wrote a row; GRANT SELECT ON {name} TO the role, \
                     or set `ack: position`"
                )));
            }
            Ack::Delete => VERSION,
            Ack::Position => "NULL::bigint",
        };
        let text_of = |column: &str, is_there: bool| match is_there {
            true => format!("{}::text", quoted(column)),
            false => "NULL::text".to_owned(),
        };
        Ok(Self {
            oid,
            sequence,
            sequence_name,
            id: quoted(&options.columns.id),
            values: [
                key,
                text_of(&options.columns.event_type, event_type.is_some()),
                bytes_of(&options.columns.payload, payload),
                text_of(&options.columns.headers, headers.is_some()),
                created_at,
            ],
            version,
            is_json: is_json(payload),
            name,
        })
    }

    /// Returns SQL that selects the last id that was drawn, and the file of the sequence. A sequence
    /// that restarts has a new file.
    pub(crate) fn last_id_sql(&self) -> String {
        format!(
            "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END, pg_relation_filenode({}::oid) FROM {}",
            self.sequence, self.sequence_name
        )
    }

    /// Returns SQL that selects the identity of the table and its sequence in the history of the server.
    /// A new primary has a different timeline.
    pub(crate) fn identity_sql(&self) -> String {
        format!(
            "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), \
                              left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), {}, {sequence}, pg_relation_filenode({sequence}::oid))",
            self.oid,
            sequence = self.sequence
        )
    }

    /// Returns SQL that selects rows with ids in a range, in order: after `$1`, up to and including
    /// `$2`, at most `$3`.
    pub(crate) fn read_sql(&self) -> String {
        let Self { name, id, values, version, .. } = self;
        format!(
            "SELECT {id}::bigint, {}, {version} FROM {name} WHERE {id} > $1::bigint AND {id} <= $2::bigint ORDER BY {id} LIMIT $3::bigint",
            values.join(", ")
        )
    }

    /// Returns SQL that deletes the rows with the ids `$1`, the last of which is `$2`, and the versions
    /// `$4`. It deletes only while the sequence has the file `$3` and was not set back, because the ids
    /// may otherwise belong to other rows. It selects whether that holds, and whether rows with these
    /// ids have other versions, because writers may have caught up.
    pub(crate) fn delete_sql(&self) -> String {
        let Self { name, id, sequence, sequence_name, .. } = self;
        format!(
            "WITH same AS (SELECT last_value >= $2::bigint AND pg_relation_filenode({sequence}::oid) = $3::oid AS is_same \
                           FROM {sequence_name}), \
                  delivered AS (SELECT * FROM unnest($1::bigint[], $4::bigint[]) AS given (row_id, row_version)), \
                  gone AS (DELETE FROM {name} WHERE {id} = ANY($1::bigint[]) AND (SELECT is_same FROM same) \
                           AND ({id}::bigint, {VERSION}) IN (SELECT row_id, row_version FROM delivered)) \
             SELECT is_same, EXISTS (SELECT FROM {name} WHERE {id} = ANY($1::bigint[]) \
                           AND ({id}::bigint, {VERSION}) NOT IN (SELECT row_id, row_version FROM delivered)) FROM same"
        )
    }

    /// Returns SQL that selects the first id up to `$1`, if there is one.
    pub(crate) fn first_up_to_sql(&self) -> String {
        let Self { name, id, .. } = self;
        format!("SELECT {id}::bigint FROM {name} WHERE {id} <= $1::bigint ORDER BY {id} LIMIT 1")
    }
}

async fn check_server(client: &Client) -> Result<(), OutboxError> {
    let sql = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery()";
    let server = client.query_one(sql, &[]).await.map_err(failed)?;
    let version: i32 = server.get(0);
    if version < MIN_VERSION {
        let (major, needed) = (version / 10_000, MIN_VERSION / 10_000);
        return Err(OutboxError::refused(format!(
            "the server is PostgreSQL {major}; an outbox needs {needed}"
        )));
    }
    if server.get(1) {
        // The server may be promoted, or another host of the DSN may be the primary.
        return Err(OutboxError::passing(
            "the server is a replica, which does not know the transactions of writers: an outbox needs the primary \
             (target_session_attrs=read-write finds it among several hosts)",
        ));
    }
    Ok(())
}

/// Finds the table with this SQL name.
pub(crate) async fn relation(client: &Client, table: &str) -> Result<Option<Row>, OutboxError> {
    let sql = "SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind::text, c.relpersistence::text, \
                      has_table_privilege(c.oid, 'DELETE'), quote_ident(n.nspname), row_security_active(c.oid), \
                      has_table_privilege(c.oid, 'SELECT') \
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)";
    client.query_opt(sql, &[&table]).await.map_err(failed)
}

async fn columns(client: &Client, table: u32) -> Result<BTreeMap<String, Column>, OutboxError> {
    let sql = "SELECT a.attname::text, a.attnum, COALESCE(NULLIF(t.typbasetype, 0), t.oid)::regtype::text, a.attnotnull, \
                      has_column_privilege(a.attrelid, a.attnum, 'SELECT') \
               FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
               WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = client.query(sql, &[&table]).await.map_err(failed)?;
    let column = |row: &Row| Column {
        number: row.get(1),
        of_type: row.get(2),
        is_not_null: row.get(3),
        is_readable: row.get(4),
    };
    Ok(rows.iter().map(|row| (row.get(0), column(row))).collect())
}

fn required<'a>(
    columns: &'a BTreeMap<String, Column>,
    table: &str,
    option: &str,
    name: &str,
) -> Result<&'a Column, OutboxError> {
    let Some(column) = columns.get(name) else {
        let known = columns.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(OutboxError::refused(format!(
            "the table {table} has no column {name}; name another with `{option}`; it has {known}"
        )));
    };
    match column.is_readable {
        true => Ok(column),
        false => Err(OutboxError::refused(format!(
            "the role may not read the column {name} of {table}; GRANT SELECT ON {table} TO the role"
        ))),
    }
}

async fn check_id(
    client: &Client,
    (table, table_name): (u32, &str),
    name: &str,
    id: &Column,
) -> Result<(), OutboxError> {
    if !matches!(id.of_type.as_str(), "bigint" | "integer" | "smallint") || !id.is_not_null {
        return Err(OutboxError::refused(format!(
            "the column {name} of {table_name} is not an integer that is NOT NULL, which gives rows their order"
        )));
    }
    let sql = "SELECT EXISTS (SELECT FROM pg_index \
                              WHERE indrelid = $1 AND indisvalid AND indpred IS NULL AND indkey[0] = $2)";
    let has_index: bool = client.query_one(sql, &[&table, &id.number]).await.map_err(failed)?.get(0);
    match has_index {
        true => Ok(()),
        false => Err(OutboxError::refused(format!(
            "no index of {table_name} starts with the column {name}: each read would scan the table; make it the primary key"
        ))),
    }
}

/// Finds the sequence that the ids come from.
async fn sequence(
    client: &Client,
    (table, table_name): (u32, &str),
    name: &str,
    id: &Column,
) -> Result<(u32, String), OutboxError> {
    // The sequence of an identity column belongs to the column. The default of any other column depends
    // on its sequence.
    let sql = "SELECT s.seqrelid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), s.seqincrement, s.seqcache, \
                      s.seqcycle, s.seqmin, c.relpersistence = 'p', has_sequence_privilege(s.seqrelid, 'SELECT'), \
                      (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = $1 AND adnum = $2) \
               FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE s.seqrelid IN ( \
                   SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass \
                       AND refobjid = $1 AND refobjsubid = $2 AND deptype = 'i' \
                   UNION \
                   SELECT d.refobjid FROM pg_attrdef a JOIN pg_depend d \
                       ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass \
                   WHERE a.adrelid = $1 AND a.adnum = $2)";
    let rows = client.query(sql, &[&table, &id.number]).await.map_err(failed)?;
    let default: Option<String> = rows.first().and_then(|row| row.get(8));
    // An identity column has no default. Any expression other than the next value would create ids
    // unknown to the sequence.
    let is_plain = |text: &String| text.starts_with("nextval('") && text.ends_with("::regclass)");
    let [found] = rows.as_slice() else {
        return Err(OutboxError::refused(format!(
            "the column {name} of {table_name} does not get its values from one sequence; make it GENERATED ALWAYS AS IDENTITY"
        )));
    };
    if !default.as_ref().is_none_or(is_plain) {
        return Err(OutboxError::refused(format!(
            "the default of the column {name} of {table_name} is more than the next value of a sequence"
        )));
    }
    let (oid, sequence): (u32, String) = (found.get(0), found.get(1));
    let (increment, cache, is_cycle, min): (i64, i64, bool, i64) =
        (found.get(2), found.get(3), found.get(4), found.get(5));
    let why = if cache != 1 {
        format!(
            "has CACHE {cache}: each connection draws ids in blocks, so a later transaction may get an earlier id; ALTER SEQUENCE \
                 {sequence} CACHE 1, and reconnect all writers"
        )
    } else if increment != 1 {
        format!(
            "has INCREMENT {increment}: ids that are drawn in blocks are not used in their order; set it to 1"
        )
    } else if is_cycle {
        "has CYCLE: ids would begin again".to_owned()
    } else if min < 0 {
        format!("has MINVALUE {min}: ids must not be negative")
    } else if !found.get::<_, bool>(6) {
        "is unlogged: ids would begin again after a crash of the server".to_owned()
    } else if !found.get::<_, bool>(7) {
        format!("may not be read by the role; GRANT SELECT ON SEQUENCE {sequence} TO the role")
    } else {
        return Ok((oid, sequence));
    };
    Err(OutboxError::refused(format!("the sequence {sequence} of the column {name} {why}")))
}

fn is_json(column: &Column) -> bool {
    matches!(column.of_type.as_str(), "json" | "jsonb")
}

/// Returns an expression for the bytes of a value: its own bytes, or the bytes of its text.
fn bytes_of(name: &str, column: &Column) -> String {
    match column.of_type.as_str() {
        "bytea" => quoted(name),
        _ => format!("convert_to({}::text, 'UTF8')", quoted(name)),
    }
}

/// Returns an expression for microseconds since 1970. Infinity counts as no time.
fn micros_of(name: &str, column: &Column) -> Option<String> {
    let name = quoted(name);
    let time = match column.of_type.as_str() {
        "timestamp with time zone" => name,
        "timestamp without time zone" => format!("({name} AT TIME ZONE 'UTC')"),
        _ => return None,
    };
    Some(format!("CASE WHEN isfinite({time}) THEN (extract(epoch FROM {time}) * 1000000)::bigint END"))
}

/// Quotes a name for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn failed(error: tokio_postgres::Error) -> OutboxError {
    driver_error(error, "inspect the outbox").into()
}
