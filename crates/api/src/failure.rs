//! Failures of attempts.

use lazaret_core::Reason;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::duration::from_seconds;
use crate::enums::Phase;
use crate::invalid_letter::InvalidLetter;

/// Type and text of the error that caused a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterError {
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: String,
    /// The error text.
    pub message: String,
}

/// One link of a cause chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CauseLink {
    /// The type of the error, if known.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// The error text.
    pub message: String,
}

/// The failure of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    /// The machine-readable reason.
    pub reason: String,
    /// The phase in which the attempt failed.
    pub phase: Phase,
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: String,
    /// The error text.
    pub message: String,
    /// The cause chain, outermost first.
    pub chain: Vec<CauseLink>,
    /// The backtrace, if captured.
    pub backtrace: Option<String>,
    /// The retry-after hint, in seconds.
    pub retry_after_seconds: Option<f64>,
    /// The HTTP status or the exit code of the handler.
    pub status: Option<u16>,
    /// Whether the handler panicked.
    pub panicked: bool,
    /// The fingerprint: equal for failures with the same cause.
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
        // The constructor enforces the limits; then the exported fingerprint is restored.
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
