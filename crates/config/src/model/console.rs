//! The web console.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::secret::Secret;

/// The web console: sign-in and links to other systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Console {
    /// How long a session may stay unused.
    pub session_idle: Duration,
    /// The maximum lifetime of a session.
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
    /// The scopes to request, in addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim that holds the name of the person.
    pub person_claim: String,
    /// The claim that holds the groups of the person.
    pub groups_claim: String,
    /// The rights of groups. The first match applies.
    pub roles: Vec<Role>,
}

/// A reverse proxy whose headers are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The networks of the proxy's addresses.
    pub trusted: Vec<IpNet>,
    /// The header that holds the name of the person. `None` if the proxy does not authenticate.
    pub user_header: Option<String>,
    /// The header that holds the groups of the person.
    pub groups_header: String,
    /// The rights of groups. The first match applies.
    pub roles: Vec<Role>,
}

/// The rights of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name of the group.
    pub group: String,
    /// The scopes, by their names in the API.
    pub scopes: Vec<&'static str>,
    /// The consumers that the role is limited to. If empty, the role applies to all.
    pub consumers: Vec<String>,
}
