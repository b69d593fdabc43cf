//! Converts records to messages, byte for byte. Their headers describe the messages.

mod decoder;
mod page;
mod parts;
mod reader;

pub use decoder::MessageDecoder;
pub(crate) use decoder::PartitionNames;
pub(crate) use page::copy;
pub use parts::RecordParts;
pub(crate) use parts::{NonUtf8Header, Record, timestamp};
pub(crate) use reader::RecordReader;
