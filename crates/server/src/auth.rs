//! Authentication and authorization.
//!
//! Without tokens every caller has all scopes; therefore the server listens on loopback addresses only, and the header
//! `lazaret-actor` merely claims a name. With tokens every request except public ones needs one, and its person is recorded in
//! the audit.

mod access;
mod caller;
mod hosts;
mod token;

pub(crate) use access::Access;
#[cfg(test)]
pub(crate) use caller::Session;
pub(crate) use caller::{Authentication, Caller, MAX_REASON_CHARS};
pub(crate) use hosts::Hosts;
pub use token::{InvalidTokenHash, Token, TokenHash, Tokens, generate_token};
