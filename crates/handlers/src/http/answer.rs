//! What the answer of a handler means.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use lazaret_core::{HandlerError, Reason, Verdict};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use serde::Deserialize;

use super::body::{Body, Ending};
use crate::demand::{Demand, RETRY_AFTER_LIMIT, repeated};
use crate::words::{with_remarks, words};

const VERDICT: HeaderName = HeaderName::from_static("lazaret-verdict");
const REASON: HeaderName = HeaderName::from_static("lazaret-reason");

/// What the contract says of a status: `None` is handled.
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

/// Whether the head of the answer already says that the message was handled, and nothing else.
pub(super) fn is_plain_success(status: StatusCode, headers: &HeaderMap) -> bool {
    row(status.as_u16()).is_none() && !headers.contains_key(VERDICT)
}

/// How the attempt ended, by the contract. `now` is for a `Retry-After` that is a date.
pub(super) fn judge(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Body,
    now: Timestamp,
) -> Result<(), HandlerError> {
    let said = |name| headers.get(name).map(HeaderValue::as_bytes);
    let demand = Demand::read(said(VERDICT), said(REASON));
    let code = status.as_u16();
    let by_status = row(code);
    let (suggested, usual) = match (&by_status, demand.verdict) {
        (Some((verdict, reason)), _) => (*verdict, reason.clone()),
        (None, Some(Verdict::Duplicate)) => (Verdict::Duplicate, Reason::DUPLICATE),
        (None, Some(verdict)) => (verdict, Reason::HANDLER_ERROR),
        // It is handled, unless it wanted something else that cannot be understood: then nothing may be lost (I1).
        (None, None) if demand.handled || !headers.contains_key(VERDICT) => return Ok(()),
        (None, None) => (Verdict::Retry, Reason::HANDLER_ERROR),
    };
    let mut remarks = demand.remarks;
    if demand.handled {
        remarks.push(format!("the verdict \"handled\" does not fit the status {code} and was ignored"));
    }
    if status.is_redirection() {
        let place = headers.get(LOCATION).map(|place| format!(", here to {}", repeated(place.as_bytes())));
        remarks.push(format!("redirects are not followed{}", place.unwrap_or_default()));
    }
    match &body.ending {
        Ending::Whole | Ending::Cut => {}
        Ending::Broken(why) => remarks.push(format!("the answer broke off: {why}")),
        Ending::Late => remarks.push("the rest of the answer did not come in time".to_owned()),
    }
    let text = match text(headers, body) {
        text if text.is_empty() => format!("HTTP {status}"),
        text => text,
    };
    let mut error = HandlerError::foreign(format!("HTTP {code}"), with_remarks(text, &remarks))
        .status(code)
        .reason(demand.reason.unwrap_or(usual))
        .suggest(suggested);
    if let Some(verdict) = demand.verdict {
        error = error.verdict(verdict);
    }
    if let Some(wait) = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now)) {
        error = error.retry_after(wait);
    }
    Err(error)
}

/// What is understood of a problem (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    detail: Option<String>,
}

/// What the handler says in the body.
fn text(headers: &HeaderMap, body: &Body) -> String {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/problem+json")
        && let Ok(problem) = serde_json::from_slice::<Problem>(&body.bytes)
        && let Some(text) = problem_text(problem)
    {
        return text;
    }
    words(&body.bytes)
}

/// The title and the detail, and the type if it says anything.
fn problem_text(problem: Problem) -> Option<String> {
    let said = |text: Option<String>| text.map(|t| words(t.as_bytes())).filter(|t| !t.is_empty());
    let parts: Vec<String> = [problem.title, problem.detail].into_iter().filter_map(said).collect();
    let kind = said(problem.kind).filter(|kind| kind != "about:blank");
    match (parts.is_empty(), kind) {
        (true, kind) => kind,
        (false, None) => Some(parts.join(": ")),
        (false, Some(kind)) => Some(format!("{} ({kind})", parts.join(": "))),
    }
}

/// The wait that a `Retry-After` asks for: seconds or a date. One that makes no sense is none.
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than fit are still many seconds.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT));
    }
    let wait = http_date(value)?.duration_since(now);
    // A date that has passed means at once.
    Some(Duration::try_from(wait).unwrap_or(Duration::ZERO).min(RETRY_AFTER_LIMIT))
}

/// The three forms of a date that HTTP knows.
fn http_date(text: &str) -> Option<Timestamp> {
    const FORMS: [&str; 3] =
        ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
    let date = FORMS.iter().find_map(|form| DateTime::strptime(form, text).ok())?;
    date.to_zoned(TimeZone::UTC).ok().map(|date| date.timestamp())
}

#[cfg(test)]
mod tests {
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
        let body = Body { bytes: body.as_bytes().to_vec(), ending: Ending::Whole };
        judge(StatusCode::from_u16(status).unwrap(), &headers, &body, now())
    }

    fn failed(status: u16, headers: &[(&str, &str)], body: &str) -> HandlerError {
        answer(status, headers, body).unwrap_err()
    }

    #[test]
    fn every_row_of_the_contract_holds() {
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
    fn what_the_handler_demands_goes_before_the_table() {
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
    fn a_demand_that_makes_no_sense_is_ignored_in_so_many_words() {
        let error =
            failed(422, &[("lazaret-verdict", "dead_letter"), ("lazaret-reason", "card declined")], "no");
        assert_eq!((error.asked_verdict(), error.suggested_verdict()), (None, Some(Verdict::DeadLetter)));
        let failure = error.failure();
        assert_eq!(failure.reason, Reason::INVALID_SCHEMA);
        assert_eq!(
            failure.message,
            "no (the verdict \"dead_letter\" is unknown and was ignored; \
             the reason \"card declined\" is unknown and was ignored)"
        );
        let error = failed(500, &[("lazaret-verdict", "handled")], "");
        assert!(error.to_string().contains("does not fit the status 500"), "{error}");
    }

    #[test]
    fn a_success_with_an_unknown_verdict_is_not_taken_for_handled() {
        // I1: it wanted something else to become of the message.
        let error = failed(200, &[("lazaret-verdict", "dead_letter")], "");
        assert_eq!((error.asked_verdict(), error.suggested_verdict()), (None, Some(Verdict::Retry)));
        assert_eq!(error.failure().reason, Reason::HANDLER_ERROR);
    }

    #[test]
    fn the_body_is_the_message_and_without_one_the_status_is() {
        assert_eq!(failed(500, &[], " out of stock\r\n").to_string(), "out of stock");
        assert_eq!(failed(503, &[], "").to_string(), "HTTP 503 Service Unavailable");
        assert_eq!(failed(599, &[], "").failure().error_type, "HTTP 599");
    }

    #[test]
    fn a_problem_is_understood() {
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
    fn a_redirect_says_that_it_is_not_followed() {
        let error = failed(302, &[("location", "http://elsewhere/")], "");
        let expected = "HTTP 302 Found (redirects are not followed, here to http://elsewhere/)";
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
