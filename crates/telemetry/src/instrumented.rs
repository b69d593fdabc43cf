//! Wraps a handler to measure its attempts and, where traces are exported, to create a span for each.
//!
//! The engine does not depend on it: consumers whose handlers are not instrumented pay nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lazaret_core::handler::{BoxHandler, Delivery, Handle, HandlerFuture};
use lazaret_core::{HandlerError, QueueName};
use metrics::Histogram;
use tokio::time::Instant;

use crate::metrics::Metrics;
#[cfg(feature = "otlp")]
use crate::traces::{AttemptSpan, AttemptTracer};

/// An instrumented handler.
///
/// ```
/// use lazaret_core::QueueName;
/// use lazaret_core::handler::{Text, handler};
/// use lazaret_telemetry::{Instrumented, Metrics};
///
/// async fn greet(Text(_name): Text) {}
///
/// let metrics = Metrics::prometheus();
/// let greet = Instrumented::new(handler(greet), &metrics, "names", &QueueName::of("names", "names")).boxed();
/// # let _ = greet;
/// ```
pub struct Instrumented {
    handler: BoxHandler,
    seconds: Histogram,
    #[cfg(feature = "otlp")]
    tracer: Option<AttemptTracer>,
    #[cfg(feature = "otlp")]
    consumer: Arc<str>,
    #[cfg(feature = "otlp")]
    queue: QueueName,
}

impl Instrumented {
    /// Measures the duration of every attempt, failed ones included.
    pub fn new(handler: BoxHandler, metrics: &Metrics, consumer: &str, queue: &QueueName) -> Self {
        Self {
            handler,
            seconds: metrics.attempt_seconds(consumer, queue),
            #[cfg(feature = "otlp")]
            tracer: None,
            #[cfg(feature = "otlp")]
            consumer: consumer.into(),
            #[cfg(feature = "otlp")]
            queue: queue.clone(),
        }
    }

    /// Creates a span for every attempt, too.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn with_tracer(mut self, tracer: AttemptTracer) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Boxes the handler for the engine.
    pub fn boxed(self) -> BoxHandler {
        Arc::new(self)
    }
}

impl Handle for Instrumented {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let measurement = Measurement {
            #[cfg(feature = "otlp")]
            span: self.tracer.as_ref().map(|tracer| tracer.start(&self.consumer, &self.queue, &delivery)),
            seconds: self.seconds.clone(),
            started: Instant::now(),
        };
        Box::pin(Attempt { future: self.handler.handle(delivery), measurement: Some(measurement) })
    }
}

/// A running attempt.
struct Attempt {
    future: HandlerFuture,
    measurement: Option<Measurement>,
}

/// Records the duration when dropped, so that attempts that panic or are cancelled count as well.
struct Measurement {
    #[cfg(feature = "otlp")]
    span: Option<AttemptSpan>,
    seconds: Histogram,
    started: Instant,
}

impl Measurement {
    fn end(self, result: &Result<(), HandlerError>) {
        #[cfg(feature = "otlp")]
        let mut this = self;
        #[cfg(feature = "otlp")]
        if let Some(span) = this.span.take() {
            span.end(result);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (self, result);
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        self.seconds.record(self.started.elapsed().as_secs_f64());
    }
}

impl Future for Attempt {
    type Output = Result<(), HandlerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(self.future.as_mut().poll(cx));
        if let Some(measurement) = self.measurement.take() {
            measurement.end(&result);
        }
        Poll::Ready(result)
    }
}
