//! Takes the exporter's requests, which come from a thread of its own, to the runtime where HTTP is spoken.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::Client;
use tokio::runtime::Handle;

use crate::client::why;
use crate::pace::Pace;

/// Sends the exporter's requests.
pub(super) struct Sender {
    client: Client,
    runtime: Handle,
    pace: Pace,
}

impl Sender {
    pub(super) fn new(client: Client) -> Self {
        Self { client, runtime: Handle::current(), pace: Pace::default() }
    }

    fn failed(&self, why: &str) {
        if let Some(left_out) = self.pace.admit("traces") {
            tracing::warn!(why, left_out, "the collector does not take spans");
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let headers = std::mem::take(answer.headers_mut());
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, headers, answer.bytes().await?))
        });
        let (status, headers, body) = match sent.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let why = why(error);
                self.failed(&why);
                return Err(why.into());
            }
            // The runtime ends.
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
