//! The HTTP client of the OTLP exporter: it moves requests from the exporter's thread to the tokio runtime.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::Client;
use tokio::runtime::Handle;

use crate::client::error_text;
use crate::log_throttle::{LineKind, LogThrottle};

/// Sends the exporter's requests on a tokio runtime.
pub(super) struct RuntimeClient {
    client: Client,
    runtime: Handle,
    throttle: LogThrottle,
}

impl RuntimeClient {
    pub(super) fn new(client: Client) -> Self {
        Self { client, runtime: Handle::current(), throttle: LogThrottle::default() }
    }

    fn failed(&self, error: &str) {
        if let Some(suppressed) = self.throttle.admit(LineKind::Export) {
            tracing::warn!(error, suppressed, "span export failed");
        }
    }
}

impl fmt::Debug for RuntimeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuntimeClient")
    }
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let mut response = client.execute(request.try_into()?).await?;
            let headers = std::mem::take(response.headers_mut());
            let status = response.status();
            Ok::<_, reqwest::Error>((status, headers, response.bytes().await?))
        });
        let (status, headers, body) = match sent.await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let error = error_text(error);
                self.failed(&error);
                return Err(error.into());
            }
            // The runtime shuts down.
            Err(error) => return Err(Box::new(error)),
        };
        if !status.is_success() {
            self.failed(status.as_str());
        }
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
