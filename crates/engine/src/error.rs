//! Why a consumer could not be built, or ended.

use lazaret_core::Failure;
use lazaret_core::policy::{PolicyError, Strategy};
use lazaret_core::source::SourceError;
use lazaret_core::store::StoreError;

/// Why a consumer cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A number is too small.
    #[error("{field} must be at least {least}")]
    TooSmall {
        /// Which one.
        field: &'static str,
        /// The smallest that makes sense.
        least: u128,
    },
    /// A rate that never ends.
    #[error("a rate of {0} a second makes no sense; use a number above 0, or none for no limit")]
    Rate(f64),
    /// A policy contradicts itself.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Retry topics need a broker.
    #[error("strategy topics needs a source that can hold retry topics; use ordered, unordered or in-place")]
    TopicsWithoutBroker,
    /// What a broker does not take has to go somewhere.
    #[error(
        "strategy topics needs dead letters: what the broker does not take is kept in the store; enable them"
    )]
    TopicsWithoutLetters,
    /// The retry policy of a route has another strategy than the consumer.
    #[error("strategy {route} of a route differs from the consumer's strategy {consumer}; use the same")]
    RouteStrategy {
        /// The route's.
        route: Strategy,
        /// The consumer's.
        consumer: Strategy,
    },
    /// There is nothing to call.
    #[error("a consumer needs at least one handler")]
    NoHandler,
    /// Two components want one queue.
    #[error("two components are named {0:?}; each needs a queue of its own")]
    DuplicateComponent(String),
    /// A name cannot be part of a queue name.
    #[error("{0:?} cannot be a name: use 1 to 200 characters, none of them a slash or a control character")]
    BadName(String),
    /// There is nothing to read from.
    #[error("a consumer needs a source")]
    NoSource,
    /// There is nothing to keep letters in.
    #[error("a consumer needs a store")]
    NoStore,
}

/// Why a running consumer ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source failed for good.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The store failed in a way that waiting does not mend.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A failure was classified as `stop`, or there was nowhere to put a message that failed for good. The position
    /// stays before the message.
    #[error("stopped at message {message}: {why}{}", told(failure.as_deref()))]
    Stopped {
        /// The message.
        message: String,
        /// Why.
        why: &'static str,
        /// The failure that led to it. Its words may hold what the message holds.
        failure: Option<Box<Failure>>,
    },
    /// The drain was abandoned by a second Ctrl-C. What was in flight is repeated by the next run.
    #[error("interrupted before the drain was complete")]
    Interrupted,
    /// The listener for signals could not be registered.
    #[error("failed to listen for Ctrl-C")]
    Signal(#[source] std::io::Error),
    /// A part of the engine panicked: a bug in Lazaret.
    #[error("a part of the engine panicked: {0}")]
    Panicked(String),
}

impl Error {
    /// The same without the words of a failure, for logs: they may hold what messages hold.
    ///
    /// ```
    /// use lazaret_core::{Failure, Reason};
    /// use lazaret_engine::Error;
    /// let failure = Box::new(Failure::new(Reason::TIMEOUT, "HttpError", "customer 4711"));
    /// let error = Error::Stopped { message: "m-1".into(), why: "classified as stop", failure: Some(failure) };
    /// assert_eq!(error.without_words(), "stopped at message m-1: classified as stop: TIMEOUT");
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

/// What a failure says, as the end of a sentence.
fn told(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!(": {failure}"))
}
