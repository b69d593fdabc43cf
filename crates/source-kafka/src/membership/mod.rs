//! The member of a group: it joins, reads, commits and leaves.
//!
//! It runs in its own thread, see `driver`, and no call here blocks it. Why a rebalance is answered outside of its callback,
//! and why every partition has its own queue: docs/decisions/0012-kafka-rebalance.md.
//!
//! - `session`: the connection to the group, its state, and polling the clients.
//! - `rebalance`: partitions that are assigned, revoked and rewound.
//! - `joining`, `missing_topics`, `unreadable`: the waits for an assignment, for topics, and for partitions that cannot be read.
//! - `commit`: positions made durable.
//! - `topic_check`, `coverage`: whether the topics are still the ones that are read, and whether all of their partitions are assigned.
//! - `read`: messages, and the member as a [`Source`](lazaret_core::source::Source).

mod commit;
mod coverage;
mod joining;
mod missing_topics;
mod ownership;
mod read;
mod rebalance;
mod session;
mod topic_check;
mod unreadable;

pub(crate) use session::Membership;
