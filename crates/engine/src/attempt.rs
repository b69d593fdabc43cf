//! One attempt: everything between "may start" and "how did it end".

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};
use std::time::Duration;

use lazaret_core::handler::{Delivery, HandlerFuture};
use lazaret_core::store::DedupeClaim;
use lazaret_core::{HandlerError, Phase, Reason};

use crate::gate::Sign;
use crate::options::DedupeOptions;
use crate::shared::Component;
use crate::timeout;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler took it.
    Handled,
    /// The filter did not want it.
    Filtered,
    /// It was handled before.
    Duplicate,
    /// The handler sent it to the dead letters; it is durable there.
    SentToDlq,
    /// It failed.
    Failed(HandlerError),
}

impl Outcome {
    /// What an attempt that did not fail says about the dependencies of the handler.
    pub(crate) const fn sign(&self) -> Sign {
        match self {
            Self::Handled | Self::SentToDlq => Sign::Well,
            Self::Filtered | Self::Duplicate | Self::Failed(_) => Sign::None,
        }
    }
}

/// A handler at work. Panics come out as errors.
pub(crate) struct Running {
    future: HandlerFuture,
}

/// What can be said of a message before a handler sees it.
pub(crate) enum Start {
    Running(Running),
    Ended(Outcome),
}

/// Checks the message and starts the handler.
pub(crate) fn start(component: &Component, delivery: &Delivery) -> Start {
    let message = delivery.message();
    let options = &component.shared.options;
    if let Some(why) = &message.undecodable {
        let error = HandlerError::foreign("decode error", &**why).reason(Reason::INVALID_SCHEMA);
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
            // After a panic the future is never polled again: it is dropped with this value.
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// Runs an attempt to its end.
pub(crate) async fn run(component: &Component, delivery: &Delivery) -> Outcome {
    let running = match start(component, delivery) {
        Start::Running(running) => running,
        Start::Ended(outcome) => return outcome,
    };
    let result = match component.shared.options.attempt_timeout {
        None => running.await,
        Some(limit) => match tokio::time::timeout(limit, running).await {
            Ok(result) => result,
            Err(_) => return timed_out(delivery, limit),
        },
    };
    ended(delivery, result)
}

/// What becomes of a handler that did not answer in time.
pub(crate) fn timed_out(delivery: &Delivery, after: Duration) -> Outcome {
    delivery.cancel();
    if delivery.sent_to_dlq() {
        return Outcome::SentToDlq;
    }
    Outcome::Failed(timeout::error(delivery, after))
}

/// What the handler's answer means.
pub(crate) fn ended(delivery: &Delivery, result: Result<(), HandlerError>) -> Outcome {
    match result {
        _ if delivery.sent_to_dlq() => Outcome::SentToDlq,
        Ok(()) => Outcome::Handled,
        Err(error) => Outcome::Failed(error),
    }
}

/// Runs an attempt behind the idempotent receiver: claim, handle, done. A duplicate that arrives while the first is
/// in flight waits for its outcome.
pub(crate) async fn run_once(component: &Component, delivery: &Delivery, dedupe: &DedupeOptions) -> Outcome {
    let (queue, id) = (&component.queue, &delivery.message().id);
    let shared = &component.shared;
    let failed = |error: lazaret_core::store::StoreError| {
        Outcome::Failed(HandlerError::from(error).reason(Reason::DEPENDENCY_UNAVAILABLE).phase(Phase::Ack))
    };
    let lease = shared.options.attempt_timeout.map_or(shared.options.lease, |timeout| timeout * 2);
    loop {
        match dedupe.filter.claim(queue, id, &shared.instance, lease).await {
            Ok(DedupeClaim::Claimed) => break,
            Ok(DedupeClaim::Done) => return Outcome::Duplicate,
            Ok(DedupeClaim::InFlight) => tokio::time::sleep(shared.options.refresh).await,
            Err(error) => return failed(error),
        }
    }
    let outcome = run(component, delivery).await;
    let marked = match outcome {
        Outcome::Handled => dedupe.filter.done(queue, id, &shared.instance, dedupe.window).await,
        _ => dedupe.filter.abandon(queue, id, &shared.instance).await,
    };
    match (outcome, marked) {
        (Outcome::Handled, Err(error)) => failed(error),
        (outcome, _) => outcome,
    }
}

/// Calls the user's code; a panic comes back as an error that knows where it happened (I10).
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, HandlerError> {
    watch_panics();
    WATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    WATCHING.set(false);
    result.map_err(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text".to_owned());
        HandlerError::panic(text, PLACE.take())
    })
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Has the place of a panic in user code noted down. Whatever panic hook the program has is still called.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHING.get() {
                PLACE.set(info.location().map(|place| format!("at {place}")));
            }
            previous(info);
        }));
    });
}
