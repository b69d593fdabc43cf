//! Reads the source, routes messages to the shards, and commits what is settled.
//!
//! The intake owns the source and the watermarks. It never waits for handlers or the store: it keeps polling while
//! everything is held back, so that a member of a consumer group stays alive.
//!
//! - `task.rs`: the loop. `state.rs`: the state of each partition.
//! - `partitions.rs`: assignment, revocation, loss.
//! - `route.rs`: messages to shards. `delay_queue.rs`: messages that are not due yet.
//! - `commit.rs`: notices, watermarks, commits.
//! - `hold.rs`: backpressure. `drain.rs`: the end.

mod commit;
mod delay_queue;
mod drain;
mod hold;
mod partitions;
mod route;
mod state;
mod task;

pub(crate) use partitions::GRACE;
pub(crate) use task::Intake;
