//! What a request says, checked: parameters of the path and the query, and bodies of JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use lazaret_api::{Code, Problem};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::app::App;
use crate::fault::{Fault, Result};

/// How much of a body that is too large is read all the same, and for how long.
const DRAIN_BYTES: usize = 256 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The one parameter of a path, percent-decoded.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let found = Path::<String>::from_request_parts(parts, app).await;
        found.map(|Path(name)| Self(name)).map_err(|wrong| Fault::invalid("path", wrong.body_text()))
    }
}

/// The parameters of a query. Those that nobody knows are refused, so that a typing mistake is not taken for everything.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self> {
        let text = parts.uri.query().unwrap_or_default();
        // What is not UTF-8 would be replaced silently, and something else would be looked for.
        if percent_encoding::percent_decode_str(text).decode_utf8().is_err() {
            return Err(Fault::invalid("query", "the parameters are not UTF-8"));
        }
        let parsed = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|query| Self(query.0)).map_err(|wrong| Fault::invalid("query", wrong.body_text()))
    }
}

/// A body of JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Serialize> FromRequest<App> for Json<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let (parts, body) = request.into_parts();
        require_type(&parts.headers, &["application/json"])?;
        let bytes = read(&parts.headers, body, app.options.limits.json_bytes).await?;
        let parsed =
            serde_json::from_slice(&bytes).map_err(|error| Fault::invalid("/", error.to_string()))?;
        refuse_unknown(&bytes, &parsed)?;
        Ok(Self(parsed))
    }
}

/// Refuses fields that nobody knows: a typing mistake must not pause a whole consumer or select every letter.
fn refuse_unknown<T: Serialize>(given: &[u8], understood: &T) -> Result<()> {
    let unreadable = |error: serde_json::Error| Fault::invalid("/", error.to_string());
    let given: BTreeMap<String, Option<IgnoredAny>> = serde_json::from_slice(given).map_err(unreadable)?;
    let understood = serde_json::to_value(understood).map_err(unreadable)?;
    // What is null is as good as not said.
    let unknown = given.iter().find(|(name, value)| value.is_some() && understood.get(name).is_none());
    match unknown {
        Some((name, _)) => Err(Fault::invalid(&format!("/{name}"), format!("there is no field {name:?}"))),
        None => Ok(()),
    }
}

/// Refuses a body of another type than these.
pub(crate) fn require_type(headers: &HeaderMap, types: &[&str]) -> Result<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok()).unwrap_or("none");
    let plain = given.split(';').next().unwrap_or_default().trim();
    if types.iter().any(|fits| plain.eq_ignore_ascii_case(fits)) {
        return Ok(());
    }
    let detail = format!("the content type is {given}, expected {}", types.join(" or "));
    Err(Fault::new(Code::UnsupportedMediaType, detail))
}

/// The whole body, if it is not larger than this. One that says so itself is not kept at all.
pub(crate) async fn read(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut kept = BytesMut::new();
    let mut fits = announced.is_none_or(|length: u64| length <= limit as u64);
    while fits && let Some(frame) = body.frame().await {
        let unread = |error| Fault::new(Code::InvalidRequest, format!("the body could not be read: {error}"));
        if let Some(data) = frame.map_err(unread)?.data_ref() {
            fits = kept.len() + data.len() <= limit;
            kept.extend_from_slice(if fits { data } else { &[] });
        }
    }
    if fits {
        return Ok(kept.freeze());
    }
    // Who is still sending would otherwise see a broken connection instead of the answer.
    let _ = tokio::time::timeout(DRAIN_TIME, drain(body)).await;
    Err(Problem::new(Code::TooLarge).with_detail(format!("the limit is {limit} bytes")).into())
}

/// Throws away what is left of a body, up to a limit.
async fn drain(mut body: Body) {
    let mut seen = 0;
    while let Some(Ok(frame)) = body.frame().await {
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > DRAIN_BYTES {
            return;
        }
    }
}
