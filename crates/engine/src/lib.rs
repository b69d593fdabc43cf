//! Lazaret's engine: what happens to a message between its source and its settlement.
//!
//! ```text
//! source ─► intake ─► shard (lanes) ─► attempt ─► settled ─► intake commits
//!             ▲                          │ failed
//!             │ hold                     ▼
//!            gate ◄──────────────── journey ─► hand-offs ─► store
//!                                                             │ due
//!                          shard ◄─ scheduler ◄───────────────┘
//! ```
//!
//! - [`intake`](self) owns the source and the watermarks; shards own the lanes; nobody shares them.
//! - A message that succeeds at once never leaves its shard. One that needs time or care goes on a journey, which is
//!   written top to bottom in `journey.rs`. Letters go the way of `stored.rs`.
//! - With the strategy `topics` failed messages go to a broker instead of the store, by `passing.rs`, and come back by the
//!   source; `intake/room.rs` is where they wait until they are due.
//! - Decisions are pure functions: `decide.rs` here, the policies in `lazaret-core`.
//! - Time comes from a [`Clock`](lazaret_core::Clock) and tokio's timers, randomness from a seed, so that a simulation
//!   can run all of it on a paused clock.

mod attempt;
mod blocked;
mod builder;
mod consumer;
mod decide;
mod desks;
mod error;
mod events;
mod feed;
mod flight;
mod gate;
mod gauges;
mod hand_offs;
mod handle;
mod hash;
mod intake;
mod journey;
mod judge;
mod lanes;
mod lookout;
mod mailbox;
#[cfg(feature = "mutations")]
pub mod mutation;
mod operations;
mod options;
mod passing;
mod patience;
mod reprocess;
mod scheduler;
mod shard;
mod shared;
#[cfg(any(test, feature = "signal"))]
mod signal;
mod stored;
mod tenure;
mod timeout;
mod tracker;
mod upkeep;

pub use blocked::BlockedSet;
pub use consumer::{Builder, Consumer};
pub use error::{BuildError, Error};
pub use events::{Event, Observer, Stats};
pub use handle::{FuseState, Handle, ReplayReport, Replayer};
// For the benchmark of the blocked set; nobody else needs them.
#[doc(hidden)]
pub use hash::{SequenceHash, SequenceHasher};
pub use options::{DeadLetterOptions, DedupeOptions, Filter, Options, ReplayOptions};
pub use reprocess::{InvalidSchedule, Reprocess, Schedule};
pub use timeout::Timeout;
