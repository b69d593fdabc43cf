//! Alerts: signed webhook notifications about conditions that need a person. They carry no message contents.
//!
//! Observers ([`Alerts::observer`]) buffer events and return at once. The [`Service`] drains the buffer, evaluates rates, ages
//! and operations at an interval, and sends one notice when an alert starts firing and one when it is resolved. [`RULES`]
//! lists every alert.
//!
//! The set of firing alerts is kept in memory. Groups that already have letters at start-up do not fire again; any other
//! condition that still holds fires again under the same key.

mod event_buffer;
mod firing;
mod notice;
mod rules;
mod service;
pub mod signature;
mod store_poll;
mod thresholds;
mod webhook;

pub use notice::{AuditAnchor, Facts, Notice, Status};
pub use rules::{AlertEvent, RULES, Rule, Severity, rule};
pub use service::{Alerts, Options, Service};
pub use thresholds::Thresholds;
pub use webhook::Webhook;
