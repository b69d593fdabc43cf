//! The lanes of a part of the sequences, owned by one task.
//!
//! A message arrives, waits until its lane is free, and is tried. If the handler succeeds at its first
//! poll, nothing else is needed: no task, no timer, no table entry. Otherwise the lane is busy until the
//! message is settled. Every sequence belongs to exactly one shard, so lanes need no locks.
//!
//! - `task.rs`: the loop of the shard.
//! - `start.rs`, `finish.rs`: the start and the end of attempts.
//! - `append.rs`: messages of open sequences, in batches.
//! - `held.rs`: the count of messages in held lanes.
//! - `lane.rs`: the queues. `work.rs`: the futures.

mod append;
mod finish;
mod held;
mod lane;
mod start;
mod task;
mod work;

pub(crate) use task::Shard;
