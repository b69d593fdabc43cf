//! Kills a consumer at random moments and checks the invariants afterwards.
//!
//! One program has two roles. The worker consumes a stream with a handler that fails by plan, and writes each attempt to a
//! log that survives a crash of the process. The driver starts workers, kills them with SIGKILL, and finally checks the
//! invariants against the log and the store.
//!
//! - [`plan`]: the messages and the behaviour of their handler, drawn from a seed.
//! - [`journal`]: the log of attempts.
//! - [`source`]: the stream, with its position in the store.
//! - [`worker`]: the consumer.
//! - [`driver`]: starts and kills workers.
//! - [`check`]: the invariants.
//! - [`fleet`]: several consumers on one PostgreSQL, which are killed, stopped and cut off.

pub mod check;
pub mod driver;
pub mod fleet;
pub mod journal;
pub mod plan;
pub mod source;
pub mod worker;
