//! Requests topic metadata from the brokers.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::time::Instant;

use crate::error::{config_error, is_unknown_topic};
use crate::options::{KafkaOptions, TopicNotice};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval between metadata requests for a topic that does not exist yet.
pub(crate) const TOPIC_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Creates a client for metadata requests. It is a consumer, because a producer's request may create the
/// topic.
pub(crate) fn metadata_client(config: &ClientConfig) -> Result<Arc<BaseConsumer>, SourceError> {
    config.create().map(Arc::new).map_err(config_error)
}

/// Returns the number of partitions of a topic.
pub(crate) async fn partition_count(client: &Arc<BaseConsumer>, topic: &str) -> Result<i32, KafkaError> {
    let (client, topic) = (client.clone(), topic.to_owned());
    let request = move || {
        let metadata = client.fetch_metadata(Some(&topic), REQUEST_TIMEOUT)?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Err(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition));
        };
        match found.error() {
            Some(error) => Err(KafkaError::MetadataFetch(error.into())),
            None => Ok(found.partitions().len() as i32),
        }
    };
    tokio::task::spawn_blocking(request).await.unwrap_or(Err(KafkaError::Canceled))
}

/// A bounded wait for topics that do not exist yet. Not every broker knows a newly created topic.
pub(crate) struct TopicWait {
    timeout: Duration,
    until: Instant,
    notice: TopicNotice,
    /// The last topic that was reported.
    reported: Option<String>,
}

impl TopicWait {
    /// Starts the wait. All topics share the same deadline.
    pub(crate) fn new(options: &KafkaOptions) -> Self {
        let (timeout, notice) = (options.topic_timeout, options.topic_notice.clone());
        Self { timeout, until: Instant::now() + timeout, notice, reported: None }
    }

    /// Pauses before the request for an unknown topic is repeated. Returns `false` when the time is over.
    pub(crate) async fn pause(&mut self, topic: &str) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        if self.reported.as_deref() != Some(topic) {
            self.notice.send(&waiting_for(&[topic.to_owned()], self.timeout));
            self.reported = Some(topic.to_owned());
        }
        tokio::time::sleep(TOPIC_POLL_INTERVAL).await;
        true
    }

    /// Returns the number of partitions of a topic as soon as it exists.
    pub(crate) async fn partition_count(
        &mut self,
        client: &Arc<BaseConsumer>,
        topic: &str,
    ) -> Result<i32, KafkaError> {
        loop {
            match partition_count(client, topic).await {
                Err(error) if is_unknown_topic(&error) && self.pause(topic).await => {}
                result => return result,
            }
        }
    }
}

/// Describes a wait for topics.
pub(crate) fn waiting_for(topics: &[String], timeout: Duration) -> String {
    let (is_are, them) = if topics.len() == 1 { ("topic", "it") } else { ("topics", "them") };
    format!(
        "the brokers do not know the {is_are} {} yet; waiting up to {timeout:?} for {them}",
        topics.join(", ")
    )
}
