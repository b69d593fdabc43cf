//! A source for files with one JSON message per line.
//!
//! [`lazaret_core::source::jsonl`] parses the lines. An invalid line becomes an undecodable message with
//! its raw bytes, and reading continues. Empty lines are skipped. Line ends may be `\n` or `\r\n`.
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
//! A file is one partition, number 0. The offset of a message is the end of its line without the line
//! end, so it does not depend on whether the last line is terminated. The
//! [checkpoint](lazaret_core::store::Checkpoints) with the given name stores the committed position, the
//! settled ranges beyond it, and a fingerprint of the first 1024 bytes. After a restart exactly the
//! remaining messages are delivered.
//!
//! Positions require that the file is only appended to. The source fails if the file was truncated, if
//! its first bytes changed, or if a followed file was replaced at its path. It does not follow log
//! rotation.
//!
//! # The last line
//!
//! An unterminated last line of a followed file is still being written, so the source waits for the
//! rest. In a file that is not followed, the line is read as it is.
//!
//! # Memory
//!
//! A line longer than [`Options::max_line`] becomes an undecodable message with its first bytes; the
//! rest is skipped without being held in memory (I7).
//!
//! # Modules
//!
//! `reader` reads lines on a blocking thread, `source` delivers them and commits, `position` encodes a
//! position in a checkpoint, and `progress` reports the number of bytes that are not read yet.

mod error;
mod options;
mod position;
mod progress;
mod reader;
mod source;

pub use options::Options;
pub use progress::FileProgress;
pub use source::FileSource;
