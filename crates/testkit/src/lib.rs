//! Conformance suites, fault injection and a model for Lazaret's stores and sources.
//!
//! The contracts of [`lazaret_core::store`] and [`lazaret_core::source`] are prose; here they are tests. The author of a
//! store or a source runs them in a file under `tests/`:
//!
//! ```
//! use lazaret_memory::MemoryStore;
//!
//! lazaret_testkit::store_test_suite!(letters, |clock| async move { MemoryStore::new(clock) });
//! lazaret_testkit::checkpoints_test_suite!(checkpoints, |clock| async move { MemoryStore::new(clock) });
//! lazaret_testkit::locks_test_suite!(locks, |clock| async move { MemoryStore::new(clock) });
//! lazaret_testkit::dedupe_test_suite!(dedupe, |clock| async move { MemoryStore::new(clock) });
//! ```
//!
//! Each macro makes a module with one test per case, named like the sentence it proves. The closure makes a fresh,
//! empty backend that uses the given clock; a database gives each case a schema or a file of its own. A backend that
//! waits for the network or the disk takes `io` before the closure. A source passes a
//! [`SourceHarness`](suite::source::SourceHarness) to [`source_test_suite!`]; [`SideBySide`] makes several partitions of
//! sources that have one.
//!
//! The suites test single promises. [`model`] searches for sequences of calls that break one: a state machine that runs
//! random calls against the store and a plain model side by side. [`Unreliable`] wraps a store and makes it fail before
//! and after the effect, by a seed, for tests of what uses a store. [`TokioClock`] follows the clock of a paused runtime.
//! [`RecorderFile`] is a flight recorder that survives the crashes of a test. [`Instance`] runs a part of a test as a process that can be
//! killed or stopped, and [`Journal`] has what such processes did.

pub mod clock;
pub mod instance;
pub mod model;
pub mod recorder;
pub mod side_by_side;
pub mod suite;
pub mod unreliable;

pub use clock::{ManualClock, TokioClock};
pub use instance::{Instance, Journal};
pub use recorder::{MemoryRecorder, RecorderFile};
pub use side_by_side::SideBySide;
pub use unreliable::{Profile, Unreliable};
