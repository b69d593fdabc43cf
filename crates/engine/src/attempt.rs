//! Runs one attempt: checks, filter, handler, timeout.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lazaret_core::handler::{AttemptEnd, Delivery, HandlerFuture};
use lazaret_core::{HandlerError, Letter, Phase, Reason};

use crate::component::Component;
use crate::gate::Health;
use crate::panics::guarded;
use crate::timeout;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler succeeded.
    Handled,
    /// The filter rejected the message.
    Filtered,
    /// The message was handled before.
    Duplicate,
    /// The handler sent the message to the dead letters, and the letter is durable.
    SentToDlq,
    /// The handler sent the message to the dead letters, but this letter may not be durable yet. It must
    /// become durable.
    Unconfirmed(Box<Letter>),
    /// The attempt failed.
    Failed(HandlerError),
    /// The handler did not make the attempt. It is repeated after this delay and does not count.
    Deferred(Duration),
}

/// The minimum and the maximum delay of a deferred attempt.
const DEFERRAL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

impl Outcome {
    /// Returns the health of the handler's dependencies, as shown by an attempt that did not fail.
    pub(crate) const fn health(&self) -> Health {
        match self {
            Self::Handled | Self::SentToDlq => Health::Up,
            Self::Filtered | Self::Duplicate | Self::Unconfirmed(_) | Self::Failed(_) | Self::Deferred(_) => {
                Health::Unknown
            }
        }
    }
}

/// A running handler. Its panics are returned as errors.
pub(crate) struct Running {
    future: HandlerFuture,
}

/// The result of starting an attempt.
pub(crate) enum Start {
    Running(Running),
    Ended(Outcome),
}

/// Checks the message and starts the handler.
pub(crate) fn start(component: &Component, delivery: &Delivery) -> Start {
    let message = delivery.message();
    let options = &component.options;
    if let Some(why) = &message.undecodable {
        // Redacted as in the letter, so that the failure of a later attempt falls into the same group.
        let why = options.redact.redact(why);
        let error = HandlerError::foreign("decode error", &*why).reason(Reason::INVALID_SCHEMA);
        return Start::Ended(Outcome::Failed(error.phase(Phase::Decode)));
    }
    if let Some(limit) = options.max_payload
        && message.payload_len() > limit
    {
        let text = format!("the payload has {} bytes, the limit is {limit}", message.payload_len());
        let error =
            HandlerError::foreign("payload limit", text).reason(Reason::TOO_LARGE).phase(Phase::Decode);
        return Start::Ended(Outcome::Failed(error));
    }
    if let Some(filter) = &options.filter {
        match guarded(|| filter(message)) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Start::Ended(Outcome::Filtered),
            Ok(Err(error)) | Err(error) => {
                let error = error.reason(Reason::FILTER_FAILED).phase(Phase::Filter);
                return Start::Ended(Outcome::Failed(error));
            }
        }
    }
    match guarded(|| component.handler.handle(delivery.clone())) {
        Ok(future) => Start::Running(Running { future }),
        Err(error) => Start::Ended(Outcome::Failed(error)),
    }
}

impl Future for Running {
    type Output = Result<(), HandlerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut();
        match guarded(|| future.poll(cx)) {
            Ok(poll) => poll,
            // After a panic the future is never polled again; it is dropped with this value.
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// Ends an attempt on drop. Tasks that the handler spawned can then no longer settle the message.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a Delivery);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        // The message will be delivered again, and its outcome is decided then.
        drop(self.0.end_attempt());
    }
}

/// Runs an attempt to its end.
pub(crate) async fn run(component: &Component, delivery: &Delivery) -> Outcome {
    let _end = EndOnDrop(delivery);
    let running = match start(component, delivery) {
        Start::Running(running) => running,
        Start::Ended(outcome) => return outcome,
    };
    let _age = component.ages.attempts.begin(component.now());
    let result = match component.options.attempt_timeout {
        None => running.await,
        Some(limit) => match tokio::time::timeout(limit, running).await {
            Ok(result) => result,
            Err(_) => return timed_out(delivery, limit),
        },
    };
    ended(delivery, result)
}

/// Returns the outcome of a handler that timed out.
pub(crate) fn timed_out(delivery: &Delivery, after: Duration) -> Outcome {
    delivery.cancel();
    ended(delivery, Err(timeout::error(delivery, after)))
}

/// Returns the outcome of a handler that returned.
pub(crate) fn ended(delivery: &Delivery, result: Result<(), HandlerError>) -> Outcome {
    match (delivery.end_attempt(), result) {
        (AttemptEnd::Sent, _) => Outcome::SentToDlq,
        (AttemptEnd::Unconfirmed(letter), _) => Outcome::Unconfirmed(letter),
        (AttemptEnd::NotSent, Ok(())) => Outcome::Handled,
        (AttemptEnd::NotSent, Err(error)) => match error.deferral() {
            Some(delay) => Outcome::Deferred(delay.clamp(DEFERRAL.0, DEFERRAL.1)),
            None => Outcome::Failed(error),
        },
    }
}
