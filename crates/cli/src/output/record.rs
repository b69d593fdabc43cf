//! Things that stand in lists, and how a list is printed in each format.

use jiff::Timestamp;
use serde::Serialize;

use super::Format;
use super::csv::{csv_header, csv_row};
use super::screen::Screen;
use super::table::{Cell, Column, Table};
use crate::error::{Error, Result};

/// A thing that stands in lists.
pub(crate) trait Record: Serialize + Sized {
    /// The columns of the table.
    const COLUMNS: &'static [Column];
    /// The columns of CSV: paths into its JSON.
    const CSV: &'static [&'static str];

    /// Its cells, one for each column.
    fn cells(&self, now: Timestamp) -> Vec<Cell>;

    /// A table of these.
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

    /// One of many, as JSON or CSV on a line. CSV begins with its header when this is the first.
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

/// Prints one page of records: a table, JSON of the page itself, or a line each.
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

/// Prints things that have no table of their own: as one JSON list, as JSON a line, or as CSV with these columns.
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
