//! The member of a group. It joins, reads, commits and leaves.
//!
//! The member runs in its own thread (see `driver`), and no call here blocks it.
//! docs/decisions/0012-kafka-rebalance.md explains why a rebalance is answered outside its callback, and
//! why every partition has its own queue.
//!
//! - `session`: the connection to the group, its state, and polling the clients.
//! - `rebalance`: handles partitions that are assigned, revoked and rewound.
//! - `joining`, `missing_topics`, `unreadable`: wait for an assignment, for topics, and for partitions
//!   that cannot be read.
//! - `commit`: makes positions durable.
//! - `topic_check`, `coverage`: check that the topics are still the ones being read, and that all of
//!   their partitions are assigned.
//! - `read`: reads messages, and implements [`Source`](lazaret_core::source::Source) for the member.

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
