//! Dead letters of other frameworks are adopted, and letters are copied to where those expect them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

#[cfg(feature = "kafka")]
mod adopt;
#[cfg(feature = "kafka")]
mod adopt_headers;
#[cfg(feature = "kafka")]
mod adopt_replay;
#[cfg(feature = "postgres")]
mod axon;
#[cfg(feature = "kafka")]
mod claims;
#[cfg(feature = "mongodb")]
mod flowwarden;
#[cfg(feature = "mongodb")]
mod flowwarden_copies;
#[cfg(feature = "kafka")]
mod mirror;
mod source;
#[cfg(feature = "kafka")]
mod support;
