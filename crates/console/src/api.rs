//! Calls the HTTP API in process, as the caller of the page.

use axum::Router;
use axum::body::Body;
use axum::http::{Extensions, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use lazaret_api::{Code, Problem};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

/// The maximum number of response bytes in memory. Pages request parts of larger content.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// The characters that are escaped in path segments and query values.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The result of a call.
pub(crate) type Result<T> = std::result::Result<T, Box<Problem>>;

/// The API for one request of a page.
#[derive(Clone)]
pub(crate) struct Api {
    router: Router,
    /// The extensions of the page's request, in which the server keeps its caller.
    extensions: Extensions,
}

impl Api {
    pub(crate) fn new(router: Router, extensions: Extensions) -> Self {
        Self { router, extensions }
    }

    /// Reads a resource.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let response = self.send(Method::GET, path, Body::empty(), &[]).await?;
        parse(&read(response).await?)
    }

    /// Makes a change.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        parse(&self.change_with(method, path, body, &[]).await?)
    }

    /// Makes a change with headers. Returns the body of the response.
    pub(crate) async fn change_with(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Bytes> {
        let body = serde_json::to_vec(body).map_err(|error| internal(&error))?;
        read(self.send(method, path, Body::from(body), headers).await?).await
    }

    /// Sends a request. An unsuccessful response becomes a problem.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Response> {
        let json = HeaderValue::from_static("application/json");
        let mut request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, json);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut request = request.body(body).map_err(|error| internal(&error))?;
        *request.extensions_mut() = self.extensions.clone();
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = read(response).await?;
        Err(serde_json::from_slice(&body).unwrap_or_else(|_| Box::new(unreadable(status))))
    }
}

async fn read(response: Response) -> Result<Bytes> {
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
    Ok(body.map_err(|error| internal(&error))?.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| internal(&error))
}

fn internal(error: &dyn std::fmt::Display) -> Box<Problem> {
    Box::new(Problem::new(Code::Internal).with_detail(error.to_string()))
}

/// Returns the problem for a failed response that contains none.
fn unreadable(status: StatusCode) -> Problem {
    Problem::new(Code::Internal).with_detail(format!("the API answered {status}"))
}

/// Escapes a path segment or a query value.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Builds a path with a query of the values that are present.
pub(crate) fn with_query(path: &str, values: &[(&str, Option<&str>)]) -> String {
    let mut written = path.to_owned();
    for (name, value) in values {
        let Some(value) = value else { continue };
        written.push(if written.contains('?') { '&' } else { '?' });
        written.push_str(name);
        written.push('=');
        written.push_str(&escape(value));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_cannot_add_others() {
        let path = with_query(
            "/v1/letters",
            &[("q", Some("a&limit=1 #x/é")), ("after", None), ("limit", Some("5"))],
        );
        assert_eq!(path, "/v1/letters?q=a%26limit%3D1%20%23x%2F%C3%A9&limit=5");
    }
}
