//! Delivers notices to one webhook: in order, signed, with retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use lazaret_core::Clock;
use metrics::Counter;
use reqwest::{Client, StatusCode, Url};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::notice::Notice;
use super::{rules, signature};
use crate::client::{client, error_text};
use crate::error::Error;

/// The maximum number of queued notices per webhook (I7).
const QUEUE_LIMIT: usize = 256;
/// The maximum number of retries per notice.
const RETRIES: usize = 7;
const INITIAL_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// How long queued notices may take after the service was stopped.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// A URL that receives a POST request per notice.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The receiver.
    pub url: String,
    /// The key that signs requests; `None`: requests are not signed.
    pub secret: Option<String>,
    /// The names of the events to send.
    pub events: Vec<String>,
    /// The timeout of one request.
    pub timeout: Duration,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor the URL, which may contain one.
        f.debug_struct("Webhook").field("events", &self.events).finish_non_exhaustive()
    }
}

/// The queue of notices for one webhook.
pub(super) struct NoticeQueue {
    events: Vec<String>,
    notices: mpsc::Sender<Arc<Notice>>,
    dropped: Counter,
    number: usize,
}

/// Sends the notices of one queue.
pub(super) struct Sender {
    client: Client,
    url: Url,
    secret: Option<String>,
    notices: mpsc::Receiver<Arc<Notice>>,
    dropped: Counter,
    number: usize,
    clock: Arc<dyn Clock>,
}

/// Creates the queue and the sender of a webhook; `number` is its 1-based position in the configuration.
pub(super) fn open(
    webhook: &Webhook,
    number: usize,
    dropped: Counter,
    clock: Arc<dyn Clock>,
) -> Result<(NoticeQueue, Sender), Error> {
    let invalid = |error: String| Error::Webhook { number, error };
    if let Some(unknown) = webhook.events.iter().find(|event| rules::rule(event).is_none()) {
        return Err(invalid(format!("unknown event {unknown:?}")));
    }
    let url = Url::parse(&webhook.url).map_err(|error| invalid(error.to_string()))?;
    let (sender, notices) = mpsc::channel(QUEUE_LIMIT);
    let queue =
        NoticeQueue { events: webhook.events.clone(), notices: sender, dropped: dropped.clone(), number };
    let client = client(&webhook.url, webhook.timeout)?;
    Ok((queue, Sender { client, url, secret: webhook.secret.clone(), notices, dropped, number, clock }))
}

impl NoticeQueue {
    /// Queues a notice if the webhook subscribes to its event. When the queue is full the notice is dropped and counted: the
    /// caller never waits (I10).
    pub(super) fn push(&self, notice: &Arc<Notice>) {
        let event = notice.event.as_str();
        if !self.events.iter().any(|subscribed| subscribed == event) {
            return;
        }
        if self.notices.try_send(notice.clone()).is_err() {
            self.dropped.increment(1);
            tracing::warn!(webhook = self.number, event, "notice dropped, queue full");
        }
    }
}

/// Why one request failed.
enum PostError {
    /// Worth a retry.
    Temporary(String),
    Permanent(String),
}

impl PostError {
    const fn is_temporary(&self) -> bool {
        matches!(self, Self::Temporary(_))
    }

    fn text(&self) -> &str {
        let (Self::Temporary(text) | Self::Permanent(text)) = self;
        text
    }
}

impl Sender {
    /// Sends notices until the queue is closed, or until the grace period after `stop` has passed.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let deadline = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE_PERIOD).await;
        };
        tokio::pin!(deadline);
        loop {
            let notice = tokio::select! {
                biased;
                () = &mut deadline => return,
                notice = self.notices.recv() => notice,
            };
            let Some(notice) = notice else { return };
            tokio::select! {
                biased;
                () = self.deliver(&notice) => {}
                () = &mut deadline => {
                    tracing::warn!(webhook = self.number, event = %notice.event, "notice not delivered before shutdown");
                    return;
                }
            }
        }
    }

    async fn deliver(&self, notice: &Notice) {
        let Ok(body) = serde_json::to_vec(notice) else { return };
        let delivered = (|| self.post(notice, body.clone()))
            .retry(backoff())
            .when(PostError::is_temporary)
            .notify(|error: &PostError, delay| {
                tracing::debug!(
                    webhook = self.number, event = %notice.event, error = error.text(), ?delay,
                    "notice delivery failed, retry scheduled"
                );
            })
            .await;
        if let Err(error) = delivered {
            self.dropped.increment(1);
            let error = error.text();
            tracing::error!(webhook = self.number, event = %notice.event, error, "notice delivery failed");
        }
    }

    async fn post(&self, notice: &Notice, body: Vec<u8>) -> Result<(), PostError> {
        let mut request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("user-agent", concat!("lazaret/", env!("CARGO_PKG_VERSION")))
            .header("lazaret-event", notice.event.as_str())
            .header("lazaret-delivery", &notice.id);
        if let Some(secret) = &self.secret {
            let seconds = self.clock.now().as_second();
            request = request.header(signature::HEADER, signature::sign(secret.as_bytes(), seconds, &body));
        }
        let response = request.body(body).send().await;
        let status = response.map_err(|error| PostError::Temporary(error_text(error)))?.status();
        let is_temporary = status.is_server_error()
            || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
        match status {
            _ if status.is_success() => Ok(()),
            _ if is_temporary => Err(PostError::Temporary(status.as_str().to_owned())),
            _ => Err(PostError::Permanent(status.as_str().to_owned())),
        }
    }
}

/// 1 s, 2 s, 4 s … 60 s.
const fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(INITIAL_DELAY)
        .with_max_delay(MAX_DELAY)
        .with_factor(2.0)
        .with_max_times(RETRIES)
}

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder;

    use super::*;

    #[test]
    fn a_notice_is_retried_seven_times_with_doubled_delays_up_to_a_minute() {
        let delays: Vec<u64> = backoff().build().map(|delay| delay.as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60]);
    }
}
