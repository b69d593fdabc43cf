//! The layer around a handler that measures attempts, and makes each a span where traces are sent.
//!
//! The engine does not know of it: consumers whose handlers have no such layer pay nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lazaret_core::handler::{BoxHandler, Delivery, Handle, HandlerFuture, Layer};
use lazaret_core::{HandlerError, QueueName};
use metrics::Histogram;
use tokio::time::Instant;

use crate::metrics::Metrics;
#[cfg(feature = "otlp")]
use crate::traces::{AttemptSpan, AttemptTracer};

/// A layer that measures how long attempts take, failed ones included.
///
/// Apply it last, so that it runs first and measures the other layers too.
///
/// ```
/// use lazaret_core::QueueName;
/// use lazaret_core::handler::{Handler, Text, handler};
/// use lazaret_telemetry::{AttemptLayer, Metrics};
///
/// async fn greet(Text(_name): Text) {}
///
/// let metrics = Metrics::prometheus();
/// let greet = greet.layer(AttemptLayer::new(&metrics, "names", &QueueName::of("names", "names")));
/// let greet = handler(greet);
/// # let _ = greet;
/// ```
#[derive(Clone)]
pub struct AttemptLayer {
    seconds: Histogram,
    #[cfg(feature = "otlp")]
    tracer: Option<AttemptTracer>,
    #[cfg(feature = "otlp")]
    consumer: Arc<str>,
    #[cfg(feature = "otlp")]
    queue: QueueName,
}

impl AttemptLayer {
    /// Measures the attempts of a consumer's handler.
    pub fn new(metrics: &Metrics, consumer: &str, queue: &QueueName) -> Self {
        Self {
            seconds: metrics.attempt_seconds(consumer, queue),
            #[cfg(feature = "otlp")]
            tracer: None,
            #[cfg(feature = "otlp")]
            consumer: consumer.into(),
            #[cfg(feature = "otlp")]
            queue: queue.clone(),
        }
    }

    /// Makes each attempt a span as well.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn with_tracer(mut self, tracer: AttemptTracer) -> Self {
        self.tracer = Some(tracer);
        self
    }
}

impl Layer for AttemptLayer {
    fn layer(&self, inner: BoxHandler) -> BoxHandler {
        Arc::new(Measured { inner, layer: self.clone() })
    }
}

/// A handler whose attempts are measured.
struct Measured {
    inner: BoxHandler,
    layer: AttemptLayer,
}

impl Handle for Measured {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let layer = &self.layer;
        let measurement = Measurement {
            #[cfg(feature = "otlp")]
            span: layer.tracer.as_ref().map(|tracer| tracer.start(&layer.consumer, &layer.queue, &delivery)),
            seconds: layer.seconds.clone(),
            started: Instant::now(),
        };
        Box::pin(Attempt { future: self.inner.handle(delivery), measurement: Some(measurement) })
    }
}

/// An attempt in progress.
struct Attempt {
    future: HandlerFuture,
    measurement: Option<Measurement>,
}

/// Measures until it is dropped: the time of an attempt that panics or is abandoned counts as well.
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
