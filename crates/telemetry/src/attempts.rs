//! Watches attempts from where they happen: around the handler. Each is measured, and is a span where traces are sent.
//!
//! The engine knows nothing of it, so that consumers whose handlers are not watched pay nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lazaret_core::handler::{BoxHandler, Delivery, Handle, HandlerFuture};
use lazaret_core::{HandlerError, QueueName};
use metrics::Histogram;
use tokio::time::Instant;

use crate::metrics::Metrics;
#[cfg(feature = "otlp")]
use crate::traces::{AttemptSpan, Tracing};

/// A handler that is watched.
///
/// ```
/// use lazaret_core::QueueName;
/// use lazaret_core::handler::{Text, handler};
/// use lazaret_telemetry::{Metrics, Watched};
///
/// async fn greet(Text(_name): Text) {}
///
/// let metrics = Metrics::prometheus();
/// let greet = Watched::new(handler(greet), &metrics, "names", &QueueName::of("names", "names")).boxed();
/// # let _ = greet;
/// ```
pub struct Watched {
    handler: BoxHandler,
    seconds: Histogram,
    #[cfg(feature = "otlp")]
    tracing: Option<Tracing>,
    #[cfg(feature = "otlp")]
    consumer: Arc<str>,
    #[cfg(feature = "otlp")]
    queue: QueueName,
}

impl Watched {
    /// Watches a handler: how long its attempts take, failed ones included.
    pub fn new(handler: BoxHandler, metrics: &Metrics, consumer: &str, queue: &QueueName) -> Self {
        Self {
            handler,
            seconds: metrics.attempt_seconds(consumer, queue),
            #[cfg(feature = "otlp")]
            tracing: None,
            #[cfg(feature = "otlp")]
            consumer: consumer.into(),
            #[cfg(feature = "otlp")]
            queue: queue.clone(),
        }
    }

    /// The same, and each attempt is a span.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn traced(mut self, tracing: Tracing) -> Self {
        self.tracing = Some(tracing);
        self
    }

    /// The handler as the engine takes it.
    pub fn boxed(self) -> BoxHandler {
        Arc::new(self)
    }
}

impl Handle for Watched {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let watch = Watch {
            #[cfg(feature = "otlp")]
            span: self.tracing.as_ref().map(|t| t.begin(&self.consumer, &self.queue, &delivery)),
            seconds: self.seconds.clone(),
            started: Instant::now(),
        };
        Box::pin(Attempt { future: self.handler.handle(delivery), watch: Some(watch) })
    }
}

/// An attempt under way.
struct Attempt {
    future: HandlerFuture,
    watch: Option<Watch>,
}

/// Measures until it is dropped: an attempt that panics, or that is given up, has taken its time as well.
struct Watch {
    #[cfg(feature = "otlp")]
    span: Option<AttemptSpan>,
    seconds: Histogram,
    started: Instant,
}

impl Watch {
    fn ended(self, result: &Result<(), HandlerError>) {
        #[cfg(feature = "otlp")]
        let mut this = self;
        #[cfg(feature = "otlp")]
        if let Some(span) = this.span.take() {
            span.ended(result);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (self, result);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.seconds.record(self.started.elapsed().as_secs_f64());
    }
}

impl Future for Attempt {
    type Output = Result<(), HandlerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(self.future.as_mut().poll(cx));
        if let Some(watch) = self.watch.take() {
            watch.ended(&result);
        }
        Poll::Ready(result)
    }
}
