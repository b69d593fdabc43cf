//! Conformance suites, fault injection and a model for Lazaret's stores and sources.
//!
//! The promises of [`lazaret_core::store`] and [`lazaret_core::source`] are prose; here they are tests. Whoever writes
//! a store or a source of their own runs them like this, in a file under `tests/`:
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
//! empty backend that goes by the given clock; a database gives each case a schema or a file of its own. A backend that
//! waits for the network or the disk says `io` before the closure. A source brings a
//! [`SourceHarness`](suite::source::SourceHarness) to [`source_test_suite!`]; [`SideBySide`] makes several partitions of
//! sources that have one.
//!
//! The suites show single promises. [`model`] looks for sequences of calls that break one: a state machine that runs
//! random calls against the store and a plain model side by side. [`Unreliable`] wraps a store and makes it fail before
//! and after the effect, by a seed, for tests of what stands on a store. [`TokioClock`] lets a paused runtime own time.

pub mod clock;
pub mod model;
pub mod side_by_side;
pub mod sim;
pub mod suite;
pub mod unreliable;

pub use clock::{ManualClock, TokioClock};
pub use side_by_side::SideBySide;
pub use unreliable::{Profile, Unreliable};
