//! Classifies the response of a handler.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use lazaret_core::failure::{BACKTRACE_LIMIT, MESSAGE_LIMIT};
use lazaret_core::handler::Delivery;
use lazaret_core::{HandlerError, Reason, Verdict};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};

use super::body::{Body, Ending};
use crate::explicit::{ExplicitVerdict, RETRY_AFTER_LIMIT, excerpt};
use crate::report::Report;
use crate::sanitize::{sanitize, with_notes};

const VERDICT: HeaderName = HeaderName::from_static("lazaret-verdict");
const REASON: HeaderName = HeaderName::from_static("lazaret-reason");
const ERROR_TYPE: HeaderName = HeaderName::from_static("lazaret-error-type");
const PHASE: HeaderName = HeaderName::from_static("lazaret-phase");
/// The prefix of headers that contain diagnostics.
const DIAGNOSTIC: &str = "lazaret-diagnostic-";
/// The maximum size of a problem document that is read: a stack trace and a message. JSON may escape
/// every character.
const PROBLEM_LIMIT: usize = 2 * (BACKTRACE_LIMIT + MESSAGE_LIMIT);

/// Returns the verdict and the reason of a status, or `None` if it means handled.
fn row(status: u16) -> Option<(Verdict, Reason)> {
    Some(match status {
        208 => (Verdict::Duplicate, Reason::DUPLICATE),
        200..=299 => return None,
        408 | 504 => (Verdict::Retry, Reason::TIMEOUT),
        429 => (Verdict::Retry, Reason::RATE_LIMITED),
        503 => (Verdict::Retry, Reason::DEPENDENCY_UNAVAILABLE),
        400 | 415 | 422 => (Verdict::DeadLetter, Reason::INVALID_SCHEMA),
        413 => (Verdict::DeadLetter, Reason::TOO_LARGE),
        401 | 403 => (Verdict::DeadLetter, Reason::AUTHORIZATION_DENIED),
        409 => (Verdict::Retry, Reason::CONFLICT),
        404 | 405 | 410 | 501 => (Verdict::Park, Reason::UNSUPPORTED),
        _ => (Verdict::Retry, Reason::HANDLER_ERROR),
    })
}

/// Returns `true` if the status means handled and no explicit verdict overrides it.
pub(super) fn is_plain_success(status: StatusCode, headers: &HeaderMap) -> bool {
    row(status.as_u16()).is_none() && !headers.contains_key(VERDICT)
}

/// Returns the number of bytes to keep from the start of the body.
pub(super) fn body_limit(headers: &HeaderMap) -> usize {
    if is_problem(headers) { PROBLEM_LIMIT } else { MESSAGE_LIMIT }
}

/// Returns the outcome of the attempt. `now` resolves a `Retry-After` date. The diagnostics of a failure
/// are added to the delivery.
pub(super) fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Body,
    now: Timestamp,
    delivery: &Delivery,
) -> Result<(), HandlerError> {
    let header = |name| headers.get(name).map(HeaderValue::as_bytes);
    let explicit = ExplicitVerdict::parse(header(VERDICT), header(REASON));
    let code = status.as_u16();
    let by_status = row(code);
    let (suggested, usual) = match (&by_status, explicit.verdict) {
        (Some((verdict, reason)), _) => (*verdict, reason.clone()),
        (None, Some(Verdict::Duplicate)) => (Verdict::Duplicate, Reason::DUPLICATE),
        (None, Some(verdict)) => (verdict, Reason::HANDLER_ERROR),
        // The message is handled, unless an unknown verdict was requested: then it must not be lost
        // (I1).
        (None, None) if explicit.handled || !headers.contains_key(VERDICT) => return Ok(()),
        (None, None) => (Verdict::Retry, Reason::INVALID_RESPONSE),
    };
    let mut report = report(headers, body);
    report.keep_diagnostics(delivery);
    let mut notes = explicit.notes;
    notes.append(&mut report.notes);
    if explicit.handled {
        notes.push(format!("verdict \"handled\" contradicts the status {code} and was ignored"));
    }
    if status.is_redirection() {
        let place = headers.get(LOCATION).map(|place| format!(": {}", excerpt(place.as_bytes())));
        notes.push(format!("redirects are not followed{}", place.unwrap_or_default()));
    }
    match &body.ending {
        Ending::Complete | Ending::Truncated => {}
        Ending::Broken(why) => {
            notes.push(format!("the connection closed before the end of the response: {why}"));
        }
        Ending::Invalid(why) => notes.push(format!("the rest of the response is invalid: {why}")),
        Ending::TimedOut => notes.push("the end of the response was not received in time".to_owned()),
    }
    let text = match report.message().or_else(|| report.kind()).unwrap_or_else(|| text(body)) {
        text if text.is_empty() => format!("HTTP {status}"),
        text => text,
    };
    let error_type = report.error_type.take().unwrap_or_else(|| format!("HTTP {code}"));
    let mut error = report
        .complete(HandlerError::foreign(error_type, with_notes(text, &notes)))
        .status(code)
        .reason(explicit.reason.unwrap_or(usual))
        .suggest(suggested);
    if let Some(verdict) = explicit.verdict {
        error = error.verdict(verdict);
    }
    if let Some(wait) = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now)) {
        error = error.retry_after(wait);
    }
    Err(error)
}

/// Returns `true` if the body is a problem document (RFC 9457).
fn is_problem(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/problem+json")
}

/// Returns the report of the handler about the failure. Headers take precedence over the body.
fn report(headers: &HeaderMap, body: &Body) -> Report {
    let problem = is_problem(headers).then(|| Report::from_json(&body.bytes)).flatten();
    let mut report = problem.unwrap_or_default();
    if let Some(value) = headers.get(ERROR_TYPE) {
        report.set_error_type(value.as_bytes());
    }
    if let Some(value) = headers.get(PHASE) {
        report.set_phase(value.as_bytes());
    }
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(DIAGNOSTIC) {
            report.add_diagnostic(name, value.as_bytes());
        }
    }
    report
}

/// Returns the start of the body as text.
fn text(body: &Body) -> String {
    sanitize(&body.bytes[..body.bytes.len().min(MESSAGE_LIMIT)])
}

/// Parses a `Retry-After` value, in seconds or as a date. Returns `None` if it is invalid.
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // An overflow is capped by the limit.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT));
    }
    let wait = http_date(value)?.duration_since(now);
    // A date in the past means no delay.
    Some(Duration::try_from(wait).unwrap_or(Duration::ZERO).min(RETRY_AFTER_LIMIT))
}

/// Parses the three date formats of HTTP.
fn http_date(text: &str) -> Option<Timestamp> {
    const FORMATS: [&str; 3] =
        ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
    let date = FORMATS.iter().find_map(|format| DateTime::strptime(format, text).ok())?;
    date.to_zoned(TimeZone::UTC).ok().map(|date| date.timestamp())
}

#[cfg(test)]
mod tests {
    use lazaret_core::{Message, Phase, Position};

    use super::*;

    fn now() -> Timestamp {
        "1994-11-06T08:49:37Z".parse().unwrap()
    }

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Result<(), HandlerError> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
            })
            .collect();
        let body = Body { bytes: body.as_bytes().to_vec(), ending: Ending::Complete };
        let delivery = Delivery::new(Message::new("m", "orders", Position::new(0, 0)));
        classify(StatusCode::from_u16(status).unwrap(), &headers, &body, now(), &delivery)
    }

    fn failed(status: u16, headers: &[(&str, &str)], body: &str) -> HandlerError {
        answer(status, headers, body).unwrap_err()
    }

    #[test]
    fn every_status_of_the_contract_is_classified() {
        use Verdict::{DeadLetter, Duplicate, Park, Retry};
        let table: [(&[u16], Verdict, Reason); 12] = [
            (&[208], Duplicate, Reason::DUPLICATE),
            (&[408, 504], Retry, Reason::TIMEOUT),
            (&[429], Retry, Reason::RATE_LIMITED),
            (&[503], Retry, Reason::DEPENDENCY_UNAVAILABLE),
            (&[425, 500, 502], Retry, Reason::HANDLER_ERROR),
            (&[400, 415, 422], DeadLetter, Reason::INVALID_SCHEMA),
            (&[413], DeadLetter, Reason::TOO_LARGE),
            (&[401, 403], DeadLetter, Reason::AUTHORIZATION_DENIED),
            (&[409], Retry, Reason::CONFLICT),
            (&[404, 405, 410, 501], Park, Reason::UNSUPPORTED),
            (&[101, 300, 301, 302, 303, 304, 307, 308], Retry, Reason::HANDLER_ERROR),
            (&[402, 406, 418, 423, 431, 451, 499, 505, 520, 599, 700, 999], Retry, Reason::HANDLER_ERROR),
        ];
        for (statuses, verdict, reason) in table {
            for &status in statuses {
                let error = failed(status, &[], "");
                assert_eq!(error.suggested_verdict(), Some(verdict), "{status}");
                assert_eq!(error.asked_verdict(), None, "{status}: rules may decide otherwise");
                let failure = error.failure();
                assert_eq!((failure.reason, failure.status), (reason.clone(), Some(status)), "{status}");
            }
        }
        for status in (200..=299).filter(|status| *status != 208) {
            assert!(answer(status, &[], "all is well").is_ok(), "{status}");
        }
    }

    #[test]
    fn an_explicit_verdict_takes_precedence_over_the_status() {
        for verdict in Verdict::ALL {
            for status in [200, 204, 422, 500] {
                let error = failed(status, &[("Lazaret-Verdict", verdict.as_str())], "");
                assert_eq!(error.asked_verdict(), Some(verdict), "{status}");
            }
        }
        let error = failed(500, &[("lazaret-verdict", " Park "), ("lazaret-reason", "CARD_DECLINED")], "");
        assert_eq!(error.asked_verdict(), Some(Verdict::Park));
        assert_eq!(error.failure().reason.as_str(), "CARD_DECLINED");
        let error = failed(422, &[("lazaret-reason", "CARD_DECLINED")], "");
        assert_eq!((error.asked_verdict(), error.suggested_verdict()), (None, Some(Verdict::DeadLetter)));
        assert_eq!(error.failure().reason.as_str(), "CARD_DECLINED");
        assert_eq!(failed(200, &[("lazaret-verdict", "duplicate")], "").failure().reason, Reason::DUPLICATE);
        assert!(answer(200, &[("lazaret-reason", "FINE")], "").is_ok());
        assert!(answer(200, &[("lazaret-verdict", "handled")], "").is_ok());
    }

    #[test]
    fn an_invalid_explicit_verdict_is_ignored_with_a_note() {
        let error =
            failed(422, &[("lazaret-verdict", "dead_letter"), ("lazaret-reason", "card declined")], "no");
        assert_eq!((error.asked_verdict(), error.suggested_verdict()), (None, Some(Verdict::DeadLetter)));
        let failure = error.failure();
        assert_eq!(failure.reason, Reason::INVALID_SCHEMA);
        assert_eq!(
            failure.message,
            "no (unknown verdict \"dead_letter\" was ignored; unknown reason \"card declined\" was ignored)"
        );
        // A number may be a card number: it must not become a reason code, nor appear in a label.
        let failure = failed(422, &[("lazaret-reason", "4111111111111111")], "").failure();
        assert_eq!(failure.reason, Reason::INVALID_SCHEMA);
        let error = failed(500, &[("lazaret-verdict", "handled")], "");
        assert!(error.to_string().contains("contradicts the status 500"), "{error}");
    }

    #[test]
    fn a_success_with_an_unknown_verdict_is_not_handled() {
        // I1: the handler requested another outcome.
        let error = failed(200, &[("lazaret-verdict", "dead_letter")], "");
        assert_eq!((error.asked_verdict(), error.suggested_verdict()), (None, Some(Verdict::Retry)));
        assert_eq!(error.failure().reason, Reason::INVALID_RESPONSE);
    }

    #[test]
    fn the_body_is_the_message_and_without_one_the_status_is() {
        assert_eq!(failed(500, &[], " out of stock\r\n").to_string(), "out of stock");
        assert_eq!(failed(503, &[], "").to_string(), "HTTP 503 Service Unavailable");
        assert_eq!(failed(599, &[], "").failure().error_type, "HTTP 599");
    }

    #[test]
    fn a_problem_document_is_parsed() {
        let media = ("content-type", "Application/Problem+JSON; charset=utf-8");
        let table = [
            (
                r#"{"type":"https://shop/stock","title":"Out of stock","detail":"3 left","status":409}"#,
                "Out of stock: 3 left (https://shop/stock)",
            ),
            (r#"{"type":"about:blank","title":"Gone"}"#, "Gone"),
            (r#"{"detail":"3 left"}"#, "3 left"),
            (r#"{"type":"urn:x"}"#, "urn:x"),
            (r#"{"status":500}"#, r#"{"status":500}"#),
            (r#"{"title":7}"#, r#"{"title":7}"#),
            ("not json", "not json"),
        ];
        for (body, expected) in table {
            assert_eq!(failed(500, &[media], body).to_string(), expected);
        }
        let json = r#"{"title":"Gone"}"#;
        assert_eq!(failed(500, &[("content-type", "application/json")], json).to_string(), json);
    }

    #[test]
    fn type_trace_and_phase_of_a_problem_are_those_of_the_failure_and_headers_take_precedence() {
        let media = ("content-type", "application/problem+json");
        let body = r#"{"title":"no card","errorType":"java.lang.NullPointerException","phase":"validate",
            "stackTrace":"java.lang.NullPointerException: no card\n\tat shop.Pay.charge(Pay.java:7)"}"#;
        let failure = failed(500, &[media], body).failure();
        assert_eq!(
            (&*failure.error_type, failure.phase),
            ("java.lang.NullPointerException", Phase::Validate)
        );
        assert!(failure.backtrace.as_deref().unwrap().ends_with("\tat shop.Pay.charge(Pay.java:7)"));
        let headers = [media, ("lazaret-error-type", "shop.Declined"), ("Lazaret-Phase", "external-call")];
        let failure = failed(500, &headers, body).failure();
        assert_eq!((&*failure.error_type, failure.phase), ("shop.Declined", Phase::ExternalCall));
        let noted = failed(500, &[("lazaret-phase", "later")], "no").failure();
        assert_eq!(
            (noted.phase, &*noted.message),
            (Phase::Handle, "no (unknown phase \"later\" was ignored)")
        );
    }

    #[test]
    fn failures_with_different_frames_are_in_different_groups() {
        let thrown = |frame: &str| {
            let body = format!(
                r#"{{"title":"no card","errorType":"E","stackTrace":"E: no card\n\tat {frame}(A.java:1)"}}"#
            );
            failed(500, &[("content-type", "application/problem+json")], &body).failure().fingerprint
        };
        assert_ne!(thrown("shop.Pay.charge"), thrown("shop.Pay.refund"));
        assert_eq!(thrown("shop.Pay.charge"), thrown("shop.Pay.charge"));
    }

    #[test]
    fn a_redirect_is_a_failure_with_its_location() {
        let error = failed(302, &[("location", "http://elsewhere/")], "");
        let expected = "HTTP 302 Found (redirects are not followed: http://elsewhere/)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        let seconds = |n| Some(Duration::from_secs(n));
        let table = [
            ("0", seconds(0)),
            (" 120 ", seconds(120)),
            ("99999999999999999999999999", Some(RETRY_AFTER_LIMIT)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", seconds(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", seconds(60)),
            ("Sun Nov  6 08:50:37 1994", seconds(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", seconds(0)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", Some(RETRY_AFTER_LIMIT)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("Mon, 06 Nov 1994 08:50:37 GMT", None),
            ("Sun, 31 Feb 1994 08:49:37 GMT", None),
            ("1994-11-06T08:50:37Z", None),
        ];
        for (value, expected) in table {
            assert_eq!(retry_after(value, now()), expected, "{value:?}");
        }
        let hint = |status| failed(status, &[("retry-after", "7")], "").failure().retry_after;
        for status in [408, 425, 429, 500, 502, 503, 504, 409] {
            assert_eq!(hint(status), seconds(7), "{status}");
        }
    }
}
