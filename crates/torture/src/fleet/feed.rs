//! The sender: publishes the messages of the plan, in order, and knows when all of them were consumed.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::source::{Ingest, NewMessage};
use lazaret_kafka_testkit::Topic;
use lazaret_store_postgres::{InboxLog, PostgresStore};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;
use tokio::task::JoinSet;

use super::worker::{ID_HEADER, inbox_options};
use super::{DEADLINE, Stream};
use crate::plan::{CONSUMER, PARTITIONS, Plan, message_id};

/// The number of messages that are posted together.
const BATCH: usize = 50;
/// How long to wait before a post is repeated.
const AGAIN: Duration = Duration::from_millis(50);

/// Where messages are published.
pub(super) enum Feed {
    Kafka(Arc<Topic>),
    Inbox(InboxLog),
}

impl Feed {
    /// The inbox, or a new topic at these brokers.
    pub(super) async fn open(brokers: Option<&str>, store: &PostgresStore) -> Self {
        match brokers {
            Some(brokers) => {
                Self::Kafka(Arc::new(Topic::new(brokers.to_owned(), PARTITIONS.cast_signed()).await))
            }
            None => Self::Inbox(store.inbox_log(CONSUMER, inbox_options("sender"))),
        }
    }

    /// Where the processes read them.
    pub(super) fn stream(&self) -> Stream {
        match self {
            Self::Kafka(topic) => Stream::Kafka { brokers: topic.brokers.clone(), topic: topic.name.clone() },
            Self::Inbox(_) => Stream::Inbox,
        }
    }

    /// The number of partitions over which the keys are spread.
    pub(super) fn partitions(&self) -> u32 {
        match self {
            Self::Kafka(_) => PARTITIONS,
            Self::Inbox(_) => 1,
        }
    }

    /// Publishes some messages.
    pub(super) async fn publish(&self, plan: Plan, numbers: Range<u64>) -> Result<(), String> {
        match self {
            Self::Kafka(topic) => {
                let mut sending = JoinSet::new();
                for partition in 0..PARTITIONS {
                    sending.spawn(send_in(partition, topic.clone(), plan, numbers.clone()));
                }
                while let Some(sent) = sending.join_next().await {
                    sent.map_err(|error| format!("failed to send: {error}"))?;
                }
                Ok(())
            }
            Self::Inbox(inbox) => {
                let numbers: Vec<u64> = numbers.collect();
                for numbers in numbers.chunks(BATCH) {
                    post(inbox, plan, numbers).await?;
                }
                Ok(())
            }
        }
    }

    /// Returns `true` when the positions of all messages are committed.
    pub(super) async fn is_consumed(&self) -> Result<bool, String> {
        match self {
            Self::Kafka(topic) => {
                let topic = topic.clone();
                let ask = move || {
                    let is_consumed = |partition| match (topic.committed(partition), topic.end(partition)) {
                        (_, 0) => true,
                        (committed, end) => committed.is_some_and(|(offset, _)| offset == end),
                    };
                    (0..PARTITIONS.cast_signed()).all(is_consumed)
                };
                tokio::task::spawn_blocking(ask).await.map_err(|error| error.to_string())
            }
            Self::Inbox(inbox) => {
                let backlog = inbox.backlog().await.map_err(|error| error.to_string())?;
                Ok(backlog.messages == 0)
            }
        }
    }
}

/// Sends the messages of a partition, one after the other.
async fn send_in(partition: u32, topic: Arc<Topic>, plan: Plan, numbers: Range<u64>) {
    for number in numbers.filter(|number| plan.partition(*number) == partition) {
        send(&topic, plan, number).await;
    }
}

async fn send(topic: &Topic, plan: Plan, number: u64) {
    let message = plan.message(number);
    let text = |bytes: &Option<bytes::Bytes>| {
        String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
    };
    let (key, payload, id) = (text(&message.key), text(&message.payload), message.id.to_string());
    let headers = OwnedHeaders::new().insert(Header { key: ID_HEADER, value: Some(&id) });
    let record = FutureRecord::to(&topic.name)
        .partition(plan.partition(number).cast_signed())
        .key(key.as_str())
        .payload(payload.as_str())
        .headers(headers);
    topic.send(record).await;
}

/// Posts until it is known that they were taken: a post that failed may have been, and the ids make it safe to repeat it.
async fn post(inbox: &InboxLog, plan: Plan, numbers: &[u64]) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let new = |number: &u64| {
            let message = plan.message(*number);
            let id = Some(message_id(*number));
            NewMessage { id, key: message.key, payload: message.payload, ..NewMessage::default() }
        };
        match inbox.post(numbers.iter().map(new).collect()).await {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > DEADLINE => return Err(format!("failed to post: {error}")),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}
