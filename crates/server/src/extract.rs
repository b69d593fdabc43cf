//! Extractors: path and query parameters, and JSON bodies.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use lazaret_api::{Code, Problem};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
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
        let parsed =
            serde_json::from_slice(&bytes).map_err(|error| ApiError::invalid("/", error.to_string()))?;
        refuse_unknown(&bytes, &parsed)?;
        Ok(Self(parsed))
    }
}

/// Rejects unknown fields: a typo must not pause a whole consumer or select every letter.
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
    let mut fits = announced(headers).is_none_or(|length| length <= limit);
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
    Err(Problem::new(Code::TooLarge).with_detail(format!("the limit is {limit} bytes")).into())
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
