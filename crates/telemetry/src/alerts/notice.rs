//! The webhook payload: facts and fixed texts, never anything from a message or an error.

use lazaret_core::Timestamp;
use lazaret_core::store::{Result, Store};
use serde::Serialize;

use super::rules::{AlertEvent, Severity};

/// The identity of an alert. Two notices with the same subject describe the same condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Subject {
    pub(crate) event: AlertEvent,
    pub(crate) consumer: Option<String>,
    /// A queue, a group, an operation or a pause scope, where the event concerns one.
    pub(crate) detail: Option<String>,
}

impl Subject {
    /// A stable key: the same in every process and after every restart.
    pub(crate) fn key(&self) -> String {
        let parts = [Some(self.event.as_str()), self.consumer.as_deref(), self.detail.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(":")
    }
}

/// Optional facts of a notice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Facts {
    /// The queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The reason code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The group of letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
    /// The state of the letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// The pause scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'static str>,
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The measured value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The threshold of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// The last entry of the audit. Kept by the receiver, it proves that no later entries were cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct AuditAnchor {
    /// The number of the entry.
    pub number: u64,
    /// Its hash, sealed by the key of the store: `hmac-sha256:` and hexadecimal digits.
    pub hash: String,
}

impl AuditAnchor {
    /// The last entry of the audit of a store; `None` without entries, or without a hash chain.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn last(store: &dyn Store) -> Result<Option<Self>> {
        let Some(head) = store.audit_head(None).await? else { return Ok(None) };
        let hash = store.digest_key().await?.seal_audit_hash(&head.hash);
        Ok(Some(Self { number: head.number, hash }))
    }
}

/// The status of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The condition holds.
    Firing,
    /// The condition no longer holds.
    Resolved,
}

/// The JSON body of a webhook request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Notice {
    /// The format version.
    pub version: u32,
    /// The id of this notice. A redelivery keeps it.
    pub id: String,
    /// The key of the alert: the same for firing and resolved, and in every process.
    pub key: String,
    /// The event.
    pub event: AlertEvent,
    /// Firing or resolved.
    pub status: Status,
    /// The urgency.
    pub severity: Severity,
    /// The description of the condition.
    pub summary: &'static str,
    /// The consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The team that owns the consumer's dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Further facts.
    #[serde(flatten)]
    pub facts: Facts,
    /// The number of occurrences since the alert started firing.
    pub count: u64,
    /// When the alert started firing.
    pub since: Timestamp,
    /// When this notice was created.
    pub at: Timestamp,
    /// The runbook section.
    pub runbook: String,
    /// The last entry of the audit at the last poll of the store; absent if the store has no hash chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_head: Option<AuditAnchor>,
}

impl Notice {
    /// The runbook of an event: a page of the documentation at this base URL, or its path in the repository.
    pub(crate) fn runbook(event: AlertEvent, docs_url: Option<&str>) -> String {
        match docs_url {
            Some(base) => format!("{}/observability.html#{event}", base.trim_end_matches('/')),
            None => format!("docs/observability.md#{event}"),
        }
    }
}
