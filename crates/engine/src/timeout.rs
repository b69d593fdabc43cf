//! A layer that limits the time of one handler.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::{BoxHandler, Delivery, Handle, HandlerFuture, Layer};
use lazaret_core::{HandlerError, Reason};

/// Limits the duration of one attempt of a handler.
///
/// An attempt that takes longer is dropped and fails with reason `TIMEOUT`. Its
/// [`Context`](lazaret_core::handler::Context) is cancelled, so that tasks which the attempt spawned can
/// stop. The limit of the whole consumer is [`attempt_timeout`](crate::Options::attempt_timeout); the
/// shorter of the two applies.
///
/// ```
/// use std::time::Duration;
///
/// use lazaret_core::handler::{Handler, Router};
/// use lazaret_engine::{Consumer, Timeout};
///
/// async fn charge() {}
/// async fn notify() {}
///
/// let router = Router::new()
///     .on("OrderPlaced", charge.layer(Timeout::new(Duration::from_secs(5))))
///     .on("OrderShipped", notify);
/// let builder = Consumer::builder("shop").handler(router);
/// # let _ = builder;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(Duration);

impl Timeout {
    /// Limits each attempt to this duration.
    pub const fn new(limit: Duration) -> Self {
        Self(limit)
    }
}

impl Layer for Timeout {
    fn layer(&self, inner: BoxHandler) -> BoxHandler {
        Arc::new(Limited { inner, limit: self.0 })
    }
}

struct Limited {
    inner: BoxHandler,
    limit: Duration,
}

impl Handle for Limited {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let (attempt, limit) = (self.inner.handle(delivery.clone()), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, attempt).await {
                Ok(result) => result,
                Err(_) => {
                    delivery.cancel();
                    Err(error(&delivery, limit))
                }
            }
        })
    }
}

/// Returns the error of an attempt that took too long.
pub(crate) fn error(delivery: &Delivery, limit: Duration) -> HandlerError {
    let error = HandlerError::foreign("timeout", format!("no response within {limit:?}"));
    error.reason(Reason::TIMEOUT).phase(delivery.phase())
}

#[cfg(test)]
mod tests {
    use lazaret_core::handler::{Context, Handler, handler};
    use lazaret_core::{Message, Phase, Position};

    use super::*;

    fn delivery() -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_takes_too_long_fails_in_the_phase_it_reached_and_is_cancelled() {
        async fn hangs(context: Context) {
            context.mark_phase(Phase::ExternalCall);
            std::future::pending::<()>().await;
        }
        let limited = handler(hangs.layer(Timeout::new(Duration::from_secs(5))));
        let delivery = delivery();
        let started = tokio::time::Instant::now();
        let failure = limited.handle(delivery.clone()).await.unwrap_err().failure();
        assert_eq!(started.elapsed(), Duration::from_secs(5));
        assert_eq!((failure.reason, failure.phase), (Reason::TIMEOUT, Phase::ExternalCall));
        assert_eq!(failure.message, "no response within 5s");
        assert!(delivery.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_within_the_limit_keeps_its_outcome() {
        async fn fails() -> Result<(), HandlerError> {
            tokio::time::sleep(Duration::from_secs(4)).await;
            Err(HandlerError::msg("no"))
        }
        let limited = handler(fails.layer(Timeout::new(Duration::from_secs(5))));
        let delivery = delivery();
        assert_eq!(limited.handle(delivery.clone()).await.unwrap_err().to_string(), "no");
        assert!(!delivery.is_cancelled());
    }
}
