//! Topic metadata from the brokers.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::config_error;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Creates a client for metadata requests. It is a consumer: a producer's request may create the topic.
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
