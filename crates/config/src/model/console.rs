//! The web console.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::secret::Secret;

/// The web console: sign-in, and links to other systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Console {
    /// How long a session may be unused.
    pub session_idle: Duration,
    /// How long a session lasts in any case.
    pub session_lifetime: Duration,
    /// The OpenID Connect provider.
    pub oidc: Option<Oidc>,
    /// The reverse proxy.
    pub proxy: Option<Proxy>,
    /// The URL of a trace in another system.
    pub trace_url: Option<String>,
}

/// An OpenID Connect provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oidc {
    /// The issuer URL.
    pub issuer: String,
    /// The client id.
    pub client_id: String,
    /// The client secret.
    pub client_secret: Option<Secret>,
    /// A file with the client secret.
    pub client_secret_file: Option<PathBuf>,
    /// The scopes to request, beside `openid`.
    pub scopes: Vec<String>,
    /// The claim with the name of the person.
    pub person_claim: String,
    /// The claim with the groups of the person.
    pub groups_claim: String,
    /// The rights of groups; the first match applies.
    pub roles: Vec<Role>,
}

/// A reverse proxy whose headers are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The networks of its addresses.
    pub trusted: Vec<IpNet>,
    /// The header with the name of the person; `None` if the proxy authenticates nobody.
    pub user_header: Option<String>,
    /// The header with the groups of the person.
    pub groups_header: String,
    /// The rights of groups; the first match applies.
    pub roles: Vec<Role>,
}

/// The rights of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name of the group.
    pub group: String,
    /// The scopes, named as in the API.
    pub scopes: Vec<&'static str>,
    /// The consumers that it is limited to; empty for all.
    pub consumers: Vec<String>,
}
