//! What people want done, and to which letters.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Code;

/// Which letters are meant: those that match a query, or those that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Selection {
    /// Those that match. A query that names no state selects open letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// These letter ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// Yes, an empty query is meant.
    #[serde(default)]
    pub all: bool,
}

/// A change to one letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ActRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A remark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommentRequest {
    /// What it says.
    pub text: String,
    /// Why, for the audit, which does not show the remark itself; `comment` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who looks after a letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AssignRequest {
    /// The person, or the team; `null` for nobody.
    pub name: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// When a letter leaves by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExpiryRequest {
    /// The time; `null` for never.
    pub expires_at: Option<Timestamp>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Another payload. The one before it is kept. Exactly one of the three is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EditRequest {
    /// The payload, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload, as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// No payload at all.
    #[serde(default)]
    pub tombstone: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A change to many letters at once, each on its own. For what is no [operation](crate::Action).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkRequest {
    /// Which letters.
    #[serde(flatten)]
    pub selection: Selection,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What became of a change to many letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkAnswer {
    /// Letters that were changed.
    pub done: u64,
    /// Letters that were not, and why.
    pub failed: Vec<BulkFailure>,
    /// Whether more letters match: ask again.
    pub more: bool,
}

/// A letter that was not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkFailure {
    /// The letter.
    pub id: String,
    /// The code of the problem.
    pub code: Code,
    /// What was wrong.
    pub detail: String,
}
