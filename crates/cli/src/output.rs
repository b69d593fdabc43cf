//! What people and programs get to see: tables, lines, JSON and CSV. Data goes to standard output, talk to standard error.

mod csv;
mod fields;
mod gist;
mod line;
mod numbers;
mod record;
mod screen;
mod table;

use clap::ValueEnum;

pub(crate) use csv::{csv_header, csv_row};
pub(crate) use fields::Fields;
pub(crate) use gist::gist;
pub(crate) use line::{Line, Tone};
pub(crate) use numbers::{age, bars, count, moment, plural, span};
pub(crate) use record::{Record, print_page, print_values};
pub(crate) use screen::Screen;
pub(crate) use table::{Cell, Column, Table, cut};

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns that fit the terminal
    #[default]
    Table,
    /// One JSON value
    Json,
    /// One JSON value a line
    Jsonl,
    /// Comma-separated values
    Csv,
}
