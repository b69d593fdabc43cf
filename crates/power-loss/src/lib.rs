//! Power cuts for tests: records what a program writes to a folder, and rebuilds the legal states of its files after a power cut.
//!
//! A program that links this crate gets its own versions of `write`, `fsync`, `rename` and their relatives of the C library. They
//! forward to the kernel. While a [`Recording`] runs, they also note every change of the files in its folder. So a test
//! records the real calls of the code under test, and of SQLite, without a change of either. Linux only.
//!
//! A [`Log`] is what was recorded. [`Log::explore`] cuts it at every event, and rebuilds the files as a disk may hold them then. A
//! [`History`] knows what was requested and answered at each cut, and so what has to be found.
//!
//! ```
//! use std::fs::{self, File};
//! use std::io::Write;
//! use lazaret_power_loss::{Exploration, History, Recording, scratch};
//!
//! let (folder, rebuilt) = (scratch(), scratch());
//! let recording = Recording::start(folder.path());
//! let mut history = History::default();
//! history.request("greeting", "hello", &recording);
//! let mut file = File::create(folder.path().join("greeting")).unwrap();
//! file.write_all(b"hello").unwrap();
//! file.sync_all().unwrap();
//! history.answer("greeting", &recording);
//!
//! recording.finish().explore(&Exploration::of(100), |state| {
//!     state.write_to(rebuilt.path());
//!     let found = fs::read_to_string(rebuilt.path().join("greeting"));
//!     // Without a sync, nothing but a part of it may be there.
//!     let found = found.into_iter().filter(|text| text == "hello").map(|text| ("greeting".into(), text));
//!     history.check(state.cut(), &found.collect());
//! });
//! ```
//!
//! # The model of a disk
//!
//! After a power cut, a file holds everything up to its last completed `fsync` or `fdatasync`. Of the writes since, each sector of 512
//! bytes is there or not, in any combination and any order; a sector itself is not torn. Memory that was mapped is written in words
//! of 8 bytes. The length is one of those that the file had since, with zeros where no data arrived: so there is data without its
//! length, and length without its data. `sync_file_range`, `sync` and closing a file promise nothing.
//!
//! A name that was created, renamed or removed since the last `fsync` of the folder has changed or not, in any combination. A file that
//! was synced itself has its name: ext4, XFS and Btrfs promise that. A rename is atomic. Stale data of other files never appears.
//!
//! Files whose names end with `-shm` are shared memory of SQLite: a power cut removes them.
//!
//! # Modules
//!
//! `interpose` defines the functions of the C library (the only `unsafe`), `session` keeps the running recording, `recording` is its
//! interface, `log` and `disk` rebuild states, `history` knows what has to be there.
#![cfg(target_os = "linux")]

mod disk;
mod history;
mod interpose;
mod log;
mod recording;
mod session;

pub use disk::{FileId, Survival};
pub use history::History;
pub use log::{Event, Exploration, Explored, Log, State};
pub use recording::{Recording, scratch};
