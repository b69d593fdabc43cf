//! The W3C's form of a place in a trace, read from and written to text.

use lazaret_core::Headers;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The trace that a message names in its headers.
pub(super) fn named(headers: &Headers) -> Option<SpanContext> {
    let context = headers.get_str("traceparent").and_then(parse)?;
    let state = headers.get_str("tracestate").and_then(|state| state.parse::<TraceState>().ok());
    Some(SpanContext::new(
        context.trace_id(),
        context.span_id(),
        context.trace_flags(),
        true,
        state.unwrap_or_default(),
    ))
}

/// Reads `00-TRACE-SPAN-FLAGS`.
pub(super) fn parse(text: &str) -> Option<SpanContext> {
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let fits = version == "00" && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && parts.next().is_none();
    if !fits {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

/// Writes what [`parse`] reads.
pub(super) fn text(context: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_read_is_written_the_same() {
        assert_eq!(text(&parse(GOOD).unwrap()), GOOD);
    }

    #[test]
    fn what_the_w3c_does_not_allow_names_no_trace() {
        let zeros = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        for bad in [
            "",
            "00",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &zeros,
            &GOOD.to_uppercase(),
        ] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
        assert!(parse(&format!("{GOOD}-x")).is_none());
    }
}
