//! The table of keys. It alone defines what a configuration file may contain.
//!
//! The reader, the JSON Schema, the key reference, the effective configuration and the reload all read
//! this table, so they cannot disagree.

mod adopt;
mod console;
mod consumer;
mod io;
mod search;
mod top;
mod types;

pub(crate) use consumer::CONSUMER;
pub(crate) use search::{elsewhere, sections};
pub(crate) use top::TOP;
pub use types::Reload;
pub(crate) use types::{DefaultValue, EnumValue, Format, Key, Kind, Section, either};
