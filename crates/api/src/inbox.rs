//! Responses of the inbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A durable message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InboxAnswer {
    /// The message id: as given, or the position.
    pub id: String,
    /// The position: `partition:offset`.
    pub position: String,
    /// Whether the id was accepted before; the message was not stored again.
    pub duplicate: bool,
    /// Whether a message with this id and another payload was accepted before; this one was not stored. Only in batches: a
    /// single message is refused with 409.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conflict: bool,
}

/// A batch of durable messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BatchAnswer {
    /// The number of accepted messages.
    pub taken: u64,
    /// The number of duplicates.
    pub duplicates: u64,
    /// The number of undecodable lines: they are dead-lettered with their raw bytes.
    pub undecodable: u64,
    /// The number of messages that were not stored, because one with the same id and another payload was accepted before.
    #[serde(default)]
    pub conflicts: u64,
    /// The messages, in line order.
    pub messages: Vec<InboxAnswer>,
    /// Whether `messages` was left out: in the response to a repeated request whose first response was too large to be kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub messages_left_out: bool,
}

/// The backlog of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InboxBacklog {
    /// The number of unconsumed messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl From<lazaret_core::source::Backlog> for InboxBacklog {
    fn from(backlog: lazaret_core::source::Backlog) -> Self {
        Self { messages: backlog.messages, bytes: backlog.bytes }
    }
}
