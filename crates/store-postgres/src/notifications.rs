//! `LISTEN` and `NOTIFY`: what one process changes is told to the others, on one connection of its own.
//!
//! A notification is sent after the transaction that it speaks of, not in it: `NOTIFY` makes the commits of a whole database wait for
//! each other. So it is lost if the process dies in between, and others find the change when they look by themselves.
//! Topics that are published while one statement is on its way are sent together by the next one.
//!
//! A server that is frozen, or behind something that keeps the connection and forwards nothing, sends no notification and no error. So a
//! connection without traffic is asked from time to time, and one that does not respond is replaced.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::poll_fn;
use lazaret_core::store::{ChangeFeed, Changes, ErrorKind, Result, StoreError, Topic};
use lazaret_core::{ConsumerName, QueueName};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Error};

use crate::connector::driver_error;
use crate::hosts;
use crate::tls::Tls;
use crate::values::{key_of, text, untext};

/// The shortest time between two statements that notify. It bounds the load of a process that changes much.
const INTERVAL: Duration = Duration::from_millis(20);
/// The delays between attempts to connect.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// With more topics than this, all others look at everything (I7).
const MAX_TOPICS: usize = 512;
/// Payloads end at 8,000 bytes; a longer name is replaced by [`EVERYTHING`].
const PAYLOAD_BYTES: usize = 7_900;
/// The payload that concerns all topics.
const EVERYTHING: &str = "*";

/// The name of what fails, in errors.
const LISTEN: &str = "listen";
const NOTIFY: &str = "SELECT pg_notify($1, topic) FROM unnest($2::text[]) AS topic";

/// The notifications of a store. The connection is made when they are first used.
pub(crate) struct Notifications {
    shared: Arc<Shared>,
    task: OnceLock<JoinHandle<()>>,
}

struct Shared {
    config: Config,
    tls: Tls,
    channel: String,
    /// How long the server may take to respond. A connection without traffic is asked after the same time.
    timeout: Duration,
    feed: ChangeFeed,
    pending: Mutex<Pending>,
    wake: Notify,
}

/// What is to be sent.
#[derive(Default)]
struct Pending {
    topics: BTreeSet<Topic>,
    everything: bool,
}

impl Pending {
    fn add(&mut self, topic: Topic) {
        if self.topics.len() < MAX_TOPICS {
            self.topics.insert(topic);
        } else {
            self.everything |= !self.topics.contains(&topic);
        }
    }

    fn is_empty(&self) -> bool {
        self.topics.is_empty() && !self.everything
    }

    fn payloads(&self) -> Vec<String> {
        match self.everything {
            true => vec![EVERYTHING.to_owned()],
            false => self.topics.iter().map(payload).collect(),
        }
    }
}

impl Notifications {
    /// For a connection like those of the pool. One to a server that does not respond for this time is replaced.
    pub(crate) fn new(mut config: Config, tls: Tls, schema: &str, timeout: Duration) -> Self {
        // A notification need not survive a crash of the server.
        let session = config.get_options().unwrap_or_default().to_owned() + " -c synchronous_commit=off";
        config.options(session);
        let channel = format!("lazaret_{}", key_of(&["lazaret channel", schema]).simple());
        let (pending, wake) = (Mutex::default(), Notify::new());
        let feed = ChangeFeed::default();
        let shared = Shared { config, tls, channel, timeout, feed, pending, wake };
        Self { shared: Arc::new(shared), task: OnceLock::new() }
    }

    fn start(&self) {
        self.task.get_or_init(|| tokio::spawn(run(self.shared.clone())));
    }

    /// Subscribes to changes of this process and of others.
    pub(crate) fn subscribe(&self, topics: Vec<Topic>) -> Changes {
        self.start();
        self.shared.feed.subscribe(topics)
    }

    /// Tells this process and the others about a change.
    pub(crate) fn publish(&self, topic: Topic) {
        self.shared.feed.publish(&topic);
        self.publish_to_others(topic);
    }

    /// Tells the other processes about a change.
    pub(crate) fn publish_to_others(&self, topic: Topic) {
        self.start();
        self.shared.pending().add(topic);
        self.shared.wake.notify_one();
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a response of the server.
    async fn response<T>(&self, asked: impl Future<Output = std::result::Result<T, Error>>) -> Result<T> {
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(response) => response.map_err(|error| driver_error(error, LISTEN)),
            Err(_) => {
                let context = format!("no response within {:?}", self.timeout);
                Err(StoreError::not_done(ErrorKind::Unavailable, LISTEN, context))
            }
        }
    }

    fn receive(&self, payload: &str) {
        match topic(payload) {
            Some(topic) => self.feed.publish(&topic),
            // Of everything, or of a newer version: look at everything.
            None => self.feed.publish_all(),
        }
    }
}

/// Connects, and connects again when the connection is lost.
async fn run(shared: Arc<Shared>) {
    let mut delay = FIRST_DELAY;
    loop {
        if let Err(error) = connected(&shared, &mut delay).await {
            tracing::debug!(%error, ?delay, "connection for notifications lost");
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

/// Listens and notifies until the connection is lost, or the server does not respond.
async fn connected(shared: &Arc<Shared>, delay: &mut Duration) -> Result<()> {
    let (client, mut connection) = shared.response(hosts::connect(&shared.config, &shared.tls)).await?;
    let own = Arc::new(OnceLock::new());
    let (receiver, own_pid) = (shared.clone(), own.clone());
    let driving = async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message.map_err(|error| driver_error(error, LISTEN))? {
                // What this process has sent it has published before.
                AsyncMessage::Notification(sent) if own_pid.get() != Some(&sent.process_id()) => {
                    receiver.receive(sent.payload());
                }
                _ => {}
            }
        }
        Ok(())
    };
    // Ends the connection when this is dropped.
    tokio::select! {
        ended = driving => ended,
        ended = notify(shared, &client, &own, delay) => ended,
    }
}

/// Listens, then sends what is published.
async fn notify(shared: &Shared, client: &Client, own: &OnceLock<i32>, delay: &mut Duration) -> Result<()> {
    let pid = shared.response(client.query_one("SELECT pg_backend_pid()", &[])).await?;
    own.get_or_init(|| pid.get(0));
    shared.response(client.batch_execute(&format!("LISTEN {}", shared.channel))).await?;
    let statement = shared.response(client.prepare(NOTIFY)).await?;
    *delay = FIRST_DELAY;
    tracing::debug!(channel = shared.channel, "listening for notifications");
    // What was sent before was not heard.
    shared.feed.publish_all();
    loop {
        let pending = std::mem::take(&mut *shared.pending());
        if pending.is_empty() {
            if tokio::time::timeout(shared.timeout, shared.wake.notified()).await.is_err() {
                shared.response(client.batch_execute("")).await?;
            }
            continue;
        }
        let payloads = pending.payloads();
        let sent = shared.response(client.query(&statement, &[&shared.channel, &payloads])).await;
        if let Err(error) = sent {
            let mut again = shared.pending();
            again.everything |= pending.everything;
            pending.topics.into_iter().for_each(|topic| again.add(topic));
            return Err(error);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A topic as payload: a letter and a name.
fn payload(topic: &Topic) -> String {
    let written = match topic {
        Topic::Due(queue) => format!("d{}", text(queue.as_str())),
        Topic::Pauses(consumer) => format!("p{}", text(consumer.as_str())),
        Topic::Operations => "o".to_owned(),
        Topic::Inbox(consumer) => format!("i{}", text(consumer.as_str())),
        _ => EVERYTHING.to_owned(),
    };
    if written.len() > PAYLOAD_BYTES { EVERYTHING.to_owned() } else { written }
}

/// The topic of a payload; `None` if it is not one of those that this version knows.
fn topic(payload: &str) -> Option<Topic> {
    let mut characters = payload.chars();
    let kind = characters.next()?;
    let name = untext(characters.as_str().to_owned());
    match (kind, name.is_empty()) {
        ('d', false) => Some(Topic::Due(QueueName::from(name))),
        ('p', false) => Some(Topic::Pauses(ConsumerName::from(name))),
        ('i', false) => Some(Topic::Inbox(ConsumerName::from(name))),
        ('o', true) => Some(Topic::Operations),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_survives_its_payload() {
        let names = ["orders", "a/b", "with \\ and \0", "é"];
        let topics = names.into_iter().flat_map(|name| {
            [Topic::Due(QueueName::from(name)), Topic::Pauses(name.into()), Topic::Inbox(name.into())]
        });
        for expected in topics.chain([Topic::Operations]) {
            let sent = payload(&expected);
            assert!(!sent.contains('\0'));
            assert_eq!(topic(&sent), Some(expected));
        }
        for unknown in [EVERYTHING, "", "z9", "d", "ox"] {
            assert_eq!(topic(unknown), None, "{unknown}");
        }
        assert_eq!(payload(&Topic::Due(QueueName::from("x".repeat(9_000)))), EVERYTHING);
    }

    #[test]
    fn topics_are_coalesced_and_bounded() {
        let mut pending = Pending::default();
        assert!(pending.is_empty());
        for _ in 0..3 {
            pending.add(Topic::Operations);
        }
        assert_eq!(pending.payloads(), ["o"]);
        for number in 0..2 * MAX_TOPICS {
            pending.add(Topic::Pauses(number.to_string().into()));
        }
        assert_eq!(pending.payloads(), [EVERYTHING]);
    }
}
