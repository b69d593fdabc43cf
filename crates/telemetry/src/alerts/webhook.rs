//! Sends notices to one webhook, in order, patiently and signed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Clock;
use metrics::Counter;
use reqwest::{Client, StatusCode, Url};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::notice::Notice;
use super::{rules, signature};
use crate::client::{client, why};
use crate::error::Error;

/// How many notices wait for one webhook at most (I7).
const WAITING_LIMIT: usize = 256;
/// How often one notice is sent at most.
const ATTEMPTS: u32 = 8;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// How long what waits may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A URL that gets a POST for each notice.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Where to send it.
    pub url: String,
    /// What signs requests; without it they are not signed.
    pub secret: Option<String>,
    /// Which events are sent.
    pub events: Vec<String>,
    /// How long the receiver may take.
    pub timeout: Duration,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor the URL, which may hold one.
        f.debug_struct("Webhook").field("events", &self.events).finish_non_exhaustive()
    }
}

/// The way to one webhook.
pub(super) struct Line {
    events: Vec<String>,
    notices: mpsc::Sender<Arc<Notice>>,
    dropped: Counter,
    number: usize,
}

/// What sends to one webhook.
pub(super) struct Sender {
    client: Client,
    url: Url,
    secret: Option<String>,
    notices: mpsc::Receiver<Arc<Notice>>,
    dropped: Counter,
    number: usize,
    clock: Arc<dyn Clock>,
}

/// Opens the way to a webhook; `number` is its place in the configuration, from 1.
pub(super) fn open(
    webhook: &Webhook,
    number: usize,
    dropped: Counter,
    clock: Arc<dyn Clock>,
) -> Result<(Line, Sender), Error> {
    let wrong = |why: String| Error::Webhook { number, why };
    if let Some(unknown) = webhook.events.iter().find(|event| rules::rule(event).is_none()) {
        return Err(wrong(format!("there is no event {unknown:?}")));
    }
    let url = Url::parse(&webhook.url).map_err(|error| wrong(error.to_string()))?;
    let (sender, notices) = mpsc::channel(WAITING_LIMIT);
    let line = Line { events: webhook.events.clone(), notices: sender, dropped: dropped.clone(), number };
    let client = client(&webhook.url, webhook.timeout)?;
    Ok((line, Sender { client, url, secret: webhook.secret.clone(), notices, dropped, number, clock }))
}

impl Line {
    /// Sends a notice if the webhook wants it. One that finds no room is dropped and counted: nobody waits (I10).
    pub(super) fn tell(&self, notice: &Arc<Notice>) {
        if !self.events.iter().any(|event| event == notice.event) {
            return;
        }
        if self.notices.try_send(notice.clone()).is_err() {
            self.dropped.increment(1);
            tracing::warn!(
                webhook = self.number,
                event = notice.event,
                "too many notices wait; one is dropped"
            );
        }
    }
}

/// How one try went.
enum Answer {
    Taken,
    Refused(String),
    Later(String),
}

impl Sender {
    /// Sends until nobody tells any more, or until a while after `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let overtime = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::pin!(overtime);
        loop {
            let notice = tokio::select! {
                biased;
                () = &mut overtime => return,
                notice = self.notices.recv() => notice,
            };
            let Some(notice) = notice else { return };
            tokio::select! {
                biased;
                () = self.deliver(&notice) => {}
                () = &mut overtime => {
                    tracing::warn!(webhook = self.number, event = notice.event, "not sent before the end");
                    return;
                }
            }
        }
    }

    async fn deliver(&self, notice: &Notice) {
        let Ok(body) = serde_json::to_vec(notice) else { return };
        let mut delay = FIRST_DELAY;
        for attempt in 1..=ATTEMPTS {
            let why = match self.post(notice, body.clone()).await {
                Answer::Taken => return,
                Answer::Refused(why) => {
                    self.gave_up(notice, &why);
                    return;
                }
                Answer::Later(why) => why,
            };
            if attempt == ATTEMPTS {
                self.gave_up(notice, &why);
                return;
            }
            tracing::debug!(
                webhook = self.number,
                event = notice.event,
                attempt,
                why,
                "not taken; it is sent again"
            );
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(LONGEST_DELAY);
        }
    }

    fn gave_up(&self, notice: &Notice, why: &str) {
        self.dropped.increment(1);
        tracing::error!(
            webhook = self.number,
            event = notice.event,
            why,
            "the webhook did not take a notice"
        );
    }

    async fn post(&self, notice: &Notice, body: Vec<u8>) -> Answer {
        let mut request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("user-agent", concat!("lazaret/", env!("CARGO_PKG_VERSION")))
            .header("lazaret-event", notice.event)
            .header("lazaret-delivery", &notice.id);
        if let Some(secret) = &self.secret {
            let seconds = self.clock.now().as_second();
            request = request.header(signature::HEADER, signature::sign(secret.as_bytes(), seconds, &body));
        }
        match request.body(body).send().await {
            Ok(answer) if answer.status().is_success() => Answer::Taken,
            Ok(answer) => {
                let status = answer.status();
                let again = status.is_server_error()
                    || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
                let text = status.as_str().to_owned();
                if again { Answer::Later(text) } else { Answer::Refused(text) }
            }
            Err(error) => Answer::Later(why(error)),
        }
    }
}
