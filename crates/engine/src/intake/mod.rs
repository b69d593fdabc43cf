//! Reads the source, routes messages to the shards, and commits settled positions.
//!
//! The intake owns the source and the watermarks. It never waits for handlers or the store. It keeps
//! polling while everything is held, so that a member of a consumer group stays alive.
//!
//! - `task.rs`: the loop. `state.rs`: the state of each partition.
//! - `partitions.rs`: assignment, revocation, loss.
//! - `route.rs`: routes messages to shards. `delay_queue.rs`: messages that are not due yet.
//! - `commit.rs`: notices, watermarks, commits.
//! - `hold.rs`: backpressure. `drain.rs`: the end of the run.

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
