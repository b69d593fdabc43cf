//! A source for files with one JSON message a line.
//!
//! Lines are read as [`lazaret_core::source::jsonl`] says. A line that is not a message becomes one that cannot be decoded,
//! with its raw bytes, and the next line goes on. Empty lines are passed over; line ends may be `\n` or `\r\n`.
//!
//! ```
//! use std::sync::Arc;
//! use lazaret_core::source::{Source, SourceEvent};
//! use lazaret_memory::MemoryStore;
//! use lazaret_source_file::{FileSource, Options};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("events.jsonl");
//! std::fs::write(&path, "{\"id\": \"e-1\", \"key\": \"order-7\", \"payload\": {\"total\": 7}}\n").unwrap();
//! let checkpoints = Arc::new(MemoryStore::new(Arc::new(lazaret_core::SystemClock)));
//! let mut source = FileSource::open(&path, checkpoints, "orders", Options::default()).await.unwrap();
//! assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
//! let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!() };
//! assert_eq!(messages[0].id.as_str(), "e-1");
//! assert_eq!(messages[0].payload.as_deref(), Some(&br#"{"total": 7}"#[..]));
//! assert!(matches!(source.next().await.unwrap(), SourceEvent::End));
//! # });
//! ```
//!
//! # Positions
//!
//! A file is one partition, number 0. The offset of a message is the number of bytes up to the end of its line, without the
//! line end, so it is the same whether the last line has got its end yet or not. What is committed goes into the
//! [checkpoint](lazaret_core::store::Checkpoints) of the given name, together with what is settled beyond it and a fingerprint
//! of the first 1024 bytes. After a restart exactly the rest is delivered.
//!
//! A position only means something as long as the file is only appended to. So the source stops with an error, and reads
//! nothing wrong, when the file is found to be cut, to begin with other bytes, or, while it is followed, to be another
//! one than its path leads to. It does not follow a log rotation.
//!
//! # The last line
//!
//! When the file is followed, a last line without an end is still being written: the source waits for the rest. Otherwise
//! it is taken as it is.
//!
//! # Memory
//!
//! A line longer than [`Options::max_line`] becomes a message that cannot be decoded, with its first bytes; the rest is
//! passed over without being held in memory (I7).

mod error;
mod options;
mod place;
mod reader;
mod source;

pub use options::Options;
pub use source::FileSource;
