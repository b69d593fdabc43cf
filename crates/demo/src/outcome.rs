//! What a demo came to.

use std::collections::HashMap;

use serde::Serialize;

use crate::board::Board;
use crate::check::{Finding, check};
use crate::evidence::Evidence;

/// What a demo came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// Whether every promise was kept.
    pub ok: bool,
    /// How many orders were sent.
    pub orders: usize,
    /// How many of them were handled.
    pub handled: usize,
    /// How often the handler was called.
    pub attempts: u64,
    /// How many of these calls failed.
    pub failed_attempts: u64,
    /// How many of them were not the first of their order.
    pub retries: u64,
    /// How often the process died.
    pub deaths: u32,
    /// How many orders became letters.
    pub letters: usize,
    /// How many of these letters were handled at last.
    pub resolved: usize,
    /// What is left.
    pub open: Vec<OpenLetter>,
    /// The promises.
    pub checks: Vec<Finding>,
    /// How long it took.
    pub seconds: f64,
}

/// A letter that is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenLetter {
    /// The id of the message.
    pub id: String,
    /// Whose order it is.
    pub customer: String,
    /// Its state.
    pub state: String,
    /// Its reason; none for those that only wait.
    pub reason: Option<String>,
}

impl Outcome {
    pub(crate) fn of(board: &Board, evidence: &Evidence) -> Self {
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
            handled: board.handled(),
            attempts: board.attempts,
            failed_attempts: board.failed,
            retries: board.retries,
            deaths: board.deaths,
            letters: evidence.letters.len(),
            resolved: evidence.letters.len() - open.len(),
            open,
            checks,
            seconds: (board.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        }
    }
}
