//! `#[on_error]`: the method that decides how to proceed after a failure.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;

use lazaret_core::handler::{BoxHandler, Context, Delivery, FromDelivery, Handle, HandlerFuture};
use lazaret_core::policy::RetryPolicy;
use lazaret_core::{HandlerError, Message, Verdict};

/// The decision how to proceed after a failed attempt. A method with `#[on_error]` returns it after
/// every failed attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorAction {
    /// Leaves the decision to the policies. Also applies if the method returns nothing, panics, or
    /// cannot be called.
    #[default]
    Rethrow,
    /// Makes another attempt, regardless of `retry_on` and `no_retry_on`, unless `max_attempts` is
    /// reached.
    Retry,
    /// Makes the message a dead letter, without further attempts.
    Dlq,
    /// Skips the message, with an audit entry.
    Skip,
}

impl ErrorAction {
    fn apply(self, error: HandlerError) -> HandlerError {
        match self {
            Self::Rethrow => error,
            Self::Retry => error.verdict(Verdict::Retry),
            Self::Dlq => error.verdict(Verdict::DeadLetter),
            Self::Skip => error.verdict(Verdict::Skip),
        }
    }
}

/// Decides how to proceed after an error. Fails if a parameter cannot be extracted.
pub(super) type Decide = dyn Fn(&HandlerError, &Delivery) -> Result<ErrorAction, HandlerError> + Send + Sync;

/// A handler with methods that decide about its failures.
pub(super) struct OnError {
    pub(super) inner: BoxHandler,
    pub(super) decide: Arc<Decide>,
}

impl Handle for OnError {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let decide = Arc::clone(&self.decide);
        let mut attempt = self.inner.handle(delivery.clone());
        Box::pin(async move {
            let ended = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
                Err(panic) => Poll::Ready(Err(panic)),
            });
            match ended.await {
                Ok(Ok(())) => Ok(()),
                // The attempt was not made.
                Ok(Err(error)) if error.deferral().is_some() => Err(error),
                Ok(Err(error)) => Err(decided(&*decide, &error, &delivery).apply(error)),
                Err(panic) => {
                    let error = HandlerError::panic(text(&*panic), None);
                    match decided(&*decide, &error, &delivery) {
                        // The engine knows the location of the panic.
                        ErrorAction::Rethrow => resume_unwind(panic),
                        action => Err(action.apply(error)),
                    }
                }
            }
        })
    }

    fn retry_policy(&self, message: &Message) -> Option<&RetryPolicy> {
        self.inner.retry_policy(message)
    }

    fn retry_policies(&self) -> Vec<&RetryPolicy> {
        self.inner.retry_policies()
    }
}

/// Calls the methods. If a method panics or a parameter cannot be extracted, the policies decide (I10).
fn decided(decide: &Decide, error: &HandlerError, delivery: &Delivery) -> ErrorAction {
    let why = match catch_unwind(AssertUnwindSafe(|| decide(error, delivery))) {
        Ok(Ok(action)) => return action,
        Ok(Err(extraction)) => format!("not called: {extraction}"),
        Err(panic) => format!("panicked: {}", text(&*panic)),
    };
    // Best effort: the metadata of the letter tells why the method did not decide.
    if let Ok(context) = Context::from_delivery(delivery) {
        let _ = context.put_metadata("on-error", why);
    }
    ErrorAction::Rethrow
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a text").to_owned()
}
