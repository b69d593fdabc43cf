//! Kills a consumer at random moments, over and over, and checks what it leaves behind.
//!
//! One program plays two parts. The worker consumes a stream with a handler that fails now and then, and writes each
//! attempt into a log that survives the death of the process. The driver starts workers, kills them with SIGKILL, and
//! when all is done holds the log and the store against the invariants.
//!
//! - [`plan`]: which messages there are and what their handler does, all from a seed.
//! - [`journal`]: the log of attempts.
//! - [`source`]: the stream, with its position in the store.
//! - [`worker`]: the consumer.
//! - [`driver`]: starts it and kills it.
//! - [`check`]: what must hold afterwards.

pub mod check;
pub mod driver;
pub mod journal;
pub mod plan;
pub mod source;
pub mod worker;
