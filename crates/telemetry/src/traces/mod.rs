//! Traces: one span per attempt, sent by OTLP over HTTP.
//!
//! - A span's parent is the trace that the message names in its `traceparent` header, if it names one. Without one, the first
//!   attempt begins a trace.
//! - A retry links to the span of the first attempt. Its letter remembers it among its diagnostics, so that this works
//!   across restarts.
//! - A replay, which may come days later, is a trace of its own that links to the letter's original trace.
//!
//! Whether a message is traced at all is up to whoever began its trace: a `traceparent` that is not sampled stays so.

mod context;
mod export;

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::{Context as Asked, Delivery, FromDelivery};
use lazaret_core::{HandlerError, QueueName};
use opentelemetry::trace::{
    Link, Span, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span as SdkSpan,
};

use crate::error::Error;
use export::Sender;

/// Under which key a letter remembers the first attempt, among its diagnostics.
pub const FIRST_ATTEMPT: &str = "traceparent";

/// How long a request to the collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many spans wait for the collector at most; those beyond are dropped (I7, I10).
const WAITING_LIMIT: usize = 8192;
/// How long a span waits for company.
const GATHERING: Duration = Duration::from_secs(1);

/// Sends spans to a collector.
pub struct Traces {
    provider: SdkTracerProvider,
}

/// Makes spans of attempts. Cheap to clone.
#[derive(Clone)]
pub struct Tracing {
    tracer: SdkTracer,
}

impl Traces {
    /// Sends spans to the collector at this address, such as `http://127.0.0.1:4318`: to `/v1/traces` there, unless the
    /// address says so itself. To be called within a tokio runtime.
    ///
    /// # Errors
    /// When no client can be made for the address.
    pub fn otlp(endpoint: &str, instance: &str) -> Result<Self, Error> {
        let url = traces_url(endpoint);
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Sender::new(crate::client::client(&url, TIMEOUT)?))
            .with_endpoint(url)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| Error::Traces(error.to_string()))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING_LIMIT)
            .with_scheduled_delay(GATHERING)
            .build();
        let resource = Resource::builder()
            .with_service_name("lazaret")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    /// Makes spans that are sent here.
    pub fn tracing(&self) -> Tracing {
        Tracing { tracer: self.provider.tracer("lazaret") }
    }

    /// Sends what waits, and ends. Takes as long as the collector takes, up to a limit.
    pub async fn end(self) {
        // The exporter's thread waits for this runtime, so the runtime must not wait for it.
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(TIMEOUT)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("not all spans could be sent before the end");
        }
    }
}

fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
}

impl Tracing {
    /// The span of an attempt that begins.
    pub(crate) fn begin(&self, consumer: &Arc<str>, queue: &QueueName, delivery: &Delivery) -> AttemptSpan {
        let message = delivery.message();
        let (letter, replay) = (delivery.letter(), delivery.replay());
        let named = context::named(&message.headers);
        let first = letter.as_ref().and_then(|letter| letter.diagnostics.get(FIRST_ATTEMPT).cloned());
        let first = first.or_else(|| delivery.metadata().remove(FIRST_ATTEMPT));
        let first = first.as_deref().and_then(context::parse);
        let mut attributes = vec![
            KeyValue::new("lazaret.consumer", consumer.clone()),
            KeyValue::new("lazaret.queue", queue.to_string()),
            KeyValue::new("lazaret.stream", message.stream.to_string()),
            KeyValue::new("lazaret.position", message.position.to_string()),
            KeyValue::new("lazaret.message.id", message.id.to_string()),
            KeyValue::new("lazaret.attempt", i64::from(delivery.attempt())),
        ];
        attributes
            .extend(letter.as_ref().map(|letter| KeyValue::new("lazaret.letter", letter.id.to_string())));
        attributes.extend(replay.clone().map(|operation| KeyValue::new("lazaret.operation", operation)));
        let (parent, links) = match replay {
            Some(_) => (None, first.or(named).into_iter().collect()),
            None => (named, first.clone().into_iter().collect::<Vec<_>>()),
        };
        let remembered = first_is_known(delivery, letter.is_some());
        let builder = self
            .tracer
            .span_builder(consumer.to_string())
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .with_links(links.into_iter().map(|context: SpanContext| Link::with_context(context)).collect());
        let parent =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let span = builder.start_with_context(&self.tracer, &parent);
        AttemptSpan { span, delivery: (!remembered).then(|| delivery.clone()), ended: false }
    }
}

/// Whether somebody remembers the first attempt already.
fn first_is_known(delivery: &Delivery, is_letter: bool) -> bool {
    is_letter || delivery.metadata().contains_key(FIRST_ATTEMPT)
}

/// The span of an attempt under way.
pub(crate) struct AttemptSpan {
    span: SdkSpan,
    /// Where a failed first attempt is remembered.
    delivery: Option<Delivery>,
    ended: bool,
}

impl AttemptSpan {
    /// The attempt has ended. The reason of a failure is told, its words are not.
    pub(crate) fn ended(mut self, result: &Result<(), HandlerError>) {
        self.ended = true;
        match result {
            Ok(()) => {
                self.span.set_attribute(KeyValue::new("lazaret.outcome", "handled"));
                self.span.set_status(Status::Ok);
            }
            Err(error) => {
                let reason =
                    error.asked_reason().map_or("HANDLER_ERROR", |reason| reason.as_str()).to_owned();
                self.span.set_attribute(KeyValue::new("lazaret.outcome", "failed"));
                self.failed(reason);
            }
        }
    }

    fn failed(&mut self, reason: String) {
        self.span.set_attribute(KeyValue::new("lazaret.reason", reason.clone()));
        self.span.set_status(Status::error(reason));
        let context = self.span.span_context();
        if let Some(delivery) = self.delivery.take().filter(|_| context.is_valid())
            && let Ok(notes) = Asked::from_delivery(&delivery)
        {
            // Without room among the notes the link is lost, and nothing else.
            let _ = notes.put_metadata(FIRST_ATTEMPT, context::text(context));
        }
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        if !self.ended {
            // It panicked, or it was given up: its time was over, or its partition went.
            self.span.set_attribute(KeyValue::new("lazaret.outcome", "cut-off"));
            self.failed("CUT_OFF".to_owned());
        }
        self.span.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_for_traces_is_added_where_it_is_missing() {
        for (given, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(given), expected);
        }
    }
}
