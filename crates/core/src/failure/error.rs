//! The error that a handler returns.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use super::{BACKTRACE_LIMIT, CHAIN_LIMIT, CauseLink, Failure, MESSAGE_LIMIT, Phase, Reason, causes, cut};
use crate::fingerprint::Fingerprint;
use crate::verdict::Verdict;

/// The error of a handler, with the facts that the handler adds to it.
///
/// Any error converts into it with `?`. It does not implement [`std::error::Error`] itself, for the same reason
/// that `anyhow::Error` does not.
///
/// ```
/// use lazaret_core::{HandlerError, Reason, Verdict};
/// use std::time::Duration;
///
/// fn charge(card: &str) -> Result<(), HandlerError> {
///     let _: u64 = card.parse()?; // any error type
///     if card.len() < 12 {
///         return Err(HandlerError::msg("no such card").reason(Reason::DOMAIN_INVALID));
///     }
///     Err(HandlerError::msg("busy").verdict(Verdict::Retry).retry_after(Duration::from_secs(30)))
/// }
/// assert_eq!(charge("x").unwrap_err().failure().error_type, "core::num::error::ParseIntError");
/// ```
///
/// A handler may also return `Box<dyn Error + Send + Sync>` and, with the feature `anyhow`, `anyhow::Error`. Inside a function
/// that returns `HandlerError`, those convert with `.map_err(HandlerError::from_boxed)`.
pub struct HandlerError {
    error: Option<Cause>,
    facts: Box<Facts>,
}

/// The error that a handler returned.
enum Cause {
    Boxed(Box<dyn StdError + Send + Sync + 'static>),
    #[cfg(feature = "anyhow")]
    Anyhow(anyhow::Error),
}

struct Facts {
    error_type: Cow<'static, str>,
    message: String,
    reason: Option<Reason>,
    phase: Option<Phase>,
    verdict: Option<Verdict>,
    suggested: Option<Verdict>,
    retry_after: Option<Duration>,
    status: Option<u16>,
    backtrace: Option<String>,
    panicked: bool,
    deferral: Option<Duration>,
}

impl HandlerError {
    /// An error that is only a message.
    pub fn msg(message: impl Into<String>) -> Self {
        Self::from_parts(None, Cow::Borrowed("message"), message.into())
    }

    /// An error from another system, by its type name and message.
    pub fn foreign(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self::from_parts(None, Cow::Owned(error_type.into()), message.into())
    }

    /// An error whose static type is unknown: a boxed one, or one of an error-collecting library. Rules still find its type,
    /// and those of its sources.
    ///
    /// ```
    /// use lazaret_core::HandlerError;
    /// let boxed: Box<dyn std::error::Error + Send + Sync> = "disk on fire".into();
    /// assert_eq!(HandlerError::from_boxed(boxed).failure().message, "disk on fire");
    /// ```
    pub fn from_boxed(error: impl Into<Box<dyn StdError + Send + Sync + 'static>>) -> Self {
        let error = error.into();
        let message = error.to_string();
        Self::from_parts(Some(Cause::Boxed(error)), Cow::Borrowed("dyn Error"), message)
    }

    /// An `anyhow::Error`, with its chain, its backtrace if one was captured, and the types that rules look for.
    ///
    /// ```
    /// use lazaret_core::HandlerError;
    /// let error = anyhow::anyhow!("disk on fire").context("order not placed");
    /// let failure = HandlerError::from_anyhow(error).failure();
    /// assert_eq!(failure.message, "order not placed");
    /// assert_eq!(failure.chain[0].message, "disk on fire");
    /// ```
    #[cfg(feature = "anyhow")]
    pub fn from_anyhow(error: anyhow::Error) -> Self {
        let message = error.to_string();
        let backtrace = error.backtrace();
        let captured = backtrace.status() == std::backtrace::BacktraceStatus::Captured;
        let backtrace = captured.then(|| backtrace.to_string());
        let mut this = Self::from_parts(Some(Cause::Anyhow(error)), Cow::Borrowed("anyhow::Error"), message);
        this.facts.backtrace = backtrace;
        this
    }

    /// A panic: its text and, if it is known, its location.
    pub fn panic(message: impl Into<String>, location: Option<String>) -> Self {
        let mut error = Self::from_parts(None, Cow::Borrowed("panic"), message.into());
        error.facts.panicked = true;
        error.facts.backtrace = location;
        error
    }

    /// An attempt that was not made, because the handler has no place for the message now. It does not count, and is made again
    /// after this delay. Meanwhile the message holds its sequence back, and none of the resources of an attempt. For handlers that
    /// would otherwise make one message wait for another.
    ///
    /// ```
    /// use lazaret_core::HandlerError;
    /// use std::time::Duration;
    /// let busy = HandlerError::deferred("all workers are busy", Duration::from_secs(1));
    /// assert_eq!(busy.deferral(), Some(Duration::from_secs(1)));
    /// assert_eq!(HandlerError::msg("a failure").deferral(), None);
    /// ```
    pub fn deferred(why: impl Into<String>, delay: Duration) -> Self {
        let mut error = Self::from_parts(None, Cow::Borrowed("deferred"), why.into());
        error.facts.deferral = Some(delay);
        error
    }

    fn from_parts(error: Option<Cause>, error_type: Cow<'static, str>, message: String) -> Self {
        let facts = Facts {
            error_type,
            message,
            reason: None,
            phase: None,
            verdict: None,
            suggested: None,
            retry_after: None,
            status: None,
            backtrace: None,
            panicked: false,
            deferral: None,
        };
        Self { error, facts: Box::new(facts) }
    }

    /// Sets the reason.
    #[must_use]
    pub fn reason(mut self, reason: Reason) -> Self {
        self.facts.reason = Some(reason);
        self
    }

    /// Sets the phase.
    #[must_use]
    pub fn phase(mut self, phase: Phase) -> Self {
        self.facts.phase = Some(phase);
        self
    }

    /// Sets the verdict, in place of the classifier.
    #[must_use]
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.facts.verdict = Some(verdict);
        self
    }

    /// Suggests a verdict that replaces the taxonomy's; rules and lists of the classifier still apply. For protocols in which a
    /// status has a meaning, whatever the reason is called.
    #[must_use]
    pub fn suggest(mut self, verdict: Verdict) -> Self {
        self.facts.suggested = Some(verdict);
        self
    }

    /// Sets the `retry-after` hint of the other side.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.facts.retry_after = Some(delay);
        self
    }

    /// Sets the status or exit code.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.facts.status = Some(status);
        self
    }

    /// Attaches a backtrace, rendered.
    #[must_use]
    pub fn backtrace(mut self, backtrace: impl Into<String>) -> Self {
        self.facts.backtrace = Some(backtrace.into());
        self
    }

    /// The verdict that the handler set, if it did.
    pub fn asked_verdict(&self) -> Option<Verdict> {
        self.facts.verdict
    }

    /// The delay of an attempt that was not made; `None` for one that failed.
    pub fn deferral(&self) -> Option<Duration> {
        self.facts.deferral
    }

    /// The suggested verdict, if there is one.
    pub fn suggested_verdict(&self) -> Option<Verdict> {
        self.facts.suggested
    }

    /// The error itself, for rules that match its type.
    pub fn error(&self) -> Option<&(dyn StdError + 'static)> {
        match self.error.as_ref()? {
            Cause::Boxed(error) => Some(&**error),
            #[cfg(feature = "anyhow")]
            Cause::Anyhow(error) => Some(&**error),
        }
    }

    /// The error and its causes, outermost first.
    ///
    /// ```
    /// use lazaret_core::HandlerError;
    /// use std::io;
    /// use std::num::ParseIntError;
    ///
    /// let error = HandlerError::from(io::Error::other("x".parse::<u8>().unwrap_err()));
    /// assert!(error.causes().any(|cause| cause.is::<ParseIntError>()));
    /// assert_eq!(HandlerError::msg("only a text").causes().count(), 0);
    /// ```
    pub fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        causes(self.error())
    }

    /// The reason that the handler set, if it did.
    pub fn asked_reason(&self) -> Option<&Reason> {
        self.facts.reason.as_ref()
    }

    /// The failure as a value. The phase falls back to `handle`, the reason to `HANDLER_ERROR` or `PANICKED`.
    pub fn failure(&self) -> Failure {
        self.failure_in(Phase::Handle)
    }

    /// As [`failure`](Self::failure), with the phase that the attempt had reached when the error does not name one.
    pub fn failure_in(&self, reached: Phase) -> Failure {
        let facts = &self.facts;
        let fallback = if facts.panicked { Reason::PANICKED } else { Reason::HANDLER_ERROR };
        let mut failure = Failure::new(
            facts.reason.clone().unwrap_or(fallback),
            facts.error_type.clone().into_owned(),
            facts.message.clone(),
        );
        failure.phase = facts.phase.unwrap_or(reached);
        failure.retry_after = facts.retry_after;
        failure.status = facts.status;
        failure.panicked = facts.panicked;
        failure.backtrace = facts.backtrace.clone().map(|text| cut(text, BACKTRACE_LIMIT));
        let mut next = self.error().and_then(StdError::source);
        while let Some(error) = next
            && failure.chain.len() < CHAIN_LIMIT
        {
            failure
                .chain
                .push(CauseLink { error_type: None, message: cut(error.to_string(), MESSAGE_LIMIT) });
            next = error.source();
        }
        failure.fingerprint = Fingerprint::of(&failure);
        failure
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let message = error.to_string();
        Self::from_parts(
            Some(Cause::Boxed(Box::new(error))),
            Cow::Borrowed(std::any::type_name::<E>()),
            message,
        )
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.facts.error_type, self.facts.message)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.facts.message)
    }
}
