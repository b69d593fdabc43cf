//! W3C trace context in message headers and letters, read and written by OpenTelemetry's propagator.

use std::collections::HashMap;

use lazaret_core::Headers;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;

const TRACEPARENT: &str = "traceparent";

/// The headers of a message, as the propagator reads them.
struct HeaderExtractor<'a>(&'a Headers);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get_str(key).filter(|value| key != TRACEPARENT || has_fixed_layout(value))
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter_nullable().map(|(name, _)| name).collect()
    }
}

/// A single `traceparent` value, as the propagator reads it.
struct ValueExtractor<'a>(&'a str);

impl Extractor for ValueExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT && has_fixed_layout(self.0)).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// The trace context in the headers of a message.
pub(super) fn from_headers(headers: &Headers) -> Option<SpanContext> {
    extract(&HeaderExtractor(headers))
}

/// Parses a `traceparent` value.
pub(super) fn parse(value: &str) -> Option<SpanContext> {
    extract(&ValueExtractor(value))
}

/// Formats a `traceparent` value.
pub(super) fn format(context: &SpanContext) -> Option<String> {
    let mut values = HashMap::new();
    let context = Context::new().with_remote_span_context(context.clone());
    TraceContextPropagator::new().inject_context(&context, &mut values);
    values.remove(TRACEPARENT)
}

fn extract(extractor: &dyn Extractor) -> Option<SpanContext> {
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), extractor);
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// Checks the lengths of the four fields, which the propagator does not: `VV-TRACE-SPAN-FF`, followed by a dash where a later
/// version adds fields.
fn has_fixed_layout(value: &str) -> bool {
    const LENGTH: usize = 55;
    let fits = |(at, byte): (usize, &u8)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    let (fixed, rest) = value.as_bytes().split_at(value.len().min(LENGTH));
    fixed.len() == LENGTH && fixed.iter().enumerate().all(fits) && rest.first().is_none_or(|b| *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parsed_value_is_formatted_unchanged() {
        assert_eq!(format(&parse(VALID).unwrap()).unwrap(), VALID);
    }

    #[test]
    fn later_versions_are_accepted_with_and_without_further_fields() {
        // W3C Trace Context, "Versioning of traceparent": parse the known fields of a higher version.
        let known = parse(VALID).unwrap();
        for version in ["01", "cc", "fe"] {
            let later = VALID.replacen("00", version, 1);
            assert_eq!(parse(&later).as_ref(), Some(&known), "{later}");
            let longer = format!("{later}-what-the-future-adds");
            assert_eq!(parse(&longer).as_ref(), Some(&known), "{longer}");
            assert!(parse(&format!("{later}x")).is_none(), "fields are separated by dashes");
        }
    }

    #[test]
    fn invalid_values_are_ignored() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        for invalid in [
            "",
            "00",
            "00-42-43-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &zero_trace,
            &zero_span,
            &VALID.to_uppercase(),
            &format!("{VALID}-x"),
            &VALID[..54],
        ] {
            assert!(parse(invalid).is_none(), "{invalid:?}");
        }
    }

    #[test]
    fn headers_carry_the_trace_state_too() {
        let mut headers = Headers::default();
        headers.push("traceparent", VALID);
        headers.push("tracestate", "vendor=opaque");
        let context = from_headers(&headers).unwrap();
        assert!(context.is_remote());
        assert_eq!(context.trace_state().get("vendor"), Some("opaque"));
    }
}
