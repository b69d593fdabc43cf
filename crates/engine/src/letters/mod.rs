//! Letters: how they are built, and the only path on which they reach the store.
//!
//! - [`draft`] builds new letters and the changed state of existing ones.
//! - [`LetterWriter`] hands off the letters of live messages, for every reason: a failure, a pause, an
//!   open sequence, or a handler that sends the message to the dead letters.
//! - [`is_known`] finds the letter that a message already has; [`hand_off`] keeps letters of
//!   incarnations apart.
//! - [`Settler`] writes the outcome of an attempt at a letter.

pub(crate) mod draft;
mod known;
mod settle;
mod write;

pub(crate) use known::{hand_off, is_known};
pub(crate) use settle::{ResolvedBy, Settler};
pub(crate) use write::LetterWriter;
