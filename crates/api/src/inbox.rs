//! What the inbox answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InboxAnswer {
    /// Its id: the given one, or its position.
    pub id: String,
    /// Where it stands, or stood: `partition:offset`.
    pub position: String,
    /// Whether it was posted before. Then it was not taken again.
    pub duplicate: bool,
}

/// A batch of messages, all of them durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BatchAnswer {
    /// How many were taken.
    pub taken: u64,
    /// How many were posted before.
    pub duplicates: u64,
    /// How many of those that were taken are no messages: they will be dead-lettered with their raw bytes.
    pub undecodable: u64,
    /// Each of them, in the order of the lines.
    pub messages: Vec<InboxAnswer>,
}

/// How much waits in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InboxBacklog {
    /// Messages that are not consumed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}
