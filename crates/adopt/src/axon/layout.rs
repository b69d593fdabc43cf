//! The layouts of Axon's dead-letter tables: 4.x and 5.x, JDBC and JPA.
//!
//! The column names depend on version, adapter and naming strategy: `deadLetterIdentifier`,
//! `dead_letter_id` and `deadletterid` are the same column. Names are compared without underscores and
//! case. The column types depend on them too. Times are timestamps or ISO texts. Bytes are `bytea`, or
//! large objects where Hibernate maps them that way.

use lazaret_core::source::SourceError;
use tokio_postgres::Client;

use super::table::read_error;

/// The names of the table, as JPA and JDBC write them.
pub const TABLES: [&str; 2] = ["dead_letter_entry", "deadletterentry"];

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Id,
    Group,
    Sequence,
    Index,
    EventId,
    Timestamp,
    Type,
    Revision,
    Payload,
    Metadata,
    AggregateType,
    AggregateId,
    AggregateNumber,
    TokenType,
    Token,
    EnqueuedAt,
    LastTouched,
    ProcessingStarted,
    CauseType,
    CauseMessage,
    Diagnostics,
}

/// How a column is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Bytes,
    Time,
}

/// The names of a column, in lower case without underscores.
type Names = &'static [&'static str];

/// All fields. Each has its kind, whether it is required, and its names in 5.x and in 4.x.
const FIELDS: [(Field, Kind, bool, Names, Names); 21] = [
    (
        Field::Id,
        Kind::Text,
        true,
        &["deadletterid", "deadletteridentifier"],
        &["deadletterid", "deadletteridentifier"],
    ),
    (Field::Group, Kind::Text, true, &["processinggroup"], &["processinggroup"]),
    (Field::Sequence, Kind::Text, true, &["sequenceidentifier"], &["sequenceidentifier"]),
    (Field::Index, Kind::Number, true, &["sequenceindex"], &["sequenceindex", "index"]),
    (
        Field::EventId,
        Kind::Text,
        true,
        &["eventidentifier", "identifier"],
        &["eventidentifier", "identifier"],
    ),
    (Field::Timestamp, Kind::Time, false, &["timestamp"], &["timestamp"]),
    (Field::Type, Kind::Text, true, &["type"], &["payloadtype"]),
    (Field::Revision, Kind::Text, false, &[], &["payloadrevision"]),
    (Field::Payload, Kind::Bytes, true, &["payload"], &["payload"]),
    (Field::Metadata, Kind::Bytes, false, &["metadata"], &["metadata"]),
    (Field::AggregateType, Kind::Text, false, &["aggregatetype"], &["type"]),
    (Field::AggregateId, Kind::Text, false, &["aggregateidentifier"], &["aggregateidentifier"]),
    (
        Field::AggregateNumber,
        Kind::Number,
        false,
        &["aggregatesequencenumber", "sequencenumber"],
        &["sequencenumber"],
    ),
    (Field::TokenType, Kind::Text, false, &["tokentype"], &["tokentype"]),
    (Field::Token, Kind::Bytes, false, &["token"], &["token"]),
    (Field::EnqueuedAt, Kind::Time, false, &["enqueuedat"], &["enqueuedat"]),
    (Field::LastTouched, Kind::Time, false, &["lasttouched"], &["lasttouched"]),
    (Field::ProcessingStarted, Kind::Time, false, &["processingstarted"], &["processingstarted"]),
    (Field::CauseType, Kind::Text, false, &["causetype"], &["causetype"]),
    (Field::CauseMessage, Kind::Text, false, &["causemessage"], &["causemessage"]),
    (Field::Diagnostics, Kind::Bytes, false, &["diagnostics"], &["diagnostics"]),
];

/// A column of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: String,
    sql_type: String,
}

/// The table, with an expression for each field. An expression yields text, a number or bytes, or `NULL`
/// if the table lacks the field.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The table with its schema, quoted.
    pub(super) table: String,
    /// The expressions, in the order of the fields.
    expressions: Vec<String>,
    /// The quoted column of the group, followed by the columns of sequence and index.
    pub(super) group: String,
    pub(super) sequence: String,
    pub(super) index: String,
}

impl Layout {
    /// Finds the table and its columns. Without a name, finds the table that has one of Axon's names.
    pub(super) async fn find(client: &Client, table: Option<&str>) -> Result<Self, SourceError> {
        let names: Vec<&str> = table.map_or(TABLES.to_vec(), |name| vec![name]);
        // A name is tried as it stands first, then as an expression, which folds case and allows a
        // schema. Other text is not tried as an expression.
        let query = "SELECT c.oid, format('%I.%I', n.nspname, c.relname) \
             FROM unnest($1::text[]) WITH ORDINALITY AS name(name, at), \
             LATERAL (SELECT coalesce(to_regclass(quote_ident(name)), \
             CASE WHEN name ~ '^[[:alnum:]_$.\"]+$' THEN to_regclass(name) END)) AS found(class) \
             JOIN pg_class c ON c.oid = found.class JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY at";
        let rows = client.query(query, &[&names]).await.map_err(|error| read_error(names[0], error))?;
        let Some(row) = rows.first() else {
            let looked = names.join(" and ");
            return Err(SourceError::permanent(format!(
                "there is no table {looked} in the schemas of this connection; pass the name of Axon's dead-letter table, \
                 with its schema if it has another one"
            )));
        };
        let (oid, table): (u32, String) = (row.get(0), row.get(1));
        let query = "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        let rows = client.query(query, &[&oid]).await.map_err(|error| read_error(&table, error))?;
        let column = |row: &tokio_postgres::Row| Column { name: row.get(0), sql_type: row.get(1) };
        Self::of(table, &rows.iter().map(column).collect::<Vec<_>>()).map_err(SourceError::permanent)
    }

    /// Maps columns to fields.
    fn of(table: String, columns: &[Column]) -> Result<Self, String> {
        let plain = |column: &Column| column.name.replace('_', "").to_ascii_lowercase();
        let named = |names: &[&str]| {
            names.iter().find_map(|name| columns.iter().find(|column| plain(column) == *name))
        };
        // In 4.x, `type` is the type of the aggregate.
        let is_4 = named(&["payloadtype"]).is_some();
        let mut missing = Vec::new();
        let mut expressions = Vec::new();
        for (field, kind, required, five, four) in FIELDS {
            let names = if is_4 { four } else { five };
            let column = named(names);
            if column.is_none() && required {
                missing.push(format!("{field:?}").to_ascii_lowercase());
            }
            expressions.push(match column {
                Some(column) => expression(column, kind).ok_or_else(|| {
                    format!(
                        "the column {} of {table} has the type {}, which Axon does not use",
                        column.name, column.sql_type
                    )
                })?,
                None => nothing(kind).to_owned(),
            });
        }
        if !missing.is_empty() {
            let found: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            return Err(format!(
                "{table} is not a dead-letter table of Axon: it has no column for {}; its columns are {}",
                missing.join(", "),
                found.join(", ")
            ));
        }
        let column = |names: &[&str]| named(names).map(|column| quoted(&column.name)).unwrap_or_default();
        Ok(Self {
            table,
            expressions,
            group: column(&["processinggroup"]),
            sequence: column(&["sequenceidentifier"]),
            index: column(&["sequenceindex", "index"]),
        })
    }

    /// Returns the select list of all fields.
    pub(super) fn fields(&self) -> String {
        self.expressions.join(", ")
    }

    /// Returns the index of a field's column in the result of a query.
    pub(super) fn place(field: Field) -> usize {
        FIELDS.iter().position(|(of, ..)| *of == field).expect("every field is listed")
    }
}

/// Quotes the name of a column.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns an expression that reads a column, or `None` for a type that Axon does not use for it.
fn expression(column: &Column, kind: Kind) -> Option<String> {
    let name = quoted(&column.name);
    let sql_type = column.sql_type.as_str();
    Some(match (kind, sql_type) {
        (Kind::Number, "int2" | "int4" | "int8" | "numeric") => format!("{name}::int8"),
        (Kind::Number, _) => return None,
        (Kind::Bytes, "bytea") => name,
        (Kind::Bytes, "oid") => format!("lo_get({name})"),
        (Kind::Bytes, "text" | "varchar" | "json" | "jsonb") => format!("convert_to({name}::text, 'UTF8')"),
        (Kind::Bytes, _) => return None,
        // Hibernate writes instants as UTC.
        (Kind::Time, "timestamptz") => utc(&format!("{name} AT TIME ZONE 'UTC'")),
        (Kind::Time, "timestamp") => utc(&name),
        (Kind::Time | Kind::Text, _) => format!("{name}::text"),
    })
}

fn utc(time: &str) -> String {
    format!(r#"to_char({time}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
}

/// Returns an expression for a field without a column.
fn nothing(kind: Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Time => "NULL::text",
        Kind::Number => "NULL::int8",
        Kind::Bytes => "NULL::bytea",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(all: &[(&str, &str)]) -> Vec<Column> {
        let column = |(name, sql_type): &(&str, &str)| Column {
            name: (*name).to_owned(),
            sql_type: (*sql_type).to_owned(),
        };
        all.iter().map(column).collect()
    }

    const REQUIRED: [(&str, &str); 5] = [
        ("processing_group", "varchar"),
        ("sequence_identifier", "varchar"),
        ("sequence_index", "int8"),
        ("payload", "oid"),
        ("dead_letter_id", "varchar"),
    ];

    fn layout(more: &[(&str, &str)]) -> Result<Layout, String> {
        Layout::of("t".to_owned(), &columns(&[&REQUIRED, more].concat()))
    }

    fn read(layout: &Layout, field: Field) -> &str {
        &layout.expressions[Layout::place(field)]
    }

    #[test]
    fn the_type_of_an_aggregate_is_not_that_of_an_event() {
        let four =
            layout(&[("event_identifier", "varchar"), ("payload_type", "varchar"), ("type", "varchar")]);
        let four = four.unwrap();
        assert_eq!(
            (read(&four, Field::Type), read(&four, Field::AggregateType)),
            ("\"payload_type\"::text", "\"type\"::text")
        );
        let five = layout(&[("identifier", "varchar"), ("type", "varchar")]).unwrap();
        assert_eq!(
            (read(&five, Field::Type), read(&five, Field::AggregateType)),
            ("\"type\"::text", "NULL::text")
        );
        assert_eq!(read(&five, Field::Revision), "NULL::text");
    }

    #[test]
    fn large_objects_and_timestamps_are_read_as_they_are_stored() {
        let more = [
            ("identifier", "varchar"),
            ("type", "varchar"),
            ("meta_data", "bytea"),
            ("enqueuedAt", "timestamptz"),
            ("lastTouched", "varchar"),
        ];
        let layout = layout(&more).unwrap();
        assert_eq!(read(&layout, Field::Payload), "lo_get(\"payload\")");
        assert_eq!(read(&layout, Field::Metadata), "\"meta_data\"");
        assert!(read(&layout, Field::EnqueuedAt).starts_with("to_char(\"enqueuedAt\" AT TIME ZONE 'UTC'"));
        assert_eq!(read(&layout, Field::LastTouched), "\"lastTouched\"::text");
    }

    #[test]
    fn a_table_of_something_else_is_refused_with_what_is_missing() {
        let error = layout(&[("id", "int8")]).unwrap_err();
        assert!(error.contains("no column for eventid, type; its columns are processing_group"), "{error}");
        let error = layout(&[("identifier", "varchar"), ("type", "varchar"), ("token", "int8")]).unwrap_err();
        assert_eq!(error, "the column token of t has the type int8, which Axon does not use");
    }

    #[test]
    fn every_field_has_its_own_place() {
        for (at, (field, ..)) in FIELDS.iter().enumerate() {
            assert_eq!(Layout::place(*field), at);
        }
    }
}
