//! Extractors: path and query parameters, and JSON bodies.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use lazaret_api::{Code, Problem};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::Instant;

use crate::api_error::{ApiError, Result};
use crate::app::App;

/// How much of a body that is too large is drained, and for how long.
const DRAIN_BYTES: usize = 256 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The single path parameter, percent-decoded.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let found = Path::<String>::from_request_parts(parts, app).await;
        found.map(|Path(name)| Self(name)).map_err(|error| ApiError::invalid("path", error.body_text()))
    }
}

/// The query parameters. Unknown ones are rejected, so that a typo does not select everything.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self> {
        let text = parts.uri.query().unwrap_or_default();
        // Invalid UTF-8 would be replaced silently and change the query.
        if percent_encoding::percent_decode_str(text).decode_utf8().is_err() {
            return Err(ApiError::invalid("query", "not UTF-8"));
        }
        let parsed = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|query| Self(query.0)).map_err(|error| ApiError::invalid("query", error.body_text()))
    }
}

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Serialize> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let (parts, body) = request.into_parts();
        require_type(&parts.headers, &["application/json"])?;
        let bytes = read(app, &parts.headers, body, app.options.limits.json_bytes).await?;
        let parsed = parse(&bytes).map_err(|error| ApiError::invalid("/", error.to_string()))?;
        refuse_unknown(&bytes, &parsed)?;
        Ok(Self(parsed))
    }
}

/// Parses a JSON body. JSON has one kind of numbers, and JSON Schema counts `5.0` as an integer, so it is read as one where an
/// integer is expected.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes).or_else(|error| {
        let mut value = serde_json::from_slice(bytes)?;
        if !shorten_integers(&mut value) {
            return Err(error);
        }
        serde_json::from_value(value).map_err(|_| error)
    })
}

/// Turns numbers such as `5.0` into `5`. Returns whether there were any.
fn shorten_integers(value: &mut Value) -> bool {
    /// Up to here, every integer has a floating-point number of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64());
            let Some(whole) = float.filter(|float| float.fract() == 0.0 && float.abs() <= EXACT) else {
                return false;
            };
            *value = Value::from(whole as i64);
            true
        }
        // All of them, not only the first.
        Value::Array(values) => {
            values.iter_mut().filter_map(|value| shorten_integers(value).then_some(())).count() > 0
        }
        Value::Object(fields) => {
            fields.values_mut().filter_map(|value| shorten_integers(value).then_some(())).count() > 0
        }
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Rejects unknown fields: a typo must not pause a whole consumer or select every letter. A request has to serialize all that it
/// understands, apart from `None`.
fn refuse_unknown<T: Serialize>(given: &[u8], understood: &T) -> Result<()> {
    let unreadable = |error: serde_json::Error| ApiError::invalid("/", error.to_string());
    let given: BTreeMap<String, Option<IgnoredAny>> = serde_json::from_slice(given).map_err(unreadable)?;
    let understood = serde_json::to_value(understood).map_err(unreadable)?;
    // A null field counts as absent.
    let unknown = given.iter().find(|(name, value)| value.is_some() && understood.get(name).is_none());
    match unknown {
        Some((name, _)) => Err(ApiError::invalid(&format!("/{name}"), format!("unknown field {name:?}"))),
        None => Ok(()),
    }
}

/// Rejects bodies of other media types.
pub(crate) fn require_type(headers: &HeaderMap, types: &[&str]) -> Result<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok()).unwrap_or("none");
    let plain = given.split(';').next().unwrap_or_default().trim();
    if types.iter().any(|fits| plain.eq_ignore_ascii_case(fits)) {
        return Ok(());
    }
    let detail = format!("content type {given}, expected {}", types.join(" or "));
    Err(ApiError::new(Code::UnsupportedMediaType, detail))
}

/// The `Content-Length`.
pub(crate) fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

/// Rejects compressed bodies: they would be taken for their contents.
pub(crate) fn refuse_encoded(headers: &HeaderMap) -> Result<()> {
    let given = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut encodings = given.filter(|given| !given.as_bytes().eq_ignore_ascii_case(b"identity"));
    let Some(encoding) = encodings.next() else { return Ok(()) };
    let detail = format!("content encoding {encoding:?} is not supported: send the body as it is");
    Err(ApiError::new(Code::UnsupportedMediaType, detail))
}

/// Reads the whole body up to a limit. A larger `Content-Length` is rejected without buffering, and so is a body that arrives
/// too slowly.
pub(crate) async fn read(app: &App, headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes> {
    let limits = &app.options.limits;
    let started = Instant::now();
    let deadline = |bytes: usize| {
        let seconds = bytes as f64 / f64::from(limits.body_bytes_per_second.max(1));
        started + limits.header_timeout + Duration::from_secs_f64(seconds)
    };
    let mut kept = BytesMut::new();
    let too_large = || Problem::new(Code::TooLarge).with_detail(format!("the limit is {limit} bytes"));
    let mut fits = announced(headers).is_none_or(|length| length <= limit);
    // A client that asks first is told before it sends anything: the first read would invite it.
    if !fits && awaits_continue(headers) {
        return Err(too_large().into());
    }
    while fits {
        let Ok(next) = tokio::time::timeout_at(deadline(kept.len()), body.frame()).await else {
            return Err(ApiError::new(Code::TimedOut, "the body arrives too slowly"));
        };
        let Some(frame) = next else { return Ok(kept.freeze()) };
        let failed = |error| ApiError::new(Code::InvalidRequest, format!("cannot read the body: {error}"));
        if let Ok(data) = frame.map_err(failed)?.into_data() {
            fits = kept.len() + data.len() <= limit;
            // A body that is in memory already is not copied.
            if fits && kept.is_empty() && body.is_end_stream() {
                return Ok(data);
            }
            kept.extend_from_slice(if fits { &data } else { &[] });
        }
    }
    // A client that is still sending would otherwise see a broken connection instead of the response.
    let _ = tokio::time::timeout(DRAIN_TIME, drain(body)).await;
    Err(too_large().into())
}

/// Returns `true` if the client sends its body only when the server asks for it.
fn awaits_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Reads the form of somebody who is not known: a few kilobytes, in a short time. Nothing beyond is read.
pub(crate) async fn read_anonymous_form(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes> {
    let limits = &app.options.limits;
    let limit = limits.anonymous_form_bytes;
    let too_large = || {
        let detail = format!("the limit is {limit} bytes for those who are not signed in");
        ApiError::new(Code::TooLarge, detail)
    };
    if announced(headers).is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let receiving = Limited::new(body, limit).collect();
    match tokio::time::timeout(limits.anonymous_form_timeout, receiving).await {
        Err(_) => Err(ApiError::new(Code::TimedOut, "the form arrives too slowly")),
        Ok(Ok(form)) => Ok(form.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::new(Code::InvalidRequest, format!("cannot read the body: {error}"))),
    }
}

/// Discards the rest of a body, up to a limit.
async fn drain(mut body: Body) {
    let mut seen = 0;
    while let Some(Ok(frame)) = body.frame().await {
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > DRAIN_BYTES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Body {
        ramp: Vec<u32>,
        share: Option<f64>,
    }

    fn read(text: &str) -> Option<Body> {
        parse(text.as_bytes()).ok()
    }

    #[test]
    fn integers_with_a_decimal_point_are_integers() {
        let expected = Body { ramp: vec![1, 25, 100], share: Some(1.0) };
        assert_eq!(read(r#"{"ramp": [1.0, 25, 1e2], "share": 1.0}"#), Some(expected));
    }

    #[test]
    fn other_numbers_are_refused_where_an_integer_is_expected() {
        for number in ["1.5", "-1.0", "1e10", "1e300", "\"1.0\"", "null"] {
            assert_eq!(read(&format!(r#"{{"ramp": [{number}]}}"#)), None, "{number}");
        }
    }
}
