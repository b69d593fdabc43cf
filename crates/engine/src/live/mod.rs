//! The processing of one live message, from its lane to its settlement.
//!
//! Most messages never get here: if a handler succeeds at its first poll, the shard itself settles the
//! message. A [`LiveMessage`] is created when more is needed: the handler failed, the sequence may be
//! open, or the message may have been delivered before.
//!
//! - `message.rs`: look-ups, admission, attempts.
//! - `outcome.rs`: the consequences of an attempt: settle, wait, or become a letter.
//! - `append.rs`: appends messages in the store behind an open sequence.

mod append;
mod message;
mod outcome;

pub(crate) use append::append_all;
pub(crate) use message::{Begin, LiveMessage};
