//! The caller of a request: identity, scopes and client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::enums::UnknownValue;

/// A permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Read everything but payloads and headers.
    Read,
    /// Read and search payloads and headers.
    Payload,
    /// Read redacted values, with a reason, and search them.
    Reveal,
    /// Retry, park, release, restore, resolve, comment, assign.
    Triage,
    /// Evict, purge, quarantine, set the expiry.
    Evict,
    /// Delete closed letters.
    Purge,
    /// Replace the payload of a letter.
    Edit,
    /// Import letters.
    Import,
    /// Pause and resume.
    Pause,
    /// Approve or reject operations of others.
    Approve,
    /// Post to inboxes.
    Ingest,
    /// All permissions.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 12] = [
        Self::Read,
        Self::Payload,
        Self::Reveal,
        Self::Triage,
        Self::Evict,
        Self::Purge,
        Self::Edit,
        Self::Import,
        Self::Pause,
        Self::Approve,
        Self::Ingest,
        Self::Admin,
    ];

    /// Returns the name in configuration and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Payload => "payload",
            Self::Reveal => "reveal",
            Self::Triage => "triage",
            Self::Evict => "evict",
            Self::Purge => "purge",
            Self::Edit => "edit",
            Self::Import => "import",
            Self::Pause => "pause",
            Self::Approve => "approve",
            Self::Ingest => "ingest",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|scope| scope.as_str()).collect();
            UnknownValue::new(text, &all)
        })
    }
}

/// The client of a request, from the header `lazaret-via`. Recorded in the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The command line.
    Cli,
    /// The console.
    Console,
    /// Anything else.
    #[default]
    Api,
}

impl Via {
    /// The header that names the client.
    pub const HEADER: &'static str = "lazaret-via";

    /// Returns the name in the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Console => "console",
            Self::Api => "api",
        }
    }
}

/// The identity of a caller and its scopes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// The name of the token, or the claimed name.
    pub name: String,
    /// The person recorded in the audit. Several tokens may belong to one person; approval needs another person.
    pub person: String,
    /// Whether a token authenticated the caller. Otherwise the name is what the header `lazaret-actor` claims.
    pub authenticated: bool,
    /// The caller's scopes.
    pub scopes: Vec<Scope>,
    /// When the token expires; `null` for never.
    pub expires_at: Option<jiff::Timestamp>,
    /// The consumers that the token is limited to; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<String>,
}

impl Identity {
    /// The header in which callers name themselves. Where no tokens are configured, this name is the
    /// actor. Otherwise the audit records it in addition to the token's name.
    pub const ACTOR_HEADER: &'static str = "lazaret-actor";

    /// Returns `true` if the caller has this scope or `admin`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|held| *held == scope || *held == Scope::Admin)
    }
}

/// The token that every form of a page must send back, in the field [`FIELD`](Self::FIELD). A server
/// with sessions adds it to the extensions of page requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrfToken(pub String);

impl CsrfToken {
    /// The name of the form field.
    pub const FIELD: &'static str = "csrf";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_round_trips_through_its_name() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
        }
        assert!("root".parse::<Scope>().unwrap_err().to_string().contains("read, payload, reveal, triage"));
    }

    #[test]
    fn admin_has_every_scope_and_others_only_their_own() {
        let identity = |scopes: &[Scope]| Identity {
            name: "a".into(),
            person: "a".into(),
            authenticated: true,
            scopes: scopes.to_vec(),
            expires_at: None,
            consumers: Vec::new(),
        };
        for scope in Scope::ALL {
            assert!(identity(&[Scope::Admin]).may(scope));
            assert!(!identity(&[]).may(scope));
            assert_eq!(identity(&[Scope::Triage]).may(scope), scope == Scope::Triage);
        }
    }
}
