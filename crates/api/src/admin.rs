//! The effective configuration and the API tokens.

use lazaret_core::fingerprint::{GroupPart, GroupPattern, Grouping};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::identity::Scope;

/// The effective configuration, as YAML with the origin of each value. Secrets are masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EffectiveConfig {
    /// The top level; `null` for a server that was not started from a configuration.
    pub general: Option<String>,
    /// The consumers, each as `lazaret check --effective` prints it.
    pub consumers: Vec<ConsumerConfig>,
}

/// The effective configuration of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ConsumerConfig {
    /// The name of the consumer.
    pub name: String,
    /// YAML.
    pub text: String,
    /// The grouping rules in it.
    pub grouping: GroupingRules,
}

/// The grouping rules of a consumer: which failures are counted as the same problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupingRules {
    /// The parts of a failure that count: `error-type`, `message`, `cause`, `backtrace`, `event-type`.
    pub by: Vec<String>,
    /// The patterns whose matches are replaced, in order.
    pub replace: Vec<String>,
}

impl From<&Grouping> for GroupingRules {
    fn from(rules: &Grouping) -> Self {
        Self {
            by: rules.parts().map(GroupPart::as_str).map(str::to_owned).collect(),
            replace: rules.patterns().iter().map(GroupPattern::as_str).map(str::to_owned).collect(),
        }
    }
}

/// The configured tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TokenList {
    /// The tokens, in the order of the configuration; none where the API is unauthenticated.
    pub tokens: Vec<TokenInfo>,
}

/// A configured token, without its secret and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TokenInfo {
    /// The name.
    pub name: String,
    /// The person recorded in the audit.
    pub person: String,
    /// The scopes.
    pub scopes: Vec<Scope>,
    /// The consumers that it is limited to; empty for all.
    pub consumers: Vec<String>,
    /// When it expires; `null` for never.
    pub expires_at: Option<jiff::Timestamp>,
    /// Whether it has expired.
    pub expired: bool,
}
