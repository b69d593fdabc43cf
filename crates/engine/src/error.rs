//! The errors of building and running a consumer.

use lazaret_core::Failure;
use lazaret_core::policy::{PolicyError, Strategy};
use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;

/// An error that prevents a consumer from being built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A number is too small.
    #[error("{field} must be at least {least}")]
    TooSmall {
        /// The name of the option.
        field: &'static str,
        /// The smallest valid value.
        least: u128,
    },
    /// A rate is not above 0.
    #[error("a rate of {0} per second is not valid; use a number above 0, or none for no limit")]
    Rate(f64),
    /// A policy contradicts itself.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Retry topics need a broker.
    #[error("strategy topics needs a source that can hold retry topics; use ordered, unordered or in-place")]
    TopicsWithoutBroker,
    /// Retry topics need dead letters: the store keeps the messages that the broker does not accept.
    #[error(
        "strategy topics needs dead letters: what the broker does not take is kept in the store; enable them"
    )]
    TopicsWithoutLetters,
    /// The retry policy of a route has a different strategy from the consumer's.
    #[error("strategy {route} of a route differs from the consumer's strategy {consumer}; use the same")]
    RouteStrategy {
        /// The strategy of the route.
        route: Strategy,
        /// The strategy of the consumer.
        consumer: Strategy,
    },
    /// No handler was given.
    #[error("a consumer needs at least one handler")]
    NoHandler,
    /// Two components have the same name.
    #[error("two components are named {0:?}; each needs a queue of its own")]
    DuplicateComponent(String),
    /// A name is not valid in a queue name.
    #[error("{0:?} cannot be a name: use 1 to 200 characters, none of them a slash or a control character")]
    BadName(String),
    /// No source was given.
    #[error("a consumer needs a source")]
    NoSource,
    /// No store was given.
    #[error("a consumer needs a store")]
    NoStore,
}

/// The reason why a consumer stopped at a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// The classifier answered `stop`.
    #[error("the failure was classified as stop")]
    Classified,
    /// The message failed for good, and dead letters are disabled.
    #[error("it failed for good and dead letters are disabled")]
    DeadLettersDisabled,
}

/// An error that ends a running consumer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source failed for good.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The store failed for good.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A failure was classified as `stop`, or a message failed for good while dead letters are disabled.
    /// The position stays before the message.
    #[error("stopped at message {message}: {why}{}", suffix(failure.as_deref()))]
    Stopped {
        /// The id of the message.
        message: String,
        /// The reason for the stop.
        why: StopReason,
        /// The failure that caused the stop. Its text may contain data of the message.
        failure: Option<Box<Failure>>,
    },
    /// A second Ctrl-C aborted the drain. The next run repeats what was in flight.
    #[error("interrupted before the drain was complete")]
    Interrupted,
    /// The signal listener could not be registered.
    #[error("failed to listen for Ctrl-C")]
    Signal(#[source] std::io::Error),
    /// A part of the engine panicked, which is a bug in Lazaret.
    #[error("a part of the engine panicked: {0}")]
    Panicked(String),
}

impl Error {
    /// Returns the error without the text of its failure, which may contain data of messages. Use it in
    /// logs.
    ///
    /// ```
    /// use lazaret_core::{Failure, Reason};
    /// use lazaret_engine::{Error, StopReason};
    /// let failure = Box::new(Failure::new(Reason::TIMEOUT, "HttpError", "customer 4711"));
    /// let error = Error::Stopped { message: "m-1".into(), why: StopReason::Classified, failure: Some(failure) };
    /// assert_eq!(error.without_words(), "stopped at message m-1: the failure was classified as stop: TIMEOUT");
    /// assert!(error.to_string().contains("customer 4711"));
    /// ```
    pub fn without_words(&self) -> String {
        match self {
            Self::Stopped { message, why, failure: Some(failure) } => {
                format!("stopped at message {message}: {why}: {}", failure.reason)
            }
            other => other.to_string(),
        }
    }
}

/// Returns the text of a failure as the end of a sentence.
fn suffix(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!(": {failure}"))
}
