//! Selections of letters and requests that change them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Code;

/// A selection of letters: by query or by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Selection {
    /// The query. Without a state it selects open letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The letter ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// Confirms that an empty query is intended.
    #[serde(default)]
    pub all: bool,
}

/// A change to one letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ActRequest {
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// A comment on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommentRequest {
    /// The text.
    pub text: String,
    /// The reason, for the audit, which does not contain the text; default: `comment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The assignee or owner of a letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AssignRequest {
    /// The person or the team; `null` for none. Required: a request that leaves it out must not remove the name.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    pub name: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The expiry of a letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExpiryRequest {
    /// The expiry time; `null` for never. Required: a request that leaves it out must not remove the expiry.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    pub expires_at: Option<Timestamp>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// A new payload; the previous one is kept. Exactly one of `payload`, `payload-base64`, `tombstone` and `revert` is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EditRequest {
    /// The payload as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// A tombstone: no payload.
    #[serde(default)]
    pub tombstone: bool,
    /// The digest of the payload that this edit replaces, as the letter states it. If the letter has another one by now, the edit is
    /// refused as a conflict; default: it replaces whatever is there. Needs the scope `payload`, as the payload does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_digest: Option<String>,
    /// The payload as it arrived, before all edits.
    #[serde(default)]
    pub revert: bool,
    /// Accept a payload that is not JSON for a letter whose payload is JSON.
    #[serde(default)]
    pub force: bool,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// A change to many letters, each by itself, outside of an [operation](crate::Action).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkRequest {
    /// The letters.
    #[serde(flatten)]
    pub selection: Selection,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// An assignment of many letters, each by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkAssignRequest {
    /// The letters.
    #[serde(flatten)]
    pub selection: Selection,
    /// The assignee of each.
    #[serde(flatten)]
    pub assignment: AssignRequest,
}

/// An export of letters with their redacted values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExportRequest {
    /// The query. Without a state it selects open letters; default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// The result of a bulk change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkAnswer {
    /// The number of changed letters.
    pub done: u64,
    /// The letters that were not changed.
    pub failed: Vec<BulkFailure>,
    /// Whether more letters match: repeat the request.
    pub more: bool,
    /// After an erasure: where erased content remains, and what to do about it; absent if it remains nowhere in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remains: Option<String>,
    /// After an erasure: true if the store could not remove the erased bytes from its files, which `remains` explains. It tries again by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A letter that was not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BulkFailure {
    /// The letter.
    pub id: String,
    /// The problem code.
    pub code: Code,
    /// The problem detail.
    pub detail: String,
    /// A suggestion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
