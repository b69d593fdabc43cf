//! Why an attempt failed, over the wire.

use lazaret_core::Reason;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::duration::from_seconds;
use crate::letter::InvalidLetter;
use crate::words::Phase;

/// The error of a letter's cause, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterError {
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: String,
    /// What it said.
    pub message: String,
}

/// One link of a cause chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CauseLink {
    /// The type of the error, where it is known.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// What it said.
    pub message: String,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    /// The machine-readable reason.
    pub reason: String,
    /// How far the attempt had come.
    pub phase: Phase,
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: String,
    /// What the error said.
    pub message: String,
    /// The errors underneath, outermost first.
    pub chain: Vec<CauseLink>,
    /// Where it happened, if that was captured.
    pub backtrace: Option<String>,
    /// When the other side asked to be called again, in seconds from then.
    pub retry_after_seconds: Option<f64>,
    /// The status code of a handler over HTTP, or the exit code of a command.
    pub status: Option<u16>,
    /// Whether it was a panic.
    pub panicked: bool,
    /// Failures with one fingerprint are taken for one problem.
    pub fingerprint: String,
}

impl From<&lazaret_core::Failure> for LetterError {
    fn from(failure: &lazaret_core::Failure) -> Self {
        Self { error_type: failure.error_type.clone(), message: failure.message.clone() }
    }
}

impl From<&lazaret_core::Failure> for Failure {
    fn from(failure: &lazaret_core::Failure) -> Self {
        let link = |link: &lazaret_core::failure::CauseLink| CauseLink {
            error_type: link.error_type.clone(),
            message: link.message.clone(),
        };
        Self {
            reason: failure.reason.to_string(),
            phase: failure.phase.into(),
            error_type: failure.error_type.clone(),
            message: failure.message.clone(),
            chain: failure.chain.iter().map(link).collect(),
            backtrace: failure.backtrace.clone(),
            retry_after_seconds: failure.retry_after.map(|delay| delay.as_secs_f64()),
            status: failure.status,
            panicked: failure.panicked,
            fingerprint: failure.fingerprint.to_string(),
        }
    }
}

impl TryFrom<Failure> for lazaret_core::Failure {
    type Error = InvalidLetter;

    fn try_from(wire: Failure) -> Result<Self, InvalidLetter> {
        let reason = Reason::new(wire.reason).map_err(|error| InvalidLetter::of("reason", error))?;
        let link = |link: CauseLink| lazaret_core::failure::CauseLink {
            error_type: link.error_type,
            message: link.message,
        };
        let retry_after = wire.retry_after_seconds.map(from_seconds).transpose();
        // Made by its constructor, so that its limits hold, and given its own fingerprint back.
        let mut failure = Self::new(reason, wire.error_type, wire.message).in_phase(wire.phase.into());
        failure.chain = wire.chain.into_iter().map(link).take(lazaret_core::failure::CHAIN_LIMIT).collect();
        if let Some(backtrace) = wire.backtrace {
            failure = failure.with_backtrace(backtrace);
        }
        failure.retry_after = retry_after.map_err(|error| InvalidLetter::of("retry-after-seconds", error))?;
        failure.status = wire.status;
        failure.panicked = wire.panicked;
        failure.fingerprint =
            wire.fingerprint.parse().map_err(|error| InvalidLetter::of("fingerprint", error))?;
        Ok(failure)
    }
}
