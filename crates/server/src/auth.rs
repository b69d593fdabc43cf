//! Authentication and authorization.
//!
//! Without tokens every caller has all scopes; therefore the server listens on loopback addresses only, and the header
//! `lazaret-actor` merely claims a name. With tokens every request except public ones needs one, and its person is recorded in
//! the audit.
//!
//! Browsers cannot send tokens by themselves. For pages, a sign-in starts a session, whose cookie authenticates them, or a trusted proxy
//! names the person. Neither is accepted by the API: it takes bearer tokens only, which no page of another site can make a browser send.

mod access;
mod attempts;
mod caller;
mod csrf;
mod hosts;
mod latest_rights;
mod proxy;
mod roles;
mod session;
mod sign_in;
mod token;

pub(crate) use access::Access;
pub(crate) use attempts::{Attempts, Client};
#[cfg(test)]
pub(crate) use caller::Session;
pub(crate) use caller::{Authentication, Caller, MAX_REASON_CHARS};
pub(crate) use csrf::CsrfKey;
pub(crate) use hosts::{Hosts, authority_of, is_loopback};
pub(crate) use latest_rights::{LatestRights, Rights};
pub(crate) use proxy::client_address;
pub use proxy::{ProxyPersons, TrustedProxy};
pub use roles::{Role, RoleError, person_in_groups};
pub(crate) use session::Sessions;
pub use session::{Person, SessionLimits};
pub use sign_in::{SignIn, SignInError, SignedIn};
pub use token::{InvalidTokenHash, Token, TokenHash, Tokens, generate_token};
