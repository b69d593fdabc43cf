//! The processing of one live message, from its lane to its settlement.
//!
//! Most messages never come here: a handler that succeeds at its first poll is settled by the shard itself. A
//! [`LiveMessage`] is made when more is needed: the handler failed, the sequence may be open, or the message may have been
//! delivered before.
//!
//! - `message.rs`: lookups, admission, attempts.
//! - `outcome.rs`: what follows an attempt: settle, wait, or become a letter.
//! - `append.rs`: waiting in the store behind an open sequence.

mod append;
mod message;
mod outcome;

pub(crate) use append::append_all;
pub(crate) use message::{Begin, LiveMessage};
