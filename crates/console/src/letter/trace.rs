//! The trace that a message belongs to, from its `traceparent` header (W3C Trace Context).

use lazaret_api::Header;
use maud::{Markup, html};

use crate::links;

const HEADER: &str = "traceparent";
const ID_DIGITS: usize = 32;

/// The placeholder for the id in the URL of a trace.
const PLACE: &str = "{trace-id}";

/// Renders the id of the trace, with a link to its other letters and a link to the system that shows traces.
pub(super) fn fact(headers: &[Header], url: Option<&str>) -> Markup {
    html! {
        @if let Some(id) = trace_id(headers) {
            dt { "Trace" } dd.mono { a href=(links::letters(&query(id))) title="Letters of the same trace" { (id) } }
            @if let Some(shown) = url.and_then(|url| shown_at(url, id)) {
                dt { "Trace view" } dd { a href=(shown) rel="noopener noreferrer" target="_blank" { "Open the trace" } }
            }
        }
    }
}

/// Returns the URL at which the trace is shown. The id has only digits, so that it cannot add to the URL.
fn shown_at(url: &str, id: &str) -> Option<String> {
    let is_web = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    let shown = if url.contains(PLACE) { url.replace(PLACE, id) } else { format!("{url}{id}") };
    is_web.then_some(shown)
}

fn trace_id(headers: &[Header]) -> Option<&str> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(HEADER))?;
    let id = header.value.as_deref()?.split('-').nth(1)?;
    let is_id =
        id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0');
    is_id.then_some(id)
}

/// Returns the query for the letters of a trace, from any of its calls.
fn query(id: &str) -> String {
    format!("header.{HEADER}:*-{id}-* state:open,closed")
}

#[cfg(test)]
mod tests {
    use lazaret_core::query::Query;

    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    fn headers(value: &str) -> Vec<Header> {
        vec![Header { name: "Traceparent".to_owned(), value: Some(value.to_owned()), value_base64: None }]
    }

    #[test]
    fn only_a_valid_trace_has_an_id() {
        assert_eq!(trace_id(&headers(&format!("00-{ID}-b7ad6b7169203331-01"))), Some(ID));
        let none = "0".repeat(ID_DIGITS);
        for wrong in ["", "00", "[redacted]", &format!("00-{none}-b7ad6b7169203331-01"), "00-<b>-1-1", ID] {
            assert_eq!(trace_id(&headers(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_trace_is_shown_where_the_url_says() {
        let table = [
            ("https://jaeger.example.com/trace/", Some(format!("https://jaeger.example.com/trace/{ID}"))),
            ("http://tempo/{trace-id}?of={trace-id}", Some(format!("http://tempo/{ID}?of={ID}"))),
            ("javascript:alert({trace-id})", None),
            ("/trace/{trace-id}", None),
        ];
        for (url, shown) in table {
            assert_eq!(shown_at(url, ID), shown, "{url}");
        }
    }

    #[test]
    fn the_query_of_a_trace_is_valid() {
        Query::parse(&query(ID)).unwrap();
    }
}
