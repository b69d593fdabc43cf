//! Lazaret's engine: processes messages between their source and their settlement.
//!
//! ```text
//! source ─► intake ─► shard (lanes) ─► attempt ─► settled ─► intake commits
//!             ▲                          │ failed
//!             │ hold                     ▼
//!            gate ◄──────────────── live message ─► letters ─► hand-offs ─► store
//!                                                                            │ due
//!                          shard ◄─ scheduler ◄──────────────────────────────┘
//! ```
//!
//! - The intake owns the source and the watermarks, a shard owns its lanes. What flows between them is in `flow.rs`.
//! - A message that succeeds at once never leaves its shard. The others are processed by `live/`, letters by `stored/`.
//! - `admission.rs` decides whether an attempt may start, `limits.rs` whether a message gets another one, `letters/` writes
//!   letters. Decisions are pure functions: `next_step.rs` here, the policies in `lazaret-core`.
//! - The parts that a consumer shares: `guards.rs` (gate, fuse with `fuse_causes.rs`, budget, retry `backlog.rs`, concurrency), `lifecycle.rs` (drain, abort, errors),
//!   `telemetry.rs` (events, counters, gauges), `identity.rs`. A `component.rs` holds those that its queue works with.
//! - With the strategy `topics`, `publish.rs` sends failed messages to a broker instead of the store; they return by the
//!   source, and wait in `intake/delay_queue.rs` until they are due.
//! - `store_refresh.rs` reads what other processes changed in the store, at intervals, and at once where the store tells of changes
//!   (`store_changes.rs`).
//! - What status and alerts show besides the counters is in `ages.rs` (what waits in memory, running attempts).
//! - Time comes from a [`Clock`](lazaret_core::Clock) and tokio's timers, randomness from a seed, so that a simulation
//!   can run all of it on a paused clock. Stored times are those of the store, if it has a clock that all processes share
//!   (`store_clock.rs`).

mod admission;
mod ages;
mod attempt;
mod backlog;
mod blocked;
mod builder;
mod classify;
mod component;
#[cfg(feature = "config")]
mod configured;
mod consumer;
mod dead_letter_sink;
mod dedupe;
mod error;
mod events;
mod flight;
mod flow;
mod fuse_causes;
mod gate;
mod guards;
mod hand_offs;
mod handed_off;
mod handle;
mod handled;
mod hash;
mod held;
mod identity;
mod incarnations;
mod intake;
mod letters;
mod lifecycle;
mod limits;
mod live;
mod mailbox;
mod message_size;
#[cfg(not(feature = "mutations"))]
mod mutation;
#[cfg(feature = "mutations")]
pub mod mutation;
mod next_step;
mod open_sequences;
mod operations;
mod options;
mod ownership;
mod panics;
mod publish;
mod record;
mod replay_all;
mod reprocess;
mod retention;
mod scheduler;
mod sequence_sync;
mod shard;
#[cfg(any(test, feature = "signal"))]
mod signal;
mod store_changes;
mod store_clock;
mod store_refresh;
mod store_retry;
mod stored;
#[cfg(feature = "suspension")]
pub mod suspension;
mod telemetry;
mod time;
mod timeout;
mod tracker;

pub use blocked::BlockedSet;
pub use consumer::{Builder, Consumer};
pub use error::{BuildError, Error, StopReason};
pub use events::{Event, Observer};
pub use guards::BreakerCause;
pub use handle::{FuseState, Handle, ReplayReport, Replayer};
// Only for the benchmark of the blocked set.
#[doc(hidden)]
pub use hash::{SequenceHash, SequenceHasher};
pub use options::{DeadLetterOptions, DedupeOptions, Filter, Options, ReplayOptions};
pub use reprocess::{InvalidSchedule, Reprocess, Schedule};
pub use telemetry::Stats;
pub use timeout::Timeout;
