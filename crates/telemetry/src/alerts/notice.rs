//! What a webhook gets: facts and fixed words, never anything that a message or an error said.

use lazaret_core::Timestamp;
use serde::Serialize;

use super::rules::{Rule, Severity};

/// What it is about. Two notices with one subject speak of the same thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Subject {
    pub(crate) event: &'static str,
    pub(crate) consumer: Option<String>,
    /// A queue, a group, an operation or a scope, where the event is about one.
    pub(crate) detail: Option<String>,
}

impl Subject {
    /// Its name, the same in every process and after every restart.
    pub(crate) fn key(&self) -> String {
        let parts = [Some(self.event), self.consumer.as_deref(), self.detail.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(":")
    }
}

/// Facts that a notice shows where they are known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
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
    /// What is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'static str>,
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// What it may be at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// Whether it began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is so now.
    Firing,
    /// It is over.
    Resolved,
}

/// What a webhook gets, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Notice {
    /// The version of this form.
    pub version: u32,
    /// Names this notice. One that is sent again keeps it.
    pub id: String,
    /// Names what it is about: the same when it begins and when it ends, and in every process.
    pub key: String,
    /// The rule.
    pub event: &'static str,
    /// Whether it began or ended.
    pub status: Status,
    /// How urgent it is.
    pub severity: Severity,
    /// What has happened.
    pub summary: &'static str,
    /// The consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The team that owns its dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What else is known.
    #[serde(flatten)]
    pub facts: Facts,
    /// How often it happened since it began.
    pub count: u64,
    /// When it began.
    pub since: Timestamp,
    /// When this was written.
    pub at: Timestamp,
    /// What to do.
    pub runbook: String,
}

impl Notice {
    pub(crate) fn runbook(rule: &Rule) -> String {
        format!("docs/observability.md#{}", rule.event)
    }
}
