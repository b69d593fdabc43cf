//! Facets of a group: values that its letters share.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::operation::Operation;

/// What the letters of a group have in common, and in what they differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupFacets {
    /// The number of letters examined, the most recently enqueued first: open ones, or closed ones where none is open.
    pub examined: u64,
    /// Whether all of them were examined.
    pub exact: bool,
    /// Fields and their most frequent values. Headers need the scope `payload`.
    pub facets: Vec<Facet>,
    /// The distinct error texts, most frequent first.
    pub variants: Vec<Variant>,
    /// The sequences with the most letters of the group.
    pub sequences: Vec<SequenceShare>,
    /// The latest comments on these letters.
    pub comments: Vec<GroupComment>,
    /// The latest changes of the assignee, among the latest 500 entries of the audit about these letters.
    pub assignments: Vec<GroupAssignment>,
    /// The latest operations that selected the group, or that have one of these letters among their first.
    pub operations: Vec<Operation>,
}

/// A field and its most frequent values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Facet {
    /// The field, as in the query language.
    pub field: String,
    /// The values, most frequent first.
    pub values: Vec<FacetValue>,
    /// The number of letters with other values.
    pub others: u64,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FacetValue {
    /// The value.
    pub value: String,
    /// The number of letters with it.
    pub letters: u64,
    /// The query that selects them.
    pub query: String,
}

/// One of the error texts of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Variant {
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: String,
    /// The text.
    pub message: String,
    /// The number of letters with it.
    pub letters: u64,
    /// The latest of them.
    pub letter: String,
}

/// A sequence with letters of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SequenceShare {
    /// The queue.
    pub queue: String,
    /// The sequence.
    pub sequence: String,
    /// The number of its letters in the group.
    pub letters: u64,
    /// The earliest of them.
    pub letter: String,
    /// When that one was enqueued.
    pub enqueued_at: Timestamp,
}

/// A comment on a letter of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupComment {
    /// The letter.
    pub letter: String,
    /// The author.
    pub by: String,
    /// The time.
    pub at: Timestamp,
    /// The text.
    pub text: String,
}

/// Letters of a group that one person assigned to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupAssignment {
    /// The time of the last of them.
    pub at: Timestamp,
    /// Who assigned them.
    pub by: String,
    /// To whom; `null` for nobody.
    pub name: Option<String>,
    /// The reason; empty without one.
    pub why: String,
    /// The number of letters.
    pub letters: u64,
}
