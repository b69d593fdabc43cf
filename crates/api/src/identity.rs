//! Who asks, by what means, and what they may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// See everything but payloads and headers.
    Read,
    /// See payloads and headers, and search in them.
    Payload,
    /// Retry, park, release, restore, resolve, comment, assign.
    Triage,
    /// Evict, purge, edit, quarantine, import.
    Evict,
    /// Pause and resume.
    Pause,
    /// Approve or reject what somebody else began.
    Approve,
    /// Post to inboxes.
    Ingest,
    /// Everything.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Payload,
        Self::Triage,
        Self::Evict,
        Self::Pause,
        Self::Approve,
        Self::Ingest,
        Self::Admin,
    ];

    /// The word used in configuration and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Payload => "payload",
            Self::Triage => "triage",
            Self::Evict => "evict",
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|scope| scope.as_str()).collect();
            format!("there is no scope {text:?}; there are {}", all.join(", "))
        })
    }
}

/// By what means a request came, as the header `lazaret-via` says. It stands in the audit.
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
    /// The header that says it.
    pub const HEADER: &'static str = "lazaret-via";

    /// The word used in the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Console => "console",
            Self::Api => "api",
        }
    }
}

/// Who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// The name that stands in the audit.
    pub name: String,
    /// Whether a token says so. Without one the name is only what the header `lazaret-actor` claims.
    pub authenticated: bool,
    /// What they may do.
    pub scopes: Vec<Scope>,
    /// When their token ends; `null` for never.
    pub expires_at: Option<jiff::Timestamp>,
}

impl Identity {
    /// The header by which somebody says their name where no tokens are configured.
    pub const ACTOR_HEADER: &'static str = "lazaret-actor";

    /// Whether they may do this.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|held| *held == scope || *held == Scope::Admin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_is_written() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
        }
        assert!("root".parse::<Scope>().unwrap_err().contains("read, payload, triage"));
    }

    #[test]
    fn admin_may_everything_and_others_only_what_they_hold() {
        let identity = |scopes: &[Scope]| Identity {
            name: "a".into(),
            authenticated: true,
            scopes: scopes.to_vec(),
            expires_at: None,
        };
        for scope in Scope::ALL {
            assert!(identity(&[Scope::Admin]).may(scope));
            assert!(!identity(&[]).may(scope));
            assert_eq!(identity(&[Scope::Triage]).may(scope), scope == Scope::Triage);
        }
    }
}
