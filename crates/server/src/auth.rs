//! Who asks, and what they may do.
//!
//! Without tokens everybody who reaches the server may do everything; therefore it listens on loopback addresses only, and
//! the name in the header `lazaret-actor` is what somebody claims to be. With tokens every request but the open ones needs
//! one, and its name stands in the audit.

mod caller;
mod origin;
mod token;

pub(crate) use caller::{Caller, identify};
pub(crate) use origin::{Hosts, check_origin};
pub use token::{Token, TokenHash, Tokens, generate_token};
