//! The flight recorder: remembers which messages were being handled when a process died.
//!
//! [`MappedRecorder`] keeps [`lazaret_core::recorder`]'s promises in a small memory-mapped file, one per consumer. Each
//! running attempt has a slot in it. To note an attempt is to write a few words of memory: no system call, no lock, no
//! allocation.
//!
//! ```
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
//! // The handler kills the process. Here, the recorder is dropped with the slot still taken.
//! # let _ = slot;
//! drop(recorder);
//!
//! // The next process learns whom to suspect. The message was alone, so it is charged.
//! let recorder = MappedRecorder::open(&path, Options::default()).unwrap();
//! let suspects = recorder.suspects();
//! assert!(suspects[0].is(&queue, &message.id));
//! assert_eq!((suspects[0].attempt, suspects[0].alone, suspects[0].crashes), (1, true, 1));
//!
//! // Once it has a durable outcome, nothing is held against it.
//! recorder.forget(&queue, &message.id);
//! assert!(recorder.suspects().is_empty());
//! ```
//!
//! # What it survives
//!
//! Every death of the process: abort, `kill -9`, the system's memory killer, stack overflow. What was written to the mapping
//! is in the kernel's hands. **Not a power cut, nor the death of the machine:** nothing is forced to the disk. After one,
//! the file may hold what was true a while ago. Records whose checksum does not fit are not believed, and at worst a
//! message is suspected, or charged once, that did nothing. Nothing is lost by that.
//!
//! # How guilt is found
//!
//! - Exactly one slot is taken: its message was alone and is charged with one crash.
//! - Several are taken, or attempts ran that found no slot: all are suspects, nobody is charged. Run one at a time, the
//!   guilty one will be alone at the next crash.
//! - A slot whose writing was cut off holds nothing: its attempt had not begun, so it cannot be to blame.
//! - A slot whose checksum does not fit is a message that nobody knows: it is no suspect, but the others were not alone.
//! - Suspects and charges stay in the file until they are forgotten, also when later processes die for other reasons.
//!   256 of them are kept; beyond that the oldest that were never charged give way first.
//! - A death is charged once, even if the process dies again while it is opening the file.
//!
//! Long ids are cut off in the file; messages are recognised by a 128-bit hash of queue and id.
//!
//! # Where to put the file
//!
//! On a local file system. The kernel writes changed pages back now and then, and a store to such a page may wait
//! for the disk. Where that matters, use a file system in memory (such as `/dev/shm`): it outlives the process too. The file's room
//! is allocated when it is made. A file system that copies on write can still run out of room later, and then the
//! process gets a signal.
//!
//! One process has the file open at a time; a second one gets [`OpenError::InUse`].

mod error;
mod file;
mod free;
mod judge;
mod layout;
mod map;
mod recorder;

pub use error::OpenError;
pub use recorder::{MappedRecorder, Options};
