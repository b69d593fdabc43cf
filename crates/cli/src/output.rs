//! Output: tables, lines, JSON and CSV. Data goes to standard output, messages to standard error.

mod color;
mod csv;
mod error_summary;
mod fields;
mod line;
mod record;
mod screen;
mod table;

use clap::ValueEnum;
pub(crate) use lazaret_api::numbers::{age, count, plural, span, sparkline, time_with_age};
pub(crate) use lazaret_tui::Tone;

pub(crate) use color::ColorChoice;
pub(crate) use csv::{csv_header, csv_row};
pub(crate) use error_summary::{error_summary, with_type};
pub(crate) use fields::Fields;
pub(crate) use line::Line;
pub(crate) use record::{Record, print_page, print_value, print_values};
pub(crate) use screen::Screen;
pub(crate) use table::{Cell, Column, Table, truncate};

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table that fits the terminal
    #[default]
    Table,
    /// One JSON value
    Json,
    /// One JSON value per line
    Jsonl,
    /// Comma-separated values
    Csv,
}
