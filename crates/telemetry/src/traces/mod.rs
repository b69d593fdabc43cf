//! Traces: one span per attempt, exported by OTLP over HTTP.
//!
//! - The parent of a span is the trace context in the message's `traceparent` header. Without one, the first attempt starts
//!   a trace.
//! - A retry links to the span of the first attempt. The letter keeps that span among its diagnostics, so that links survive
//!   restarts.
//! - A replay, which may run days later, is a trace of its own that links to the letter's original trace.
//!
//! Sampling follows the parent: a message whose `traceparent` is not sampled is not traced.

mod context;
mod exporter;
mod http_client;
mod tracer;

pub use exporter::TraceExporter;
pub(crate) use tracer::AttemptSpan;
pub use tracer::{AttemptTracer, FIRST_ATTEMPT};
