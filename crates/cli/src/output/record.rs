//! Records of lists, and printing them in each format.

use jiff::Timestamp;
use serde::Serialize;

use super::Format;
use super::csv::{csv_header, csv_row};
use super::screen::Screen;
use super::table::{Cell, Column, Table};
use crate::error::{Error, Result};

/// A record of a list.
pub(crate) trait Record: Serialize + Sized {
    /// The columns of the table.
    const COLUMNS: &'static [Column];
    /// The CSV columns: paths into the JSON of the record.
    const CSV: &'static [&'static str];

    /// Returns the cells, one per column.
    fn cells(&self, now: Timestamp) -> Vec<Cell>;

    /// Builds a table of records.
    fn table<'a>(records: impl IntoIterator<Item = &'a Self>, now: Timestamp) -> Table
    where
        Self: 'a,
    {
        let mut table = Table::new(Self::COLUMNS);
        for record in records {
            table.row(record.cells(now));
        }
        table
    }

    /// Prints the record on one line, as JSON or CSV. The first CSV line is preceded by the header.
    ///
    /// # Errors
    /// When it cannot be written.
    fn print_line(&self, screen: &Screen, format: Format, is_first: bool) -> Result<()> {
        if format != Format::Csv {
            return screen.json_line(self);
        }
        if is_first {
            screen.raw(format!("{}\n", csv_header(Self::CSV)).as_bytes())?;
        }
        let value = serde_json::to_value(self).map_err(|error| Error::Other(error.to_string()))?;
        screen.raw(format!("{}\n", csv_row(Self::CSV, &value)).as_bytes())
    }
}

/// Prints one page of records: as a table, as JSON of the page, or one line each.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print_page<R: Record>(
    screen: &Screen,
    format: Format,
    page: &impl Serialize,
    records: &[R],
    now: Timestamp,
) -> Result<()> {
    match format {
        Format::Table => screen.table(&R::table(records, now)),
        Format::Json => screen.json(page),
        Format::Csv if records.is_empty() => screen.raw(format!("{}\n", csv_header(R::CSV)).as_bytes()),
        Format::Jsonl | Format::Csv => records
            .iter()
            .enumerate()
            .try_for_each(|(index, record)| record.print_line(screen, format, index == 0)),
    }
}

/// Prints values without a table: as one JSON array, as JSON lines, or as CSV with these columns.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn print_values(
    screen: &Screen,
    format: Format,
    columns: &[&str],
    values: &[impl Serialize],
) -> Result<()> {
    match format {
        Format::Json => screen.json(&values),
        Format::Table | Format::Jsonl => values.iter().try_for_each(|value| screen.json_line(value)),
        Format::Csv => {
            screen.raw(format!("{}\n", csv_header(columns)).as_bytes())?;
            values.iter().try_for_each(|value| {
                let value = serde_json::to_value(value).map_err(|error| Error::Other(error.to_string()))?;
                screen.raw(format!("{}\n", csv_row(columns, &value)).as_bytes())
            })
        }
    }
}

/// Prints one value: as JSON on one line, as CSV with these columns, or with `as_table`.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print_value(
    screen: &Screen,
    format: Format,
    columns: &[&str],
    value: &impl Serialize,
    as_table: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match format {
        Format::Json | Format::Jsonl => screen.json_line(value),
        Format::Csv => print_values(screen, Format::Csv, columns, std::slice::from_ref(value)),
        Format::Table => as_table(),
    }
}
