//! Alerts: webhooks are told, signed and without a word of a message, when something needs a person.
//!
//! Observers write down what happened ([`Alerts::observer`]) and go on; the [`Service`] reads it, looks at rates, ages and
//! operations now and then, tells each thing once when it begins and once when it ends, and sends it. [`RULES`] is the table of
//! all that is told.
//!
//! What fires is remembered in memory. Groups that have letters when the process starts are no news to it; what else is
//! still so is told again, under the same key.

mod asking;
mod board;
mod ledger;
mod levels;
mod notice;
mod rules;
mod service;
pub mod signature;
mod webhook;

pub use levels::Thresholds;
pub use notice::{Facts, Notice, Status};
pub use rules::{RULES, Rule, Severity, rule};
pub use service::{Alerts, Options, Service};
pub use webhook::Webhook;
