//! The outcome of a demo.

use std::collections::HashMap;

use serde::Serialize;

use crate::check::{Finding, check};
use crate::dashboard::Dashboard;
use crate::evidence::Evidence;

/// The outcome of a demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// Whether every guarantee held.
    pub ok: bool,
    /// The number of orders sent.
    pub orders: usize,
    /// The number of orders handled.
    pub handled: usize,
    /// The number of handler calls.
    pub attempts: u64,
    /// The number of failed handler calls.
    pub failed_attempts: u64,
    /// The number of retries and replays.
    pub retries: u64,
    /// The number of crashes of the process.
    pub deaths: u32,
    /// The number of stored letters.
    pub letters: usize,
    /// The number of resolved letters.
    pub resolved: usize,
    /// The letters that are still open.
    pub open: Vec<OpenLetter>,
    /// The guarantees.
    pub checks: Vec<Finding>,
    /// The duration.
    pub seconds: f64,
}

/// An open letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenLetter {
    /// The id of the message.
    pub id: String,
    /// The customer.
    pub customer: String,
    /// The state.
    pub state: String,
    /// The reason code, absent for waiting letters.
    pub reason: Option<String>,
}

impl Outcome {
    pub(crate) fn of(dashboard: &Dashboard, evidence: &Evidence) -> Self {
        let checks = check(evidence);
        let customers: HashMap<&str, &str> =
            evidence.sent.iter().map(|sent| (sent.id.as_str(), sent.customer.as_str())).collect();
        let mut open: Vec<OpenLetter> = evidence
            .letters
            .iter()
            .filter(|letter| letter.state.is_open())
            .map(|letter| OpenLetter {
                id: letter.id.clone(),
                customer: customers.get(letter.id.as_str()).copied().unwrap_or_default().to_owned(),
                state: letter.state.to_string(),
                reason: letter.reason.clone(),
            })
            .collect();
        open.sort_by_key(|letter| (letter.reason.is_none(), crate::orders::number_of(&letter.id)));
        Self {
            ok: checks.iter().all(|finding| finding.ok),
            orders: evidence.sent.len(),
            handled: dashboard.handled(),
            attempts: dashboard.attempts,
            failed_attempts: dashboard.failed,
            retries: dashboard.retries,
            deaths: dashboard.deaths,
            letters: evidence.letters.len(),
            resolved: evidence.letters.len() - open.len(),
            open,
            checks,
            seconds: (dashboard.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        }
    }
}
