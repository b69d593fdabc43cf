//! Creates the span of an attempt, with its parent and links.

use std::sync::Arc;

use lazaret_core::handler::{Context as HandlerContext, Delivery, FromDelivery};
use lazaret_core::{HandlerError, QueueName};
use opentelemetry::trace::{Link, Span, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span as SdkSpan};

use super::context;

/// The diagnostics key under which a letter keeps the span of its first attempt.
pub const FIRST_ATTEMPT: &str = "traceparent";

/// Creates a span per attempt. Cheap to clone.
#[derive(Clone)]
pub struct AttemptTracer {
    pub(super) tracer: SdkTracer,
}

impl AttemptTracer {
    /// Starts the span of an attempt.
    pub(crate) fn start(&self, consumer: &Arc<str>, queue: &QueueName, delivery: &Delivery) -> AttemptSpan {
        let message = delivery.message();
        let (letter, replay) = (delivery.letter(), delivery.replay());
        let remote = context::from_headers(&message.headers);
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
            Some(_) => (None, first.or(remote).into_iter().collect()),
            None => (remote, first.clone().into_iter().collect::<Vec<_>>()),
        };
        let has_first = letter.is_some() || delivery.metadata().contains_key(FIRST_ATTEMPT);
        let builder = self
            .tracer
            .span_builder(consumer.to_string())
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .with_links(links.into_iter().map(|context: SpanContext| Link::with_context(context)).collect());
        let parent =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let span = builder.start_with_context(&self.tracer, &parent);
        AttemptSpan { span, delivery: (!has_first).then(|| delivery.clone()), ended: false }
    }
}

/// The span of a running attempt.
pub(crate) struct AttemptSpan {
    span: SdkSpan,
    /// Keeps the span of a failed first attempt.
    delivery: Option<Delivery>,
    ended: bool,
}

impl AttemptSpan {
    /// Ends the span with the attempt's outcome and reason, without the error text.
    pub(crate) fn end(mut self, result: &Result<(), HandlerError>) {
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
                self.fail(reason);
            }
        }
    }

    fn fail(&mut self, reason: String) {
        self.span.set_attribute(KeyValue::new("lazaret.reason", reason.clone()));
        self.span.set_status(Status::error(reason));
        if let Some(delivery) = self.delivery.take()
            && let Some(value) = context::format(self.span.span_context())
            && let Ok(context) = HandlerContext::from_delivery(&delivery)
        {
            // Without room in the metadata the link is lost, and nothing else.
            let _ = context.put_metadata(FIRST_ATTEMPT, value);
        }
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        if !self.ended {
            // The attempt panicked, timed out, or its partition was revoked.
            self.span.set_attribute(KeyValue::new("lazaret.outcome", "cut-off"));
            self.fail("CUT_OFF".to_owned());
        }
        self.span.end();
    }
}
