//! Lazaret's engine. It processes messages from their source to their settlement.
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
//! - The intake owns the source and the watermarks. A shard owns its lanes. `flow.rs` defines the values
//!   that flow between them.
//! - A message that succeeds at once never leaves its shard. `live/` processes the other messages,
//!   `stored/` the letters.
//! - `admission.rs` decides whether an attempt may start, `limits.rs` whether a message gets another
//!   one. `letters/` writes letters. Decisions are pure functions: `next_step.rs` here, the policies in
//!   `lazaret-core`.
//! - All components of a consumer share `guards.rs` (gate, fuse with `fuse_causes.rs`, budget, retry
//!   `backlog.rs`, concurrency), `lifecycle.rs` (drain, abort, errors), `telemetry.rs` (events,
//!   counters, gauges) and `identity.rs`. A `component.rs` holds the parts that its queue works with.
//! - With the strategy `topics`, `publish.rs` sends failed messages to a broker instead of the store.
//!   They return through the source and wait in `intake/delay_queue.rs` until they are due.
//! - `store_refresh.rs` reads what other processes changed in the store: at intervals, and at once if
//!   the store announces changes (`store_changes.rs`).
//! - `ages.rs` provides the ages that status and alerts show besides the counters: of running attempts,
//!   and of failed messages that wait in memory.
//! - Time comes from a [`Clock`](lazaret_core::Clock) and tokio's timers, randomness from a seed, so
//!   that a simulation can run the whole engine on a paused clock. If the store has a clock that all
//!   processes share, stored times are times of that clock (`store_clock.rs`).

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
// Exported only for the benchmark of the blocked set.
#[doc(hidden)]
pub use hash::{SequenceHash, SequenceHasher};
pub use options::{DeadLetterOptions, DedupeOptions, Filter, Options, ReplayOptions};
pub use reprocess::{InvalidSchedule, Reprocess, Schedule};
pub use telemetry::Stats;
pub use timeout::Timeout;
