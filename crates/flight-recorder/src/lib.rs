//! The flight recorder: records running attempts, to find the message that crashed the process.
//!
//! [`MappedRecorder`] implements [`lazaret_core::recorder`] with a small memory-mapped file per
//! consumer. Each running attempt has a slot. Recording an attempt writes a few words of memory: no
//! system call, no lock, no allocation.
//!
//! ```
//! use lazaret_core::recorder::Identity;
//! use lazaret_core::{FlightRecorder, Message, Position, QueueName};
//! use lazaret_flight_recorder::{MappedRecorder, Options};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("orders.flight");
//! let queue = QueueName::of("orders", "mail");
//! let message = Message::new("evt-1", "orders", Position::new(0, 41));
//!
//! let recorder = MappedRecorder::open(&path, Options::default()).unwrap();
//! let slot = recorder.enter(&queue, &message, 1);
//! // The handler crashes the process. Here, the recorder is dropped with the slot still occupied.
//! # let _ = slot;
//! drop(recorder);
//!
//! // The next process reads the suspects. The message ran alone, so the crash is attributed to it.
//! let recorder = MappedRecorder::open(&path, Options::default()).unwrap();
//! let suspects = recorder.suspects();
//! assert!(suspects[0].is(&queue, &message));
//! assert_eq!((suspects[0].attempt, suspects[0].alone, suspects[0].crashes), (1, true, 1));
//!
//! // After a durable outcome, the message is no suspect any more.
//! recorder.forget(Identity::of_message(&queue, &message));
//! assert!(recorder.suspects().is_empty());
//! ```
//!
//! # Durability
//!
//! The records survive every crash of the process (abort, `kill -9`, the OOM killer, stack overflow),
//! because the kernel owns the mapped pages. **They do not survive a power loss or a kernel crash.**
//! Only a new or enlarged file is synced to the disk, its zeros before its header, so that the file is
//! valid at any time. After a power loss, the file may contain old records. Records with a wrong
//! checksum are ignored. At worst a message is suspected, or charged once, without a reason. No message
//! is lost.
//!
//! # Attribution of crashes
//!
//! - One occupied slot: its message ran alone and is charged with one crash.
//! - Several occupied slots, or attempts without a slot: all messages are suspects, and none is charged.
//!   The suspects then run one at a time, so the culprit is alone at the next crash.
//! - A partially written slot is empty: its attempt had not started.
//! - A slot with a wrong checksum is an unknown message. It is not a suspect, but the others did not run
//!   alone.
//! - Suspects and charges stay in the file until they are forgotten, even across crashes with other
//!   causes. At most 256 are kept; beyond that, the oldest suspects without a charge are replaced first.
//! - A crash is charged once, even if the process crashes again while it opens the file.
//!
//! Long ids are truncated in the file. Messages are identified by a 128-bit hash of the queue, the id
//! and the incarnation of the stream. So the crashes of a message of a deleted topic are not charged to
//! a message with the same id after the topic was created again.
//!
//! # Location of the file
//!
//! Use a local file system. The kernel writes changed pages back periodically, and a write to such a
//! page may wait for the disk. If that matters, use an in-memory file system such as `/dev/shm`, which
//! also outlives the process. The disk space is allocated when the file is created. A copy-on-write file
//! system can still run out of space later, which ends the process with a signal.
//!
//! Only one process can open the file at a time. A second one gets [`OpenError::InUse`].
//!
//! # Modules
//!
//! `layout` is the file format. `file` opens and checks the file, and `map` maps it (the only `unsafe`
//! code). `free` manages free slots, `recovery` reads the slots of a crashed process, and `recorder` is
//! the recorder.

mod error;
mod file;
mod free;
#[cfg(test)]
mod fuzz;
mod layout;
mod map;
mod recorder;
mod recovery;

pub use error::OpenError;
pub use recorder::{MappedRecorder, Options};
