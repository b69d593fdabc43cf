//! Sends requests to the identity provider with the HTTP client that the rest of Lazaret uses.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use openidconnect::{HttpRequest, HttpResponse};

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response. Documents of providers have a few kilobytes.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

/// The reason why the provider gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("request failed: {0}")]
    Request(#[from] reqwest::Error),
    #[error("response unreadable: {0}")]
    Response(Box<dyn std::error::Error + Send + Sync>),
}

/// Creates the client. It does not follow redirects, because a provider that is tricked into redirecting
/// could reach other machines.
pub(super) fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(TIMEOUT).build()
}

/// Sends one request.
pub(super) async fn send(client: reqwest::Client, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let response = client.execute(request.try_into()?).await?;
    let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(HttpError::Response)?;
    Ok(http::Response::from_parts(parts, body.to_bytes().to_vec()))
}
