//! Parsers for string formats: addresses, stores, sequence rules, patterns, schedules and names.

mod address;
mod error;
mod names;
mod network;
mod patterns;
mod payload_path;
mod reserved;
mod sequence;
mod store;

pub use address::Address;
pub(crate) use address::{brokers, host, url};
pub(crate) use error::{FormatError, bad};
pub(crate) use names::{collection, hash, header_value, name, token};
pub(crate) use network::network;
pub(crate) use patterns::{cron, error_type, group_pattern, reason, regex};
pub(crate) use payload_path::payload_path;
pub(crate) use reserved::{header as reserved_header, property as reserved_property};
pub use sequence::SequenceRule;
pub use store::StoreLocation;
