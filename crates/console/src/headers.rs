//! The response headers of pages, which restrict what a browser loads and runs.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

/// The policy: only files of the console, no inline script or style, no frames, and no text that becomes
/// markup in a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'";

/// Adds the headers of pages to every response.
pub(crate) async fn secure(request: Request, next: Next) -> Response {
    secured(next.run(request).await)
}

/// Adds the headers of pages. The server itself adds the headers of all responses.
pub(crate) fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
    headers.entry("cross-origin-opener-policy").or_insert(HeaderValue::from_static("same-origin"));
    response
}
