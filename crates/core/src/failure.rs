//! Failures: the cause of a failed attempt as a value that can be classified, stored and shown.

mod causes;
mod error;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;

pub(crate) use causes::causes;
pub use error::HandlerError;

/// The longest message kept of one error, in bytes. Longer ones are cut at a character boundary.
pub const MESSAGE_LIMIT: usize = 8 * 1024;
/// The longest backtrace kept, in bytes.
pub const BACKTRACE_LIMIT: usize = 32 * 1024;
/// The maximum length of a cause chain.
pub const CHAIN_LIMIT: usize = 16;

/// A stable, machine-readable code for why something failed.
///
/// Upper-case letters, digits and underscores, at most 64 of them, so that it can be a metric label. The first one is a letter: a number of
/// a card or an account is no code, and appears in no label.
///
/// ```
/// use lazaret_core::Reason;
/// assert_eq!(Reason::TIMEOUT.as_str(), "TIMEOUT");
/// assert!(Reason::new("CARD_DECLINED").is_ok());
/// assert!(Reason::new("card declined").is_err());
/// assert!(Reason::new("4111111111111111").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(Cow<'static, str>);

macro_rules! reasons {
    ($(#[doc = $doc:literal] $name:ident),+ $(,)?) => {
        impl Reason {
            $(#[doc = $doc] pub const $name: Self = Self(Cow::Borrowed(stringify!($name)));)+

            /// The codes that Lazaret itself gives.
            pub const KNOWN: &'static [Self] = &[$(Self::$name),+];

            /// The meaning of a code that Lazaret itself gives; `None` for a code of the user's own.
            ///
            /// ```
            /// use lazaret_core::Reason;
            /// assert_eq!(Reason::CONNECTION_LOST.meaning(), Some("A connection broke."));
            /// assert_eq!(Reason::new("CARD_DECLINED").unwrap().meaning(), None);
            /// ```
            pub fn meaning(&self) -> Option<&'static str> {
                match self.as_str() {
                    $(stringify!($name) => Some($doc.trim_ascii()),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// The handler, or a service that it called, did not respond in time.
    TIMEOUT,
    /// A service asked for a lower rate.
    RATE_LIMITED,
    /// A service, database or broker that the handler needs is unavailable.
    DEPENDENCY_UNAVAILABLE,
    /// A connection broke.
    CONNECTION_LOST,
    /// A database did not respond in time.
    DATABASE_TIMEOUT,
    /// A concurrent change came first.
    CONFLICT,
    /// The handler itself cannot be reached.
    HANDLER_UNREACHABLE,
    /// The handler sent something that is no valid response.
    INVALID_RESPONSE,
    /// The handler failed without a more precise reason.
    HANDLER_ERROR,
    /// The handler panicked: a bug.
    PANICKED,
    /// The process crashed while the message was handled.
    CRASHED,
    /// The payload cannot be read.
    INVALID_SCHEMA,
    /// The payload is larger than allowed.
    TOO_LARGE,
    /// This version of the event is not supported yet.
    UNSUPPORTED_EVENT_VERSION,
    /// No handler for this type of event.
    UNKNOWN_EVENT_TYPE,
    /// The handler does not support this.
    UNSUPPORTED,
    /// A permission is missing.
    AUTHORIZATION_DENIED,
    /// The event violates a rule of the domain.
    DOMAIN_INVALID,
    /// It was handled before.
    DUPLICATE,
    /// The same failure repeated too often.
    POISON,
    /// A filter failed.
    FILTER_FAILED,
    /// The sequencing policy failed.
    SEQUENCING_FAILED,
    /// The classifier failed.
    CLASSIFIER_FAILED,
    /// A handler sent it to the dead letters by hand.
    MANUAL,
}

/// A text that cannot be a reason code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason code: use 1 to 64 upper-case letters, digits and underscores, a letter first")]
pub struct InvalidReason(pub String);

impl Reason {
    /// A reason code of the user's own.
    pub fn new(code: impl Into<String>) -> Result<Self, InvalidReason> {
        let code = code.into();
        let fits = code.len() <= 64
            && code.starts_with(|c: char| c.is_ascii_uppercase())
            && code.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        if !fits {
            return Err(InvalidReason(code));
        }
        Ok(Self(Cow::Owned(code)))
    }

    /// A reason code from free text: `card declined` becomes `CARD_DECLINED`.
    pub fn from_words(words: &str) -> Self {
        let code: String = words
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        Self::new(code).unwrap_or(Self::HANDLER_ERROR)
    }

    /// The code.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The phase that an attempt had reached when it failed. The later, the more effects it may have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Decoding the bytes.
    Decode,
    /// Deciding whether the message is wanted.
    Filter,
    /// Checking the content.
    Validate,
    /// The handler's own work.
    #[default]
    Handle,
    /// A call to another service; it may have had its effect.
    ExternalCall,
    /// Confirming that it was handled.
    Ack,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 6] =
        [Self::Decode, Self::Filter, Self::Validate, Self::Handle, Self::ExternalCall, Self::Ack];

    /// The name used in configuration and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Filter => "filter",
            Self::Validate => "validate",
            Self::Handle => "handle",
            Self::ExternalCall => "external-call",
            Self::Ack => "ack",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One link of a cause chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseLink {
    /// The type of the error, where it is known. Rust does not expose the type of an inner error, so it often is not.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// The message of the error.
    pub message: String,
}

/// The cause of a failed attempt, which a letter keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    /// The machine-readable reason.
    pub reason: Reason,
    /// The phase that the attempt had reached.
    pub phase: Phase,
    /// The type of the error.
    pub error_type: String,
    /// The message of the error, truncated to [`MESSAGE_LIMIT`].
    pub message: String,
    /// The sources of the error, outermost first, at most [`CHAIN_LIMIT`].
    pub chain: Vec<CauseLink>,
    /// The backtrace, if one was captured.
    pub backtrace: Option<String>,
    /// The `retry-after` hint of the other side.
    pub retry_after: Option<Duration>,
    /// The status code of a handler over HTTP, or the exit code of a command.
    pub status: Option<u16>,
    /// `true` for a panic.
    pub panicked: bool,
    /// Identifies the problem: failures with the same fingerprint are grouped.
    pub fingerprint: Fingerprint,
}

impl Failure {
    /// A failure from its reason, error type and message.
    ///
    /// ```
    /// use lazaret_core::{Failure, Phase, Reason};
    /// let failure = Failure::new(Reason::TIMEOUT, "HttpError", "no answer after 10s").in_phase(Phase::ExternalCall);
    /// assert_eq!(failure.phase, Phase::ExternalCall);
    /// ```
    pub fn new(reason: Reason, error_type: impl Into<String>, message: impl Into<String>) -> Self {
        let mut failure = Self {
            reason,
            phase: Phase::Handle,
            error_type: error_type.into(),
            message: cut(message.into(), MESSAGE_LIMIT),
            chain: Vec::new(),
            backtrace: None,
            retry_after: None,
            status: None,
            panicked: false,
            fingerprint: Fingerprint::NONE,
        };
        failure.fingerprint = Fingerprint::of(&failure);
        failure
    }

    /// The same failure in another phase.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }

    /// The same failure with the message cut to this many bytes, at a character boundary. The fingerprint stays
    /// that of the whole message.
    #[must_use]
    pub fn truncated(mut self, limit: usize) -> Self {
        self.message = cut(self.message, limit);
        self
    }

    /// The same failure with this backtrace, and the fingerprint that follows from it.
    #[must_use]
    pub fn with_backtrace(mut self, backtrace: impl Into<String>) -> Self {
        self.backtrace = Some(cut(backtrace.into(), BACKTRACE_LIMIT));
        self.fingerprint = Fingerprint::of(&self);
        self
    }
}

impl Failure {
    /// The reason, the phase and the type, without a word of the message: for the audit, which is neither encrypted nor erased.
    ///
    /// ```
    /// use lazaret_core::{Failure, Reason};
    /// let failure = Failure::new(Reason::TIMEOUT, "DbError", "no answer for ada@example.com");
    /// assert_eq!(failure.headline(), "TIMEOUT in phase handle: DbError");
    /// ```
    pub fn headline(&self) -> String {
        format!("{} in phase {}: {}", self.reason, self.phase, self.error_type)
    }

    /// Removes its texts. The fingerprint stays.
    pub(crate) fn erase(&mut self) {
        /// What stands in the place of an erased text.
        const ERASED: &str = "[erased]";
        ERASED.clone_into(&mut self.message);
        self.chain.clear();
        self.backtrace = None;
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in phase {}: {}: {}", self.reason, self.phase, self.error_type, self.message)
    }
}

/// Cuts text to at most `limit` bytes without splitting a character.
fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] fmt::Error);

    #[test]
    fn an_error_brings_its_type_message_and_chain() {
        let failure = HandlerError::from(Outer(fmt::Error)).failure();
        assert!(failure.error_type.ends_with("::Outer"), "{}", failure.error_type);
        assert_eq!(failure.message, "outer");
        assert_eq!(failure.chain.len(), 1);
        assert_eq!(failure.reason, Reason::HANDLER_ERROR);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let failure = Failure::new(Reason::TIMEOUT, "E", "é".repeat(MESSAGE_LIMIT));
        assert_eq!(failure.message.len(), MESSAGE_LIMIT);
        assert_eq!(failure.clone().truncated(3).message, "é");
        assert_eq!(failure.truncated(0).message, "");
    }

    #[test]
    fn a_panic_is_marked_as_one() {
        let failure = HandlerError::panic("index out of bounds", None).failure();
        assert!(failure.panicked);
        assert_eq!(failure.reason, Reason::PANICKED);
    }

    #[test]
    fn reason_codes_are_bounded_words() {
        assert!(Reason::new("").is_err());
        assert!(Reason::new("A".repeat(64)).is_ok() && Reason::new("A".repeat(65)).is_err());
        for number in ["4111111111111111", "4111_1111", "_4111111111111111", "7", "_"] {
            assert!(Reason::new(number).is_err(), "{number}");
            assert_eq!(Reason::from_words(number), Reason::HANDLER_ERROR);
        }
        assert!(Reason::new("HTTP_404").is_ok());
        assert_eq!(Reason::from_words("card declined").as_str(), "CARD_DECLINED");
        assert_eq!(Reason::from_words(""), Reason::HANDLER_ERROR);
        for reason in Reason::KNOWN {
            assert!(Reason::new(reason.as_str()).is_ok());
        }
    }

    #[test]
    fn the_phase_reached_is_used_unless_the_error_names_one() {
        let reached = HandlerError::msg("x").failure_in(Phase::ExternalCall);
        let named = HandlerError::msg("x").phase(Phase::Validate).failure_in(Phase::ExternalCall);
        assert_eq!((reached.phase, named.phase), (Phase::ExternalCall, Phase::Validate));
    }
}
